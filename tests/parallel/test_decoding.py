"""Several ranks answer what one process answers, and their logs are those of whole batches."""

import json
import os
import shutil
import socket
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from dpft.config.compose import compose
from dpft.config.errors import RankError
from dpft.config.schema import Evaluate, parse
from dpft.models.load import load_model
from dpft.parallel.cohort import SingleProcess
from dpft.runs import read_norms, read_record
from dpft.tasks import load_task
from dpft.tasks.objectives.evaluation import answered
from dpft.training.held_out import HeldOut
from dpft.training.predictions import predict, spelled
from dpft.training.progress import Progress
from dpft.training.statistics import StepStatistics
from tests.parallel.launched import STEPS
from tests.parallel.ranks import together
from tests.parallel.test_runs import finished, killed, ranks, started
from tests.processes import command, dpft

__all__ = ["started"]  # a fixture

SIZES = (2, 3)
COUNTS = (0, 1, 5, 6, 29)


def dealt(cohort):
    """For each number of batches: which of them this rank was asked, and what it has of all."""
    found = []
    for count in COUNTS:
        asked = []

        def answer(batch, asked=asked):
            asked.append(batch)
            return [(batch, f"answer {batch}", 0.1 * batch, None, float("inf"))]

        found.append((asked, list(answered(list(range(count)), answer, cohort))))
    return found


@pytest.mark.parametrize("size", SIZES)
def test_each_batch_is_answered_by_one_rank_and_all_have_the_answers(size):
    expected = [has for _, has in dealt(SingleProcess())]
    by_rank = together(dealt, size)
    for found in by_rank:
        assert [has for _, has in found] == expected
    for place, count in enumerate(COUNTS):
        shares = [found[place][0] for found in by_rank]
        assert sorted(batch for share in shares for batch in share) == list(range(count))
        assert max(map(len, shares)) - min(map(len, shares)) <= 1


def stopped(cohort, case):
    """The error, and how many batches this rank had begun."""
    begun = []

    def answer(batch):
        begun.append(batch)
        if case == "fails" and cohort.rank == 1 and len(begun) == 2:
            raise ValueError("no such word")
        return [batch]

    batches = list(range(40 + (case == "others" and cohort.rank == 1)))
    try:
        list(answered(batches, answer, cohort))
    except (ValueError, RankError) as error:
        return type(error).__name__, str(error), len(begun)


@pytest.mark.parametrize("size", SIZES)
def test_a_rank_that_fails_stops_all_within_a_round(size):
    for rank, (name, said, begun) in enumerate(together(stopped, size, "fails")):
        assert name == ("ValueError" if rank == 1 else "RankError")
        assert ("no such word" if rank == 1 else f"rank 1 of {size} stopped") in said
        assert begun == (2 if rank == 1 else 4)
    for name, said, begun in together(stopped, size, "others"):
        assert (name, begun) == ("RankError", 0)
        assert "something else than another rank" in said


# The number of questions leaves ranks with unequal shares, or with none.
SAMPLED = ("decode=nucleus", "decode.max_new_tokens=8")
QUESTIONS = {
    "greedy": (7, "task=e2e", "decode=greedy", "decode.max_new_tokens=6"),
    "beams": (5, "task=e2e", "decode.beams=3", "decode.max_new_tokens=6"),
    "sampled": (7, "task=text2text", *SAMPLED),
    "fewer than ranks": (1, "task=text2text", *SAMPLED),
    "likelihoods": (7, "task=language_modeling"),
    "both": (5, "task=personachat", "decode=greedy", "decode.max_new_tokens=6"),
    "classes": (7, "task=sst2", "model=random-bert"),
}


class Counting(Progress):
    """Keeps what it is told."""

    def __init__(self):
        super().__init__(quiet=True)
        self.told = []

    @contextmanager
    def phase(self, name, total, note=""):
        yield self.told.append


def asked(cohort, case, broken=None):
    """The predictions of a case as they are written; layers of one rank may be broken."""
    count, *words = QUESTIONS[case]
    common = ["task.source=sample", f"task.limit_eval={count}", "decode.batch_size=2"]
    run = parse(compose([*words, *common]))
    task = load_task(run.task)
    loaded = load_model(run.model, task.needs, run.seed)
    if cohort.rank == broken:
        loaded.model.register_forward_pre_hook(refused)
    progress = Counting()
    instances = list(task.instances(run.decode.split))
    found = predict(task, loaded, instances, run.decode, 3, progress, cohort=cohort)
    assert sum(progress.told) == len(found) == count
    return spelled(found)


def refused(*_):
    raise ValueError("a layer is broken")


def all_asked(cohort):
    return {case: asked(cohort, case) for case in QUESTIONS}


