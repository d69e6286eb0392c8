"""One record of the training data decides nothing, whatever is odd about it.

Two runs, with the record and without it, are equal if both end without an error, take as many
steps, show the same public values (ledger, output, record, log, weights), and if their releases
differ by no more than the mechanism's sensitivity (`tests.privacy.neighbours`). The number of
records is public. So an ordinary record, which is never drawn, takes the place of the extra one.
"""

import io
import json
import math
import re
import tempfile
from collections.abc import Callable
from contextlib import closing, redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PrinterCallback

from dpft.config.schema import Optim
from dpft.privacy import Mechanism, make_clipper
from dpft.privacy.quantiles import Quantiles
from dpft.privacy.sampling import FixedShapes, padded
from dpft.privacy.token_losses import token_losses
from dpft.report.comparison import show
from dpft.runs import read_ledger
from dpft.tasks.objectives.evaluation import Mixed
from dpft.tasks.objectives.generation import Causal
from dpft.tasks.objectives.objective import Batch
from dpft.tasks.units import Records, Users
from dpft.training.loop import train
from dpft.training.progress import Progress
from dpft.training.run import run_experiment
from dpft.training.setup import make_optimizer
from tests.integrations.test_trainer import PRIVACY, trainer_of
from tests.parallel.ranks import together
from tests.privacy.neighbours import TOLERANCE, Entry, Pair, compared
from tests.small_runs import settings

ORDINARY, BATCH, PLACES, WIDEST = 12, 6, 5, 24

NAN, INFINITE, STEEP = "is NaN", "is infinite", "has an infinite gradient"
OVERFLOW, EMPTY, LONGEST = "overflows in bfloat16", "has no target", "is the longest"
NO_ROOM = "does not fit in memory"
ONLY, SOLE = "is the only one of its user", "is the only one of a batch"
CONDITIONS = (NAN, INFINITE, STEEP, OVERFLOW, EMPTY, LONGEST, NO_ROOM, ONLY, SOLE)
WEIGHTLESS = (NAN, INFINITE, STEEP, OVERFLOW)

STEPS, MANY = 3, 70
"""``MANY`` where a check that finds nothing finite might be put off from batch to batch."""


class Record(dict[str, Tensor]):
    """Vectors ``x`` with a label each."""

    @property
    def length(self) -> int:
        return len(self["labels"])


CLASSES = 8
MARKS = {NO_ROOM: 5, STEEP: 6}  # in the first label, which has no loss


def records(condition: str, present: bool) -> list[Record]:
    """Ordinary records and the extra one; without it, one that is never drawn."""
    generator = torch.Generator().manual_seed(3)

    def made(length: int) -> Record:
        labels = torch.randint(5, (length,), generator=generator)
        return Record(x=torch.randn(length, 8, generator=generator), labels=labels)

    ordinary = [made(3 + i % 4) for i in range(ORDINARY)]
    extra = made(WIDEST if condition == LONGEST and present else 4)
    # The largest of these is finite in float32, and rounds to infinity in bfloat16.
    values = {NAN: math.nan, INFINITE: math.inf, OVERFLOW: 3.4e38}
    if present and condition in values:
        extra["x"][1] = values[condition]
    if present and condition in MARKS:
        extra["labels"][0] = MARKS[condition]
    if present and condition == EMPTY:
        extra["labels"].fill_(-100)
    return [*ordinary, extra]


