"""Memory runs out: the setting is named, or the step is repeated in halves."""

import json
import shutil

import pytest
import torch

from dpft import runs
from dpft.config.errors import TrainingError
from dpft.config.schema import parse
from dpft.parallel.cohort import SingleProcess
from dpft.runs import LedgerMismatchError, RunError
from dpft.runs.memory import is_out_of_memory
from dpft.tasks.objectives.causal import Causal
from dpft.training.out_of_memory import Budget, in_smaller_batches
from dpft.training.run import run_experiment
from dpft.training.session import release_digest
from tests.small_runs import settings, trained
from tests.training.test_loop import TinyObjective, run, weights
from tests.training.test_run import config

CPU = RuntimeError(
    "[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory"
)
ERRORS = (CPU, MemoryError(), torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate"))


class Small(TinyObjective):
    """As if memory held ``room`` padded tokens: more fail in the forward or the backward."""

    def __init__(self, room, error=CPU, late=False):
        super().__init__()
        self.room, self.error, self.late, self.failures = room, error, late, 0

    def losses(self, model, batch):
        losses = super().losses(model, batch)
        if batch.tensors["input_ids"].numel() > self.room:
            self.failures += 1
            if not self.late:
                raise self.error
            losses.register_hook(self.fail)
        return losses

    def fail(self, gradient):
        raise self.error


def test_every_kind_is_known_and_nothing_else():
    assert all(map(is_out_of_memory, ERRORS))
    for other in (RuntimeError("shape"), ValueError("out of memory"), KeyError("x")):
        assert not is_out_of_memory(other)


@pytest.mark.parametrize("error", ERRORS, ids=["cpu", "python", "cuda"])
def test_the_setting_and_what_to_type_are_named(error):
    with pytest.raises(TrainingError) as caught:
        run(steps=2, objective=Small(20, error))
    said = str(caught.value)
    assert said.count("\n") == 0
    for word in ("optim.microbatch_tokens=40", "out_of_memory=halve", "optim.microbatch_tokens=20"):
        assert word in said


@pytest.mark.parametrize("style", ["bk", "ghost", "none", "per_layer_adaptive"])
@pytest.mark.parametrize("late", [False, True], ids=["forward", "backward"])
def test_a_step_in_halves_is_the_step_that_was_asked_for(style, late, tmp_path):
    """Bit for bit what the smaller microbatch gives from the start: same draw, same noise."""
    objective, told = Small(20, late=late), []
    budget = Budget(40, halve=True, file=tmp_path / "kept", warn=told.append)
    halved, *_ = run(style, steps=4, objective=objective, budget=budget)
    asked, *_ = run(style, steps=4, budget=Budget(20))
    assert objective.failures == 1
    assert "half" not in told[0]
    assert "step 0 with microbatches of 40 tokens" in told[0]
    for name, weight in weights(halved).items():
        assert torch.equal(weight, weights(asked)[name])


def test_what_a_step_was_released_with_it_keeps(tmp_path):
    budget = Budget(40, halve=True, file=tmp_path / "kept")
    cut = lambda tokens: [[0] * tokens] * (40 // tokens)  # noqa: E731
    seen = []

    def summed(pieces):
        seen.append(len(pieces[0]))
        if len(seen) == 1:
            raise CPU

    budget.attempt(3, cut, summed, lambda: None)
    assert seen == [40, 20]
    again = Budget(40, file=tmp_path / "kept", released=5)
    assert [again.at(step) for step in range(6)] == [40, 40, 40, 20, 20, 20]
    seen.clear()
    with pytest.raises(TrainingError, match=r"released before.*a second release of the step"):
        Budget(40, halve=True, file=tmp_path / "kept", released=5).attempt(
            4, cut, summed, lambda: None
        )
    assert seen == [20]


def test_where_shapes_are_fixed_nothing_is_halved():
    """Which step runs out of memory depends on all of its records, and so would their shapes."""
    with pytest.raises(TrainingError, match=r"microbatch_tokens=40.*nothing is halved"):
        run(steps=2, objective=Small(20), budget=Budget(40, halve=True, fixed=True))


def test_one_unit_at_a_time_is_the_end():
    with pytest.raises(TrainingError, match=r"one unit of privacy at a time.*task.max_length"):
        run(steps=1, objective=Small(0), budget=Budget(40, halve=True))


@pytest.mark.parametrize(
    "text", ["", "null", "[1]", "[[1]]", "[[0, -5]]", '[["a", 2]]', "[" * 9999]
)
def test_a_damaged_note_of_what_was_released_stops_the_run(text, tmp_path):
    (tmp_path / "kept").write_text(text)
    with pytest.raises(RunError, match=r"kept cannot be read.*Put it back"):
        Budget(40, file=tmp_path / "kept")


def test_decoding_goes_on_in_halves_or_names_its_setting():
    def decode(size):
        if size > 8:
            raise CPU
        return size

    assert in_smaller_batches(32, True, decode) == 8
    with pytest.raises(TrainingError, match=r"decode.batch_size=32.*decode.batch_size=16"):
        in_smaller_batches(32, False, decode)
    with pytest.raises(TrainingError, match=r"fewer decode.beams"):
        in_smaller_batches(1, True, lambda size: decode(9))


@pytest.fixture
def scarce(tmp_path, monkeypatch):
    """A run of four steps in which memory may be short from step 1 on, and which may be killed."""
    whole, ledger = Causal.losses, tmp_path / "one/ledger.jsonl"
    state = {"short_from": None, "die_at": None}

    def spent():
        if not ledger.exists():  # in what is checked before the first step
            return 0
        return max(0, ledger.read_bytes().count(b"\n") - 1)

    def short(self, model, batch):
        tokens = batch.tensors["input_ids"].numel()
        first = state["short_from"]
        if first is not None and model.training and spent() >= first and tokens > 300:
            raise CPU
        return whole(self, model, batch)

    def dying(parameters, released):
        if spent() == state["die_at"]:
            raise KeyboardInterrupt
        return release_digest(parameters, released)

    monkeypatch.setattr(Causal, "losses", short)
    monkeypatch.setattr("dpft.training.session.release_digest", dying)
    monkeypatch.setattr("dpft.training.run._decode_stage", lambda *_: None)
    words = ["name=one", "privacy.noise_seed=1", "optim.microbatch_tokens=512"]
    raw = config(tmp_path, *words, "checkpoint_every=100")

    def go(out_of_memory="stop", short_from=None, die_at=None):
        state.update(short_from=short_from, die_at=die_at)
        return run_experiment(parse({**raw, "out_of_memory": out_of_memory}))

    return go, tmp_path / "one"


def test_a_run_that_halved_is_continued_to_the_same_ledger(scarce):
    """Killed after the halving and before a checkpoint; later there is room for everything."""
    go, path = scarce
    with pytest.raises(KeyboardInterrupt):
        go("halve", short_from=1, die_at=3)
    before = (path / "ledger.jsonl").read_bytes()
    assert runs.read_ledger(path / "ledger.jsonl").steps_spent == 3
    kept = path / "private/microbatches.json"
    assert json.loads(kept.read_text())["tokens"] == [[1, 256]]
    # Without the note steps would be released again, as something else.
    kept.unlink()
    with pytest.raises(LedgerMismatchError, match="step 1 was spent before"):
        go()
    kept.write_text("[[1, 256]]")  # as earlier versions wrote it
    assert go().record["training"]["steps"] == 4
    assert (path / "ledger.jsonl").read_bytes().startswith(before)


def test_all_ranks_cut_batches_as_the_first_does(scarce, monkeypatch):
    """The first alone reads what an earlier process halved; shards would wait for each other."""
    go, path = scarce

    def first(self, value):
        return [(0, 64)] if value == [(0, 512)] else value

    counts = []
    for told in (lambda self, value: value, first):
        monkeypatch.setattr(SingleProcess, "from_first", told)
        go()
        lines = (path / "private/metrics.jsonl").read_text().splitlines()
        counts.append(sum(json.loads(line)["microbatches"] for line in lines))
        shutil.rmtree(path)
    assert counts[1] > 2 * counts[0]


def test_what_was_released_is_not_halved(scarce):
    go, path = scarce
    with pytest.raises(KeyboardInterrupt):
        go(die_at=1)
    before = (path / "ledger.jsonl").read_bytes()
    with pytest.raises(TrainingError, match=r"step 0 .*released before"):
        go("halve", short_from=0)
    assert (path / "ledger.jsonl").read_bytes() == before
    assert go("halve", short_from=2).record["training"]["steps"] == 4


def test_nor_is_a_step_of_a_run_whose_shapes_are_fixed(tmp_path, monkeypatch):
    """Which step runs out of memory may depend on who was drawn; shapes may not."""

    def short(*_):
        raise CPU

    monkeypatch.setattr("dpft.training.loop.add_clipped", short)
    with pytest.raises(TrainingError, match="Where shapes are fixed"):
        trained(settings(tmp_path, "sampling=truncated_poisson", "out_of_memory=halve"))
