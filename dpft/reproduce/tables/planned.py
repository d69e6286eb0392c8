"""From a table to its cells and the distinct runs behind them."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dpft.config.compose import compose
from dpft.config.errors import ConfigError
from dpft.config.overrides import setting_of
from dpft.config.schema import SHORTHANDS, Run, parse
from dpft.reproduce.papers import Column, PaperError, PaperTable, Row
from dpft.reproduce.tables.record_index import CHOICES, NUMBERS, Index, match_key
from dpft.runs.identity import config_hash

SCALES = ("paper", "laptop")
# Two names of one setting: the later one must win under either.
_SHORT = {setting: short for short, setting in SHORTHANDS.items()}
_DECODED = ("dev", "test")
# The papers account by Renyi DP, and so do all runs that fill their cells.
_PAPERS = ("privacy.accountant=rdp",)
# Settings that the table decides, or that would send all its runs into one folder.
_DECIDED = {
    "seed": "--seeds 0,1,2",
    "resume": "nothing: runs of a table continue by themselves",
    "name": "runs_dir=FOLDER",
    "force": "dpft train ... force=true for the one run that is meant",
}
Known = dict[tuple[object, ...], "PlannedRun"]


@dataclass(frozen=True, eq=False)
class PlannedRun:
    """One configuration, to be run with each seed; ``words`` and ``run`` are without the seed.

    ``model_path`` and ``train_size`` are the table's, whatever the user's overrides chose; another
    ``paper_model`` is one that it stands in for. With ``altered`` the user's overrides make it
    another experiment than the table's.
    """

    words: tuple[str, ...]
    run: Run
    key: str
    model_path: str
    train_size: int | None
    altered: bool
    paper_model: str

    def config_hash(self, seed: int) -> str:
        """Return the hash of the run with this seed, as its run directory has it."""
        return config_hash({**self.run.identity(), "seed": seed})

    def overrides(self, seed: int) -> tuple[str, ...]:
        """Return the words after ``dpft train``."""
        return (*self.words, f"seed={seed}")


@dataclass(frozen=True)
class TablePlan:
    """The runs of a table at a scale, with the columns and rows of that scale.

    ``runs`` are by place (row, column); a printed dash and what is not run have none. With
    ``any_seed`` records of other ``seeds`` count too. ``extra`` are the user's overrides.
    """

    table: PaperTable
    scale: str
    seeds: tuple[int, ...]
    any_seed: bool
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    runs: dict[tuple[int, int], PlannedRun]
    skipped: tuple[Row, ...]
    extra: tuple[str, ...]

    @property
    def runnable(self) -> Iterator[tuple[int, int, Row, Column]]:
        """The cells that a run could fill, by place: no copied number and no printed dash."""
        places = itertools.product(enumerate(self.rows), enumerate(self.columns))
        for (i, row), (j, column) in places:
            if row.run is not None and column.metrics and row.printed.get(column.key) is not None:
                yield i, j, row, column


def key_of(word: str) -> str:
    """Return the setting of an override: ``optim.lr`` of ``++optim.lr=1``."""
    key = setting_of(word)
    return _SHORT.get(key, key)


def merged(*lists: Sequence[str]) -> tuple[str, ...]:
    """Return overrides in order; of several for one setting, the last."""
    last: dict[str, str] = {}
    for word in (word for words in lists for word in words):
        last.pop(key_of(word), None)
        last[key_of(word)] = word
    return tuple(last.values())


def words_at(table: PaperTable, column: Column, row: Row, scale: str) -> tuple[str, ...]:
    """Return the overrides of a cell's run at a scale, without a seed."""
    laptop = table.laptop if scale == "laptop" else None
    setting = table.setting if laptop is None else laptop.setting
    return merged(setting, _PAPERS, _own_words(table, column, row, scale))


def _own_words(table: PaperTable, column: Column, row: Row, scale: str) -> tuple[str, ...]:
    """Return the overrides that the cell's column and row set themselves."""
    own = (*column.run, *(row.run or ()))
    if scale != "laptop" or table.laptop is None:
        return own
    swap = table.laptop.swap
    return tuple(w for word in own for w in swap.get(word, (word,)))


def empty_plan(table: PaperTable, scale: str) -> TablePlan:
    """Return the columns and rows of a scale, with seed 0 and without runs."""
    part = table.at(scale)
    skipped = tuple(row for row in table.rows if row not in part.rows)
    return TablePlan(table, scale, (0,), True, part.columns, part.rows, {}, skipped, ())


