"""Mutation testing: put small bugs into dpft, one at a time, and see whether a test notices.

    python scripts/mutate.py                             # every module of TARGETS, in its order
    python scripts/mutate.py --most 25 dpft/training/loop.py     # 25 mutants of one module
    python scripts/mutate.py --again                     # those that survived, after new tests
    python scripts/mutate.py --report                    # scores by module, and what survived

Each module is paired with the tests that ought to notice, those of its own folder first. A mutant
is *killed* if one of them fails or runs out of time. Which function a test calls is observed once
for each file of tests, so that a mutant costs the tests that reach it and no others; the first
failure ends it. With ``--most`` a module's mutants are drawn at random with a fixed seed.

Everything is written to a journal of JSON lines as it happens, and what is there is not done again:
stop it and go on whenever you like. It works on a copy of the repository, so that no mutant is ever
left behind, and runs one process at a time; prefix it with ``nice``.

Why not an existing tool: mutmut 3 leaves functions with decorators alone, which here are all
properties and whatever runs under ``no_grad``; cosmic-ray starts Python, and with it torch, anew
for each mutant. Here a process that has imported all libraries forks one that imports dpft itself.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from forked_tests import Chosen, Observed, forked, tested
from mutants import Mutant, mutants

ROOT = Path(__file__).resolve().parent.parent
HARMLESS = ROOT / "scripts/harmless_mutants.yaml"
_COPIED = ("dpft", "tests", "conf", "docs", "scripts", "results")

_PLAN_FILES = ("batch", "bookkeeping", "ghost", "groupwise", "lee_kifer", "materialised")
_PLAN_FILES += ("norms", "reweighting")
_PLANS = (
    "privacy/clipping/test_plans privacy/test_precision privacy/clipping/test_clipper "
    "privacy/clipping/test_traps privacy/clipping/test_half_precision privacy/clipping/test_users"
)
_CHECKS = (
    "privacy/clipping/test_traps privacy/clipping/test_beyond_capture privacy/clipping/test_clipper"
)

# Each module, and the tests that ought to notice what goes wrong in it; more important ones first.
TARGETS: dict[str, str] = {
    "dpft/privacy/noise.py": "privacy/test_noise privacy/test_mechanism "
    "privacy/clipping/test_single_process",
    "dpft/privacy/keystream.py": "privacy/test_keystream",
    "dpft/privacy/normals.py": "privacy/test_normals",
    "dpft/privacy/keys.py": "privacy/test_noise privacy/test_sampling tasks/test_units",
    "dpft/privacy/sampling.py": "privacy/test_sampling tasks/test_units",
    "dpft/privacy/mechanism.py": "privacy/test_mechanism privacy/test_noise",
    **{f"dpft/privacy/clipping/plans/{plan}.py": _PLANS for plan in _PLAN_FILES},
    "dpft/privacy/precision.py": "privacy/test_precision privacy/clipping/test_beyond_capture",
    "dpft/privacy/clipping/clipper.py": "privacy/clipping/test_clipper privacy/test_precision "
    "privacy/clipping/test_traps privacy/clipping/test_beyond_capture "
    "privacy/clipping/test_order privacy/test_quantiles",
    **{
        f"dpft/privacy/clipping/checks/{check}.py": _CHECKS
        for check in ("checker", "verify", "structure")
    },
    "dpft/privacy/thresholds.py": "privacy/test_threshold_range privacy/test_quantiles "
    "privacy/clipping/test_groups",
    "dpft/privacy/quantiles.py": "privacy/test_quantiles privacy/test_mechanism",
    "dpft/privacy/clipping/groups.py": "privacy/clipping/test_groups",
    "dpft/privacy/spec.py": "privacy/test_spec privacy/clipping/test_groups",
    "dpft/privacy/accounting/rdp.py": "privacy/test_accounting",
    "dpft/privacy/accounting/printed.py": "privacy/test_accounting",
    "dpft/privacy/accounting/calibration.py": "privacy/test_accounting privacy/test_mechanism",
    "dpft/privacy/accounting/selection.py": "privacy/test_selection",
    "dpft/privacy/accounting/arguments.py": "privacy/test_accounting",
    "dpft/privacy/cached.py": "privacy/test_accounting",
    "dpft/privacy/accounting/__init__.py": "privacy/test_accounting privacy/test_mechanism",
    "dpft/runs/ledger.py": "runs/test_ledger",
    "dpft/runs/log.py": "runs/test_log runs/test_ledger",
    "dpft/runs/noise_key.py": "runs/test_noise_key runs/test_directory",
    "dpft/training/loop.py": "training/test_loop training/test_session tasks/test_units "
    "privacy/clipping/test_users models/test_adapt_rgp audit/test_audited_runs",
    "dpft/training/session.py": "training/test_session training/test_run audit/test_audited_runs",
    "dpft/training/assembly.py": "training/test_combinations parallel/test_held",
    "dpft/training/setup.py": "training/test_setup training/test_run audit/test_audited_runs",
    "dpft/privacy/guarantee.py": "privacy/test_guarantee",
    "dpft/privacy/meaning.py": "privacy/test_guarantee",
    "dpft/tasks/units.py": "tasks/test_units privacy/clipping/test_users",
}


class Journal:
    """What was observed and tried so far."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.observed: dict[str, Any] = {}
        self.tried: dict[str, dict[str, Any]] = {}
        for line in path.read_text().splitlines() if path.exists() else ():
            self._take(json.loads(line))

    def add(self, entry: dict[str, Any]) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        self._take(entry)

    def _take(self, entry: dict[str, Any]) -> None:
        if "observed" in entry:
            self.observed[entry["observed"]] = entry
        else:
            self.tried[f"{entry['module']} {entry['mutant']}"] = entry


