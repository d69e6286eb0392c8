"""Show claims as tables: a list, or one claim with all its numbers."""

from collections import Counter
from collections.abc import Sequence

from rich.text import Text

from dpft.report.text_table import Cell, TextTable
from dpft.reproduce.claims.evaluate import Comparison, Result
from dpft.reproduce.claims.rule import FAILING, HOLDING, Word, combined

_RULE = (
    "a claim states all of its comparisons. Each is decided by Student's interval of the paired "
    "difference over seeds and by the error of the test set, with Holm's correction within a claim"
)
_COLOURS = {
    **dict.fromkeys(HOLDING, "green"),
    **dict.fromkeys(FAILING, "red"),
    **dict.fromkeys((Word.NOT_YET, Word.CANNOT), "dim"),
}


def list_of(results: Sequence[Result]) -> TextTable:
    """Return a line for each claim, the legend, and the commands that would test the rest."""
    rows, present = [], set()
    commands: dict[str, list[str]] = {}
    for one in results:
        present |= {one.by_us, *([one.by_print] if one.printed else [])}
        name = Text(one.claim.name, no_wrap=True)
        printed = _styled(one.by_print, sentence(one.printed)) if one.printed else "-"
        ours = _styled(one.by_us, sentence(one.ours, one.reasons))
        rows.append((name, one.claim.says, printed, ours))
        for command in one.commands if one.by_us is Word.NOT_YET else ():
            commands.setdefault(command, []).append(one.claim.name)
    meanings = [f"{word}: {word.meaning}" for word in Word if word in present]
    notes = [("Words", "; ".join(meanings)), ("Rule", _RULE)]
    for command, names in commands.items():
        notes.append(("To test", f"{command}  # {', '.join(names)}"))
    headings = ("claim", "in short", "printed numbers", "our numbers")
    return TextTable(headings, rows, notes=notes, stacked=True)


def summary_of(results: Sequence[Result]) -> TextTable:
    """Return how many claims of each paper have which word, by our numbers."""
    papers = list(dict.fromkeys(one.claim.name.partition("/")[0] for one in results))
    counts = Counter((one.by_us, one.claim.name.partition("/")[0]) for one in results)
    rows: list[tuple[Cell, ...]] = [
        (_styled(word, word), *(str(counts[word, paper]) for paper in papers))
        for word in Word
        if any(counts[word, paper] for paper in papers)
    ]
    return TextTable(("our numbers", *papers), rows, left=1)


def table_of(result: Result) -> TextTable:
    """Return a claim with every comparison that has numbers."""
    claim = result.claim
    notes = [("Source", claim.source)]
    notes += [] if claim.reading is None else [("Read as", claim.reading)]
    notes += [("By its printed numbers", sentence(result.printed))] if result.printed else []
    notes.append(("By ours", sentence(result.ours, result.reasons)))
    runs = dict.fromkeys(run for one in result.ours for run in one.runs)
    notes += [("Runs", ", ".join(runs))] if runs else []
    notes += [("Cannot be tested here", why) for why in result.reasons]
    notes += [("For five seeds", command) for command in result.commands]
    rows = [
        (
            one.origin,
            f"{one.what} ({one.where})" if one.where else one.what,
            one.expected,
            one.text,
            _styled(one.word, one.word),
        )
        for one in (*result.printed, *result.ours)
        if one.text
    ]
    headings = ("whose", "compared", "expected", "found", "word")
    return TextTable(headings, rows, f"{claim.name}: {claim.says}", notes=notes)


def sentence(comparisons: Sequence[Comparison], reasons: Sequence[str] = ()) -> str:
    """Return the word on a claim, how many comparisons it rests on, and what they are of.

    As in ``tends to hold so far with 12m on e2e (4,000 records), 3 seeds: 2 of 2 hold; 1 without
    numbers``.
    """
    text = str(combined([one.word for one in comparisons]))
    known = [one for one in comparisons if one.text]
    if not known:
        return text
    lacking = sum(one.word is Word.NOT_YET for one in comparisons)
    text += " so far" * (lacking > 0)
    runs, measured = ([x for x in known if x.origin == o] for o in ("runs", "measured"))
    if settings := dict.fromkeys(name for one in runs for name in one.settings):
        text += f" with {', '.join(settings)}"
    if runs:
        counts = [one.seeds for one in runs]
        ends = " to ".join(map(str, sorted({min(counts), max(counts)})))
        text += f", {ends} seed{'s' * (max(counts) != 1)}"
    text += ", computed" if any(one.origin == "computed" for one in known) else ""
    if machines := dict.fromkeys(name for one in measured for name in one.settings):
        text += f", measured with {', '.join(machines)}"
    text += f": {sum(one.word in HOLDING for one in known)} of {len(known)} hold"
    unsure = sum(one.word is Word.INCONCLUSIVE for one in known)
    text += f", {unsure} inconclusive" if unsure else ""
    text += f"; {lacking} without numbers" if lacking else ""
    return text + ("; a part cannot be tested here" if reasons else "")


def _styled(word: Word, text: str) -> Text:
    return Text(text, style=_COLOURS.get(word, "yellow"))
