"""Make the comparisons of a claim: of a table's cells, of benchmarks, and of computed numbers."""

import itertools
import math
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from dpft.config.errors import ConfigError, suggestion
from dpft.reproduce import papers
from dpft.reproduce.bench.catalog import BASELINE
from dpft.reproduce.bench.documents import BenchFile
from dpft.reproduce.claims.claim import (
    BenchCheck,
    CellsCheck,
    Claim,
    ComputedCheck,
    Expected,
    FigureCheck,
    Untestable,
)
from dpft.reproduce.claims.comparison import (
    Comparison,
    Judgement,
    Outcome,
    Score,
    Side,
    contrast,
    in_range,
    in_words,
    judge,
)
from dpft.reproduce.claims.computed import numbers_of
from dpft.reproduce.figures.catalog import load_list
from dpft.reproduce.papers import Column, Label, PaperError, PaperTable, Row
from dpft.reproduce.tables.cells import Cell, cell_of, shown_path
from dpft.reproduce.tables.plan import SCALES, Known, empty_plan, key_of, make_plan, words_at
from dpft.reproduce.tables.record_index import Index
from dpft.reproduce.tables.verdicts import NOT_THE_PAPERS, CellVerdict, at_least

# One seed leaves the margin to decide; a laptop has time for three.
LAPTOP_SEEDS = (0, 1, 2)
# A record is of another run where one of these differs, which is known without composing the run.
CHOICES = ("task", "adapt")
NUMBERS = ("optim.lr", "optim.batch_size", "optim.epochs", "task.limit_train", "task.limit_eval")
_QUANTITIES = {
    "time": "time of a step",
    "memory": "peak memory",
    "batch": "largest batch",
    "speed": "records per second at the largest batch",
}
_NO_SEARCH = (
    "dpft bench measures no largest batch; results/bench has those that were measured, and dpft "
    "plan --largest predicts others"
)
Compared = tuple[list[Comparison], list[str]]


@dataclass
class Evidence:
    """Records and benchmarks, and the cells that the records fill."""

    index: Index
    benches: Sequence[BenchFile]
    _tables: dict[tuple[str, bool], PaperTable] = field(default_factory=dict)
    _known: Known = field(default_factory=dict)

    def table(self, name: str, *, figure: bool = False) -> PaperTable:
        """Return the table ``li2022/2``, or the list of runs of the figure of that name."""
        if (key := (name, figure)) not in self._tables:
            self._tables[key] = load_list(name) if figure else papers.load(*name.split("/", 1))
        return self._tables[key]

    def cell(self, table: PaperTable, row: Row, column: Column, scale: str) -> Cell:
        """Return a cell with its records at a scale, or the printed number alone."""
        alone = replace(table, rows=(row,), columns=(column,))
        if scale in SCALES and self._may_be_recorded(table, row, column, scale):
            plan = make_plan(alone, scale, known=self._known)
        else:
            plan = empty_plan(replace(alone, laptop=None), scale)
        return cell_of(plan, 0, 0, self.index)

    def commands(self, table: PaperTable, scale: str) -> list[str]:
        """Return the commands of those runs of a table that have no number at a scale."""
        plan = make_plan(table, scale, known=self._known)
        lacking: dict[str, None] = {}
        for (i, j), run in plan.runs.items():
            cell = cell_of(plan, i, j, self.index)
            if cell.ours is None or (scale == "paper" and NOT_THE_PAPERS & {*cell.marks}):
                for seed in LAPTOP_SEEDS if scale == "laptop" else (0,):
                    lacking[shlex.join(["dpft", "train", *run.overrides(seed)])] = None
        return list(lacking)

    def _may_be_recorded(self, table: PaperTable, row: Row, column: Column, scale: str) -> bool:
        """Return whether a record has the run's choices; composing every run takes seconds."""
        asked: set[tuple[str, object]] = set()
        for word in words_at(table, column, row, scale):
            key, value = key_of(word), word.partition("=")[2]
            if key in CHOICES:
                asked.add((key, value))
            elif key in NUMBERS and value != "null" and "$" not in value:  # no interpolation
                asked.add((key, float(value)))
        return row.run is not None and any(asked <= one for one in self._recorded)

    @cached_property
    def _recorded(self) -> set[frozenset[tuple[str, object]]]:
        paths = [(key, *key.split(".")) for key in NUMBERS]
        paths += [(key, key, "name") for key in CHOICES]
        configs = (x.record["config"] for group in self.index.records.values() for x in group)
        return {
            frozenset((key, config[group].get(name)) for key, group, name in paths)
            for config in configs
        }


