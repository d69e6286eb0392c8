"""Small bugs that a Python module could have: each changes one place of its source.

A mutant is a replacement of one span of the text, so that everything else, comments included, stays
as it is. Messages of errors, docstrings, types and assertions are left alone: no test should pin
them letter by letter.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

_COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_NEGATED = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)  # by the table above
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_CALLED = {"min": "max", "any": "all", "ceil": "floor", "amax": "amin", "minimum": "maximum"}
_CALLED |= {other: name for name, other in _CALLED.items()}
# Without these a class or function is another kind of thing; or the same but for its memory.
_KEPT = ("property", "classmethod", "staticmethod", "dataclass", "manager", "abstract", "no_grad")


@dataclass(frozen=True)
class Mutant:
    """One bug.

    Attributes:
        function: the outermost function around it, and the line where that begins; empty and 0
            for what runs when the module is imported.
        line: where it is.
        before: the text that is replaced.
        after: what comes in its place.
        start: offset of that text in the UTF-8 source.
        identity: the same as long as neither function nor line change, wherever they move to.
    """

    function: str
    begins: int
    line: int
    before: str
    after: str
    start: int
    identity: str

    def applied(self, source: str) -> str:
        data = source.encode()
        end = self.start + len(self.before.encode())
        return (data[: self.start] + self.after.encode() + data[end:]).decode()


def mutants(source: str) -> list[Mutant]:
    """All mutants of a module, in the order of its text."""
    lines = source.encode().splitlines(keepends=True)
    offsets = [0]
    for line in lines:
        offsets.append(offsets[-1] + len(line))
    found: list[Mutant] = []
    seen: dict[str, int] = {}
    for node, after, function, begins in _visit(ast.parse(source), "", 0):
        start = offsets[node.lineno - 1] + node.col_offset
        end = offsets[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        before = source.encode()[start:end].decode()
        text = lines[node.lineno - 1].decode().strip()
        what = f"{function}|{text}|{before}|{after}"
        seen[what] = seen.get(what, 0) + 1
        identity = hashlib.sha256(f"{what}|{seen[what]}".encode()).hexdigest()[:12]
        found.append(Mutant(function, begins, node.lineno, before, after, start, identity))
    return sorted(found, key=lambda m: (m.start, m.after))


Change = tuple[ast.expr | ast.stmt, str, str, int]


def _visit(node: ast.AST, function: str, begins: int) -> Iterator[Change]:
    """Every node that may be replaced, its replacement, and the function around it."""
    for replaced, after in _changes(node):
        yield replaced, after, function, begins
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not begins:
        function = f"{function}.{node.name}".lstrip(".")
        begins = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    elif isinstance(node, ast.ClassDef) and not begins:
        function = f"{function}.{node.name}".lstrip(".")
    for child in _children(node):
        yield from _visit(child, function, begins)


def _children(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Assert | ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    types = {"annotation", "returns", "args"} if isinstance(node, ast.FunctionDef) else set()
    for name, value in ast.iter_fields(node):
        if name in types | {"annotation"} and not isinstance(node, ast.Call):
            if isinstance(value, ast.arguments):
                yield from (d for d in (*value.defaults, *value.kw_defaults) if d is not None)
            continue
        if name == "decorator_list":
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """What may come in the place of ``node``, or of a part of it that has no node of its own."""
    match node:
        case ast.Raise():
            yield node, "pass"
        case ast.Expr(value=ast.Call()):
            yield node, "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield node, "pass"
        case ast.AugAssign() if type(node.op) in _COMPUTED:
            other = ast.AugAssign(node.target, _COMPUTED[type(node.op)](), node.value)
            yield node, ast.unparse(other)
        case ast.If() | ast.While() | ast.IfExp() if ast.unparse(node.test) != "TYPE_CHECKING":
            yield from _negated(node.test)
        case ast.comprehension():
            for test in node.ifs:
                yield from _negated(test)
        case ast.With():
            for item in node.items:
                if item.optional_vars is None:
                    yield item.context_expr, "__import__('contextlib').nullcontext()"
        case ast.Compare():
            for i, op in enumerate(node.ops):
                ops = [*node.ops[:i], _COMPARED[type(op)](), *node.ops[i + 1 :]]
                yield node, _text(ast.Compare(node.left, ops, node.comparators))
        case ast.BoolOp():
            op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield node, _text(ast.BoolOp(op, node.values))
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert()):
            yield node, _text(node.operand)
        case ast.BinOp() if type(node.op) in _COMPUTED and not _textual(node):
            yield node, _text(ast.BinOp(node.left, _COMPUTED[type(node.op)](), node.right))
        case ast.Constant(value=bool()):
            yield node, str(not node.value)
        case ast.Constant(value=int()):
            yield node, str(node.value + 1)
        case ast.Constant(value=float()):
            yield node, repr(node.value * 2 or 1.0)
        case ast.Call():
            yield from _called(node)
        case ast.FunctionDef():
            for decorator in node.decorator_list:
                if not any(kept in ast.unparse(decorator) for kept in _KEPT):
                    yield decorator, "(lambda function: function)"


def _called(node: ast.Call) -> Iterator[tuple[ast.expr, str]]:
    match node.func:
        case ast.Name(id=name) if name in _CALLED:
            yield node.func, _CALLED[name]
        case ast.Attribute(value=value, attr=name) if name in _CALLED:
            yield node.func, ast.unparse(ast.Attribute(value, _CALLED[name]))
    for keyword in node.keywords:
        if keyword.arg is not None:
            rest = [other for other in node.keywords if other is not keyword]
            yield node, ast.unparse(ast.Call(node.func, node.args, rest))


def _negated(test: ast.expr) -> Iterator[tuple[ast.expr, str]]:
    exact = isinstance(test, ast.Compare) and isinstance(test.ops[0], _NEGATED)
    if not exact and not (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)):
        yield test, f"(not ({ast.unparse(test)}))"


def _text(node: ast.expr) -> str:
    return f"({ast.unparse(node)})"


def _textual(node: ast.BinOp) -> bool:
    return any(
        isinstance(side, ast.JoinedStr)
        or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in (node.left, node.right)
    )