def warm_up() -> None:
    """Import here what tests import beside dpft, so that forks need not."""
    names = forked(300, lambda: _imported())["names"]
    for name in names:
        try:
            importlib.import_module(name)
        except Exception:  # it is not needed: a fork will try again if it is
            continue


def _imported() -> dict[str, Any]:
    tested(
        ["tests/training/test_loop.py", "tests/privacy/test_accounting.py"], object(), "-k", "moves"
    )
    own = (
        "dpft",
        "tests",
        "mutants",
        "forked_tests",
        "_pytest",
        "xdist",
        "_hypothesis_pytestplugin",
        "__m",
    )
    return {"names": sorted(n for n in sys.modules if not n.startswith(own))}


def observe(file: str, journal: Journal) -> dict[str, Any]:
    """Calls and durations of one file of tests, which must pass."""
    sources = [*sorted(Path("dpft").rglob("*.py")), Path(file)]
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    name = f"{file} {digest}"
    if name not in journal.observed:

        def work() -> dict[str, Any]:
            seen = Observed()
            tested([file], seen, "-m", "not slow")
            calls = {where: sorted(tests) for where, tests in seen.calls.items()}
            good = {test: s for test, s in seen.seconds.items() if test not in seen.failed}
            return {"observed": name, "calls": calls, "seconds": good, "failed": seen.failed}

        found = forked(1800, work)
        if not found.get("seconds"):
            raise SystemExit(f"{file} does not pass without a mutant: {found}")
        for test in found["failed"]:
            print(f"left out, since it fails without a mutant: {test}", flush=True)
        journal.add(found)
    return dict(journal.observed[name])


def reaching(
    mutant: Mutant, module: str, seen: Sequence[tuple[str, dict[str, Any]]], budget: float
) -> dict[str, float]:
    """The tests that call the mutant's function, and what they take: the quickest of all files.

    Args:
        mutant: of ``module``.
        module: its path.
        seen: files of tests, and what was observed of each.
        budget: seconds that all of them together may take; at least one is taken.

    Returns:
        Tests of one file next to each other, or fixtures would be made again and again.
    """
    found: dict[str, float] = {}
    for file, one in seen:
        tests = set(one["calls"].get(f"{module}:{mutant.begins}", ()))
        everything = not mutant.begins or file in tests
        for test in set(one["seconds"]) if everything else tests & set(one["seconds"]):
            found[test] = one["seconds"][test]
    total, taken = 0.0, set()
    for test in sorted(found, key=found.__getitem__):
        total += found[test]
        if not taken or total <= budget:
            taken.add(test)
    order = [file for file, _ in seen]
    ranked = sorted(taken, key=lambda t: (order.index(t.partition("::")[0]), found[t]))
    return {test: found[test] for test in ranked}


def try_module(module: str, chosen: list[Mutant], journal: Journal, budget: float) -> None:
    files = [f for t in TARGETS[module].split() if Path(f := f"tests/{t}.py").exists()]
    seen = [(file, observe(file, journal)) for file in files]
    source, before = Path(module).read_text(), Path(module).stat()
    for number, mutant in enumerate(chosen):
        seconds = reaching(mutant, module, seen, budget)
        began = time.monotonic()
        result: dict[str, Any] = {"status": "unreached"}
        if seconds:
            Path(module).write_text(mutant.applied(source))
            # A second of its own for each, or compiled code of another could be taken for it.
            os.utime(module, (before.st_mtime + number + 1,) * 2)
            wanted = [file for file in files if any(t.startswith(f"{file}::") for t in seconds)]
            try:
                limit = 20 + 4 * sum(seconds.values())
                result = forked(limit, functools.partial(_verdict, wanted, seconds))
            finally:
                Path(module).write_text(source)
                os.utime(module, (before.st_mtime,) * 2)
        entry = {"module": module, "mutant": mutant.identity, "line": mutant.line, **result}
        entry |= {"function": mutant.function, "before": mutant.before, "after": mutant.after}
        entry["seconds"] = round(time.monotonic() - began, 2)
        journal.add(entry)
        show = f"{module}:{mutant.line} {_short(mutant.before)} -> {_short(mutant.after)}"
        print(
            f"{number + 1}/{len(chosen)} {entry['status']} {entry['seconds']} s  {show}", flush=True
        )


