"""Rules that every module keeps, so that a file from elsewhere is read and never obeyed."""

import ast
import functools
import inspect
from pathlib import Path

from typer.testing import CliRunner

import dpft
from dpft.cli.app import app
from dpft.models.files import Files

PACKAGE = Path(dpft.__file__).parent
LOADERS = ("from_pretrained", "from_config", "load_dataset", "pipeline")


@functools.cache
def _nodes() -> list[tuple[str, ast.AST]]:
    """All nodes of the package's code, each with its file."""
    trees = {file: ast.parse(file.read_text("utf-8")) for file in sorted(PACKAGE.rglob("*.py"))}
    named = {str(file.relative_to(PACKAGE.parent)): tree for file, tree in trees.items()}
    return [(name, node) for name, tree in named.items() for node in ast.walk(tree)]


def _calls() -> list[tuple[str, ast.Call]]:
    return [(file, node) for file, node in _nodes() if isinstance(node, ast.Call)]


def _named(node: ast.expr) -> str:
    return getattr(node, "attr", getattr(node, "id", ""))


def _untrusting(call: ast.Call) -> bool:
    given = {word.arg: word.value for word in call.keywords}
    value = given.get("trust_remote_code")
    return isinstance(value, ast.Constant) and value.value is False


def test_no_loader_is_called_without_saying_that_code_is_not_trusted():
    seen, lax = 0, []
    for file, call in _calls():
        # Handed to another function, a loader is called there with these arguments; what is called
        # a pipeline may be one of another kind.
        handed = {_named(x) for x in call.args} - {"pipeline"}
        if _named(call.func) == "_load" and file.endswith("models/files.py"):
            continue  # it gives the argument itself, which is checked below
        if (handed | {_named(call.func)}) & set(LOADERS):
            seen += 1
            lax += [] if _untrusting(call) else [f"{file}:{call.lineno}"]
    assert seen >= 7
    assert not lax
    assert "load(self.location, trust_remote_code=False, " in inspect.getsource(Files._load)


def test_everything_is_printed_by_functions_that_show_no_escape_sequences():
    # The worker of a benchmark speaks to its parent, not to a terminal.
    own = ("dpft/report/terminal.py", "dpft/report/console.py", "dpft/reproduce/bench/worker.py")
    found = []
    printing = ("print", "typer.echo", "typer.secho", "sys.stdout.write", "sys.stderr.write")
    for file, node in _nodes():
        name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        console = isinstance(node, ast.ImportFrom) and node.module == "rich.console"
        marked = name == "TextColumn" and "markup" not in [word.arg for word in node.keywords]
        bad = file not in own and (name in printing or console or marked)
        found += [f"{file}:{node.lineno}"] if bad else []
    assert not found


def test_nothing_runs_what_a_file_says():
    """No ``eval``, shell, unsafe YAML, plain pickle or Hydra's instantiation of ``_target_``."""
    banned = (
        *("eval", "exec", "os.system", "os.popen", "pickle.load", "pickle.loads", "yaml.load"),
        *("instantiate", "hydra.utils.instantiate", "tempfile.mktemp", "np.load", "numpy.load"),
    )
    found = []
    for file, call in _calls():
        given = {word.arg: ast.unparse(word.value) for word in call.keywords}
        name = ast.unparse(call.func)
        # Of safe YAML, see papers; and one that makes nothing but text.
        safe = given.get("Loader") in ("_Loader", "yaml.BaseLoader")
        bad = name in banned and not safe
        bad |= given.get("shell", "False") != "False"
        bad |= name == "torch.load" and given.get("weights_only") != "True"
        found += [f"{file}:{call.lineno} {name}"] if bad else []
    assert not found


def test_no_flag_of_hydra_reads_a_pickle(tmp_path):
    file = tmp_path / "config.pickle"
    file.write_bytes(b"cos\nsystem\n(S'touch mark'\ntR.")
    for flag in ("--experimental-rerun", "--exp"):
        result = CliRunner().invoke(app, ["train", flag, str(file)])
        assert result.exit_code == 2
        assert f"there is no flag {flag}" in result.stderr
