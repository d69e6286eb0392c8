"""One run from composed config to record: train, decode, score, in stages that can be resumed."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from dpft import runs
from dpft.audit import stage as audit
from dpft.config import Run
from dpft.errors import ConfigError, DpftError
from dpft.mechanisms import attach_clipper, make_mechanism
from dpft.models import LoadedModel, adapt, load_model, save_model
from dpft.objectives.base import Instance, encoded
from dpft.objectives.independence import check_independence
from dpft.optim import make_optimizer
from dpft.paths import run_path
from dpft.predictions import predict, score_file, write_predictions
from dpft.privacy import Clipper, Mechanism, UnsupportedLayerError, keys
from dpft.privacy.noise import Released
from dpft.progress import Progress
from dpft.recording import make_record
from dpft.tasks import load_task
from dpft.tasks.base import Task, fingerprint
from dpft.train import StepStatistics, train
from dpft.units import Records, TrainingSet, Users


@dataclass
class Outcome:
    """What a run left behind: its record and where it lies."""

    path: Path
    record: dict[str, Any]
    already_done: bool = False


def run_experiment(run: Run) -> Outcome:
    """Train, decode, score and record; or say that it was done before.

    Raises:
        DpftError, RunError: with a message for the user.
    """
    path = run_path(run)
    text = OmegaConf.to_yaml(OmegaConf.create(dict(run.raw)))
    with runs.RunDirectory.open(path, run.identity(), text, force=run.force) as directory:
        if directory.is_done:
            return Outcome(path, runs.read_record(path), already_done=True)
        if run.threads is not None:
            torch.set_num_threads(run.threads)
        with Progress() as progress:
            try:
                task = load_task(run.task)
                loaded, instances = _train_stage(run, task, directory, progress)
            except (DpftError, UnsupportedLayerError) as error:
                directory.discard_unused()
                if isinstance(error, UnsupportedLayerError):
                    raise ConfigError(str(error)) from error
                raise
            _decode_stage(run, task, loaded, instances, directory, progress)
        record = runs.read_record(path)
        (directory.model / "README.md").write_text(runs.model_card(record), encoding="utf-8")
        directory.mark_done()
        return Outcome(path, record)


@dataclass(frozen=True)
class Parts:
    """A model ready to be trained, what clips its gradients, and what is guaranteed."""

    loaded: LoadedModel
    clipper: Clipper
    mechanism: Mechanism


def assemble(run: Run, task: Task, size: int, device: torch.device) -> Parts:
    """Load and adapt the model, attach the clipper, and calibrate the noise for its groups.

    Args:
        run: the settings.
        task: says what kind of model it needs.
        size: how many units of privacy there are.
        device: where the model goes.

    Raises:
        DpftError: if these settings do not go together.
    """
    make_mechanism(run, size)  # an impossible budget is told before a model is loaded
    loaded = adapt(load_model(run.model, task.needs, run.seed), run.adapt, task.needs, run.seed)
    model = loaded.model.to(device).train()  # type: ignore[arg-type]
    clipper = attach_clipper(run.clip, model)
    return Parts(loaded, clipper, make_mechanism(run, size, clipper))


def _train_stage(
    run: Run, task: Task, directory: runs.RunDirectory, progress: Progress
) -> tuple[LoadedModel, Sequence[Instance]]:
    """The trained model, and what it will be asked."""
    records, owners = task.records("train"), task.owners()
    size = len(records) if owners is None else len(set(owners))
    # What is missing at the end is told at the beginning; and files may change meanwhile.
    instances = task.instances(run.decode.split)
    audit.check(run, task)
    size += audit.planted_records(run.audit) + run.audit.slots
    device = _device(run.device)
    with progress.phase("loading", None, note=run.model.name):
        parts = assemble(run, task, size, device)
    loaded, clipper, mechanism = parts.loaded, parts.clipper, parts.mechanism
    if owners is not None:
        clipper.check_rows(task.records_per_user)
    objective = task.objective(loaded)
    planted = audit.plant(run.audit, loaded, run.seed)
    if planted is not None:
        records = [*records, *planted.records]
    with progress.phase("encoding", len(records)) as advance:
        examples = encoded(objective, records, advance)
    if mechanism.private:
        with clipper.paused():
            check_independence(objective, loaded.model, examples)

    key = keys.public_key(run.seed)
    if mechanism.noise_multiplier:
        key = directory.noise_key(run.privacy.noise_seed)
    units: TrainingSet = Records(objective, examples)
    if owners is not None:
        units = Users(objective, examples, owners, task.records_per_user, key)
    data = runs.keyed_fingerprint(key, fingerprint(records, owners))
    auditor = audit.make_auditor(run, task, objective, loaded, records[0], clipper, mechanism, key)
    ledger = None
    if mechanism.private:
        header = {
            "mechanism": mechanism.to_dict(),
            "data": data,
            "key": runs.key_fingerprint(key),
            "unit": task.unit_in_words,
            # Another machine rounds differently: the same noise on a slightly different sum would
            # be a second release that nobody counted.
            "compute": {"device": device.type, "threads": torch.get_num_threads()},
        }
        if clipper.adaptive is not None:  # whose the thresholds of each step are
            header["groups"] = [group.name for group in clipper.groups]
        ledger = runs.Ledger(directory.ledger, header)

    reparametrisation = loaded.reparametrisation
    moved = clipper.parameters if reparametrisation is None else reparametrisation.moved()
    optimizer = make_optimizer(run.optim, iter(moved.values()))
    start, seconds = 0, 0.0
    saved = runs.checkpoint.load_latest(directory, ledger.steps_spent if ledger else None)
    if saved is not None:
        for warning in saved.warnings:
            progress.warn(warning)
        _restore(clipper, moved, saved)
        optimizer.load_state_dict(saved.state["optimizer"])
        if saved.state["data"] != data:
            raise ConfigError(
                f"the training data is not what {directory.path} began with; expected the same "
                "records in the same order. Restore them, or type force=true to start over"
            )
        start, seconds = saved.step, float(saved.state["seconds"])
        if auditor is not None:
            auditor.restore(saved.state["audit"])
        progress.say(f"continuing {directory.path} at step {start} of {mechanism.steps}")

    names = [group.name for group in clipper.groups]
    with (
        runs.MetricsLog(directory.metrics, resume_step=start) as metrics,
        runs.NormsLog(directory.private, run.record_norms, names, resume_step=start) as norms,
        progress.training(start, mechanism) as show,
    ):

        def spend(step: int, released: Released) -> None:
            if ledger is not None:
                entry: dict[str, Any] = {"epsilon_rdp": mechanism.epsilon_after(step + 1)}
                if device.type == "cpu":  # elsewhere a replay may round differently
                    entry["update"] = release_digest(clipper.parameters, released)
                    if released.thresholds:  # from the noisy counts of earlier steps: public
                        entry["thresholds"] = [float(f"{c:.6g}") for c in released.thresholds]
                ledger.spend(step, **entry)

        def after_step(step: int, statistics: StepStatistics) -> None:
            nonlocal seconds
            seconds += statistics.seconds
            summary = statistics.summary()
            metrics.append(step, lr=optimizer.param_groups[0]["lr"], **summary)
            norms.append(step, statistics.norms)
            show(step, summary)
            done = step + 1
            if done % run.checkpoint_every == 0 and done < mechanism.steps:
                metrics.sync()
                norms.sync()
                save(done)

        def save(step: int) -> None:
            state = {"optimizer": optimizer.state_dict(), "seconds": seconds, "data": data}
            if clipper.adaptive is not None:
                state["estimates"] = list(clipper.estimates)
            if auditor is not None:
                state["audit"] = auditor.state()
            runs.checkpoint.save(directory, step, moved, state)

        train(
            model=loaded.model,
            data=units,
            clipper=clipper,
            mechanism=mechanism,
            optimizer=optimizer,
            settings=run.optim,
            key=key,
            start=start,
            reparametrisation=reparametrisation,
            audit=auditor,
            spend=spend,
            after_step=after_step,
        )
        if start < mechanism.steps:
            save(mechanism.steps)
    measured: dict[str, Any] = {}
    if auditor is not None:
        with progress.phase("auditing", None):
            spent = mechanism.epsilon_after(mechanism.steps)
            confidence = run.audit.confidence
            measured["audit"] = auditor.result(
                delta=mechanism.delta, confidence=confidence, epsilon=spent
            )
    clipper.close()
    if ledger is not None:
        ledger.close()
    save_model(loaded, directory.model)
    if planted is not None:
        with progress.phase("asking for secrets", None):
            found = planted.scores(objective, loaded.model, run.decode.batch_size)
            measured["scores"] = {"canaries": found}
    record = make_record(run, task, directory, mechanism, loaded, records, data, seconds, measured)
    (directory.model / "README.md").write_text(runs.model_card(record), encoding="utf-8")
    runs.write_record(directory, record)
    return loaded, instances


def _decode_stage(
    run: Run,
    task: Task,
    loaded: LoadedModel,
    instances: Sequence[Instance],
    directory: runs.RunDirectory,
    progress: Progress,
) -> None:
    split = run.decode.split
    file = directory.generations(split)
    write_predictions(file, predict(task, loaded, instances, run.decode, run.seed, progress))
    with progress.phase("scoring", None):
        scores = score_file(task, file)
    runs.update_record(
        directory,
        stage="scored",
        scores={split: scores},
        generations={split: str(file.relative_to(directory.path))},
    )


@torch.no_grad()
def _restore(
    clipper: Clipper, parameters: Mapping[str, torch.nn.Parameter], saved: runs.Checkpoint
) -> None:
    tensors = saved.tensors
    if set(parameters) != set(tensors):
        raise ConfigError(
            f"the checkpoint holds {len(tensors)} parameters, the model trains {len(parameters)}; "
            "expected the same ones: was the model replaced on disk? Type force=true to start over"
        )
    for name, parameter in parameters.items():
        parameter.copy_(tensors[name])
    if clipper.adaptive is not None:
        clipper.move(saved.state["estimates"])


def release_digest(parameters: Mapping[str, torch.nn.Parameter], released: Released) -> str:
    """SHA-256 (16 hex) of the noisy gradients, and of the noisy counts where thresholds adapt.

    These are releases already, so it gives nothing away. A replayed step must have the same, or
    other code or another machine would release a second version of the step under the same noise.
    """
    digest = hashlib.sha256()
    for parameter in parameters.values():
        if parameter.grad is not None:
            digest.update(parameter.grad.contiguous().numpy().data)
    digest.update(array("d", released.fractions).tobytes())
    return digest.hexdigest()[:16]


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"device is {name!r}, but there is no GPU here; type device=cpu")
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"device is {name!r}; expected auto, cpu or cuda") from error
