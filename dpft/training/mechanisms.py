"""From a run's settings to its clipper and `Mechanism`; ``dpft account`` uses it with no data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpft.config import imported
from dpft.config.errors import ConfigError
from dpft.config.folder import choices, settings_of
from dpft.config.published import PUBLISHED_TASKS
from dpft.config.schema import Clip, Optim, Run
from dpft.privacy import Mechanism, accounting
from dpft.privacy.quantiles import Quantiles
from dpft.privacy.spec import default_delta

if TYPE_CHECKING:
    from torch import nn

    from dpft.privacy import Clipper
    from dpft.privacy.cohort import Cohort


def published_size(run: Run) -> int:
    """Training records of the task as published, and an audit's canaries: what a run will count.

    Raises:
        ConfigError: for other data than the published ones, whose size is not set, and for a size
            that is none.
    """
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
    """The same; None of data whose size the settings do not tell.

    Raises:
        ConfigError: if it is no number of records.
    """
    size, name = run.task.get("train_size"), run.task["name"]
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
        raise ConfigError(f"task.train_size is {size!r}; expected a whole number above 0")
    other = run.task.get("source") == "sample" or run.task.get("synthetic") is not None
    if other and size == (settings_of("task", name) or {}).get("train_size"):
        return None  # the published number is of other records
    if size is None:
        return None
    limit = run.task.get("limit_train")
    return (size if limit is None else min(size, int(limit))) + run.audit.canaries


def expected_batch_size(optim: Optim, dataset_size: int) -> int:
    """Records in a logical batch on average: ``batch_size``, or what makes the sampling rate.

    Rounded to a whole number, from which the sampling rate of the run then follows.

    Raises:
        ConfigError: if ``rate_like`` is no task, or one of unknown size.
    """
    if optim.sampling_rate is not None:
        return max(1, round(optim.sampling_rate * dataset_size))
    assert optim.batch_size is not None
    if optim.rate_like is None:
        return optim.batch_size
    return max(1, round(optim.batch_size * dataset_size / _size_of_task(optim.rate_like)))


def _size_of_task(name: str) -> int:
    sizes: dict[str, Any] = {
        task: (settings_of("task", task) or {}).get("train_size") for task in choices("task")
    }
    known = [task for task, size in sizes.items() if size]
    if name not in known:
        raise ConfigError(
            f"optim.rate_like is {name!r}; expected a task of known size: {', '.join(known)}"
        )
    return int(sizes[name])


def quantiles_of(clip: Clip) -> Quantiles | None:
    """How the thresholds adapt; None where they are fixed."""
    if not clip.adaptive:
        return None
    assert clip.quantile is not None
    assert clip.quantile_lr is not None
    return Quantiles(clip.quantile, clip.quantile_lr, clip.rescale)


def attach_clipper(clip: Clip, model: nn.Module, cohort: Cohort | None = None) -> Clipper:
    """The clipper that the settings describe, attached to ``model``.

    Args:
        clip: the settings.
        model: whose parameters are trained.
        cohort: the processes that train it together; None: this one.

    Raises:
        ConfigError: if the model cannot be grouped like that, or not be clipped exactly.
    """
    from dpft.privacy import make_clipper
    from dpft.training import own_parts

    try:
        if not clip.private:
            return make_clipper(model, "none", cohort=cohort)
        return make_clipper(
            model,
            "materialised",  # every part of a style is given below; this one is without defaults
            threshold=clip.threshold,
            thresholds=clip.thresholds,
            groups=imported.load("clip.groups", clip.groups) if clip.own_groups else clip.partition,
            plan=clip.plan,
            clip_function=own_parts.clip_function(clip),
            adaptive=quantiles_of(clip),
            cohort=cohort,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error


def make_mechanism(run: Run, dataset_size: int) -> Mechanism:
    """The mechanism of a run over ``dataset_size`` training records, before any model is loaded.

    It has a single group and fixed thresholds. Its guarantee is that of the run; its noise on the
    gradients is not that of adaptive thresholds, see `over_groups`.

    ``privacy.delta`` defaults to `default_delta`; the number of steps follows from epochs unless
    ``optim.steps`` gives it; the noise follows from the budget unless
    ``privacy.noise_multiplier`` gives it, as the noise multiplier of all that a step releases.

    Args:
        run: the settings.
        dataset_size: ``N``.

    Raises:
        ConfigError: for settings that admit no mechanism, such as an unreachable budget.
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
    delta = privacy.delta
    if delta is None:
        delta = default_delta(dataset_size, run.task["name"] in PUBLISHED_TASKS)
    batch_size = expected_batch_size(optim, dataset_size)
    thresholds = _any_thresholds(clip)
    try:
        # Checked before the steps are counted, in the words of the settings.
        Mechanism(
            *(dataset_size, batch_size, 0, 0.0, (), delta, privacy.sampling),
            max_batch=privacy.max_batch,
        )
        steps = optim.steps
        if steps is None:
            steps = accounting.steps_for(
                dataset_size=dataset_size, batch_size=batch_size, epochs=optim.epochs
            )
        if clip.private and privacy.noise_multiplier is None:
            assert privacy.epsilon is not None
            return Mechanism.calibrate(
                dataset_size=dataset_size,
                batch_size=batch_size,
                steps=steps,
                thresholds=thresholds,
                delta=delta,
                target_epsilon=privacy.epsilon,
                accountant=privacy.accountant,
                sampling=privacy.sampling,
                max_batch=privacy.max_batch,
            )
        sigma = (privacy.noise_multiplier or 0.0) if clip.private else 0.0
        return Mechanism(
            *(dataset_size, batch_size, steps, sigma, thresholds, delta, privacy.sampling),
            max_batch=privacy.max_batch,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _any_thresholds(clip: Clip) -> tuple[float, ...]:
    """Thresholds of the same joint norm, where the number of groups is not known yet."""
    if not clip.private:
        return ()
    return clip.thresholds or (clip.threshold or 0.0,)


def over_groups(mechanism: Mechanism, clip: Clip, clipper: Clipper) -> Mechanism:
    """The same guarantee, its noise spread over the groups of the clipper.

    Raises:
        ConfigError: if the counts leave nothing for the gradients, or settings contradict.
    """
    if not clip.private:
        return mechanism
    try:
        return mechanism.over(
            tuple(group.threshold for group in clipper.groups),
            allocation=clip.allocation,
            dimensions=tuple(
                sum(clipper.parameters[name].numel() for name in group.parameters)
                for group in clipper.groups
            ),
            quantiles=quantiles_of(clip),
            quantile_budget=clip.quantile_budget,
            count_noise=clip.quantile_noise,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error
