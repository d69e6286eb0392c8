"""One run from composed config to record: train, decode, score, in stages that can be resumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from safetensors import SafetensorError

import dpft
from dpft import runs
from dpft.config.defaults import origin_in_words
from dpft.config.errors import ConfigError, DpftError
from dpft.config.published import with_part_labels
from dpft.config.schema import SHORTHANDS, Effect, Run, names_with
from dpft.models.load import LoadedModel
from dpft.models.save import save_model
from dpft.parallel.cohort import TrainingCohort, together
from dpft.parallel.launch import check_launcher, check_processes, launched, restarted
from dpft.parallel.layouts import joined
from dpft.privacy import UnsupportedLayerError
from dpft.privacy.guarantee import least_claim
from dpft.privacy.rounding import up
from dpft.report.card import write_card, write_lineage
from dpft.report.guarantee import SCALES
from dpft.runs.environment import version_of
from dpft.runs.finished import LEDGER
from dpft.runs.identity import differences
from dpft.runs.paths import run_path
from dpft.tasks import load_task
from dpft.tasks.metrics.shown import shown
from dpft.tasks.objectives.base import Prediction
from dpft.training.data import Data
from dpft.training.devices import device_of
from dpft.training.predictions import predict, score_file, write_predictions
from dpft.training.progress import Progress
from dpft.training.recording import forget_peak, make_record
from dpft.training.remake import is_whole, others
from dpft.training.session import Session
from dpft.training.setup import Prepared, prepare
from dpft.training.trackers import Tracking, tracking

# What the process began with, unless a run says otherwise.
_THREADS = torch.get_num_threads()
# Packages that a record's tokens and gradient follow from, beside dpft.
_COMPUTING = ("torch", "transformers", "tokenizers", "peft", "numpy")


@dataclass
class FinishedRun:
    """What a run left behind: its record and where it lies.

    Attributes:
        path: the run's folder.
        record: empty on the ranks that do not hold the folder.
        already_done: whether nothing was left to do.
    """

    path: Path
    record: dict[str, Any]
    already_done: bool = False


def run_experiment(run: Run, data: Data | None = None) -> FinishedRun:
    """Train, decode, score and record; or say that it was done before.

    Under torchrun all ranks train, each on its share of every batch, and decode. The first one
    holds the run's folder, and scores; the others' outcome has no record.

    Args:
        run: the settings.
        data: of the run, if they were read before; None: they are read here.

    Raises:
        DpftError, RunError: with a message for the user.
    """
    check_launcher(run.ranks)
    check_processes(run, launched())
    forget_peak()
    with joined(device_of(run.device), run.parallel) as cohort:
        check_alike(run, cohort)
        return _lead(run, cohort, data) if cohort.rank == 0 else _follow(run, cohort)


def check_alike(run: Run, cohort: TrainingCohort) -> None:
    """Refuse ranks that were started with other settings or packages than the first one's.

    Its own are recorded. By another threshold or clip function, or in a model that another version
    computes otherwise, a rank's records would add something else to the sum than the noise and the
    record are of.

    Args:
        run: the settings of this rank.
        cohort: the ranks.

    Raises:
        ConfigError: naming what differs, on the rank that does.
        RankError: on the others.
    """
    beside = names_with(Run, Effect.PLACE) | SHORTHANDS.keys()
    settings = {name: value for name, value in run.raw.items() if name not in beside}
    packages = {"dpft": dpft.__version__, **{name: version_of(name) for name in _COMPUTING}}
    first_settings, first_packages = cohort.from_first((settings, packages))
    with together(cohort):
        for what, first, own, then in (
            ("settings", first_settings, settings, "start every rank by the same command"),
            ("packages", first_packages, packages, "install the same on every machine"),
        ):
            if unlike := differences(first, own):
                raise ConfigError(
                    f"rank {cohort.rank} of {cohort.size} was started with other {what} than the "
                    f"first (first -> this): {', '.join(unlike)}; expected the same: {then}"
                )


def _follow(run: Run, cohort: TrainingCohort) -> FinishedRun:
    """Train and decode with the first rank, which has the folder."""
    done, threads = cohort.from_first((False, 0))
    if done:
        return FinishedRun(run_path(run), {}, already_done=True)
    torch.set_num_threads(threads)
    with Progress(quiet=True) as progress:
        try:
            prepared = prepare(run, load_task(run.task), None, progress, cohort)
            with Session(run, prepared, None, progress) as session:
                session.train()
                loaded = session.whole_model()
            _answers(run, prepared, loaded, progress)
        except UnsupportedLayerError as error:
            raise ConfigError(str(error)) from error
    return FinishedRun(run_path(run), {})


def _lead(run: Run, cohort: TrainingCohort, data: Data | None) -> FinishedRun:
    path = run_path(run)
    # Neither is a setting of the run: kept, `force` would start it over when it is resumed.
    kept = {**run.raw, "force": False, "resume": None}
    text = OmegaConf.to_yaml(OmegaConf.create(kept))
    # Begun again by torchrun, the same words mean to go on with what they began.
    force = run.force and not restarted()
    with runs.RunDirectory.open(path, run.identity(), text, force=force) as directory:
        damaged = directory.damages()
        if directory.is_done and is_whole(run, text, directory, damaged):
            cohort.from_first((True, 0))
            return FinishedRun(path, runs.read_record(path), already_done=True)
        added = others(run, damaged, path)
        # Several runs may share a process.
        torch.set_num_threads(run.threads or _THREADS)
        cohort.from_first((False, torch.get_num_threads()))
        with (
            Progress(verbosity=run.verbosity) as progress,
            tracking(run, directory, progress.warn) as tracker,
        ):
            if directory.moved is not None:
                progress.warn(_moved(directory.moved))
            if not run.clip.private:
                progress.say("clip=none: training without privacy; eps is of no effect")
            if run.clip.private and run.clip.clip_function == "automatic":
                progress.say(SCALES)
            if run.origin:
                progress.say(origin_in_words(run.origin))
            try:
                if run.optim.microbatch_tokens == "auto":
                    from dpft.training.microbatch import with_microbatch

                    run = with_microbatch(run, directory, progress)
                prepared = prepare(run, data or load_task(run.task), directory, progress, cohort)
                loaded = _train_stage(run, prepared, directory, progress, tracker, added)
            except (Exception, KeyboardInterrupt) as error:
                # Whatever it was: with nothing spent, the folder would tell of no run.
                directory.discard_unused()
                if isinstance(error, UnsupportedLayerError):
                    raise ConfigError(str(error)) from error
                if isinstance(error, DpftError) and directory.is_done:
                    raise _not_made_again(error, damaged) from error
                raise
            _decode_stage(run, prepared, loaded, directory, progress, tracker)
        record = runs.read_record(path)
        write_card(directory.model, record)
        directory.mark_done()
        return FinishedRun(path, record)


def _moved(path: Path) -> str:
    """Where an earlier run lies now, and what its releases add to the cost of this one."""
    text = f"the earlier run lies in {path} now"
    try:
        ledger = runs.read_ledger(path / LEDGER) if (path / LEDGER).is_file() else None
    except runs.LedgerError as error:
        return f"{text}; what it has spent is not known: {error}"
    if ledger is None or not ledger.entries:
        return text
    return (
        f"{text}. It has spent epsilon {up(ledger.epsilon)} by RDP: if anything of it is "
        "published, that adds to what this run costs"
    )


def _train_stage(
    run: Run,
    prepared: Prepared,
    directory: runs.RunDirectory,
    progress: Progress,
    tracker: Tracking,
    added: Mapping[str, Mapping[str, Any]],
) -> LoadedModel:
    with Session(run, prepared, directory, progress, tracker) as session:
        directory.keep_config()
        directory.reopen()
        session.train()
        prepared = session.prepared
        measured = _audited(run, prepared, progress)
        if session.evaluation:
            measured["evaluation"] = session.evaluation
        loaded = session.whole_model()
    if prepared.planted is not None:
        with progress.phase("asking for secrets", None):
            model, size = loaded.model, run.decode.batch_size
            asked = prepared.planted.scores(prepared.objective, model, size)
        measured["scores"] = {"canaries": asked}
    record = make_record(run, prepared, directory, session.seconds, measured)
    for section, content in added.items():
        record[section] = {**content, **record.get(section, {})}
    record["labels"] = with_part_labels(record)
    try:
        # First, or a kill would leave weights that do not say what they were trained on.
        directory.model.mkdir(exist_ok=True)
        write_lineage(directory.model, record)
        save_model(loaded, directory.model, directory.adapter)
    except (OSError, SafetensorError) as error:
        raise runs.RunError(
            f"could not save the model in {directory.model}: "
            f"{runs.disk_report(directory.path, error)}. Nothing is lost: free some space and run "
            "the same command again, which goes on from the last checkpoint"
        ) from error
    write_card(directory.model, record)
    for folder in filter(Path.is_dir, (directory.model, directory.adapter)):
        runs.fsync_tree(folder)  # before anything says that the model is there
    runs.write_record(directory, record)
    return loaded


def _not_made_again(error: DpftError, damaged: Sequence[runs.Damage]) -> runs.RunError:
    listed = ", ".join(damage.name for damage in damaged)
    return runs.RunError(
        f"{error}\nThe run was finished, and what is damaged of it ({listed}) could not be made "
        "again. It may also be put back from a copy: then the same command says that it has run"
    )


def _audited(run: Run, prepared: Prepared, progress: Progress) -> dict[str, Any]:
    """What the canaries prove; before the clipper is closed, since they are asked once more."""
    if prepared.auditor is None:
        return {}
    mechanism = prepared.parts.mechanism
    with progress.phase("auditing", None):
        result = prepared.auditor.result(
            mechanism,
            confidence=run.audit.confidence,
            epsilon=least_claim(mechanism.epsilons()),
        )
    return {"audit": result}


def _decode_stage(
    run: Run,
    prepared: Prepared,
    loaded: LoadedModel,
    directory: runs.RunDirectory,
    progress: Progress,
    tracker: Tracking,
) -> None:
    split, task = run.decode.split, prepared.task
    file = directory.generations(split)
    write_predictions(file, _answers(run, prepared, loaded, progress))
    with progress.phase("scoring", None):
        scores = score_file(task, file)
    runs.update_record(
        directory,
        stage="scored",
        scores={split: scores},
        generations={split: str(file.relative_to(directory.path))},
    )
    signature = scores["signature"]
    tracker.scores(
        split,
        {k: shown(k, v, signature) for k, v in scores["metrics"].items() if v is not None},
    )


def _answers(
    run: Run, prepared: Prepared, loaded: LoadedModel, progress: Progress
) -> list[Prediction]:
    """What the model answers; every rank asks it, and has all answers."""
    return predict(
        prepared.task,
        loaded,
        prepared.instances,
        run.decode,
        run.seed,
        progress,
        cohort=prepared.cohort,
    )
