"""The data of a run and its `Mechanism`, made before torch is imported, which takes seconds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dpft.config.errors import ConfigError, SettingError
from dpft.config.folder import choices, settings_of
from dpft.config.published import PUBLISHED_TASKS
from dpft.config.schema import Clip, Optim, Run
from dpft.privacy import Mechanism
from dpft.privacy.quantiles import Quantiles
from dpft.privacy.spec import default_delta
from dpft.tasks.objectives.objective import Instance
from dpft.tasks.objectives.record_types import Record
from dpft.tasks.task import Task
from dpft.tasks.views import Owners
from dpft.training.progress import Progress

_MOST = 0.5  # share of scored records that training records may repeat


@dataclass(frozen=True)
class Data:
    """The data of a task: training records, the user of each, and the questions to answer.

    The units of privacy of its ``mechanism``, whose noise is not spread over groups yet, include
    an audit's canaries.
    """

    task: Task
    records: Sequence[Record]
    owners: Sequence[str] | None
    instances: Sequence[Instance]
    mechanism: Mechanism


def read_data(run: Run, task: Task, progress: Progress) -> Data:
    """Read the data of a run."""
    if run.audit.active:
        from dpft.audit.exposure import check

        check(run, task)
    with progress.phase("reading", None) as advance:
        task.advance_with(advance)
        records, owners = task.records("train"), task.owners()
    units = len(records) if owners is None else len(Owners.of(owners).names)
    mechanism = make_mechanism(run, units + run.audit.canaries)
    # Missing questions are reported before the training; and files may change meanwhile.
    instances = list(task.instances(run.decode.split))
    check_apart(run, task, run.decode.split, instances)
    return Data(task, records, owners, instances, mechanism)


def check_apart(run: Run, task: Task, split: str, instances: Sequence[Instance]) -> None:
    """Call `check_scored` if the training records have a guarantee, which scores have not.

    Synthetic records cost no budget, but the records that they stand for may have.
    """
    if run.clip.private or task.synthetic is not None:
        check_scored(task, split, [one.record for one in instances])


def check_scored(task: Task, split: str, records: Sequence[Record]) -> None:
    """Raise ConfigError for records of a split, ``dev`` or ``test``, that are mostly trained on."""
    if not getattr(task, f"{split}_share", 0):  # else a digest of the record holds it out
        instead = f"give a file of them, or type task.{split}_share=0.1 to hold some back"
        check_repeated(task.repeated(records), f"the {split} split", instead)


def check_repeated(share: float, where: str, instead: str) -> None:
    """Raise ConfigError if most records are trained on, in whatever form and order they are saved.

    A few may be, since people say the same things; `dpft data check` counts them.
    """
    if share > _MOST:
        raise ConfigError(
            f"most records of {where} are trained on, word for word, and no noise covers what is "
            f"computed of them; expected other records: {instead}"
        )


def published_size(run: Run) -> int:
    """Return the number of units that a run will count, without reading its data."""
    size = known_size(run)
    if size is None:
        published = run.task.get("train_size")
        what = "not set" if published is None else f"{published}, of the published data, not these"
        raise ConfigError(
            f"task.train_size is {what}: how large the data of task={run.task['name']} is cannot "
            "be known without reading it. Type task.train_size=N, the number of training records "
            "(of users, with task.unit=user); dpft data check counts them"
        )
    return size


def known_size(run: Run) -> int | None:
    """Return the task's training records as published plus an audit's canaries; None if unknown."""
    size, name = run.task.get("train_size"), run.task["name"]
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
        raise ConfigError(f"task.train_size is {size!r}; expected a whole number above 0")
    other = run.task.get("source") == "sample" or run.task.get("synthetic") is not None
    if other and size == settings_of("task", name).get("train_size"):
        return None  # the published number is of other records
    if size is None:
        return None
    limit = run.task.get("limit_train")
    return (size if limit is None else min(size, int(limit))) + run.audit.canaries


def expected_batch_size(optim: Optim, dataset_size: int) -> int:
    """Return the expected records of a logical batch, from which the sampling rate follows."""
    if optim.sampling_rate is not None:
        return max(1, round(optim.sampling_rate * dataset_size))
    assert optim.batch_size is not None
    if optim.rate_like is None:
        return optim.batch_size
    size = None
    if optim.rate_like in choices("task"):
        size = settings_of("task", optim.rate_like).get("train_size")
    if not size:
        raise ConfigError(
            f"optim.rate_like is {optim.rate_like!r}; expected a task of known size, such as sst2"
        )
    return max(1, round(optim.batch_size * dataset_size / int(size)))


def quantiles_of(clip: Clip) -> Quantiles | None:
    """Return how the thresholds adapt; None where they are fixed."""
    if not clip.adaptive:
        return None
    assert clip.quantile is not None
    assert clip.quantile_lr is not None
    return Quantiles(clip.quantile, clip.quantile_lr, clip.rescale)


def make_mechanism(run: Run, dataset_size: int) -> Mechanism:
    """Return the mechanism of a run over ``dataset_size`` units, before any model is loaded.

    It has a single group and fixed thresholds. Its guarantee is that of the run;
    `dpft.training.setup.assemble` spreads its noise over the groups of the clipper.
    ``privacy.delta`` defaults to `default_delta`, steps follow from epochs unless ``optim.steps``
    is set, and noise follows from the budget unless ``privacy.noise_multiplier`` is set, which is
    that of everything a step releases.
    """
    privacy, optim, clip = run.privacy, run.optim, run.clip
    audit, records = run.audit, dataset_size - run.audit.canaries
    if audit.planted > records:
        secrets = min(audit.secrets, records)
        raise ConfigError(
            f"audit.secrets={audit.secrets} and audit.repetitions={audit.repetitions} put "
            f"{audit.planted:,} canary texts into {records:,} training records; expected at most "
            f"one for each: type audit.secrets={secrets} audit.repetitions={records // secrets}"
        )
    if audit.gradients > records:
        expected = f"at most one for each of {records:,} training {run.task.get('unit', 'record')}s"
        raise SettingError("audit.gradients", audit.gradients, expected)
    delta = privacy.delta
    if delta is None:
        delta = default_delta(dataset_size, run.task["name"] in PUBLISHED_TASKS)
    batch_size = expected_batch_size(optim, dataset_size)
    # The number of groups is not known yet: thresholds of the same joint norm.
    thresholds = (clip.thresholds or (clip.threshold or 0.0,)) if clip.private else ()

    sigma = privacy.noise_multiplier if clip.private else 0.0
    try:
        return Mechanism.calibrate(
            dataset_size=dataset_size,
            batch_size=batch_size,
            steps=optim.steps,
            epochs=optim.epochs,
            thresholds=thresholds,
            delta=delta,
            target_epsilon=privacy.epsilon,
            noise_multiplier=sigma,
            accountant=privacy.accountant,
            sampling=privacy.sampling,
            max_batch=privacy.max_batch,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error


def with_any_noise(run: Run, size: int) -> Mechanism:
    """Return the mechanism of a run, but for its noise: to find that of a budget takes seconds."""
    noise = replace(run.privacy, epsilon=None, noise_multiplier=1.0)
    return make_mechanism(replace(run, privacy=noise), size)
