"""One run from composed config to record: train, decode, score, in stages that can be resumed."""

from __future__ import annotations

import hashlib
import json
import math
import resource
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from dpft import runs
from dpft.config import Decode, Run
from dpft.decode import decode
from dpft.errors import ConfigError, DataError
from dpft.mechanisms import make_mechanism
from dpft.models import LoadedModel, load_model
from dpft.privacy import Mechanism, UnsupportedLayerError, keys, make_clipper
from dpft.progress import Progress
from dpft.tasks import load_task
from dpft.tasks.base import Example, Prompt, Task, TextRecord, fingerprint
from dpft.train import StepStatistics, make_optimizer, train


@dataclass
class Outcome:
    """What a run left behind: its record and where it lies."""

    path: Path
    record: dict[str, Any]
    already_done: bool = False


def run_path(run: Run) -> Path:
    """``runs_dir/name``; without a name, one made of the main choices and the config's hash."""
    if run.resume is not None:
        return Path(run.resume)
    if run.name is not None:
        return Path(run.runs_dir) / run.name
    sigma = run.privacy.noise_multiplier
    budget = f"sigma{sigma:g}" if sigma else f"eps{run.privacy.epsilon:g}"
    parts = [str(run.task["name"]), run.model.name, run.clip.style]
    parts += [] if run.clip.style == "none" else [budget]
    parts += [f"s{run.seed}", runs.config_hash(run.identity())[:8]]
    return Path(run.runs_dir) / "-".join(parts)


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
            task: Task = load_task(run.task)
            try:
                loaded = _train_stage(run, task, directory, progress)
            except UnsupportedLayerError as error:
                raise ConfigError(str(error)) from error
            _decode_stage(run, task, loaded, directory, progress)
        record = runs.read_record(path)
        (directory.model / "README.md").write_text(runs.model_card(record), encoding="utf-8")
        directory.mark_done()
        return Outcome(path, record)


def _train_stage(
    run: Run, task: Task, directory: runs.RunDirectory, progress: Progress
) -> LoadedModel:
    records = task.records("train")
    mechanism = make_mechanism(run, len(records))
    device = _device(run.device)
    loaded = load_model(run.model, run.seed)
    model = loaded.model.to(device).train()  # type: ignore[arg-type]
    with progress.phase("encoding", len(records)) as advance:
        examples = _encode(task, loaded, records, advance)

    key = keys.public_key(run.seed)
    if mechanism.noise_multiplier:
        key = directory.noise_key(run.privacy.noise_seed)
    data = runs.keyed_fingerprint(key, fingerprint(records))
    ledger = None
    if mechanism.private:
        header = {
            "mechanism": mechanism.to_dict(),
            "data": data,
            "key": runs.key_fingerprint(key),
            "unit": task.unit,
            # Another machine rounds differently: the same noise on a slightly different sum would
            # be a second release that nobody counted.
            "compute": {"device": device.type, "threads": torch.get_num_threads()},
        }
        ledger = runs.Ledger(directory.ledger, header)

    clipper = make_clipper(
        model,
        run.clip.style,
        threshold=run.clip.threshold,
        clip_function=run.clip.clip_function,
    )
    optimizer = make_optimizer(run.optim, iter(clipper.parameters.values()))
    start, seconds = 0, 0.0
    saved = runs.checkpoint.load_latest(directory, ledger.steps_spent if ledger else None)
    if saved is not None:
        for warning in saved.warnings:
            progress.warn(warning)
        _restore(clipper.parameters, saved.tensors)
        optimizer.load_state_dict(saved.state["optimizer"])
        if saved.state["data"] != data:
            raise ConfigError(
                f"the training data is not what {directory.path} began with; expected the same "
                "records in the same order. Restore them, or type force=true to start over"
            )
        start, seconds = saved.step, float(saved.state["seconds"])
        progress.say(f"continuing {directory.path} at step {start} of {mechanism.steps}")

    with (
        runs.MetricsLog(directory.metrics, resume_step=start) as metrics,
        progress.training(start, mechanism) as show,
    ):

        def spend(step: int) -> None:
            if ledger is not None:
                entry: dict[str, Any] = {"epsilon_rdp": mechanism.epsilon_after(step + 1)}
                if device.type == "cpu":  # elsewhere a replay may round differently
                    entry["update"] = gradient_digest(clipper.parameters)
                ledger.spend(step, **entry)

        def after_step(step: int, statistics: StepStatistics) -> None:
            nonlocal seconds
            seconds += statistics.seconds
            summary = statistics.summary()
            metrics.append(step, lr=optimizer.param_groups[0]["lr"], **summary)
            show(step, summary)
            done = step + 1
            if done % run.checkpoint_every == 0 and done < mechanism.steps:
                metrics.sync()
                save(done)

        def save(step: int) -> None:
            state = {"optimizer": optimizer.state_dict(), "seconds": seconds, "data": data}
            runs.checkpoint.save(directory, step, clipper.parameters, state)

        train(
            model=model,
            task=task,
            examples=examples,
            clipper=clipper,
            mechanism=mechanism,
            optimizer=optimizer,
            settings=run.optim,
            key=key,
            start=start,
            spend=spend,
            after_step=after_step,
        )
        if start < mechanism.steps:
            save(mechanism.steps)
    clipper.close()
    if ledger is not None:
        ledger.close()
    model.save_pretrained(directory.model)
    loaded.tokenizer.save_pretrained(directory.model)
    record = _record(run, task, directory, mechanism, loaded, records, data, seconds)
    (directory.model / "README.md").write_text(runs.model_card(record), encoding="utf-8")
    runs.write_record(directory, record)
    return loaded


