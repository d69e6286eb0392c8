"""How verdicts, counts and comparisons read, the same in every output."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from dpft.reproduce.claims.comparison import Comparison, Outcome, Side
from dpft.reproduce.claims.evaluate import Result
from dpft.reproduce.claims.judging import Judgement, Verdict
from dpft.reproduce.tables.marks import NOT_THE_PAPERS, Mark

HEADINGS = ("claim", "in short", "printed numbers", "our numbers", "ours are")
FIELDS = ("whose", "compared", "expected", "found", "outcome")

_SIDES = {
    Side.PRINTED: "printed",
    Side.PAPER: "paper scale",
    Side.STAND_IN: "paper scale with stand-ins, trend only",
    Side.LAPTOP: "laptop scale, trend only",
    Side.COMPUTED: "computed",
    Side.MEASURED: "measured",
}
_MEANINGS = {
    Verdict.HOLDS: "every comparison that came out bears the claim out",
    Verdict.IN_PART: "what came out bears it out, but of one check most is too close to tell",
    Verdict.FAILS: "every comparison that came out contradicts it",
    Verdict.MIXED: "some do and some do not",
    Verdict.CLOSE: "differences are within the margin",
    Verdict.NOT_YET: "no numbers yet; the commands below give them",
    Verdict.CANNOT: "no run of dpft gives them; dpft claims NAME says why",
}
_NOT_THE_PAPERS = {mark.letter for mark in NOT_THE_PAPERS}
COUNTS = (
    "in brackets: comparisons that hold, of those with numbers. Two scores differ if they lie "
    "further apart than two standard deviations over seeds, or 1% where no deviation is known"
)


def counted(one: Judgement, reasons: Sequence[str] = ()) -> str:
    """``mixed so far (3 of 5 hold, 1 too close; 2 without numbers)``."""
    if not one.known:
        return str(one.verdict)
    text = f"{one.holds} of {one.known} hold"
    if one.close and one.verdict is not Verdict.CLOSE:
        text += f", {one.close} too close"
    if one.lacking:
        text += f"; {one.lacking} without numbers"
    if reasons:
        text += "; a part cannot be tested here"
    return f"{one.verdict}{' so far' if one.lacking else ''} ({text})"


def plain(one: Judgement) -> str:
    """The same without any margin; empty where no number is better than another."""
    if not one.ahead + one.behind:
        return ""
    return f"without any margin the first is better in {one.ahead} and worse in {one.behind}"


def scale(result: Result) -> str:
    """Where our numbers are from: ``computed; laptop scale, trend only``."""
    return "; ".join(side_of(side, result.ours) for side in result.sides) or "-"


def side_of(side: Side, comparisons: Sequence[Comparison]) -> str:
    """Whose numbers, with the marks that make them less than the paper's setting."""
    if side is Side.MEASURED:
        machines = dict.fromkeys(one.brief for one in comparisons if one.side is side)
        told = ", ".join(brief for brief in machines if brief)
        return f"{_SIDES[side]} ({told})" if told else _SIDES[side]
    letters = {letter for one in comparisons if one.side is side for letter in one.marks}
    apart = "".join(sorted(letters & _NOT_THE_PAPERS - {Mark.LAPTOP.letter}))
    return f"{_SIDES[side]}, marks {apart}" if apart and side is Side.STAND_IN else _SIDES[side]


def row(result: Result) -> list[str]:
    """Under `HEADINGS`."""
    printed = result.by_print
    return [
        result.claim.name,
        result.claim.says,
        "-" if printed is None else counted(printed),
        counted(result.by_us, result.reasons),
        scale(result),
    ]


def with_numbers(result: Result) -> list[Comparison]:
    """Comparisons that have some: printed, then ours."""
    return [one for one in (*result.printed, *result.ours, *result.aside) if one.known]


def lines(result: Result) -> list[list[str]]:
    """Every comparison that has numbers, under `FIELDS`."""
    return [
        [
            _SIDES[one.side] if one.side is Side.MEASURED else side_of(one.side, [one]),
            f"{one.what} ({one.where})" if one.where else one.what,
            one.expected,
            f"{one.found} [{one.marks}]" if one.marks else one.found,
            str(one.outcome),
        ]
        for one in with_numbers(result)
    ]


