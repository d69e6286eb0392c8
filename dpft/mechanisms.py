"""From a run's settings to its `Mechanism`; also what ``dpft account`` computes with no data."""

from __future__ import annotations

from dpft.config import Run
from dpft.errors import ConfigError
from dpft.privacy import Mechanism, accounting


def published_size(run: Run) -> int:
    """Training records of the task as published, for what is computed without the data."""
    size, limit = int(run.task["train_size"]), run.task.get("limit_train")
    return size if limit is None else min(size, int(limit))


def make_mechanism(run: Run, dataset_size: int) -> Mechanism:
    """The mechanism of a run over ``dataset_size`` training records.

    ``privacy.delta`` defaults to ``1/(2N)`` (Li et al. 2022); the number of steps follows from
    epochs unless ``optim.steps`` gives it; the noise follows from the budget unless
    ``privacy.noise_multiplier`` gives it.

    Raises:
        ConfigError: for settings that admit no mechanism, such as an unreachable budget.
    """
    privacy, optim = run.privacy, run.optim
    delta = 1 / (2 * dataset_size) if privacy.delta is None else privacy.delta
    private = run.clip.style != "none"
    thresholds = (run.clip.threshold,) if private and run.clip.threshold is not None else ()
    try:
        # Checked before the steps are counted, in the words of the settings.
        Mechanism(dataset_size, optim.batch_size, 0, 0.0, (), delta, privacy.sampling)
        steps = optim.steps
        if steps is None:
            steps = accounting.steps_for(
                dataset_size=dataset_size, batch_size=optim.batch_size, epochs=optim.epochs
            )
        if private and privacy.noise_multiplier is None:
            assert privacy.epsilon is not None
            return Mechanism.calibrate(
                dataset_size=dataset_size,
                batch_size=optim.batch_size,
                steps=steps,
                thresholds=thresholds,
                delta=delta,
                target_epsilon=privacy.epsilon,
                accountant=privacy.accountant,
                sampling=privacy.sampling,
            )
        sigma = privacy.noise_multiplier if private and privacy.noise_multiplier else 0.0
        return Mechanism(
            dataset_size, optim.batch_size, steps, sigma, thresholds, delta, privacy.sampling
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error