@dataclass
class Result:
    """A claim with its comparisons of the paper's own numbers and of ours.

    ``ours`` has from each check those at the paper's setting; where that has no number those at the
    paper's scale with stand-ins, else a laptop's; ``aside`` has the others. ``reasons`` say why
    parts cannot be tested; ``commands`` would give the missing numbers.
    """

    claim: Claim
    printed: list[Comparison] = field(default_factory=list)
    ours: list[Comparison] = field(default_factory=list)
    aside: list[Comparison] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)

    @property
    def all(self) -> list[Comparison]:
        """All comparisons, the printed ones first."""
        return [*self.printed, *self.ours, *self.aside]

    @property
    def by_print(self) -> Judgement | None:
        """The verdict by the paper's own numbers; None where it prints none."""
        return judge(self.printed) if self.printed else None

    @property
    def by_us(self) -> Judgement:
        """The verdict by our numbers."""
        return judge(self.ours)

    @property
    def sides(self) -> tuple[Side, ...]:
        """The origins of our numbers."""
        present = {one.side for one in self.ours if one.known}
        return tuple(side for side in Side if side in present)


def evaluate(claim: Claim, evidence: Evidence) -> Result:
    """Make every comparison of a claim; a PaperError names a check of what is not there."""
    result = Result(claim)
    for number, check in enumerate(claim.checks, 1):
        compared: list[Comparison] = []
        missing: list[str] = []
        try:
            match check:
                case CellsCheck():
                    compared, missing = compare_cells(check, evidence)
                case BenchCheck():
                    compared, missing = compare_benches(check, evidence.benches)
                case ComputedCheck():
                    compared = list(compute(check))
                case Untestable():
                    result.reasons.append(check.why)
        except (ConfigError, PaperError) as error:
            raise PaperError(f"{claim.name}, check {number}: {error}") from error
        compared = [replace(one, check=number) for one in compared]
        by_side = {side: [one for one in compared if one.side is side] for side in Side}
        # Of ours the first scale that has numbers counts, else the first that could have some.
        scales = [by_side[side] for side in (Side.PAPER, Side.STAND_IN, Side.LAPTOP)]
        ranks = [
            min((0 if x.known else 1 + (x.outcome is Outcome.CANNOT) for x in scale), default=2)
            for scale in scales
        ]
        best = ranks.index(min(ranks))
        ours = [*by_side[Side.COMPUTED], *by_side[Side.MEASURED], *scales[best]]
        result.printed += by_side[Side.PRINTED]
        result.ours += ours
        result.aside += [one for scale in scales[best + 1 :] for one in scale if one.known]
        result.reasons += [one.why for one in ours if one.outcome is Outcome.CANNOT]
        result.commands += missing
    result.reasons = list(dict.fromkeys(result.reasons))
    result.commands = list(dict.fromkeys(result.commands))
    return result


def compute(check: ComputedCheck) -> Iterator[Comparison]:
    """Yield the comparisons of numbers that follow without a run."""
    expected = in_words(Expected("value", *check.within))
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
            outcome = in_range(value, value, check.within)
            yield Comparison(Side.COMPUTED, what, expected, outcome, text, {"value": value})


def compare_benches(check: BenchCheck, benches: Sequence[BenchFile]) -> Compared:
    """Return one comparison for each file and pair of styles, and commands, as `compare_cells`.

    The papers' memory is a GPU's. On a CPU the peak is of the whole process, and with few records
    most of it is the model: it is shown and decides nothing.
    """
    expected, quantity = in_words(Expected("ratio", *check.ratio)), _QUANTITIES[check.quantity]
    named, both = {BASELINE: "non-private"}, itertools.product(check.first, check.second)
    pairs = {(a, b): f"{named.get(a, a)} to {named.get(b, b)}" for a, b in both if a != b}
    compared: list[Comparison] = []
    usable = (x for x in benches if x.model in check.models and (x.length or 0) >= check.tokens)
    for file, ((first, second), name) in itertools.product(usable, pairs.items()):
        if (ratio := file.ratio(check.quantity, first, second)) is None:
            continue
        undecided = check.quantity == "memory" and file.device == "cpu"
        outcome = in_range(ratio.min, ratio.max, check.ratio)
        compared.append(
            Comparison(
                side=Side.MEASURED,
                what=f"{quantity}: {name}",
                expected=f"{expected}, decided on a GPU only" if undecided else expected,
                outcome=Outcome.CLOSE if undecided else outcome,
                text=f"{ratio.median:.2f} ({ratio.min:.2f} to {ratio.max:.2f})",
                numbers={"ratio": ratio.median, "low": ratio.min, "high": ratio.max},
                where=", ".join(file.labels),
                brief=f"{file.model} on {file.device}",
                runs=(file.path.name,),
            )
        )
    if not compared:
        what = f"{quantity}: {' or '.join(pairs.values())}"
        none = Comparison(Side.MEASURED, what, expected, Outcome.NOT_YET)
        if check.command is None:
            return [replace(none, outcome=Outcome.CANNOT, why=_NO_SEARCH)], []
        return [none], [check.command]
    on_gpu = check.quantity == "memory" and all(one.outcome is Outcome.CLOSE for one in compared)
    return compared, [f"{check.command} --device cuda"] if on_gpu else []


