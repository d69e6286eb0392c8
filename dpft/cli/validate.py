"""``dpft validate``: compose and check settings without running them."""

import dataclasses
from collections.abc import Sequence

from dpft.cli.options import Settings
from dpft.cli.train import resumed
from dpft.config.compose import compose
from dpft.config.defaults import origin_in_words
from dpft.config.overrides import check_budget
from dpft.config.schema import parse
from dpft.parallel.launch import check_processes, launched
from dpft.report.terminal import echo


def main(overrides: Settings = None) -> None:
    """Check settings without running them: dpft validate task=e2e eps=3

    Reads neither data nor model. dpft plan also builds the model, and simulates a step.
    """
    words = overrides or []
    notes = check(words)
    echo(f"ok: {' '.join(words) or 'the defaults'}{''.join(f' ({note})' for note in notes)}")


def check(overrides: Sequence[str]) -> list[str]:
    """Check a run of these overrides; return notes, on what could not be checked too."""
    check_budget(overrides)
    raw = compose(overrides)
    resumes = raw.get("resume") is not None
    if resumes:
        raw = resumed(raw, overrides)
    run = parse(raw)
    from dpft.tasks import load_task

    load_task(run.task)
    check_processes(run, run.ranks or launched())
    if resumes:  # the size of its data was checked when the run started
        return []
    from dpft.training.mechanisms import known_size, make_mechanism

    notes, size = [], known_size(run)
    if size is None:  # data of one's own
        notes.append(
            "the number of records is not known, so batch size and noise were not checked; type "
            "task.train_size=N"
        )
    else:  # with any noise: to find that of a budget takes seconds, and dpft account shows it
        noise = dataclasses.replace(run.privacy, epsilon=None, noise_multiplier=1.0)
        make_mechanism(dataclasses.replace(run, privacy=noise), size)
    if run.origin:
        notes.append(origin_in_words(run.origin))
    if not run.clip.private:
        notes.append("trains without privacy: eps has no effect")
    elif size is not None:
        from dpft.privacy.guarantee import weakness

        notes += weakness(run.privacy.epsilon)
    return notes
