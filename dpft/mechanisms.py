"""From a run's settings to its clipper and `Mechanism`; ``dpft account`` uses it with no data."""

from __future__ import annotations

from torch import nn

from dpft.clip import Clip
from dpft.config import Run
from dpft.errors import ConfigError
from dpft.privacy import Clipper, Mechanism, accounting, make_clipper
from dpft.privacy.groups import Partition
from dpft.privacy.quantiles import Quantiles


def published_size(run: Run) -> int:
    """Training records of the task as published, for what is computed without the data."""
    size, limit = int(run.task["train_size"]), run.task.get("limit_train")
    return size if limit is None else min(size, int(limit))


def quantiles_of(clip: Clip) -> Quantiles | None:
    """How the thresholds adapt; None where they are fixed."""
    if not clip.adaptive:
        return None
    assert clip.quantile is not None
    assert clip.quantile_lr is not None
    return Quantiles(clip.quantile, clip.quantile_lr, clip.rescale)


def attach_clipper(clip: Clip, model: nn.Module) -> Clipper:
    """The clipper that the settings describe, attached to ``model``.

    Raises:
        ConfigError: if the model cannot be grouped like that, or not be clipped exactly.
    """
    try:
        if not clip.private:
            return make_clipper(model, "none")
        return make_clipper(
            model,
            "flat",  # every part of a style is given below; this one is without defaults
            threshold=clip.threshold,
            thresholds=clip.thresholds,
            groups=Partition(str(clip.groups), clip.count, clip.boundary, clip.patterns),
            plan=clip.plan,
            clip_function=clip.clip_function,
            adaptive=quantiles_of(clip),
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error


def make_mechanism(run: Run, dataset_size: int, clipper: Clipper | None = None) -> Mechanism:
    """The mechanism of a run over ``dataset_size`` training records.

    ``privacy.delta`` defaults to ``1/(2N)`` (Li et al. 2022); the number of steps follows from
    epochs unless ``optim.steps`` gives it; the noise follows from the budget unless
    ``privacy.noise_multiplier`` gives it, as the noise multiplier of all that a step releases.

    Args:
        run: the settings.
        dataset_size: ``N``.
        clipper: decides the groups, over which the noise is then spread. Without one, before any
            model is loaded, the mechanism has a single group and fixed thresholds: its guarantee
            is that of the run, its noise on the gradients that of adaptive thresholds is not.

    Raises:
        ConfigError: for settings that admit no mechanism, such as an unreachable budget.
    """
    privacy, optim, clip = run.privacy, run.optim, run.clip
    delta = 1 / (2 * dataset_size) if privacy.delta is None else privacy.delta
    thresholds = _any_thresholds(clip)
    try:
        # Checked before the steps are counted, in the words of the settings.
        Mechanism(dataset_size, optim.batch_size, 0, 0.0, (), delta, privacy.sampling)
        steps = optim.steps
        if steps is None:
            steps = accounting.steps_for(
                dataset_size=dataset_size, batch_size=optim.batch_size, epochs=optim.epochs
            )
        if clip.private and privacy.noise_multiplier is None:
            assert privacy.epsilon is not None
            mechanism = Mechanism.calibrate(
                dataset_size=dataset_size,
                batch_size=optim.batch_size,
                steps=steps,
                thresholds=thresholds,
                delta=delta,
                target_epsilon=privacy.epsilon,
                accountant=privacy.accountant,
                sampling=privacy.sampling,
            )
        else:
            sigma = (privacy.noise_multiplier or 0.0) if clip.private else 0.0
            mechanism = Mechanism(
                dataset_size, optim.batch_size, steps, sigma, thresholds, delta, privacy.sampling
            )
        return mechanism if clipper is None else _over_groups(mechanism, clip, clipper)
    except ValueError as error:
        raise ConfigError(str(error)) from error


def _any_thresholds(clip: Clip) -> tuple[float, ...]:
    """Thresholds of the same joint norm, where the number of groups is not known yet."""
    if not clip.private:
        return ()
    return clip.thresholds or (clip.threshold or 0.0,)


def _over_groups(mechanism: Mechanism, clip: Clip, clipper: Clipper) -> Mechanism:
    if not clip.private:
        return mechanism
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
