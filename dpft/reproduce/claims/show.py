"""Show claims: a list, or one with all its numbers, as tables; and as JSON for scripts."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.text import Text

from dpft.report.table import TextTable
from dpft.reproduce.claims.comparison import Comparison, Judgement, Outcome, Side
from dpft.reproduce.claims.evaluate import Result
from dpft.reproduce.tables.verdicts import NOT_THE_PAPERS, Mark

_COUNTS = (
    "in brackets: comparisons that hold, of those with numbers. Two scores differ if they are "
    "further apart than two standard deviations over seeds, or 1% where no deviation is known; "
    "with the same seeds of both, if the 95% interval of their paired difference says so; where "
    "nothing differs one interval in forty says better, and one worse"
)
_COLOURS = {
    **dict.fromkeys((Outcome.HOLDS, Outcome.CONFIRMED), "green"),
    **dict.fromkeys((Outcome.FAILS, Outcome.CONTRADICTED), "red"),
    **dict.fromkeys((Outcome.NOT_YET, Outcome.CANNOT), "dim"),
}


def list_of(results: Sequence[Result]) -> TextTable:
    """Return a line for each claim, the legend, and the commands that would test the rest."""
    rows, present = [], set()
    commands: dict[str, list[str]] = {}
    for one in results:
        printed, ours = one.by_print, one.by_us
        present |= {judged.verdict for judged in (printed, ours) if judged is not None}
        rows.append(
            (
                Text(one.claim.name, no_wrap=True),
                one.claim.says,
                "-" if printed is None else _styled(counted(printed), printed.verdict),
                _styled(counted(ours, one.reasons), ours.verdict),
                scale(one),
            )
        )
        for command in one.commands if ours.verdict is Outcome.NOT_YET else ():
            commands.setdefault(command, []).append(one.claim.name)
    meanings = [f"{verdict}: {verdict.meaning}" for verdict in Outcome if verdict in present]
    notes = [("Verdicts", "; ".join(meanings)), ("Counts", _COUNTS)]
    for command, names in commands.items():
        notes.append(("To test", f"{command}  # {', '.join(names)}"))
    headings = ("claim", "in short", "printed numbers", "our numbers", "ours are")
    return TextTable(headings, rows, notes=notes, stacked=True)


def table_of(result: Result) -> TextTable:
    """Return a claim with every comparison that has numbers."""
    claim, printed = result.claim, result.by_print
    notes = [("Source", claim.source)]
    if claim.reading is not None:
        notes.append(("Read as", claim.reading))
    if printed is not None:
        notes.append(("By its printed numbers", counted(printed)))
    whose = f"By ours ({scale(result)})" if result.sides else "By ours"
    notes.append((whose, counted(result.by_us, result.reasons)))
    lacking = [one for one in result.ours if one.outcome is Outcome.NOT_YET]
    if lacking:
        more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        notes.append(("Without numbers", f"{lacking[0].what}: {lacking[0].expected}{more}"))
    runs = dict.fromkeys(run for one in (*result.ours, *result.aside) for run in one.runs)
    notes += [("Runs", ", ".join(runs))] if runs else []
    notes += [("Cannot be tested here", why) for why in result.reasons]
    notes += [("What would test it", command) for command in result.commands]
    rows = [
        (
            _side(one.side, () if one.side is Side.MEASURED else [one]),
            f"{one.what} ({one.where})" if one.where else one.what,
            one.expected,
            f"{one.text} [{one.marks}]" if one.marks else one.text,
            _styled(one.outcome, one.outcome),
        )
        for one in result.all
        if one.known
    ]
    headings = ("whose", "compared", "expected", "found", "outcome")
    return TextTable(headings, rows, f"{claim.name}: {claim.says}", notes=notes)


def as_json(results: Sequence[Result]) -> str:
    """Return everything, for scripts."""
    content = [
        {
            **{"claim": one.claim.name, "says": one.claim.says, "source": one.claim.source},
            "reading": one.claim.reading,
            "printed": by_print and {"verdict": by_print.verdict, **by_print.count},
            "ours": {"verdict": ours.verdict, **ours.count, "scale": list(one.sides)},
            "comparisons": [asdict(comparison) for comparison in one.all],
            "cannot": one.reasons,
            "commands": one.commands,
        }
        for one in results
        for by_print, ours in [(one.by_print, one.by_us)]
    ]
    return json.dumps(content, indent=1) + "\n"


def counted(one: Judgement, reasons: Sequence[str] = ()) -> str:
    """Return ``mixed so far (3 of 5 hold, 1 too close; 2 without numbers)``."""
    if not one.known:
        return str(one.verdict)
    count, lacking = one.count, one.count[Outcome.NOT_YET]
    text = f"{count[Outcome.HOLDS]} of {one.known} hold"
    if count[Outcome.CLOSE] and one.verdict is not Outcome.CLOSE:
        text += f", {count[Outcome.CLOSE]} too close"
    if count[Outcome.INCONCLUSIVE] and one.verdict is not Outcome.INCONCLUSIVE:
        text += f", {count[Outcome.INCONCLUSIVE]} inconclusive with {one.seeds} seeds"
    text += f"; {lacking} without numbers" if lacking else ""
    text += "; a part cannot be tested here" if reasons else ""
    seeds = f" with {one.seeds} seeds" if one.verdict is Outcome.INCONCLUSIVE else ""
    return f"{one.verdict}{seeds}{' so far' if lacking else ''} ({text})"


def scale(result: Result) -> str:
    """Return where our numbers are from: ``computed; laptop scale, trend only``."""
    return "; ".join(_side(side, result.ours) for side in result.sides) or "-"


def _side(side: Side, comparisons: Sequence[Comparison]) -> str:
    """Return whose numbers these are, with the machines, or what stands in for the paper's."""
    ours = [one for one in comparisons if one.side is side and one.known]
    if side is Side.MEASURED and ours:
        return f"{side.meaning} ({', '.join(dict.fromkeys(one.brief for one in ours))})"
    letters = {letter for one in ours for letter in one.marks}
    apart = letters & {mark.letter for mark in NOT_THE_PAPERS - {Mark.LAPTOP}}
    marks = f", marks {''.join(sorted(apart))}" if apart and side is Side.STAND_IN else ""
    return f"{side.meaning}{marks}"


def _styled(text: str, outcome: Outcome) -> Text:
    return Text(text, style=_COLOURS.get(outcome, "yellow"))