# Whole runs show two ranks.
@pytest.mark.parametrize("size", SIZES if "DPFT_LONG" in os.environ else (3,))
def test_predictions_are_those_of_one_process(size):
    expected = all_asked(SingleProcess())
    assert together(all_asked, size) == [expected] * size
    assert expected["sampled"] != expected["greedy"]


def figures(cohort):
    """Of seven held-out records in a batch each, all of one class and then all of the other."""
    run = parse(compose(["task=sst2", "task.source=sample", "model=random-bert"]))
    task = load_task(run.task)
    loaded = load_model(run.model, task.needs, run.seed)
    objective = task.objective(loaded)
    record = task.records("train")[0]
    cohort.sharded = True  # then every rank asks as often as another
    found = []
    for label in (0, 1):
        held = HeldOut(Evaluate(every=1), objective, [replace(record, label=label)] * 7, True, 1)
        found.append(held.figures(loaded.model, cohort))
    return found


def test_what_ranks_ask_again_to_keep_in_step_counts_once():
    expected = figures(SingleProcess())
    assert {each["accuracy"] for each in expected} == {0.0, 1.0}
    for found in together(figures, 2):
        assert [each["accuracy"] for each in found] == [each["accuracy"] for each in expected]
        assert [each["loss"] for each in found] == pytest.approx([e["loss"] for e in expected])


def broken(cohort, case):
    try:
        asked(cohort, case, broken=1)
    except (ValueError, RankError) as error:
        return type(error).__name__, str(error)


@pytest.mark.parametrize("case", ["greedy", "likelihoods", "classes"])
def test_a_rank_that_cannot_answer_stops_all(case):
    one, other = together(broken, 2, case)
    assert one[0] == "RankError"
    assert "rank 1 of 2 stopped at an error" in one[1]
    assert other == ("ValueError", "a layer is broken")


# Statistics of a step.


def seen(shares, groups, dtype=torch.float32):
    """Of each rank: losses and norms of so many records, a few of them dropped or clipped."""
    torch.manual_seed(1)
    found = []
    for sizes in shares:
        one = StepStatistics(seconds=2.0)
        for size in sizes:
            one.records += size + 1
            one.left_out += 1
            one.microbatches += 1
            one.losses.append(torch.rand(size, dtype=dtype))
            if groups:
                one.norms.append(torch.rand(size, groups, dtype=dtype) * 3)
                one.factors.append((1 / one.norms[-1]).clamp(max=1))
        found.append(one)
    return found


def collected(cohort, cases):
    found = []
    for shares, groups in cases:
        mine = seen(shares, groups)[cohort.rank]
        norms = [row for part in mine.norms_of_all(cohort) for row in part.tolist()]
        found.append((mine.summary(cohort), norms))
    return found


SHARES = {
    2: [[[3, 1], [4]], [[], [5]], [[2], []], [[], []], [[0], [3]]],
    3: [[[3, 1], [4], [2, 2]], [[], [5], []], [[], [], []]],
}


@pytest.mark.parametrize("size", SIZES)
def test_statistics_are_those_of_the_whole_batch(size):
    cases = [(shares, groups) for shares in SHARES[size] for groups in (0, 1, 3)]
    for found in together(collected, size, cases):
        for (summary, norms), (shares, groups) in zip(found, cases, strict=True):
            parts = seen(shares, groups)
            whole = seen([[]], 0)[0]
            for part in parts:
                for name in ("records", "left_out", "microbatches", "losses", "norms", "factors"):
                    setattr(whole, name, getattr(whole, name) + getattr(part, name))
            losses = torch.cat([torch.zeros(0), *whole.losses])
            assert summary["records"] == whole.records
            assert summary["dropped"] == whole.dropped
            assert summary["microbatches"] == whole.microbatches
            if not len(losses):
                assert summary["loss"] is None
                assert set(summary) == {*COUNTED, "loss"}
                assert not norms
                continue
            assert summary["loss"] == pytest.approx(losses.mean().item())
            assert ("norm_mean" in summary) is (groups > 0)
            if groups:
                each, factors = torch.cat(whole.norms), torch.cat(whole.factors)
                assert summary["norm_mean"] == pytest.approx(each.mean(0).tolist())
                assert summary["norm_max"] == each.amax(0).tolist()
                assert summary["clipped"] == pytest.approx((factors < 1).float().mean(0).tolist())
                assert norms == each.tolist()


COUNTED = ("records", "dropped", "microbatches", "seconds")


class Told(SingleProcess):
    """The first of ranks that have said what they have to say."""

    def __init__(self, told):
        self.told = told

    def gather(self, value):
        return self.told


