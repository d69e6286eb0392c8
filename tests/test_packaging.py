"""The wheel holds all data files, and every dependency is declared, pinned and explained."""

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def names(requirements: list[str]) -> set[str]:
    return {canonical(re.split(r"[<>=!~\[; ]", line, maxsplit=1)[0]) for line in requirements}


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonical(name): version for name, version in pinned}


def test_wheel_holds_configs_and_tiny_model(tmp_path: Path) -> None:
    """Built with the installed hatchling, offline."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    (wheel,) = tmp_path.iterdir()
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    assert {
        "dpft/cli/app.py",
        "dpft/conf/config.yaml",
        "dpft/models/tiny/model.safetensors",
    } <= held
    assert {f"dpft/{file.relative_to(ROOT)}" for file in (ROOT / "conf").rglob("*.yaml")} <= held
    assert {name.split("/")[0] for name in held if ".dist-info/" not in name} == {"dpft"}


def test_every_dependency_is_pinned_and_explained() -> None:
    declared = names(PROJECT["dependencies"])
    for extra in PROJECT["optional-dependencies"].values():
        declared |= names(extra)
    assert declared - set(pins()) == set()
    explained = (ROOT / "docs/reference/dependencies.md").read_text()
    rows = {canonical(name) for name in re.findall(r"^\| `([^`]+)` \|", explained, re.MULTILINE)}
    assert rows == declared


def test_every_import_is_declared() -> None:
    declared = names(PROJECT["dependencies"])
    for extra in ("peers", "wandb", "mlflow", "kernels", "nf4"):
        declared |= names(PROJECT["optional-dependencies"][extra])
    providers = packages_distributions()
    undeclared = set()
    for file in sorted((ROOT / "dpft").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                modules = [node.module]
            else:
                continue
            for top in {module.split(".")[0] for module in modules}:
                if top == "dpft" or top in sys.stdlib_module_names:
                    continue
                if not declared & {canonical(name) for name in providers.get(top, [top])}:
                    undeclared.add((str(file.relative_to(ROOT)), top))
    assert undeclared == set()
