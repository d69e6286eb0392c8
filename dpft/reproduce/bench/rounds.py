"""Interleaved rounds, each result kept at once, so that a repeated command continues."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dpft.reproduce.bench.processes import (
    BenchError,
    OpenSession,
    Result,
    WorkerProcess,
    code_fingerprint,
)
from dpft.reproduce.bench.settings import BenchSettings, Variant
from dpft.reproduce.bench.statistics import rotated
from dpft.runs.log import Log, read_log

Row = dict[str, Any]
# Called before each measurement: how many are done, how many there are, what comes.
Tell = Callable[[int, int, str], None]

# It would fail again, so it is not tried again in the following rounds.
_FINAL = ("refused", "oom")
_REMEDY = "delete that line: its round is measured again"


class ResultLog:
    """Results as lines of JSON, appended as they come.

    Rows of other settings, other code or another machine stay in the file and are not read.
    """

    def __init__(self, path: Path, key: str) -> None:
        self.path = path
        self.key = key
        rows = read_log(path, _REMEDY) if path.is_file() else []
        self.rows = [row for row in rows if row.get("key") == key]

    def append(self, row: Row) -> None:
        """Keep a row; it is on disk when this returns."""
        row = {"key": self.key, **row}
        self.rows.append(row)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with Log(self.path, _REMEDY) as log:
            log.append(row)


def measurement_key(
    settings: BenchSettings, facts: Mapping[str, Any], code: str | None = None
) -> str:
    """What must be equal for two measurements to belong together: settings, code, machine.

    How many rounds does not matter: more continue fewer. ``facts`` are those of
    `dpft.reproduce.bench.worker.environment`.
    """
    environment = facts["environment"]
    identity = {
        "job": settings.job("measure") | {"device": facts["device"]},
        "variants": [variant.label for variant in settings.variants],
        "untied": settings.untied,
        "code": code or code_fingerprint(),
        "machine": {name: environment.get(name) for name in ("cpu", "cores", "gpu")},
        "packages": environment.get("packages"),
    }
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]


def measure(
    settings: BenchSettings, journal: ResultLog, open_session: OpenSession, tell: Tell
) -> list[Row]:
    """Run the rounds that are missing.

    In a round each variant has a fresh process, whose steps alternate with those of a process that
    trains without privacy. A machine that others use changes its speed from one second to the
    next; what is compared lies a step apart.

    A round that was interrupted, or whose non-private process ended, is measured again as a whole.

    Args:
        settings: with ``device`` resolved.
        journal: what is there already; results are added.
        open_session: starts one worker.
        tell: is called with the progress.

    Returns:
        The rows of ``settings.rounds`` complete rounds.

    Raises:
        BenchError: if non-private training itself fails, or the code changes meanwhile.
    """
    variants = settings.variants
    labels = {variant.label for variant in variants}
    done = complete_rounds(journal.rows, labels)
    code = code_fingerprint()
    session = 1 + max((row["session"] for row in journal.rows if "session" in row), default=0)
    given_up = _given_up(done.values())
    missing = [turn for turn in range(settings.rounds) if turn not in done]
    count = 0
    for turn in missing:
        round_ = {"session": session, "round": turn, "load": _load_average()}
        rows: list[Row] = []
        for variant, result in _one_round(settings, turn, given_up, open_session):
            if code_fingerprint() != code:
                raise BenchError(
                    "dpft's code changed while it was being measured; what was measured so far is "
                    "of the old code: repeat the command when the code is at rest"
                )
            if result is None:
                tell(count, len(missing) * len(variants), f"round {turn + 1}: {variant.label}")
                continue
            if result["status"] in _FINAL:
                given_up[variant.label] = result
            _check_baseline(settings, variant, result)
            journal.append(
                {**round_, "position": len(rows), "variant": variant.label, "result": result}
            )
            rows.append(journal.rows[-1])
            count += 1
        done[turn] = rows
    tell(count, count, "done")
    return [row for turn in range(settings.rounds) for row in done[turn]]


def _one_round(
    settings: BenchSettings, turn: int, given_up: Mapping[str, Result], open_session: OpenSession
) -> Iterator[tuple[Variant, Result | None]]:
    """Each variant as it begins, with None, and when it is measured, with its result.

    A baseline lives as long as any variant is measured beside it, and comes last. Where the
    device's memory is its own and so is its time, a GPU's, nothing is measured beside another.
    """
    baselines = [v for v in settings.variants if v == settings.baseline(v)]
    for base in rotated(baselines, turn):
        others = [v for v in settings.variants if v != base and settings.baseline(v) == base]
        yield base, None
        reference = open_session(settings.job("measure", base))
        if settings.device == "cuda":
            yield base, _by_itself(reference, settings.steps)
            for variant in rotated(others, turn):
                yield variant, None
                result = given_up.get(variant.label)
                if result is None:
                    session = open_session(settings.job("measure", variant))
                    result = _by_itself(session, settings.steps)
                yield variant, result
            continue
        ready, beside = reference.ready(), False
        for variant in rotated(others, turn) if ready else []:
            yield variant, None
            result = given_up.get(variant.label)
            if result is None:
                session = open_session(settings.job("measure", variant))
                times = _alternate(reference, session, settings.steps)
                result = session.finish()
                if times:
                    beside, result = True, result | {"beside": times}
                elif result["status"] == "ok":
                    break  # the reference ended meanwhile
            yield variant, result
        if ready and not beside:
            _take(reference, settings.steps)
        yield base, reference.finish()


def _by_itself(session: WorkerProcess, steps: int) -> Result:
    if session.ready():
        _take(session, steps)
    return session.finish()


def _take(session: WorkerProcess, steps: int) -> None:
    for _ in range(steps):
        session.step()


def _alternate(reference: WorkerProcess, session: WorkerProcess, steps: int) -> list[float]:
    """Steps of both in turn; seconds of the reference's, before, between and after."""
    times: list[float] = []
    if not session.ready():
        return times
    for _ in range(steps):
        seconds = reference.step()
        if seconds is None or session.step() is None:
            return []
        times.append(seconds)
    seconds = reference.step()
    return [*times, seconds] if seconds is not None else []


def complete_rounds(rows: Sequence[Row], labels: set[str]) -> dict[int, list[Row]]:
    """Rounds that one session measured from end to end, by their number."""
    found: dict[tuple[int, int], list[Row]] = {}
    for row in rows:
        if "round" in row:
            found.setdefault((row["round"], row["session"]), []).append(row)
    return {
        turn: members
        for (turn, _), members in sorted(found.items())
        if {row["variant"] for row in members} >= labels
    }


def _given_up(rounds: Any) -> dict[str, Result]:
    return {
        row["variant"]: row["result"]
        for rows in rounds
        for row in rows
        if row["result"]["status"] in _FINAL
    }


def _check_baseline(settings: BenchSettings, variant: Variant, result: Result) -> None:
    if variant == settings.baseline(variant) and result["status"] != "ok":
        raise BenchError(
            f"non-private training of {settings.model} itself failed ({result['message']}), and "
            "everything is measured against it: try a smaller --batch or --length, or another "
            "--model"
        )


def _load_average() -> list[float] | None:
    """Of the last 1, 5 and 15 minutes: what else the machine was doing."""
    try:
        return [round(load, 2) for load in os.getloadavg()]
    except OSError:
        return None
