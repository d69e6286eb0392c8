"""Checkpoints of which each rank writes its own part: nothing is gathered, nothing is mixed."""

import errno
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dpft.config.errors import RankError
from dpft.parallel import parts
from dpft.parallel.cohort import TrainingCohort
from dpft.parallel.parts import put_together, taken_apart
from dpft.parallel.sharded import Shards, shard
from dpft.runs import CheckpointError, RunDirectory, checkpoint
from tests.parallel.ranks import together
from tests.torture import Operations


class Trained:
    """A model with a moved optimizer, in one piece or in shards; the same numbers anywhere."""

    def __init__(self, cohort=None, steps=2):
        torch.manual_seed(0)
        # Rows that no number of ranks divides evenly, and fewer rows than ranks.
        blocks = nn.ModuleList([nn.Linear(5, 5), nn.Linear(5, 5)])
        self.model, self.cohort = nn.Sequential(blocks, nn.Linear(5, 1)), cohort
        if cohort is not None:
            shard(self.model)
        self.moved = dict(self.model.named_parameters())
        self.optimizer = torch.optim.Adam(self.moved.values())
        for _ in range(steps):
            for parameter in self.moved.values():
                parameter.grad = parameter.detach().sin()
            self.optimizer.step()

    def tensors(self):
        return taken_apart(self.moved, self.optimizer)

    def save(self, run, step):
        checkpoint.save(run, step, *self.tensors(), self.cohort)

    def load(self, run):
        latest = checkpoint.load(run, self.cohort)
        put_together(self.moved, self.optimizer, latest.written, latest.fill, latest.state)
        return latest

    def whole(self):
        tensors, _ = self.tensors()
        found = {n: t.full_tensor() if isinstance(t, DTensor) else t for n, t in tensors.items()}
        return {name: tensor.clone() for name, tensor in found.items()}


def opened(folder):
    return RunDirectory.open(folder, {"task": "e2e"}, "task: e2e\n")


def on_first(cohort, folder):
    return opened(folder) if cohort.rank == 0 else None


def same(one, two):
    torch.testing.assert_close(one, two, rtol=0, atol=0)


class Seen(TorchDispatchMode):
    """Numbers that collectives took or gave, and the largest tensor that was made."""

    def __init__(self):
        super().__init__()
        self.sent = self.largest = 0

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        result = function(*arguments, **(named or {}))
        collective = "c10d" in function._schema.name
        for tensor in tree_leaves([arguments, result] if collective else [result]):
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                self.sent += tensor.nbytes * collective
                self.largest = max(self.largest, tensor.nbytes)
        return result


def saved_in_parts(cohort, folder):
    trained, run = Trained(Shards()), on_first(cohort, folder)
    with Seen() as seen:
        trained.save(run, 2)
    with Seen() as gathered:  # what the same counts where tensors are put together
        trained.whole()
    return seen.sent, seen.largest, gathered.sent


def loaded_in_parts(cohort, folder):
    trained = Trained(Shards(), steps=0)
    trained.load(on_first(cohort, folder))
    return trained.whole()


@pytest.mark.slow
def test_nothing_is_gathered_and_any_number_of_ranks_goes_on(tmp_path):
    """Saved by three; loaded by two, and by one process."""
    alone = Trained().whole()
    for sent, made, gathered in together(saved_in_parts, 3, tmp_path):
        assert sent == 0
        assert made <= 2 * 5 * 4  # of 5 rows, those of one rank
        assert gathered > 0
    files = sorted((tmp_path / "checkpoints/step-00000002").glob("part-*"))
    held = [sum(tensor.nbytes for tensor in load_file(file).values()) for file in files]
    assert len(held) == 3
    assert sum(held) == sum(tensor.nbytes for tensor in alone.values())
    assert max(held) < 0.7 * sum(held)
    with opened(tmp_path) as run:
        one = Trained(steps=0)
        one.load(run)
        same(one.whole(), alone)
    for found in together(loaded_in_parts, 2, tmp_path):
        same(found, alone)