def _verdict(files: list[str], seconds: dict[str, float]) -> dict[str, Any]:
    plugin = Chosen(seconds)
    code = tested(files, plugin, "-x")
    return {"status": "survived" if code == 0 else "killed", "by": plugin.failed}


def choose(module: str, most: int | None, seed: int) -> list[Mutant]:
    found = mutants((ROOT / module).read_text())
    if most is not None and len(found) > most:
        found = random.Random(f"{seed} {module}").sample(found, most)
    return sorted(found, key=lambda mutant: mutant.start)


def harmless() -> dict[str, str]:
    """Why a mutant that survives changes nothing that matters, by module and identity."""
    given = yaml.safe_load(HARMLESS.read_text()) if HARMLESS.exists() else None
    return {f"{m} {i}": why for m, of in (given or {}).items() for i, why in of.items()}


def report(journal: Journal) -> Iterator[str]:
    argued = harmless()
    yield "| module | mutants | tried | killed | survived | harmless | score |"
    yield "|---|---|---|---|---|---|---|"
    left = []
    for module in TARGETS:
        known = {m.identity: m for m in mutants((ROOT / module).read_text())}
        tried = [e for e in journal.tried.values() if e["module"] == module]
        tried = [e for e in tried if e["mutant"] in known]
        counts: Counter[str] = Counter()
        for entry in tried:
            alive = entry["status"] in ("survived", "unreached")
            excused = f"{module} {entry['mutant']}" in argued
            counts["killed" if not alive else "harmless" if excused else "survived"] += 1
            if alive and not excused:
                left.append({**entry, "line": known[entry["mutant"]].line})
        asked = counts["killed"] + counts["survived"]
        score = f"{counts['killed'] / asked:.0%}" if asked else ""
        numbers = [len(known), len(tried), *(counts[k] for k in ("killed", "survived", "harmless"))]
        yield f"| `{module}` | {' | '.join(map(str, numbers))} | {score} |"
    yield ""
    for entry in sorted(left, key=lambda e: (e["module"], e["line"])):
        change = f"{_short(entry['before'])} -> {_short(entry['after'])}"
        yield f"{entry['mutant']} {entry['status']} {entry['module']}:{entry['line']} {change}"


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) < 90 else f"{flat[:87]}..."


def main() -> None:
    parser = argparse.ArgumentParser(description="Which small bugs no test of dpft notices.")
    parser.add_argument("modules", nargs="*", help="of TARGETS; all of them by default")
    parser.add_argument("--journal", type=Path, default=ROOT / "build/mutation.jsonl")
    parser.add_argument("--most", type=int, help="mutants of a module; all of them by default")
    parser.add_argument("--budget", type=float, default=30, help="seconds of tests for a mutant")
    parser.add_argument("--seed", type=int, default=0, help="of the drawing")
    parser.add_argument("--again", action="store_true", help="only those that survived before")
    parser.add_argument("--report", action="store_true", help="run nothing, print what is known")
    given = parser.parse_args()
    journal = Journal(given.journal.resolve())
    if given.report:
        print("\n".join(report(journal)))
        return
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        os.environ[name] = "1"  # before a library that reads them is imported; as in conftest.py
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory(prefix="dpft-mutation-") as copy:
        for path in ROOT.iterdir():
            if path.name in _COPIED:
                shutil.copytree(path, Path(copy, path.name))
            elif path.is_file():
                shutil.copy2(path, copy)
        os.chdir(copy)
        os.environ["PYTHONPATH"] = copy
        sys.path[:] = [
            copy,
            *(p for p in sys.path if Path(p).resolve() not in (ROOT, ROOT / "scripts")),
        ]
        warm_up()
        for module in given.modules or TARGETS:
            left = choose(module, given.most, given.seed)
            status = {
                m: journal.tried.get(f"{module} {m.identity}", {}).get("status") for m in left
            }
            again = ("survived", "unreached") if given.again else (None,)
            left = [m for m in left if status[m] in again]
            if left:
                try_module(module, left, journal, given.budget)


if __name__ == "__main__":
    main()