def may_hold(index: Index, words: Sequence[str]) -> bool:
    """Return whether a record may be of a run with these overrides; to compose it takes longer."""
    asked: set[tuple[str, object]] = set()
    for word in words:
        key, value = key_of(word), word.partition("=")[2]
        if key in CHOICES:
            asked.add((key, value))
        elif key in NUMBERS and value != "null" and "$" not in value:  # no interpolation
            asked.add((key, float(value)))
    return any(asked <= one for one in index.choices)


def make_plan(
    table: PaperTable,
    scale: str = "paper",
    seeds: Sequence[int] | None = None,
    extra: Sequence[str] = (),
    known: Known | None = None,
) -> TablePlan:
    """Compose and check the runs of a table, whose overrides the user's ``extra`` ones replace.

    Without ``seeds`` there are as many as the paper averages over, else one, and records of any
    seed count. Runs that other plans composed are ``known``; new ones are added.
    """
    if scale not in table.scales:
        raise ConfigError(
            f"{table.name} has no runs that fit a laptop; type dpft table {table.name} scale=paper"
        )
    for word in extra:
        if key_of(word) in _DECIDED:
            raise ConfigError(f"got {word}, which a table decides; type {_DECIDED[key_of(word)]}")
    plan = empty_plan(table, scale)
    known = {} if known is None else known
    runs: dict[tuple[int, int], PlannedRun] = {}
    for i, j, row, column in plan.runnable:
        words, papers_own = (words_at(table, column, row, one) for one in (scale, "paper"))
        own = set(map(key_of, _own_words(table, column, row, scale)))
        free = tuple(word for word in extra if _is_free(word, table.unknown, own))
        models = tuple(word for word in papers_own if key_of(word) in ("model", "model.path"))
        try:
            if (key := (words, column.split, free, models)) not in known:
                known[key] = planned(words, column.split, extra, free, models)
        except ConfigError as error:
            where = f"{table.name}, row {row.name!r}, column {column.key}, scale={scale}"
            # With overrides of the user, they may be what is wrong.
            kind = ConfigError if extra else PaperError
            raise kind(f"{where}: {error}") from error
        runs[i, j] = known[key]
    count = (table.seeds or 1) if scale == "paper" else 1
    return replace(
        plan,
        seeds=tuple(range(count) if seeds is None else seeds),
        any_seed=seeds is None,
        runs=runs,
        extra=tuple(extra),
    )


def planned(
    words: Sequence[str],
    split: str,
    extra: Sequence[str] = (),
    free: Sequence[str] = (),
    models: Sequence[str] | None = None,
) -> PlannedRun:
    """Return a run whose decoded split is ``split``: `decode.split` is added where it must be.

    The user's ``extra`` words follow the table's; of them the ``free`` ones alter nothing.
    ``models`` choose the paper's model; None: ``words`` do.
    """
    together = merged(words, extra)
    config = compose(together)
    # Other splits, such as canaries, are scored whatever is decoded.
    if split in _DECODED and config["decode"]["split"] != split:
        if any(key_of(word) == "decode.split" for word in together):
            raise ConfigError(
                f"decode.split is {config['decode']['split']}; expected {split}, the split of the "
                "column: leave it out"
            )
        together = (*together, f"decode.split={split}")
        config = compose(together)
    own = compose(merged(words, free))  # without what alters the table's setting
    path = str(own["model"]["path"])
    return PlannedRun(
        words=together,
        # No setting is interpolated from the seed; a test holds the hash against composing with it.
        run=parse({**config, "seed": 0}),
        key=match_key(config),
        model_path=path,
        train_size=own["task"].get("train_size"),
        altered=match_key(own) != match_key(config),
        paper_model=path if models is None else str(compose(models)["model"]["path"]),
    )


def _is_free(word: str, unknown: Sequence[str], own: set[str]) -> bool:
    """Return whether a user's override leaves a cell the paper's own setting.

    The paper does not print the ``unknown`` settings; the cell's row and column set its ``own``.
    """
    key = key_of(word)
    settings = [key_of(one) for one in unknown if "=" not in one]
    # Shuffled batches have a mark of their own; the papers' code shuffles too.
    return word == "sampling=shuffle" or word in unknown or (key in settings and key not in own)
