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
def _trees() -> list[tuple[str, ast.Module]]:
    files = sorted(PACKAGE.rglob("*.py"))
    return [(str(f.relative_to(PACKAGE.parent)), ast.parse(f.read_text("utf-8"))) for f in files]


def _named(node: ast.expr) -> str:
    return getattr(node, "attr", getattr(node, "id", ""))


def _untrusting(call: ast.Call) -> bool:
    given = {word.arg: word.value for word in call.keywords}
    value = given.get("trust_remote_code")
    return isinstance(value, ast.Constant) and value.value is False


def test_no_loader_is_called_without_saying_that_code_is_not_trusted():
    seen, lax = 0, []
    for file, tree in _trees():
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            # Handed to another function, a loader is called there with these arguments; what is
            # called a pipeline may be one of another kind.
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
    for file, tree in _trees():
        for node in () if file in own else ast.walk(tree):
            printed = isinstance(node, ast.Call) and ast.unparse(node.func) in (
                *("print", "typer.echo", "typer.secho"),
                *("sys.stdout.write", "sys.stderr.write"),
            )
            console = isinstance(node, ast.ImportFrom) and node.module == "rich.console"
            column = isinstance(node, ast.Call) and ast.unparse(node.func) == "TextColumn"
            marked = column and "markup" not in [word.arg for word in node.keywords]
            found += [f"{file}:{node.lineno}"] if printed or console or marked else []
    assert not found


def test_nothing_runs_what_a_file_says():
    """No ``eval``, shell, unsafe YAML, plain pickle or Hydra's instantiation of ``_target_``."""
    banned = (
        *("eval", "exec", "os.system", "os.popen", "pickle.load", "pickle.loads", "yaml.load"),
        *("instantiate", "hydra.utils.instantiate", "tempfile.mktemp", "np.load", "numpy.load"),
    )
    found = []
    for file, tree in _trees():
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
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