def test_ranks_of_one_pipeline_count_its_records_once():
    """Two of two stages each, of which one has dropped a record that the other has not."""
    stages = []
    for share in (0, 1):
        for group in (0, 1):
            one = StepStatistics(share=share, groups=[group], records=3, microbatches=2)
            one.losses.append(torch.tensor([1.0, 2.0, 3.0 + share]))
            one.norms.append(torch.tensor([[1.0 + group], [2.0], [3.0]]))
            one.factors.append(torch.tensor([[1.0], [0.5], [float(group != share)]]))
            stages.append(one)
    summary = stages[0].summary(Told([(one.share, *one._sums()) for one in stages]))
    counts = {name: summary[name] for name in COUNTED[:3]}
    assert counts == {"records": 6, "dropped": 2, "microbatches": 4}
    assert summary["loss"] == pytest.approx(13 / 6)
    assert summary["norm_mean"] == pytest.approx([2, 7 / 3])
    told = [(one.share, one.groups, torch.cat(one.norms).T.tolist()) for one in stages]
    norms = stages[0].norms_of_all(Told(told))
    assert [each.tolist() for each in norms] == [[[1.0, 2.0], [2.0, 2.0], [3.0, 3.0]]] * 2


# Whole runs.


def launched(size, folder, *words):
    """What came of a command on so many ranks."""
    processes = []
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for rank in range(size):
        told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "MASTER_PORT": port}
        told = {name: str(value) for name, value in told.items()} | {"MASTER_ADDR": "127.0.0.1"}
        with pytest.MonkeyPatch.context() as patch:
            for name, value in told.items():
                patch.setenv(name, value)
            processes.append(command(words, folder))
    results = [process.finish() for process in processes]
    for process in processes:
        process.__exit__()
    return results


def logged(path):
    lines = (path / "private/metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.slow
def test_logs_and_texts_of_a_run_are_those_of_one_process(complete, tmp_path):
    settings = ("clip=per_layer_adaptive", "record_norms=2", "task.limit_eval=5")
    settings += ("decode.batch_size=2",)
    paths = [complete(size, *settings).path for size in (1, 2)]
    one, two = map(logged, paths)
    assert len(one) == len(two) == STEPS
    for alone_saw, both_saw in zip(one, two, strict=True):
        # Shares are cut into microbatches each by itself.
        for other in ("seconds", "microbatches"):
            del alone_saw[other], both_saw[other]
        assert both_saw.keys() == alone_saw.keys()
        for name, value in alone_saw.items():
            assert both_saw[name] == pytest.approx(value, rel=1e-3, abs=1e-6), name
    files = (path / "private/norms.jsonl" for path in paths)
    for alone_saw, both_saw in zip(*map(read_norms, files), strict=True):
        assert both_saw.step == alone_saw.step
        for one_norms, two_norms in zip(
            sorted(alone_saw.values), sorted(both_saw.values), strict=True
        ):
            assert two_norms == pytest.approx(one_norms, rel=1e-3)
    # The same model is asked again, by other numbers of processes.
    run = shutil.copytree(paths[1], tmp_path / "runs/run")
    scores = read_record(run)["scores"]
    file = run / "generations/test.jsonl"
    written = file.read_bytes()
    assert written.count(b"\n") == 5
    for size in (1, 3):
        file.unlink()
        results = launched(size, tmp_path, "decode", "runs/run")
        assert [result.returncode for result in results] == [0] * size, results
        assert [bool(result.stdout) for result in results] == [True, False, False][:size]
        assert file.read_bytes() == written
    assert dpft("score", "runs/run", cwd=tmp_path).returncode == 0
    assert read_record(run)["scores"] == scores
    for result in launched(2, tmp_path, "score", "runs/run"):
        assert result.returncode == 2
        assert "dpft score with 2 processes; expected one" in " ".join(result.stderr.split())


def test_a_run_that_is_killed_while_it_decodes_goes_on_with_that(tmp_path):
    settings = ("clip=bk", "parallel=fsdp", "task.limit_eval=5", "decode.batch_size=1")
    run = tmp_path / "runs/run"
    (result,) = killed(2, tmp_path, (run / "record.json", 0), *settings)
    assert result.returncode == 2
    assert "another rank does not answer" in " ".join(result.stderr.split())
    assert (run / "record.json").exists()
    assert not (run / "generations/test.jsonl").exists()
    ledger = (run / "ledger.jsonl").read_bytes()
    finished(ranks(2, tmp_path, *settings, "name=run"))
    assert (run / "ledger.jsonl").read_bytes() == ledger
    assert (run / "generations/test.jsonl").read_bytes().count(b"\n") == 5
    assert set(read_record(run)["scores"]) == {"test"}