def _decode_stage(
    run: Run,
    task: Task,
    loaded: LoadedModel,
    directory: runs.RunDirectory,
    progress: Progress,
) -> None:
    split = run.decode.split
    file = directory.generations(split)
    texts = generate(task, loaded, run.decode, task.prompts(split), run.seed, progress)
    write_generations(file, task.prompts(split), texts)
    with progress.phase("scoring", None):
        scores = score_file(task, file)
    runs.update_record(
        directory,
        stage="scored",
        scores={split: scores},
        generations={split: str(file.relative_to(directory.path))},
    )


def generate(
    task: Task,
    loaded: LoadedModel,
    settings: Decode,
    prompts: Sequence[Prompt],
    seed: int,
    progress: Progress,
) -> list[str]:
    """Decode every prompt of a task with live progress."""
    encoded = [task.encode_prompt(prompt.source, loaded.tokenizer) for prompt in prompts]
    with progress.phase("decoding", len(set(encoded))) as advance:
        return decode(loaded.model, loaded.tokenizer, encoded, settings, seed, advance)


def write_generations(file: Path, prompts: Sequence[Prompt], texts: Sequence[str]) -> None:
    """JSON lines of ``source``, ``prediction`` and ``references``; whole or not at all."""
    lines = [
        json.dumps(
            {"source": p.source, "prediction": text, "references": list(p.references)},
            ensure_ascii=False,
        )
        for p, text in zip(prompts, texts, strict=True)
    ]
    temporary = file.with_suffix(".tmp")
    temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
    temporary.replace(file)


def read_generations(file: Path) -> tuple[list[str], list[list[str]]]:
    """Predictions and references of a JSON-lines file.

    Raises:
        DataError: naming the line that is not of the form
            ``{"prediction": str, "references": [str, ...]}``.
    """
    expected = 'expected {"prediction": "...", "references": ["...", ...]}'
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise DataError(f"cannot read {file}: {error.strerror}; {expected} on each line") from error
    predictions: list[str] = []
    references: list[list[str]] = []
    for number, line in enumerate(lines, 1):
        try:
            item = json.loads(line)
            prediction, refs = item["prediction"], item["references"]
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{file}, line {number}: {error!r}; {expected}") from error
        strings = isinstance(refs, list) and refs and all(isinstance(r, str) for r in refs)
        if not isinstance(prediction, str) or not strings:
            raise DataError(f"{file}, line {number}: got {line[:80]}; {expected}")
        predictions.append(prediction)
        references.append(refs)
    if not predictions:
        raise DataError(f"{file} is empty; {expected} on each line")
    return predictions, references