def facts(result: Result) -> list[tuple[str, str]]:
    """What stands above a claim's comparisons: heading and text."""
    claim, printed, ours = result.claim, result.by_print, result.by_us
    found = [("Source", claim.source)]
    if claim.reading is not None:
        found.append(("Read as", claim.reading))
    if printed is not None:
        found.append(("By its printed numbers", _sentence(printed)))
    told = f"By ours ({scale(result)})" if result.sides else "By ours"
    found.append((told, _sentence(ours, result.reasons)))
    lacking = [one for one in result.ours if one.outcome is Outcome.LACKING]
    if lacking:
        first = f"{lacking[0].what}: {lacking[0].expected}"
        more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        found.append(("Without numbers", f"{first}{more}"))
    runs = dict.fromkeys(run for one in (*result.ours, *result.aside) for run in one.runs)
    if runs:
        found.append(("Runs", ", ".join(runs)))
    found += [("Cannot be tested here", why) for why in result.reasons]
    return [*found, *(("What would test it", command) for command in result.commands)]


def _sentence(one: Judgement, reasons: Sequence[str] = ()) -> str:
    return "; ".join(part for part in (counted(one, reasons), plain(one)) if part)


def legend(results: Sequence[Result]) -> list[tuple[str, str]]:
    """What the table's words mean, of those that occur."""
    present = {result.by_us.verdict for result in results}
    present |= {printed.verdict for r in results if (printed := r.by_print) is not None}
    told = [f"{verdict}: {_MEANINGS[verdict]}" for verdict in Verdict if verdict in present]
    return [("Verdicts", "; ".join(told)), ("Counts", COUNTS)]


def open_commands(results: Sequence[Result]) -> dict[str, list[str]]:
    """Commands that would test what is not yet testable, and for which claims."""
    found: dict[str, list[str]] = {}
    for result in results:
        if result.by_us.verdict is Verdict.NOT_YET:
            for command in result.commands:
                found.setdefault(command, []).append(result.claim.name)
    return found


def as_json(results: Sequence[Result]) -> str:
    """Everything, for scripts."""
    return json.dumps([_document(result) for result in results], indent=1) + "\n"


def _document(result: Result) -> dict[str, Any]:
    claim, printed = result.claim, result.by_print
    return {
        "claim": claim.name,
        "says": claim.says,
        "source": claim.source,
        "reading": claim.reading,
        "printed": None if printed is None else _judgement(printed),
        "ours": _judgement(result.by_us) | {"scale": [str(side) for side in result.sides]},
        "comparisons": [_comparison(one) for one in (*result.printed, *result.ours, *result.aside)],
        "cannot": list(result.reasons),
        "commands": list(result.commands),
    }


def _judgement(one: Judgement) -> dict[str, Any]:
    return {"verdict": str(one.verdict)} | {
        name: getattr(one, name)
        for name in ("holds", "fails", "close", "lacking", "cannot", "ahead", "behind")
    }


def _comparison(one: Comparison) -> dict[str, Any]:
    numbers: Mapping[str, float] = one.numbers
    return {
        "side": str(one.side),
        "what": one.what,
        "expected": one.expected,
        "found": one.found or None,
        "outcome": str(one.outcome),
        # Ten digits: what binary fractions add beyond them is nobody's measurement.
        "numbers": {name: float(f"{value:.10g}") for name, value in numbers.items()},
        "where": one.where or None,
        "why": one.why or None,
        "runs": list(one.runs),
        "marks": one.marks,
    }


STYLES = {
    Outcome.HOLDS: "green",
    Outcome.FAILS: "red",
    Outcome.CLOSE: "yellow",
    Outcome.LACKING: "dim",
    Outcome.CANNOT: "dim",
    Verdict.HOLDS: "green",
    Verdict.IN_PART: "yellow",
    Verdict.FAILS: "red",
    Verdict.MIXED: "yellow",
    Verdict.CLOSE: "yellow",
    Verdict.NOT_YET: "dim",
    Verdict.CANNOT: "dim",
}
