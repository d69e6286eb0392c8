"""``dpft validate``: compose and check configurations without running them."""

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
    """Check a configuration without running it: dpft validate task=e2e eps=3"""
    words = overrides or []
    doubts = check(words)
    echo(f"ok: {' '.join(words) or 'the defaults'}{''.join(f' ({said})' for said in doubts)}")


def check(overrides: Sequence[str], whole: bool = True) -> list[str]:
    """Return what could not be checked of a run of these overrides.

    The size of the data of a resumed run was checked when the run began.
    """
    check_budget(overrides)
    raw = compose(overrides)
    resumes = raw.get("resume") is not None
    if resumes:
        hydras = ("hydra.", "hydra/")  # settings of Hydra itself, which are none of a run
        raw = resumed(raw, [w for w in overrides if not w.lstrip("+~").startswith(hydras)])
    run = parse(raw)
    from dpft.tasks import load_task

    task = load_task(run.task)  # before torch is imported, which takes seconds
    run.evaluate.check_file()
    check_processes(run, run.ranks or launched())
    if resumes:
        return []
    from dpft.training.mechanisms import known_size, make_mechanism

    doubts, size = [], known_size(run)
    mechanism = None if size is None else make_mechanism(run, size)
    if mechanism is None:  # data of one's own
        doubts.append(
            "the number of records is not known, so batch size and noise were not checked; type "
            "task.train_size=N"
        )
    if whole:
        from dpft.training.setup import check_model

        doubts += filter(None, [check_model(run, task, mechanism)])
    if run.origin:
        doubts.append(origin_in_words(run.origin))
    if not run.clip.private:
        doubts.append("trains without privacy: eps is of no effect")
    elif size is not None:
        from dpft.privacy.guarantee import weakness

        doubts += weakness(run.privacy.epsilon)
    return doubts