def score_file(task: Task, file: Path) -> dict[str, Any]:
    """Scores of a generations file as a record's section."""
    predictions, references = read_generations(file)
    scores = task.score(predictions, references)
    return {"metrics": scores, "examples": len(predictions), "signature": task.signature()}


def _encode(
    task: Task, loaded: LoadedModel, records: Sequence[TextRecord], advance: Any
) -> list[Example]:
    examples = []
    for record in records:
        examples.append(task.encode(record, loaded.tokenizer))
        advance(1)
    return examples


@torch.no_grad()
def _restore(parameters: Any, tensors: Any) -> None:
    if set(parameters) != set(tensors):
        raise ConfigError(
            f"the checkpoint holds {len(tensors)} parameters, the model trains {len(parameters)}; "
            "expected the same ones: was the model replaced on disk? Type force=true to start over"
        )
    for name, parameter in parameters.items():
        parameter.copy_(tensors[name])


def gradient_digest(parameters: Mapping[str, torch.nn.Parameter]) -> str:
    """SHA-256 (16 hex) of the noisy gradients: a released quantity, so it gives nothing away.

    A replayed step must have the same, or other code or another machine would release a second
    version of the step under the same noise.
    """
    digest = hashlib.sha256()
    for parameter in parameters.values():
        if parameter.grad is not None:
            digest.update(parameter.grad.contiguous().numpy().data)
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


def _record(
    run: Run,
    task: Task,
    directory: runs.RunDirectory,
    mechanism: Mechanism,
    loaded: LoadedModel,
    records: Sequence[TextRecord],
    data: str,
    seconds: float,
) -> dict[str, Any]:
    parameters = list(loaded.model.parameters())
    epsilon = mechanism.epsilons() if mechanism.private else None
    explicit = run.privacy.noise_seed
    return {
        "stage": "trained",
        "dpft": runs.code_version(),
        "config": run.identity(),  # without folders: a record may travel
        "config_hash": directory.config_hash,
        "environment": runs.environment(),
        "seeds": {"seed": run.seed, "noise": explicit},
        "dataset": {
            "task": task.name,
            "source": task.location[0],
            "fingerprint": data,
            "counts": {"train": len(records)},
        },
        "model": {
            "base_model": run.model.path,
            "adaptation": run.adapt,
            "parameters": sum(p.numel() for p in parameters),
            "trainable_parameters": sum(p.numel() for p in parameters if p.requires_grad),
        },
        "mechanism": mechanism.to_dict() if mechanism.private else None,
        "privacy": {
            "unit": task.unit,
            "neighbouring": "add or remove one record",
            "delta": mechanism.delta,
            "epsilon": epsilon,
            "steps_taken": mechanism.steps,
            "statement": _statement(mechanism, task, epsilon),
            "caveats": _caveats(mechanism, explicit),
        }
        if mechanism.private
        else None,
        "training": {
            "steps": mechanism.steps,
            "seconds": seconds,
            "peak_memory_bytes": peak_memory(loaded.model.device),
            "device": str(loaded.model.device),
        },
        "labels": [*loaded.labels, *task.labels()],
    }


def _statement(mechanism: Mechanism, task: Task, epsilon: dict[str, Any] | None) -> str:
    assert epsilon is not None
    if mechanism.steps == 0:
        return "no training step was taken: the weights depend on no record"
    return (
        f"({math.ceil(epsilon['rdp'] * 1000) / 1000:g}, {mechanism.delta:.3g})-differential "
        "privacy by Renyi accounting, "
        f"for adding or removing one record; one record is {task.unit}"
    )


def _caveats(mechanism: Mechanism, noise_seed: int | None) -> list[str]:
    caveats = []
    if mechanism.sampling == "shuffle":
        caveats.append("epsilon computed for Poisson sampling, run with shuffled batches")
    if noise_seed is not None and mechanism.noise_multiplier:
        caveats.append(
            f"noise and sampling follow from the explicit seed {noise_seed}: whoever knows it can "
            "remove the noise; for research, not for release"
        )
    return caveats


def peak_memory(device: torch.device) -> int:
    """Peak bytes: of the GPU's allocator, or of this process's resident set."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