class Tagger(nn.Module):
    """Predicts the label of each vector."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.norm = nn.Linear(8, 12), nn.LayerNorm(12)
        self.last = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.last(self.norm(nn.functional.gelu(self.first(x))))
        return logits


def collate(rows: list[Record], width: int = 0) -> dict[str, Tensor]:
    room = Record(x=torch.zeros(width, 8), labels=torch.zeros(width, dtype=torch.long))
    x, labels = (
        pad_sequence([row[name] for row in [*rows, room]], batch_first=True, padding_value=value)
        for name, value in (("x", 0.0), ("labels", -100.0))
    )
    return {"x": x[:-1], "labels": labels[:-1]}


def losses(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """The mean over each record's own targets, ``(B,)``."""
    marks, labels = inputs["labels"][:, 0], inputs["labels"][:, 1:]
    if (marks == MARKS[NO_ROOM]).any():
        raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
    logits = model(inputs["x"])[:, 1:].float()
    found = token_losses(logits, labels).sum(1) / (labels != -100).sum(1).clamp(min=1)
    steep = (marks == MARKS[STEEP]).nonzero().flatten()
    zero = (logits - logits.detach())[steep].sum((1, 2))  # of which the root has no derivative
    return found.index_add(0, steep, zero.sqrt())


class Tagging:
    """The same as an objective of dpft, with what fixed shapes ask of it."""

    def collate(self, rows: list[Record], widths: Any = (0,)) -> Batch:
        return Batch(collate(rows, widths[0]))

    def losses(self, model: nn.Module, batch: Batch) -> Tensor:
        return losses(model, dict(batch.tensors))

    def widths(self, row: Record, coarse: bool = False) -> tuple[int, ...]:
        return (padded(row.length, WIDEST),)

    def widest(self) -> tuple[int, ...]:
        return (WIDEST,)

    def blank(self) -> Record:
        return Record(x=torch.zeros(2, 8), labels=torch.ones(2, dtype=torch.long))


def weights(model: nn.Module) -> list[float]:
    return [float(p.detach().double().sum()) for p in model.parameters()]


def played(entry: Entry, condition: str, folder: Path) -> Pair:
    return compared(entry, condition, folder, sole=1 if condition == SOLE else None)


def mechanism_of(clipper: Any, units: int, steps: int, **more: Any) -> Mechanism:
    thresholds = tuple(group.threshold for group in clipper.groups)
    mechanism = Mechanism(units, BATCH, steps, 1.0, thresholds[:1], 1e-3, **more)
    budget = None if clipper.policy.rule is None else 0.1
    return mechanism.over(thresholds, quantiles=clipper.policy.rule, quantile_budget=budget)


def own_loop(condition: str, present: bool, folder: Path) -> dict[str, Any]:
    """A loop around `make_clipper`; in bfloat16, in the fixed shapes of `dpft.privacy.sampling`."""
    rows, model, half = records(condition, present), Tagger(), condition == OVERFLOW
    clipper = make_clipper(model, "bk", threshold=0.1)
    mechanism = mechanism_of(clipper, len(rows), MANY if condition in (INFINITE, STEEP) else STEPS)
    sampler, noise = mechanism.sampler(b"key"), mechanism.noise(b"key", clipper)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(mechanism.steps):
        optimizer.zero_grad()
        batch = [rows[i] for i in sampler.batch(step)]
        real = torch.arange(len(rows) + 1) < len(batch)
        if half:
            batch += [Tagging().blank()] * (len(real) - len(batch))
        if batch:
            with torch.autocast("cpu", torch.bfloat16, enabled=half):
                found = losses(model, collate(batch, WIDEST if half else 0)).float()
            clipper.backward(found, weights=real if half else None)
        noise.privatise_(step)
        optimizer.step()
    clipper.close()
    return {"weights": weights(model)}


def loop(
    condition: str, present: bool, folder: Path, kind: str, ranks: Any = None
) -> dict[str, Any]:
    """The training loop of `dpft train`."""
    rows, model = records(condition, present), Tagger()
    half, truncated = condition == OVERFLOW, kind == "truncated"
    quantiles = Quantiles(0.5) if kind == "adaptive" else None
    style = "per_layer_adaptive" if quantiles else "bk"
    clipper = make_clipper(model, style, threshold=0.1, adaptive=quantiles, cohort=ranks)
    shapes = FixedShapes(BATCH, PLACES if truncated else None) if half or truncated else None
    units: Any = Records(Mixed(Tagging()) if half else Tagging(), rows, shapes)
    if kind == "users":
        rows, owners = of_users(rows, condition)
        units = Users(Mixed(Tagging()) if half else Tagging(), rows, owners, 4, b"key", shapes)
    more = {"sampling": "truncated_poisson", "max_batch": PLACES} if truncated else {}
    optim = Optim(name="sgd", lr=0.01, batch_size=BATCH, epochs=1, microbatch_tokens=128)
    spent: list[Any] = []
    with closing(clipper):
        train(
            **{"model": model, "data": units, "clipper": clipper, "cohort": ranks, "key": b"key"},
            **{"optimizer": make_optimizer(optim, iter(model.parameters())), "settings": optim},
            mechanism=mechanism_of(clipper, len(units), STEPS, **more),
            spend=lambda step, released: spent.append((step, released.thresholds)),
        )
    return {"spent": spent, "weights": weights(model)}


