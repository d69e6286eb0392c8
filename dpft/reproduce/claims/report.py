"""Claims on the terminal, as Markdown and as JSON: a list, or one with all its numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich import box
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dpft.report.console import Console, as_plain_text, print_notes
from dpft.report.markdown import escape
from dpft.report.markdown import table as markdown_table
from dpft.reproduce.claims.comparison import Comparison, Outcome, Side
from dpft.reproduce.claims.evaluate import Result
from dpft.reproduce.claims.judgement import Judgement, Verdict
from dpft.reproduce.tables.marks import NOT_THE_PAPERS, Mark

WIDTH = 140
_WIDE = 120  # columns that a table of claims needs
_SIDES = {
    Side.PRINTED: "printed",
    Side.PAPER: "paper scale",
    Side.STAND_IN: "paper scale with stand-ins, trend only",
    Side.LAPTOP: "laptop scale, trend only",
    Side.COMPUTED: "computed",
    Side.MEASURED: "measured",
}
_MEANINGS = {
    Verdict.CONFIRMED: "it holds, every comparison of runs by its interval over seeds",
    Verdict.CONTRADICTED: "it fails, by intervals over seeds, in as many comparisons of one of its "
    "checks as are not told apart, or more",
    Verdict.NOT_APART: "every interval over seeds is too wide to tell",
    Verdict.HOLDS: "every comparison that came out bears the claim out",
    Verdict.IN_PART: "what came out bears it out, but some of it is not told apart, or most of one "
    "check is too close to tell",
    Verdict.FAILS: "every comparison that came out contradicts it",
    Verdict.FAILS_IN_PART: "some intervals over seeds contradict it, but more are not told apart",
    Verdict.MIXED: "some do and some do not",
    Verdict.CLOSE: "differences are within the margin",
    Verdict.NOT_YET: "no numbers yet; the commands below give them",
    Verdict.CANNOT: "no run of dpft gives them; dpft claims NAME says why",
}
_COUNTS = (
    "in brackets: comparisons that hold, of those with numbers. Two scores differ if they lie "
    "further apart than two standard deviations over seeds, or 1% where no deviation is known; "
    "with the same seeds of both, if the 95% interval of their paired difference says so; where "
    "nothing differs one interval in forty says better, and one worse"
)
# By the value of a verdict or an outcome; the rest is dim.
_COLOURS = {
    "holds": "green",
    "confirmed here": "green",
    "fails": "red",
    "contradicted here": "red",
    "not told apart": "yellow",
    "mixed": "yellow",
    "holds in part": "yellow",
    "fails in part": "yellow",
    "too close to tell": "yellow",
}

Notes = list[tuple[str, str]]


@dataclass(frozen=True)
class Page:
    """What is shown, whatever the format.

    Attributes:
        headings: of the table.
        rows: of the table.
        title: a claim's name; empty for a list.
        says: the claim.
        facts: heading and text of what stands above the table.
        legend: heading and text of what stands below it.
        commands: what would test the rest, and which claims.
    """

    headings: tuple[str, ...]
    rows: list[list[Text]]
    title: str = ""
    says: str = ""
    facts: Notes = field(default_factory=list)
    legend: Notes = field(default_factory=list)
    commands: list[str] = field(default_factory=list)


def page_of(results: Sequence[Result], *, one: bool) -> Page:
    """A list of claims, or one with every comparison that has numbers."""
    if one:
        (result,) = results
        rows = [_line(comparison) for comparison in result.comparisons if comparison.known]
        headings = ("whose", "compared", "expected", "found", "outcome")
        return Page(headings, rows, result.claim.name, result.claim.says, _facts(result))
    headings = ("claim", "in short", "printed numbers", "our numbers", "ours are")
    legend, commands = _legend(results), _open_commands(results)
    return Page(headings, [_row(result) for result in results], legend=legend, commands=commands)


def show(page: Page, console: Console) -> None:
    """On a console."""
    if page.title:
        console.print(Text(f"{page.title}: {page.says}", style="bold"))
    print_notes(page.facts, console)
    if page.rows and not page.title and console.width < _WIDE:
        _show_apart(page, console)
    elif page.rows:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_lines=not page.title)
        for place, heading in enumerate(page.headings):
            table.add_column(Text(heading), ratio=3 if place == 1 else None)  # the longest texts
        for row in page.rows:
            table.add_row(*row)
        console.print(table)
    print_notes(page.legend, console)
    if page.commands:
        console.print(Text("What would test those not yet testable:", style="bold"))
    for command in page.commands:
        console.print(Padding(Text(command), (0, 0, 0, 1)))


def _show_apart(page: Page, console: Console) -> None:
    """The rows of a list below each other, where columns beside each other would be slivers."""
    for name, says, *others in page.rows:
        console.print(Text.assemble((f"{name}  ", "bold"), says))
        for heading, cell in zip(page.headings[2:], others, strict=True):
            console.print(Padding(Text.assemble(f"{heading}: ", cell), (0, 0, 0, 4)))
        console.print()


def as_text(page: Page) -> str:
    """As on a console of `WIDTH` characters."""
    return as_plain_text(lambda console: show(page, console), WIDTH)


def as_markdown(page: Page) -> str:
    """The same as Markdown."""
    parts = [f"# {page.title or 'Claims'}"]
    parts += [escape(page.says)] if page.says else []
    parts += [_list(page.facts)] if page.facts else []
    if page.rows:
        rows = [[escape(cell.plain) for cell in row] for row in page.rows]
        parts.append(markdown_table(page.headings, rows))
    parts += [_list(page.legend)] if page.legend else []
    if page.commands:
        commands = "\n".join(page.commands)
        parts.append(f"What would test those not yet testable:\n\n```sh\n{commands}\n```")
    return "\n\n".join(parts) + "\n"


def _list(notes: Notes) -> str:
    return "\n".join(f"- **{heading}:** {escape(text)}" for heading, text in notes)


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
        "printed": None if printed is None else asdict(printed),
        "ours": asdict(result.by_us) | {"scale": list(result.sides)},
        "comparisons": [
            {
                "side": one.side,
                "what": one.what,
                "expected": one.expected,
                "found": one.text or None,
                "outcome": one.outcome,
                # Ten digits: what binary fractions add beyond them is nobody's measurement.
                "numbers": {name: float(f"{value:.10g}") for name, value in one.numbers.items()},
                "where": one.where or None,
                "why": one.why or None,
                "runs": list(one.runs),
                "marks": one.marks,
            }
            for one in result.comparisons
        ],
        "cannot": list(result.reasons),
        "commands": list(result.commands),
    }


def counted(one: Judgement, reasons: Sequence[str] = ()) -> str:
    """``mixed so far (3 of 5 hold, 1 too close; 2 without numbers)``."""
    if not one.known:
        return str(one.verdict)
    text = f"{one.holds} of {one.known} hold"
    text += f", {one.close} too close" if one.close and one.verdict is not Verdict.CLOSE else ""
    apart = one.apart and one.verdict is not Verdict.NOT_APART
    text += f", {one.apart} not told apart with {one.seeds} seeds" if apart else ""
    text += f"; {one.lacking} without numbers" if one.lacking else ""
    text += "; a part cannot be tested here" if reasons else ""
    seeds = f" with {one.seeds} seeds" if one.verdict is Verdict.NOT_APART else ""
    return f"{one.verdict}{seeds}{' so far' if one.lacking else ''} ({text})"


def scale(result: Result) -> str:
    """Where our numbers are from: ``computed; laptop scale, trend only``."""
    return "; ".join(_side(side, result.ours) for side in result.sides) or "-"


def _side(side: Side, comparisons: Sequence[Comparison]) -> str:
    """Whose numbers, with what makes them less than the paper's setting, or the machines."""
    ours = [one for one in comparisons if one.side is side]
    if side is Side.MEASURED:
        machines = dict.fromkeys(one.brief for one in ours if one.known)
        return f"{_SIDES[side]} ({', '.join(machines)})"
    letters = {letter for one in ours for letter in one.marks}
    apart = letters & {mark.letter for mark in NOT_THE_PAPERS - {Mark.LAPTOP}}
    marks = f", marks {''.join(sorted(apart))}" if apart and side is Side.STAND_IN else ""
    return f"{_SIDES[side]}{marks}"


