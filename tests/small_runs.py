"""Runs that take less than a second: a classifier of random weights on generated sentences."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from dpft import runs
from dpft.config.compose import compose
from dpft.config.schema import Run, parse
from dpft.privacy.noise import GaussianNoise
from dpft.runs.folders import run_path
from dpft.tasks import load_task
from dpft.training.mechanisms import read_data
from dpft.training.progress import Progress
from dpft.training.session import Session
from dpft.training.setup import Prepared, prepare

WORDS = [
    "task=sst2",
    "task.source=sample",
    "task.limit_train=12",
    "task.limit_eval=1",
    "model=random-bert",
    "privacy.noise_multiplier=1",
    "optim.batch_size=6",
    "optim.steps=2",
    "threads=1",
    "name=small",
]


def settings(folder: Path, *words: str) -> Run:
    return parse(compose([*WORDS, f"runs_dir={folder}", *words]))


@contextmanager
def ready(run: Run, cohort=None) -> Iterator[tuple[Prepared, runs.RunDirectory, Progress]]:
    """All that stands before the first step, in the run's own folder."""
    other = cohort is not None and cohort.rank > 0  # the first rank has the folder
    opened = nullcontext() if other else runs.RunDirectory.open(run_path(run), run.identity(), "")
    with opened as directory, Progress() as progress:
        data = read_data(run, load_task(run.task), progress)
        prepared = prepare(run, data, directory, progress, cohort)
        try:
            yield prepared, directory, progress
        finally:
            prepared.parts.clipper.close()


def trained(run: Run, cohort=None) -> Prepared:
    """All steps taken, neither tracked, decoded nor recorded."""
    with ready(run, cohort) as (prepared, _, _), Session(prepared) as session:
        session.train()
        return prepared


class Killed(BaseException):
    """In place of a kill: nothing may catch it."""


def release_noise_alone(monkeypatch) -> None:
    """Take sums of clipped gradients and counts of norms away: any records release the same."""
    own = GaussianNoise.privatise_

    def noise_alone(noise, step):
        for parameter in noise._clipper.parameters.values():
            if parameter.grad is not None:
                parameter.grad.zero_()
        noise._clipper.policy.reset()
        return own(noise, step)

    monkeypatch.setattr(GaussianNoise, "privatise_", noise_alone)
