"""Make the comparisons of a claim: of a table's cells, of benchmarks, and of computed numbers."""

import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from dpft.config.errors import ConfigError
from dpft.reproduce import papers
from dpft.reproduce.bench.choices import BASELINE
from dpft.reproduce.bench.documents import BenchFile
from dpft.reproduce.claims.claim import (
    BenchCheck,
    CellsCheck,
    Claim,
    ComputedCheck,
    FigureCheck,
    in_words,
    limits,
)
from dpft.reproduce.claims.derived import numbers_of
from dpft.reproduce.claims.rule import SEEDS_TO_CONFIRM, Difference, Word, combined, judge
from dpft.reproduce.figures.catalog import load_list
from dpft.reproduce.papers import Column, Label, PaperError, PaperTable, Row
from dpft.reproduce.tables.cells import Cell, cell_of, missing, shown_path
from dpft.reproduce.tables.planned import SCALES, Known, empty_plan, make_plan, may_hold, words_at
from dpft.reproduce.tables.record_index import Answers, Index
from dpft.reproduce.tables.verdicts import NOT_THE_PAPERS, Mark
from dpft.tasks.scores import paired_error

SEEDS = tuple(range(SEEDS_TO_CONFIRM))


@dataclass(frozen=True)
class Score:
    """The number of a row; None: there is none yet, or never because of ``why``.

    ``error`` is its standard error: of a printed number that over the seeds, with this ``freedom``,
    of runs that of the test set. ``setting`` names model and data that are not the paper's.
    ``idle``: it is no better than that of an answer that never changes.
    """

    name: str
    value: float | None
    error: float = 0.0
    freedom: float = math.inf
    by_seed: Mapping[int, float] = field(default_factory=dict)
    answers: Mapping[int, Answers] = field(default_factory=dict)
    runs: tuple[str, ...] = ()
    setting: str = ""
    idle: bool = False
    why: str = ""


@dataclass(frozen=True)
class Comparison:
    """Two numbers in words; no text where they are missing.

    ``where``: the table, or what a benchmark is of; ``settings``: models and data that are not the
    paper's, or machines; ``why`` it cannot be tested; ``test``: what `judge` is given.
    """

    origin: Literal["printed", "runs", "computed", "measured"]
    what: str
    expected: str
    word: Word = Word.NOT_YET
    text: str = ""
    where: str = ""
    settings: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    seeds: int = 0
    why: str = ""
    test: tuple[Difference, float, float] | None = None


@dataclass
class Evidence:
    """Records and benchmarks, and the tables and cells that the records fill."""

    index: Index
    benches: Sequence[BenchFile]
    known: Known = field(default_factory=dict)
    _tables: dict[tuple[str, bool], PaperTable] = field(default_factory=dict)

    def table(self, name: str, *, figure: bool = False) -> PaperTable:
        """Return the table ``li2022/2``, or the list of runs of the figure of that name."""
        if (key := (name, figure)) not in self._tables:
            self._tables[key] = load_list(name) if figure else papers.load(*name.split("/", 1))
        return self._tables[key]

    def cell(self, table: PaperTable, row: Row, column: Column, scale: str) -> Cell:
        """Return a cell with its records at a scale, or the printed number alone."""
        alone = replace(table, rows=(row,), columns=(column,))
        runnable = scale in SCALES and row.run is not None
        if runnable and may_hold(self.index, words_at(table, column, row, scale)):
            plan = make_plan(alone, scale, known=self.known)
        else:
            plan = empty_plan(replace(alone, laptop=None), scale)
        return cell_of(plan, 0, 0, self.index)


@dataclass
class Result:
    """A claim with its comparisons of the paper's own numbers and of ours.

    ``reasons`` say why parts cannot be tested; ``commands`` would give the missing numbers.
    """

    claim: Claim
    printed: list[Comparison] = field(default_factory=list)
    ours: list[Comparison] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)

    @property
    def by_print(self) -> Word:
        """The word by the paper's own numbers, if it prints any."""
        return combined([one.word for one in self.printed])

    @property
    def by_us(self) -> Word:
        """The word by our numbers."""
        return combined([one.word for one in self.ours])