def _styled(text: str, verdict: Verdict | Outcome) -> Text:
    return Text(text, style=_COLOURS.get(verdict, "dim"))


def _row(result: Result) -> list[Text]:
    printed, ours = result.by_print, result.by_us
    return [
        Text(result.claim.name, no_wrap=True),
        Text(result.claim.says),
        Text("-") if printed is None else _styled(counted(printed), printed.verdict),
        _styled(counted(ours, result.reasons), ours.verdict),
        Text(scale(result)),
    ]


def _line(one: Comparison) -> list[Text]:
    whose = _SIDES[one.side] if one.side is Side.MEASURED else _side(one.side, [one])
    return [
        Text(whose),
        Text(f"{one.what} ({one.where})" if one.where else one.what),
        Text(one.expected),
        Text(f"{one.text} [{one.marks}]" if one.marks else one.text),
        _styled(_outcome(one), one.outcome),
    ]


def _outcome(one: Comparison) -> str:
    """With the number of seeds where they are too few."""
    if one.outcome is Outcome.NOT_APART and one.paired is not None:
        return f"{one.outcome} with {one.paired.seeds} seeds"
    return str(one.outcome)


def _facts(result: Result) -> Notes:
    claim, printed = result.claim, result.by_print
    facts = [("Source", claim.source)]
    if claim.reading is not None:
        facts.append(("Read as", claim.reading))
    if printed is not None:
        facts.append(("By its printed numbers", _sentence(printed)))
    whose = f"By ours ({scale(result)})" if result.sides else "By ours"
    facts.append((whose, _sentence(result.by_us, result.reasons)))
    lacking = [one for one in result.ours if one.outcome is Outcome.LACKING]
    if lacking:
        more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
        facts.append(("Without numbers", f"{lacking[0].what}: {lacking[0].expected}{more}"))
    runs = dict.fromkeys(run for one in (*result.ours, *result.aside) for run in one.runs)
    if runs:
        facts.append(("Runs", ", ".join(runs)))
    facts += [("Cannot be tested here", why) for why in result.reasons]
    return facts + [("What would test it", command) for command in result.commands]


def _sentence(one: Judgement, reasons: Sequence[str] = ()) -> str:
    text = counted(one, reasons)
    if one.ahead + one.behind:
        text += f"; without any margin the first is better in {one.ahead} and worse in {one.behind}"
    return text


def _legend(results: Sequence[Result]) -> Notes:
    present = {result.by_us.verdict for result in results}
    present |= {printed.verdict for one in results if (printed := one.by_print) is not None}
    meanings = [f"{verdict}: {_MEANINGS[verdict]}" for verdict in Verdict if verdict in present]
    return [("Verdicts", "; ".join(meanings)), ("Counts", _COUNTS)]


def _open_commands(results: Sequence[Result]) -> list[str]:
    """Commands that would test what is not yet testable, and for which claims."""
    claims: dict[str, list[str]] = {}
    for result in results:
        if result.by_us.verdict is Verdict.NOT_YET:
            for command in result.commands:
                claims.setdefault(command, []).append(result.claim.name)
    return [f"{command}  # {', '.join(names)}" for command, names in claims.items()]