def compare_cells(check: CellsCheck, evidence: Evidence) -> Compared:
    """Return every comparison that the check asks for, and the commands that fill missing cells."""
    figure = isinstance(check, FigureCheck)
    table = evidence.table(check.table, figure=figure)
    if check.columns:
        columns = tuple(column for column in table.columns if column.key in check.columns)
        if len(columns) < len(check.columns):
            raise PaperError(f"{table.name} lacks one of the columns {', '.join(check.columns)}")
        table = replace(table, columns=columns)
    if check.variants:  # a row for each variant of each row in question, without numbers
        rows = tuple(
            replace(
                row,
                labels={**row.labels, "variant": name},
                printed=dict.fromkeys(row.printed, math.nan),
                run=(*row.run, *words),
            )
            for row in table.rows
            if row.run is not None and row.matches(check.where)
            for name, words in check.variants.items()
        )
        if not rows:
            raise PaperError(f"no row of {table.name} with {dict(check.where)} can be run")
        table = replace(table, rows=rows)
    # A label or a value that no row has would silently compare nothing.
    for pattern in (check.first, check.second, check.where, dict.fromkeys(check.free, ())):
        for name, values in pattern.items():
            if name not in table.label_names:
                raise PaperError(
                    f"{table.name} has no label {name!r}; expected {table.label_names}"
                )
            known = [*dict.fromkeys(papers.show_label(row.labels.get(name)) for row in table.rows)]
            for value in map(papers.show_label, values):
                if value not in known:
                    near = suggestion(value, known)
                    raise PaperError(
                        f"{table.name} has no {name} {value!r}{near}; expected {known}"
                    )
    sides = [side for side in Side if side in check.sides and side in ("printed", *table.scales)]
    compared: list[Comparison] = []
    for side in sides:
        part = table.at(side)
        groups = _groups(check, [row for row in part.rows if row.matches(check.where)])
        for (first, second), column in itertools.product(groups, part.columns):
            compared += _compare(check, table, first, second, column, side, evidence)
    if not compared:
        raise PaperError(
            f"the check compares nothing in {table.name}; expected rows that differ in nothing but "
            "what `first` and `second` say, or `free: [...]`"
        )
    lacking = {one.side for one in compared if one.outcome is Outcome.NOT_YET}
    if check.variants:
        return compared, [one for x in sides if x in lacking for one in evidence.commands(table, x)]
    typed = shlex.join(["dpft", "figure" if figure else "table", check.table])
    seeds = f"--seeds {','.join(map(str, LAPTOP_SEEDS))}"
    commands = [f"{typed} scale=laptop {seeds} --run"] if Side.LAPTOP in lacking else []
    return compared, commands + ([f"{typed} --run"] if Side.PAPER in lacking else [])