def evaluate(claim: Claim, evidence: Evidence) -> Result:
    """Make and judge every comparison of a claim; a PaperError names a check that is wrong."""
    result = Result(claim, reasons=list(claim.cannot))
    for number, check in enumerate(claim.checks, 1):
        try:
            if isinstance(check, CellsCheck):
                compare_cells(check, evidence, result)
            elif isinstance(check, BenchCheck):
                compare_benches(check, evidence, result)
            else:
                result.ours += compute(check)
        except (ConfigError, PaperError) as error:
            raise PaperError(f"{claim.name}, check {number}: {error}") from error
    result.printed, result.ours = judged(result.printed), judged(result.ours)
    reasons = [*result.reasons, *(one.why for one in result.ours if one.word is Word.CANNOT)]
    result.reasons = list(dict.fromkeys(reasons))
    result.commands = list(dict.fromkeys(result.commands))
    return result


def judged(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Return the comparisons of a claim with the words that the rule gives to scores."""
    words = iter(judge([one.test for one in comparisons if one.test is not None]))
    found = []
    for one in comparisons:
        if one.test is not None:
            word, p = next(words)
            text = f"{one.text}, adjusted p {p:.2g}" if one.test[0].error else one.text
            one = replace(one, word=word, text=text)
        found.append(one)
    return found


def exactly(low: float, high: float, ends: tuple[float | None, float | None]) -> Word:
    """Return whether numbers from ``low`` to ``high`` are in a range."""
    least, most = limits(ends)
    if least <= low and high <= most:
        return Word.HOLDS
    return Word.FAILS if high < least or low > most else Word.INCONCLUSIVE


def compute(check: ComputedCheck) -> Iterator[Comparison]:
    """Yield the comparisons of numbers that follow without a run."""
    for case in check.of:
        lists = [value if isinstance(value, list) else [value] for value in case.values()]
        for values in itertools.product(*lists):
            arguments = dict(zip(case, values, strict=True))
            try:
                numbers = arguments | numbers_of(check.function, arguments)
                what, text = check.what.format(**numbers), check.shows.format(**numbers)
            except (KeyError, TypeError, ValueError) as error:
                raise PaperError(f"{check.function} of {arguments}: {error!r}") from error
            value = float(numbers["value"])
            word, expected = exactly(value, value, check.within), in_words(check.within)
            yield Comparison("computed", what, expected, word, text)


def compare_benches(check: BenchCheck, evidence: Evidence, result: Result) -> None:
    """Add one comparison for each file and pair of styles: of the ratio in all rounds.

    The papers' memory is a GPU's. On a CPU the peak is of the whole process, and with few records
    most of it is the model, so that it is no evidence.
    """
    expected = f"ratio {in_words(check.ratio)}"
    is_memory = check.quantity == "memory"
    named, both = {BASELINE: "non-private"}, itertools.product(check.first, check.second)
    pairs = {(a, b): f"{named.get(a, a)} to {named.get(b, b)}" for a, b in both if a != b}
    files = [x for x in evidence.benches if not (is_memory and x.device == "cpu")]
    files = [x for x in files if x.model in check.models and (x.length or 0) >= check.tokens]
    none = Comparison("measured", f"{check.quantity}: {' or '.join(pairs.values())}", expected)
    found = [
        replace(
            none,
            what=f"{check.quantity}: {name}",
            word=exactly(ratio.min, ratio.max, check.ratio),
            text=f"{ratio.median:.2f} ({ratio.min:.2f} to {ratio.max:.2f})",
            where=", ".join(file.labels),
            settings=(f"{file.model} on {file.device}",),
            runs=(file.path.name,),
        )
        for file, ((first, second), name) in itertools.product(files, pairs.items())
        if (ratio := file.ratio(check.quantity, first, second)) is not None
    ]
    if not found and check.command is None:
        found = [replace(none, word=Word.CANNOT, why=f"dpft bench measures no {check.quantity}")]
    elif not found and check.command is not None:
        found = [none]
        result.commands.append(check.command + " --device cuda" * is_memory)
    result.ours += found


def compare_cells(check: CellsCheck, evidence: Evidence, result: Result) -> None:
    """Add every comparison that the check asks for, and the commands for cells without five seeds.

    Of the runs those at the paper's scale count, where there are none those at a laptop's.
    """
    table = _table_of(check, evidence)
    scales = [x for x in table.scales if check.scale in (None, x)]
    by_scale: dict[str, list[Comparison]] = {}
    for scale in [*(["printed"] if check.scale != "laptop" else []), *scales]:
        part = table.at(scale)
        groups = _groups(check, [row for row in part.rows if row.matches(check.where)])
        pairs = itertools.product(groups, part.columns)
        compared = (
            _compare(check, table, *group, column, scale, evidence) for group, column in pairs
        )
        by_scale[scale] = [one for one in compared if one is not None]
    if not any(by_scale.values()):
        raise PaperError(
            f"the check compares nothing in {table.name}; expected rows that differ in nothing but "
            "what `first` and `second` say, or `free: [...]`"
        )
    result.printed += by_scale.pop("printed", [])
    if not by_scale:
        return
    tested = [x for x in by_scale if any(one.test is not None for one in by_scale[x])]
    awaited = [x for x in reversed(by_scale) if any(y.word is Word.NOT_YET for y in by_scale[x])]
    scale = [*tested, *awaited, *by_scale][0]
    result.ours += by_scale[scale]
    if all(x.word is Word.CANNOT or x.seeds >= SEEDS_TO_CONFIRM for x in by_scale[scale]):
        return
    if check.variants:
        plan = make_plan(table, scale, SEEDS, known=evidence.known)
        result.commands += [f"dpft train {one.line}" for one in missing(plan, evidence.index)]
    else:
        verb = "figure" if isinstance(check, FigureCheck) else "table"
        seeds = ",".join(map(str, SEEDS))
        result.commands.append(f"dpft {verb} {check.table} scale={scale} --seeds {seeds} --run")


def _table_of(check: CellsCheck, evidence: Evidence) -> PaperTable:
    """Return the check's table with the check's columns and variants."""
    table = evidence.table(check.table, figure=isinstance(check, FigureCheck))
    rows, columns = table.rows, table.columns
    if check.columns_of is not None:
        columns = evidence.table(check.columns_of).columns
        unknown = {column.key: math.nan for column in columns}
        rows = tuple(replace(row, printed=unknown | dict(row.printed)) for row in rows)
    if check.variants:  # a row for each variant of each row in question, without numbers
        rows = tuple(
            replace(
                row,
                labels={**row.labels, "variant": name},
                printed=dict.fromkeys(row.printed, math.nan),
                run=(*row.run, *words),
            )
            for row in rows
            if row.run is not None and row.matches(check.where)
            for name, words in check.variants.items()
        )
    if check.columns:
        columns = tuple(column for column in columns if column.key in check.columns)
    return replace(table, rows=rows, columns=columns)


def _groups(check: CellsCheck, rows: Sequence[Row]) -> list[tuple[Sequence[Row], Sequence[Row]]]:
    """Return rows in question with the rows that they are compared with."""
    first = [row for row in rows if row.matches(check.first)]
    if "value" in check.expected:
        return [([row], []) for row in first]
    loose = {*check.first, *check.second, *check.free}

    def rest(row: Row) -> tuple[Label, ...]:
        return tuple(value for name, value in row.labels.items() if name not in loose)

    if not check.second:
        by_rest: dict[tuple[Label, ...], tuple[list[Row], list[Row]]] = {}
        for row in rows:
            by_rest.setdefault(rest(row), ([], []))[row not in first].append(row)
        return [group for group in by_rest.values() if all(group)]
    pairs = itertools.product(first, [row for row in rows if row.matches(check.second)])
    return [([a], [b]) for a, b in pairs if a is not b and rest(a) == rest(b)]


def _compare(
    check: CellsCheck,
    table: PaperTable,
    first: Sequence[Row],
    second: Sequence[Row],
    column: Column,
    scale: str,
    evidence: Evidence,
) -> Comparison | None:
    """Compare the best of some rows with the best of others; None for a printed dash."""
    both = [
        [_score(table, row, column, scale, evidence) for row in part] for part in (first, second)
    ]
    firsts, seconds = ([score for score in part if score is not None] for part in both)
    if "value" in check.expected:
        seconds = [Score("", 0.0, by_seed=dict.fromkeys(x.by_seed, 0.0)) for x in firsts]
    if not firsts or not seconds:
        return None
    scores = [*firsts, *seconds]
    names = (f"best of {len(part)}" if part[1:] else part[0].name for part in (firsts, seconds))
    none = Comparison(
        "printed" if scale == "printed" else "runs",
        f"{column.label}: {' against '.join(filter(None, names))}",
        check.in_words,
        where=check.table,
        runs=tuple(dict.fromkeys(run for score in scores for run in score.runs)),
    )
    if why := next((score.why for score in scores if score.why), ""):
        return replace(none, word=Word.CANNOT, why=why)
    if any(score.value is None for score in scores):
        return none
    raw = column.higher_is_better or "value" in check.expected
    sign = 1 if raw else -1
    return contrast(none, check, column, sign, _best(firsts, sign), _best(seconds, sign))


def contrast(
    none: Comparison, check: CellsCheck, column: Column, sign: int, first: Score, second: Score
) -> Comparison:
    """Compare two numbers; ``none`` says whose they are and what is compared."""
    assert first.value is not None
    assert second.value is not None
    a, b, seeds = first.value, second.value, sorted({*first.by_seed} & {*second.by_seed})
    if seeds:
        a, b = (statistics.fmean(one.by_seed[s] for s in seeds) for one in (first, second))
    error, freedom = math.hypot(first.error, second.error), min(first.freedom, second.freedom)
    difference = Difference(sign * (a - b), error, len(seeds), freedom)
    if len(seeds) > 1:
        known = [one.answers[s] for one in (first, second) for s in seeds if s in one.answers]
        # Of answers to the same records the paired error is known; else that of two shares counts.
        if len(known) == 2 * len(seeds) and len({(x.references, len(x.right)) for x in known}) == 1:
            right = [{s: one.answers[s].right for s in seeds} for one in (first, second)]
            error = column.factor * paired_error(*right)
        differences = [sign * (first.by_seed[s] - second.by_seed[s]) for s in seeds]
        difference = Difference.over_seeds(differences, error)
    digits, (low, high) = column.decimals, difference.interval
    text = f"{a:.{digits}f}"
    if "value" not in check.expected:
        text += f" and {b:.{digits}f}: {difference.mean:+.{digits}f}"
    text += f", 95% interval {low:+.{digits}f} to {high:+.{digits}f}" if low < high else ""
    if none.origin == "runs":
        text += f" over {len(seeds)} seed{'s' * (len(seeds) != 1)}"
    if idle := [one.name for one in (first, second) if one.idle]:
        text += f"; {' and '.join(idle)} learned nothing"
        difference = replace(difference, error=math.inf)
    return replace(
        none,
        text=text,
        settings=tuple(dict.fromkeys(x.setting for x in (first, second) if x.setting)),
        seeds=len(seeds),
        test=(difference, *check.bounds(b)),
    )


def _score(
    table: PaperTable, row: Row, column: Column, scale: str, evidence: Evidence
) -> Score | None:
    """Return the number of a row at a scale; None for a printed dash."""
    cell = evidence.cell(table, row, column, scale)
    if cell.printed is None or (scale == "printed" and math.isnan(cell.printed)):
        return None
    if scale == "printed":
        # A printed interval is of the mean, a printed deviation of single runs.
        runs = 1 if cell.std is None or table.seeds is None else table.seeds
        error = (cell.printed_spread or 0.0) / math.sqrt(runs)
        return Score(row.name, cell.printed, error, runs - 1 or math.inf)
    if cell.ours is not None:
        return Score(
            *(row.name, cell.ours, cell.sampling),
            by_seed=cell.by_seed,
            answers=cell.answers,
            runs=tuple(map(shown_path, cell.paths)),
            setting=_setting(cell),
            idle=Mark.CONSTANT in cell.marks,
        )
    why = row.why or ("" if column.metrics else f"{column.label} is no score of a run")
    if row.run is None and row.taken_from is not None:
        why = f"{row.name} is copied from {row.taken_from}"
    return Score(row.name, None, why=why)


def _setting(cell: Cell) -> str:
    """Return model and data of a cell's runs where they are not the paper's."""
    if not NOT_THE_PAPERS & {*cell.marks}:
        return ""
    record = cell.runs[0].record
    model, task = record["config"]["model"], record["config"]["task"]["name"]
    records = record["dataset"]["counts"].get("train")
    size = "" if records is None else f" ({records:,} records)"
    return f"{model.get('name') or model['path']} on {task}{size}"


def _best(scores: Sequence[Score], sign: int) -> Score:
    """Return the best of several; at each seed the number of the best by the other seeds.

    Chosen by the seeds that it is then compared with, the best of many would be ahead by chance.
    """
    best = max(scores, key=lambda one: sign * (one.value or 0.0))
    seeds = sorted(set.intersection(*({*one.by_seed} for one in scores)))
    if len(scores) == 1:
        return best
    if len(seeds) < 2:  # no other seeds to choose by
        return replace(best, by_seed={seed: best.by_seed[seed] for seed in seeds})

    def by_others(seed: int) -> Score:
        return max(scores, key=lambda one: sign * sum(one.by_seed[s] for s in seeds if s != seed))

    chosen = {seed: by_others(seed) for seed in seeds}
    return replace(
        best,
        by_seed={seed: one.by_seed[seed] for seed, one in chosen.items()},
        answers={s: one.answers[s] for s, one in chosen.items() if s in one.answers},
        idle=any(one.idle for one in chosen.values()),
    )
