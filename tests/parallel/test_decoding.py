"""Several ranks answer what one process answers, and their logs are those of whole batches."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from dpft.config.compose import compose
from dpft.config.errors import RankError
from dpft.config.schema import parse
from dpft.models.load import load_model
from dpft.parallel.cohort import TrainingCohort
from dpft.tasks import load_task
from dpft.tasks.objectives.evaluation import answered
from dpft.training.held_out import Evaluations
from dpft.training.predictions import predict, spelled
from dpft.training.progress import Progress
from tests.parallel.ranks import together


def stopped(cohort):
    """Where a rank fails, and where it has more batches: the error, and how many it had begun."""
    found = []
    for fails, more in ((True, 0), (False, cohort.rank)):
        begun = []

        def answer(batch, begun=begun, fails=fails):
            begun.append(batch)
            if fails and cohort.rank == 1 and len(begun) == 2:
                raise ValueError("no such word")
            return [batch]

        try:
            list(answered(list(range(40 + more)), answer, cohort))
        except (ValueError, RankError) as error:
            found.append((type(error).__name__, str(error), len(begun)))
    return found


def test_a_rank_that_fails_stops_all_within_a_round():
    for rank, (fails, others) in enumerate(together(stopped, 2)):
        name, said, begun = fails
        assert name == ("ValueError" if rank == 1 else "RankError")
        assert ("no such word" if rank == 1 else "rank 1 of 2 stopped") in said
        assert begun == (2 if rank == 1 else 4)
        name, said, begun = others
        assert (name, begun) == ("RankError", 0)
        assert "something else than another rank" in said


# The number of questions leaves ranks with unequal shares, or with none.
SAMPLED = ("decode=nucleus", "decode.max_new_tokens=8")
QUESTIONS = (
    (5, "task=e2e", "decode.beams=3", "decode.max_new_tokens=6"),
    (7, "task=text2text", *SAMPLED),
    (1, "task=text2text", *SAMPLED),
    (7, "task=language_modeling"),
    (5, "task=personachat", "decode=greedy", "decode.max_new_tokens=6"),
    (7, "task=sst2", "model=random-bert"),
)


def task_and_model(*words):
    run = parse(compose(["task.source=sample", *words]))
    task = load_task(run.task)
    return run, task, load_model(run.model, task.needs, run.seed)


def asked(cohort):
    """All predictions as they are written."""
    written = []
    for count, *words in QUESTIONS:
        common = (f"task.limit_eval={count}", "decode.batch_size=2")
        run, task, loaded = task_and_model(*words, *common)
        progress, told = Progress(quiet=True), []
        progress.phase = lambda *names, told=told: nullcontext(told.append)
        instances = list(task.instances(run.decode.split))
        found = predict(task, loaded, instances, run.decode, 3, progress, cohort=cohort)
        assert sum(told) == len(found) == count
        written.append(spelled(found))
    return written


def test_predictions_are_those_of_one_process():
    assert together(asked, 2) == [asked(TrainingCohort())] * 2


def figures(cohort):
    """Of seven held-out records in a batch each, all of one class and then all of the other."""
    words = ("task=sst2", "model=random-bert", "optim.microbatch_tokens=1", "evaluate.every=1")
    run, task, loaded = task_and_model(*words)
    mechanism = SimpleNamespace(steps=1, noise_multiplier=1.0, dataset_size=7, batch_size=7)
    objective = task.objective(loaded)
    record = task.records("train")[0]
    found = []
    for label in (0, 1):
        prepared = SimpleNamespace(
            **{"run": run, "task": task, "objective": objective, "cohort": cohort},
            **{"parts": SimpleNamespace(mechanism=mechanism), "directory": None},
            **{"progress": Progress(quiet=True), "held_out": [record._replace(label=label)] * 7},
        )
        held_out = Evaluations(prepared, start=0)
        found.append(held_out.figures(loaded.model))
    return found


def test_evaluations_are_those_of_one_process():
    expected = figures(TrainingCohort())
    assert {each["accuracy"] for each in expected} == {0.0, 1.0}
    for found in together(figures, 2):
        assert [each["accuracy"] for each in found] == [each["accuracy"] for each in expected]
        assert [each["loss"] for each in found] == pytest.approx([e["loss"] for e in expected])
