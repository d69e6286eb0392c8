"""Put small bugs into modules, one at a time, and see whether a test notices.

    python scripts/mutate.py [--most 30] [privacy/noise ...]

A mutant is killed if a test fails or the tests take far longer than without it. Mutants are drawn
with a seed, tried in a copy of the repository, and not again once they are in the journal.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
JOURNAL = ROOT / "build/mutation.jsonl"
# Modules of dpft, and the files of tests that ought to notice a bug there.
PAIRS = """
privacy/noise privacy/mechanism privacy/quantiles privacy/policies: privacy/test_noise \
privacy/test_mechanism privacy/test_quantiles privacy/clipping/test_single_process
privacy/keys privacy/sampling: privacy/test_noise privacy/test_sampling privacy/test_shapes \
privacy/test_keystream tasks/test_units
privacy/clipping/plans privacy/clipping/batch privacy/clipping/clipper: \
privacy/clipping/test_plans privacy/clipping/test_clipper privacy/clipping/test_users \
privacy/clipping/test_traps privacy/test_precision
privacy/accounting/rdp privacy/accounting/__init__: privacy/test_accounting
runs/ledger: runs/test_ledger runs/test_noise_key runs/test_directory
training/loop training/session: training/test_loop training/test_session training/test_continuing \
parallel/test_steps audit/test_audited_runs
tasks/units: tasks/test_units privacy/clipping/test_users
""".replace("\\\n", "").strip()
_OPS = "Lt Gt Eq Is In Add Mult BitAnd And", "LtE GtE NotEq IsNot NotIn Sub Div BitOr Or"
_NAMES = " ".join(_OPS) + " FloorDiv Mod Pow", " ".join(_OPS[::-1]) + " Mult FloorDiv Mult"
_SWAPPED = dict(zip(*([getattr(ast, op) for op in one.split()] for one in _NAMES), strict=True))
_EXACT = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)  # their negation is a swap
_CALLED = {"min": "max", "any": "all", "ceil": "floor", "amax": "amin", "minimum": "maximum"}
_CALLED |= {other: name for name, other in _CALLED.items()}
_KEPT = ("property", "classmethod", "staticmethod", "dataclass", "manager", "abstract", "no_grad")


def mutants(source: bytes) -> list[tuple[int, str, str, int, str]]:
    """Return first byte, new and old text, line, and a name that stays when code moves."""
    lines, found, seen = source.splitlines(keepends=True), [], Counter[str]()
    for node, after, function in _visit(ast.parse(source), "", True):
        start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset
        before = source[start : sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset]
        text = f"{function}|{lines[node.lineno - 1].decode().strip()}|{before.decode()}|{after}"
        seen[text] += 1
        key = hashlib.sha256(f"{text}|{seen[text]}".encode()).hexdigest()[:12]
        found.append((start, after, before.decode(), node.lineno, key))
    return sorted(found)


def _visit(node: Any, function: str, outside: bool) -> Iterator[tuple[Any, str, str]]:
    """Yield every node that may be replaced, its replacement, and the function around it."""
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    yield from ((replaced, after, function) for replaced, after in _changes(node))
    if isinstance(node, ast.Assert | ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and outside:
        function = f"{function}.{node.name}".lstrip(".")
        outside = isinstance(node, ast.ClassDef)
    for name, value in ast.iter_fields(node):
        children = value if isinstance(value, list) else [value]
        if isinstance(value, ast.arguments) and isinstance(node, ast.FunctionDef):
            children = [*value.defaults, *value.kw_defaults]
        for child in children if name not in ("annotation", "returns", "decorator_list") else ():
            if isinstance(child, ast.AST):
                yield from _visit(child, function, outside)


def _changes(node: Any) -> Iterator[tuple[Any, str]]:
    """Yield what may be replaced in ``node`` itself, and by which text."""
    swapped = _SWAPPED.get(type(getattr(node, "op", None)))
    match node:
        case ast.Raise() | ast.Expr(ast.Call()) | ast.Assign([ast.Attribute() | ast.Subscript()]):
            yield node, "pass"
        case ast.AugAssign() if swapped:
            yield node, _with(node, op=swapped())
        case ast.If() | ast.While() | ast.IfExp() | ast.comprehension():
            for test in node.ifs if isinstance(node, ast.comprehension) else [node.test]:
                exact = isinstance(test, ast.Compare) and isinstance(test.ops[0], _EXACT)
                if not exact and not isinstance(getattr(test, "op", None), ast.Not):
                    yield test, f"(not ({ast.unparse(test)}))"
        case ast.With():
            bare = [item.context_expr for item in node.items if item.optional_vars is None]
            yield from ((item, "__import__('contextlib').nullcontext()") for item in bare)
        case ast.Compare():
            for i, op in enumerate(node.ops):
                ops = [*node.ops[:i], _SWAPPED[type(op)](), *node.ops[i + 1 :]]
                yield node, f"({_with(node, ops=ops)})"
        case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.Invert()):
            yield node, f"({ast.unparse(node.operand)})"
        case ast.BinOp() | ast.BoolOp() if swapped:
            sides = [getattr(node, side, None) for side in ("left", "right")]
            if not any(isinstance(getattr(s, "value", s), ast.JoinedStr | str) for s in sides):
                yield node, f"({_with(node, op=swapped())})"
        case ast.Constant(value=bool() | int() | float() as value):
            other = not value if isinstance(value, bool) else value + 1
            yield node, repr(value * 2 or 1.0 if isinstance(value, float) else other)
        case ast.Call():
            for field in ("id", "attr"):
                if (name := getattr(node.func, field, "")) in _CALLED:
                    yield node.func, _with(node.func, **{field: _CALLED[name]})
            for keyword in filter(lambda one: one.arg, node.keywords):
                yield node, _with(node, keywords=[k for k in node.keywords if k is not keyword])
        case ast.FunctionDef():
            for decorator in node.decorator_list:
                if not any(kept in ast.unparse(decorator) for kept in _KEPT):
                    yield decorator, "(lambda function: function)"


def _with(node: Any, **fields: Any) -> str:
    return ast.unparse(type(node)(**dict(ast.iter_fields(node)) | fields))


def _run(files: list[str]) -> None:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_DATA, (8 * 2**30,) * 2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    options = ["-x", "-mnot slow", "-Wignore::pytest.PytestAssertRewriteWarning"]
    os._exit(importlib.import_module("pytest").main([*options, *files]))


def passes(files: list[str], limit: float) -> bool:
    """Run the tests in a process of their own, whose children end with it."""
    process = multiprocessing.get_context("fork").Process(target=_run, args=(files,))
    process.start()
    process.join(limit)
    if process.is_alive() and process.pid:
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
    return process.exitcode == 0


def attempt(module: str, files: list[str], most: int, seed: int) -> None:
    """Try the drawn mutants of a module that the journal lacks, and print what survived."""
    path = Path(f"dpft/{module}.py")
    source, found = path.read_bytes(), mutants(path.read_bytes())
    drawn = sorted(random.Random(f"{seed} {path}").sample(found, min(most, len(found))))
    journal = map(json.loads, JOURNAL.read_text().splitlines())
    tried = {entry["key"]: entry for entry in journal if entry["module"] == module}
    keys, began = [key for *_, key in drawn], time.monotonic()
    left = [mutant for mutant in drawn if mutant[-1] not in tried]
    if left and not passes(files, 1800):
        raise SystemExit(f"tests of {module} fail without a mutant: type pytest {' '.join(files)}")
    limit = 20 + 3 * (time.monotonic() - began)
    for start, after, before, line, key in left:
        path.write_bytes(source[:start] + after.encode() + source[start + len(before.encode()) :])
        tried[key] = {"module": module, "key": key, "killed": not passes(files, limit)}
        tried[key]["change"] = " ".join(f"{key} {path}:{line} {before} -> {after}".split())
        with JOURNAL.open("a") as file:
            file.write(json.dumps(tried[key]) + "\n")
    path.write_bytes(source)
    alive = [one["change"] for key in keys if not (one := tried[key])["killed"]]
    print(f"{module}: {len(keys) - len(alive)} of {len(keys)} killed", *alive, sep="\n  survived ")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("modules", nargs="*", help="of PAIRS; all of them by default")
    parser.add_argument("--most", type=int, default=15, help="mutants of a module")
    parser.add_argument("--seed", type=int, default=0, help="of the drawing")
    given = parser.parse_args()
    JOURNAL.parent.mkdir(exist_ok=True)
    JOURNAL.touch()
    tests = {}
    for line in PAIRS.splitlines():
        modules, files = line.split(": ")
        tests |= {name: [f"tests/{f}.py" for f in files.split()] for name in modules.split()}
    with tempfile.TemporaryDirectory(prefix="dpft-mutation-") as copy:
        for name in ("dpft", "tests", "conf", "docs", "scripts", "results"):
            shutil.copytree(ROOT / name, Path(copy, name))
        shutil.copy(ROOT / "pyproject.toml", copy)
        os.chdir(copy)
        sys.path.insert(0, copy)
        os.environ |= {"PYTHONPATH": copy, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
        sys.dont_write_bytecode = True  # one mutant's could be taken for that of another
        for name in ("torch", "transformers", "peft", "dp_accounting", "hydra"):
            importlib.import_module(name)
        for module in given.modules or tests:
            attempt(module, tests[module], given.most, given.seed)


if __name__ == "__main__":
    main()