def of_users(rows: list[Any], condition: str) -> tuple[list[Any], list[str]]:
    """Two records each; the extra record is one of two of the last user, or the only one."""
    owners = [f"{i // 2:02}" for i in range(ORDINARY)] + ["99"]
    return (rows, owners) if condition == ONLY else ([rows[0], *rows], ["99", *owners])


def on_ranks(cohort: Any) -> list[Pair]:
    """All conditions, on this rank."""
    entry = partial(loop, kind="ranks", ranks=cohort)
    with tempfile.TemporaryDirectory() as folder:
        return [played(entry, condition, Path(folder)) for condition in CONDITIONS]


def trainer(condition: str, present: bool, folder: Path) -> dict[str, Any]:
    """`PrivateTrainer`, which takes float32 alone: what overflows does so in the norm."""
    made = trainer_of(
        *(folder, Tagger(), records(condition, present)),
        **{"collator": collate, "per_example_loss": losses, "remove_unused_columns": False},
        **{"per_device_train_batch_size": BATCH, "gradient_accumulation_steps": 1},
        **{"max_steps": MANY if condition == STEEP else STEPS, "optim": "sgd"},
        **{"logging_strategy": "steps", "logging_steps": 1},
        privacy=PRIVACY,
    )
    made.remove_callback(PrinterCallback)
    made.train()
    ledger = read_ledger(folder / "ledger.jsonl").entries
    return {
        "ledger": [(entry["step"], entry["epsilon_rdp"]) for entry in ledger],
        "log": made.state.log_history[:-1],  # the last one holds times
        "weights": weights(made.model),
    }


MARK = "§"
# Time and memory; and the fingerprint of the data, which has no meaning without the key.
UNEQUAL = r'"(seconds|peak_memory_bytes|fingerprint)": [^,}]*'
USERS = ("task.unit=user", "task.user_column=user", "task.records_per_user=2")
WORDS = {
    NAN: USERS,
    INFINITE: ("clip=per_layer_adaptive",),
    STEEP: ("clip=ghost",),
    OVERFLOW: ("precision=bfloat16",),
    LONGEST: ("clip=per_layer",),
    ONLY: USERS,
    SOLE: ("sampling=truncated_poisson",),
}


def command(condition: str, present: bool, folder: Path) -> dict[str, Any]:
    """`dpft train` on texts, in this process; each condition with other settings."""
    texts: list[Any] = [f"{'tea ' * (i % 5)}at table {i}" for i in range(ORDINARY + 1)]
    if present:
        more = " and more tea" * 9 if condition == LONGEST else ""
        texts[-1] = "" if condition == EMPTY else f"tea at table {MARK}{more}"
    texts, owners = of_users(texts, condition)
    lines = [{"user": user, "text": text} for user, text in zip(owners, texts, strict=True)]
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (folder / "test.jsonl").write_text(json.dumps({"user": "eve", "text": "coffee"}))
    run = settings(
        folder,
        *("task=language_modeling", "task.source=files", "task.limit_train=null"),
        *(f"task.{split}_file={folder / split}.jsonl" for split in ("train", "test")),
        *("task.max_length=48", "model=random-gpt2", "decode.max_new_tokens=2"),
        *("optim.batch_size=4", f"optim.steps={STEPS}", "optim.microbatch_tokens=64"),
        *("privacy.noise_seed=7", *WORDS.get(condition, ())),
    )
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(said), redirect_stderr(said):
        patch.setattr(Causal, "losses", marked(Causal.losses, condition))
        patch.setattr(Progress, "_waited", lambda progress: False)  # lines that the clock decides
        done = run_experiment(run)
        show([(done.path, done.record)])
    ledger = read_ledger(done.path / "ledger.jsonl").entries
    return {
        "ledger": [(one["step"], one["epsilon_rdp"], one.get("thresholds")) for one in ledger],
        "output": re.sub(r"(seconds +|TIME|about) *[0-9:]+", "TIME", said.getvalue()),
        "record": re.sub(UNEQUAL, "", json.dumps(done.record)),
    }


