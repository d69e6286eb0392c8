"""Show claims on the terminal and as JSON: a list, or one with all its numbers."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dpft.report.console import Console, print_notes
from dpft.reproduce.claims.comparison import Comparison, Judgement, Outcome, Side
from dpft.reproduce.claims.evaluate import Result
from dpft.reproduce.tables.verdicts import NOT_THE_PAPERS, Mark

_WIDE = 120  # columns that a table of claims needs
_COUNTS = (
    "in brackets: comparisons that hold, of those with numbers. Two scores differ if they lie "
    "further apart than two standard deviations over seeds, or 1% where no deviation is known; "
    "with the same seeds of both, if the 95% interval of their paired difference says so; where "
    "nothing differs one interval in forty says better, and one worse"
)
_COLOURS = {
    **dict.fromkeys((Outcome.HOLDS, Outcome.CONFIRMED), "green"),
    **dict.fromkeys((Outcome.FAILS, Outcome.CONTRADICTED), "red"),
    **dict.fromkeys((Outcome.NOT_YET, Outcome.CANNOT), "dim"),
}


def show_list(results: Sequence[Result], console: Console) -> None:
    """Print a line for each claim, the legend, and the commands that would test the rest."""
    headings = ("claim", "in short", "printed numbers", "our numbers", "ours are")
    rows = [
        (
            Text(one.claim.name, no_wrap=True),
            Text(one.claim.says),
            Text("-") if printed is None else _styled(counted(printed), printed.verdict),
            _styled(counted(ours, one.reasons), ours.verdict),
            Text(scale(one)),
        )
        for one in results
        for printed, ours in [(one.by_print, one.by_us)]
    ]
    if console.width >= _WIDE:
        console.print(_table(headings, rows, show_lines=True))
    else:  # the cells of a row below each other
        for name, says, *others in rows:
            console.print(Text.assemble(name, "  ", says))
            for heading, cell in zip(headings[2:], others, strict=True):
                console.print(Padding(Text.assemble(f"{heading}: ", cell), (0, 0, 0, 4)))
            console.print()
    judgements = [one for result in results for one in (result.by_us, result.by_print) if one]
    present = {one.verdict for one in judgements}
    meanings = [f"{verdict}: {verdict.meaning}" for verdict in Outcome if verdict in present]
    print_notes([("Verdicts", "; ".join(meanings)), ("Counts", _COUNTS)], console)
    claims: dict[str, list[str]] = {}
    for result in (one for one in results if one.by_us.verdict is Outcome.NOT_YET):
        for command in result.commands:
            claims.setdefault(command, []).append(result.claim.name)
    if claims:
        console.print(Text("What would test those not yet testable:", style="bold"))
    for command, names in claims.items():
        console.print(Padding(Text(f"{command}  # {', '.join(names)}"), (0, 0, 0, 1)))


def show_one(result: Result, console: Console) -> None:
    """Print a claim with every comparison that has numbers."""
    claim, printed = result.claim, result.by_print
    console.print(Text(f"{claim.name}: {claim.says}", style="bold"))
    facts = [("Source", claim.source)]
    if claim.reading is not None:
        facts.append(("Read as", claim.reading))
    if printed is not None:
        facts.append(("By its printed numbers", counted(printed)))
    whose = f"By ours ({scale(result)})" if result.sides else "By ours"
    facts.append((whose, counted(result.by_us, result.reasons)))
    lacking = [one for one in result.ours if one.outcome is Outcome.NOT_YET]
    if lacking:
        more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        facts.append(("Without numbers", f"{lacking[0].what}: {lacking[0].expected}{more}"))
    runs = dict.fromkeys(run for one in (*result.ours, *result.aside) for run in one.runs)
    if runs:
        facts.append(("Runs", ", ".join(runs)))
    facts += [("Cannot be tested here", why) for why in result.reasons]
    facts += [("What would test it", command) for command in result.commands]
    print_notes(facts, console)
    rows = [
        (
            Text(_side(one.side, () if one.side is Side.MEASURED else [one])),
            Text(f"{one.what} ({one.where})" if one.where else one.what),
            Text(one.expected),
            Text(f"{one.text} [{one.marks}]" if one.marks else one.text),
            _styled(one.outcome, one.outcome),
        )
        for one in result.all
        if one.known
    ]
    if rows:
        console.print(_table(("whose", "compared", "expected", "found", "outcome"), rows))


def _table(headings: Sequence[str], rows: Sequence[Sequence[Text]], **options: Any) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, **options)
    for place, heading in enumerate(headings):
        table.add_column(Text(heading), ratio=3 if place == 1 else None)  # the longest texts
    for row in rows:
        table.add_row(*row)
    return table


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
    if count[Outcome.NOT_APART] and one.verdict is not Outcome.NOT_APART:
        text += f", {count[Outcome.NOT_APART]} not told apart with {one.seeds} seeds"
    text += f"; {lacking} without numbers" if lacking else ""
    text += "; a part cannot be tested here" if reasons else ""
    seeds = f" with {one.seeds} seeds" if one.verdict is Outcome.NOT_APART else ""
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
