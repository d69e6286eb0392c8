"""Check that each optional feature can be deleted: python scripts/leaves.py [NAME ...]

For each leaf a copy of the package without the leaf's files is made. Every module that is left must
import, verbs included, and no other test may name a module of the leaf.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# What to delete: paths below dpft/, then the folders or files of the leaf's own tests.
LEAVES = {
    "trainer": ("integrations", "tests/integrations"),
    "selection": ("sweep/selection.py", "tests/sweep/test_selection"),
    "audit": ("audit", "tests/audit"),
    "plan": ("plan", "tests/plan"),
    "synthesis": ("synthesis", "tests/synthesis"),
    "trackers": ("training/trackers.py", "tests/training/test_trackers.py"),
    "claims": ("reproduce/claims", "tests/reproduce/claims"),
}
IMPORT_ALL = """
import importlib, pkgutil, sys
import dpft
failed = []
for one in pkgutil.walk_packages(dpft.__path__, "dpft."):
    if not one.name.endswith("__main__"):
        try:
            importlib.import_module(one.name)
        except ImportError as error:
            if "dpft" not in str(error):  # an optional package that is not installed
                continue
            failed.append(f"{one.name}: {error}")
sys.exit("\\n".join(failed) or None)
"""


def check(name: str) -> list[str]:
    """Return what still needs the leaf: modules that fail to import, and other leaves' tests."""
    deleted, tests = (text.split() for text in LEAVES[name])
    with tempfile.TemporaryDirectory(prefix="dpft-leaf-") as copy:
        shutil.copytree(ROOT / "dpft", Path(copy, "dpft"))
        shutil.copytree(ROOT / "conf", Path(copy, "conf"))
        for path in deleted:
            gone = Path(copy, "dpft", path)
            shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
        env = os.environ | {"PYTHONPATH": copy, "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "-c", IMPORT_ALL]
        run = subprocess.run(command, cwd=copy, env=env, stderr=subprocess.PIPE, text=True)
    found = run.stderr.splitlines() if run.returncode else []
    modules = [f"dpft.{path.removesuffix('.py').replace('/', '.')}" for path in deleted]
    names = re.compile("|".join(rf"{re.escape(module)}\b" for module in modules))
    for file in sorted((ROOT / "tests").rglob("*.py")):
        path = file.relative_to(ROOT).as_posix()
        if not path.startswith(tuple(tests)) and names.search(file.read_text(encoding="utf-8")):
            found.append(f"{path} names a module of the leaf")
    return found


def main() -> None:
    results = {name: check(name) for name in sys.argv[1:] or LEAVES}
    for name, found in results.items():
        print(f"{name}: {'is needed elsewhere' if found else 'can be deleted'}", *found, sep="\n  ")
    sys.exit(any(results.values()))


if __name__ == "__main__":
    main()