def _groups(check: CellsCheck, rows: Sequence[Row]) -> list[tuple[Sequence[Row], Sequence[Row]]]:
    """Return rows in question with the rows that they are compared with."""
    first = [row for row in rows if row.matches(check.first)]
    if check.expected.kind == "value":
        return [([row], []) for row in first]
    loose = {*check.first, *check.second, *check.free}

    def rest(row: Row) -> tuple[Label, ...]:
        return tuple(value for name, value in row.labels.items() if name not in loose)

    if check.expected.kind == "best":
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
    side: Side,
    evidence: Evidence,
) -> list[Comparison]:
    expected = check.expected
    stated = expected.low if expected.kind == "value" else None
    groups = [part for part in (first, second) if part]
    names = (f"best of {len(part)}" if len(part) > 1 else part[0].name for part in groups)
    what = f"{column.label}: {' against '.join(names)}"
    blank = Comparison(side, what, in_words(expected), Outcome.NOT_YET, where=check.table)
    cells = [
        [(row, evidence.cell(table, row, column, side)) for row in part] for part in (first, second)
    ]

    def scores(side: Side) -> list[list[Score]]:
        found = [[_score(row, column, cell, side) for row, cell in part] for part in cells]
        return [[score for score in part if score is not None] for part in found]

    firsts, seconds = scores(side)
    if not firsts or not (seconds or stated is not None):
        return []
    both = [*firsts, *seconds]
    missing = [score for score in both if score.value is None]
    if missing or (side is not Side.PRINTED and all(score.copied for score in both)):
        why = "" if missing else "the paper took both numbers from elsewhere"
        why = next((score.why for score in missing if score.why), why)
        runs = tuple(run for score in both for run in score.runs)
        outcome = Outcome.CANNOT if why else Outcome.NOT_YET
        return [replace(blank, outcome=outcome, why=why, runs=runs)]
    compared = []
    if side is Side.PAPER and any(score.stands_in for score in both):
        # The paper's setting has no number. What the text states, and what the paper copied, is of
        # the paper's models; stand-ins are compared with each other alone.
        compared = [blank]
        if stated is not None or any(score.copied for score in both):
            return compared
        blank = replace(blank, side=Side.STAND_IN)
        firsts, seconds = scores(blank.side)
    if stated is not None:
        seconds = [Score("the text", stated)]
    sign = 1 if column.higher_is_better else -1
    best, other = _best(firsts, sign), _best(seconds, sign)
    return [*compared, contrast(blank, expected, column, best, other)]


def _score(row: Row, column: Column, cell: Cell, side: Side) -> Score | None:
    """Return the cell's number on a side; None for a printed dash."""
    if cell.printed is None:
        return None
    unknown = math.isnan(cell.printed)  # of a figure whose numbers are not to be had
    if side is Side.PRINTED:
        return None if unknown else Score(row.name, cell.printed, cell.printed_spread)
    if cell.ours is not None:
        # The printed deviation is of the paper's setting.
        spread = cell.spread
        if unknown or side is not Side.PAPER:
            spread = None if cell.deviation is None else at_least(cell.deviation, cell.ours)
        return Score(
            *(row.name, cell.ours, spread, cell.sampling),
            by_seed=cell.by_seed,
            answers=cell.answers,
            runs=tuple(map(shown_path, cell.paths)),
            marks="".join(mark.letter for mark in cell.marks),
        )
    why = ""
    if cell.verdict is CellVerdict.COPIED:
        if side is Side.PAPER:  # compared with what the paper itself took over
            return Score(row.name, cell.printed, cell.printed_spread, copied=True)
        why = f"{row.name} is copied from {row.taken_from}, which no run at this scale compares to"
    if cell.verdict is CellVerdict.CANNOT_RUN:
        why = row.why or f"{column.label} is no score"
    return Score(row.name, None, why=why)


def _best(scores: Sequence[Score], sign: int) -> Score:
    """Return the best of several; at each seed the number of the best by the other seeds.

    Chosen by the seeds that it is then compared with, the best of many would be ahead by chance.
    """
    best = max(scores, key=lambda one: sign * (one.value or 0.0))
    if len(scores) == 1:
        return best
    seeds = sorted(set.intersection(*({*one.by_seed} for one in scores)))
    if len(seeds) < 2:  # no other seeds to choose by: a margin decides, and no interval
        return replace(best, by_seed={seed: best.by_seed[seed] for seed in seeds})

    def by_others(seed: int) -> Score:
        return max(scores, key=lambda one: sign * sum(one.by_seed[s] for s in seeds if s != seed))

    chosen = {seed: by_others(seed) for seed in seeds}
    runs = (run for one in (best, *chosen.values()) for run in one.runs)
    return replace(
        best,
        name=" or ".join(dict.fromkeys(x.name for x in chosen.values())) + ", by the other seeds",
        by_seed={seed: one.by_seed[seed] for seed, one in chosen.items()},
        answers={s: one.answers[s] for s, one in chosen.items() if s in one.answers},
        runs=tuple(dict.fromkeys(runs)),
    )