def marked(own: Callable[..., Tensor], condition: str) -> Callable[..., Tensor]:
    """The losses of texts, of which the one with the mark is odd."""

    def odd_losses(objective: Any, model: nn.Module, batch: Batch) -> Tensor:
        ids = batch.tensors["input_ids"]
        odd = (ids == objective.tokenizer(MARK)["input_ids"][-1]).any(1)
        if condition == NO_ROOM and odd.any():
            raise torch.OutOfMemoryError("CUDA out of memory (simulated)")
        found = own(objective, model, batch)
        factors = {NAN: math.nan, INFINITE: math.inf, OVERFLOW: 1e37, STEEP: 0.0}
        zero = (found - found.detach())[odd] if condition == STEEP else found[:0]
        found = found * torch.where(odd, factors.get(condition, 1.0), 1.0)
        return found.index_add(0, odd.nonzero().flatten()[: len(zero)], zero.sqrt())

    return odd_losses


ENTRIES: dict[str, Entry] = {
    "`make_clipper`": own_loop,
    "users": partial(loop, kind="users"),
    "truncated Poisson": partial(loop, kind="truncated"),
    "adaptive thresholds": partial(loop, kind="adaptive"),
    "`PrivateTrainer`": trainer,
    "`dpft train`": command,
}

STOPS = {
    NO_ROOM: (*5 * ("OutOfMemoryError",), "TrainingError"),
    EMPTY: ("", "", "", "", "", "DataError"),
}
"""What cannot be equal, by condition and entry point: docs/explanation/pitfalls.md says why."""


def check(pair: Pair, condition: str) -> None:
    """The runs are equal, and the extra record adds nothing or as much as it may."""
    assert pair.differences() == []
    if condition in WEIGHTLESS:
        assert pair.most < TOLERANCE or pair.cut
    elif condition != EMPTY:
        assert pair.most > 0.9  # it is clipped: what exceeded the threshold would show


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("entry", ENTRIES)
def test_one_record_decides_nothing(entry, condition, tmp_path):
    pair = played(ENTRIES[entry], condition, tmp_path)
    stops = dict(zip(ENTRIES, STOPS.get(condition, ()), strict=False))
    if stop := stops.get(entry):
        assert (pair.ends, pair.releases) == ([stop, "no error"], [])
    else:
        check(pair, condition)


def test_one_record_decides_nothing_on_two_ranks():
    """A rank that runs out of memory stops, and the other with it."""
    for condition, *pairs in zip(CONDITIONS, *together(on_ranks, 2), strict=True):
        if condition == NO_ROOM:
            stops = {"OutOfMemoryError", "RankError"}
            assert {pair.ends[0] for pair in pairs} == stops
            assert [(pair.ends[1], pair.releases) for pair in pairs] == 2 * [("no error", [])]
        else:
            for pair in pairs:
                check(pair, condition)


def test_what_a_record_does_to_others_through_the_padding_is_noticed(tmp_path, monkeypatch):
    forward = Tagger.forward
    monkeypatch.setattr(Tagger, "forward", lambda model, x: forward(model, x * x.shape[1]))
    pair = played(own_loop, LONGEST, tmp_path)
    assert pair.most > 1.01
    assert len(pair.differences()) == STEPS