def test_one_process_hands_over_to_shards(tmp_path):
    with opened(tmp_path) as run:
        Trained().save(run, 2)
    for found in together(loaded_in_parts, 2, tmp_path):
        same(found, Trained().whole())


def snapshots(cohort, folder, copies):
    """A second checkpoint; before each operation of a rank on its files, what lies on the disk."""
    first, second = Trained(Shards()), Trained(Shards(), steps=3)
    run = on_first(cohort, folder)
    first.save(run, 2)
    looking = []

    def look(self):
        if not looking:
            looking.append(True)
            self.count += 1
            shutil.copytree(folder, copies / f"{cohort.rank}-{self.count}")
            looking.clear()
        return False

    Operations._is_last = look
    Operations(folder, None).watch()
    second.save(run, 4)
    looking.append(True)


def test_a_kill_at_any_moment_leaves_the_former_or_the_new_one(tmp_path):
    copies = tmp_path / "copies"
    copies.mkdir()
    together(snapshots, 2, tmp_path / "run", copies)
    expected = {2: Trained().whole(), 4: Trained(steps=3).whole()}
    found = set()
    assert len(list(copies.glob("0-*"))) > 10
    assert len(list(copies.glob("1-*"))) > 1
    for folder in copies.iterdir():
        with opened(folder) as run:
            trained = Trained(steps=0)
            latest = trained.load(run)
            same(trained.whole(), expected[latest.step])
            found.add(latest.step)
            assert not list(run.checkpoints.glob(".*"))
    assert found == {2, 4}


def refusals(cohort, folder):
    """What each rank says when the second's disk is full, and when its part is damaged later."""
    trained, run, said = Trained(Shards()), on_first(cohort, folder), []
    trained.save(run, 2)
    write = parts._Writer.write_data

    def full(self, plan, planner):
        self._file.write_bytes(b"half of it")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if cohort.rank == 1:
        parts._Writer.write_data = full
    try:
        trained.save(run, 4)
    except (CheckpointError, RankError) as error:
        said.append(f"{type(error).__name__}: {error}")
    parts._Writer.write_data = write
    cohort.barrier()
    said.append(sorted(path.name for path in (folder / "checkpoints").iterdir()))
    cohort.barrier()
    for damage in (lambda part: part.write_bytes(part.read_bytes()[::-1]), Path.unlink):
        trained.save(run, 4)
        if cohort.rank == 0:
            damage(folder / "checkpoints/step-00000004/part-00001.safetensors")
        try:
            checkpoint.load(run, trained.cohort)
        except CheckpointError as error:
            said.append(str(error))
    try:
        trained.save(run, 6 + cohort.rank)
    except RankError as error:
        said.append(str(error))
    said.append(sorted(path.name for path in (folder / "checkpoints").glob("step-*")))
    return said


def test_what_one_rank_cannot_write_or_read_all_are_told(tmp_path):
    first, second = together(refusals, 2, tmp_path)
    assert "CheckpointError: could not write checkpoint step-00000004" in second[0]
    assert first[0].startswith("RankError: rank 1 of 2 stopped at its part of a checkpoint")
    assert "No space left" in first[0]
    assert "No space left" in second[0]
    for said in (first, second):
        assert said[1] == ["step-00000002"]
        assert "part-00001.safetensors does not match its checksum" in said[2]
        assert "No such file" in said[3]
        assert "something else than another rank" in said[4]  # of two steps there is none
        assert said[5] == ["step-00000002", "step-00000004"]


def test_a_rank_that_does_not_see_the_folder_is_told_to_share_it(tmp_path):
    """When the newest checkpoint is looked for, before a step is taken."""

    class Elsewhere(TrainingCohort):
        rank, size, divided = 1, 2, True

        def broadcast_object(self, value):
            return tmp_path / "gone", 2

    with pytest.raises(CheckpointError, match=r"rank 1 of 2 does not see .* all machines share"):
        checkpoint.load(None, Elsewhere())
