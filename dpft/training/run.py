"""One run from composed config to record: train, decode, score, in stages that can be resumed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from omegaconf import OmegaConf
from safetensors import SafetensorError

from dpft import runs
from dpft.config.defaults import origin_in_words
from dpft.config.errors import ConfigError, DpftError
from dpft.config.published import with_part_flags
from dpft.config.schema import SHORTHANDS, Effect, Run, names_with
from dpft.models.load import LoadedModel
from dpft.models.save import save_model
from dpft.parallel.cohort import TrainingCohort, together
from dpft.parallel.launch import check_launcher, check_processes, launched, restarted
from dpft.parallel.layouts import joined
from dpft.privacy import UnsupportedLayerError
from dpft.privacy.guarantee import least_claim
from dpft.report.card import write_card, write_lineage
from dpft.report.guarantee import SCALES
from dpft.runs.environment import version_of
from dpft.runs.finished import LEDGER, RECORD
from dpft.runs.folders import run_path
from dpft.runs.identity import differences
from dpft.tasks import load_task
from dpft.tasks.metrics.shown import shown
from dpft.tasks.objectives.base import Prediction
from dpft.training.devices import device_of
from dpft.training.mechanisms import Data
from dpft.training.predictions import predict, score_file, write_predictions
from dpft.training.progress import Progress
from dpft.training.recording import forget_peak, make_record
from dpft.training.session import Session
from dpft.training.setup import Prepared, prepare

if TYPE_CHECKING:
    from dpft.training.trackers import Tracking

# The threads that the process started with, unless a run sets them.
_THREADS = torch.get_num_threads()
# Packages that a record's tokens and gradient follow from.
_COMPUTING = ("dpft", "torch", "transformers", "tokenizers", "peft", "numpy")


@dataclass
class FinishedRun:
    """The folder of a run and its record, which is empty on ranks that do not hold the folder."""

    path: Path
    record: dict[str, Any]
    already_done: bool = False


def run_experiment(run: Run, data: Data | None = None) -> FinishedRun:
    """Train, decode, score and record; or report that this was done before.

    Under torchrun all ranks train, each on its share of every batch, and decode. The first one
    holds the run's folder and scores.
    """
    check_launcher(run.ranks)
    check_processes(run, launched())
    forget_peak()
    with joined(device_of(run.device), run.parallel) as cohort:
        check_alike(run, cohort)
        return _lead(run, cohort, data) if cohort.rank == 0 else _follow(run, cohort)


def check_alike(run: Run, cohort: TrainingCohort) -> None:
    """Refuse ranks that were started with other settings or packages than the first one's.

    Only the first one's are recorded. With another threshold or clip function, or another version
    of a package, a rank would add something else to the sum than noise and record account for.

    Raises:
        ConfigError: on the rank that differs, naming what differs.
        RankError: on the others.
    """
    places = names_with(Run, Effect.PLACE) | SHORTHANDS.keys()
    own = {name: value for name, value in run.raw.items() if name not in places}
    own |= {f"package {name}": version_of(name) for name in _COMPUTING}
    first = cohort.from_first(own)
    with together(cohort):
        if unlike := differences(first, own):
            raise ConfigError(
                f"rank {cohort.rank} of {cohort.size} was started with other settings or packages "
                f"than the first (first -> this): {', '.join(unlike)}; expected the same: start "
                "every rank by the same command, with the same packages on every machine"
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
    # When torchrun restarts the ranks, the same command means to continue.
    force = run.force and not restarted()
    with runs.RunDirectory.open(path, run.identity(), text, force=force) as directory:
        damaged = directory.damages()
        if directory.is_done and not damaged:
            cohort.from_first((True, 0))
            return FinishedRun(path, runs.read_record(path), already_done=True)
        _check_ledger(directory, damaged)
        added = _added(run, damaged, path)
        # Several runs may share a process.
        torch.set_num_threads(run.threads or _THREADS)
        cohort.from_first((False, torch.get_num_threads()))
        with (
            Progress(verbosity=run.verbosity) as progress,
            _tracked(run, directory, progress) as tracker,
        ):
            for damage in damaged:
                progress.warn(
                    f"{path} was finished, but {damage}; it is made again from the last checkpoint "
                    "(texts that dpft score decoded with other settings are lost)"
                )
            if directory.moved is not None:
                progress.warn(
                    f"the earlier run lies in {directory.moved} now: if anything of it is "
                    "published, its cost adds to what this run costs"
                )
            if not run.clip.private:
                progress.say("clip=none: training without privacy; eps is of no effect")
            if run.clip.private and run.clip.clip_function == "automatic":
                progress.say(SCALES)
            if run.origin:
                progress.say(origin_in_words(run.origin))
            try:
                prepared = prepare(run, data or load_task(run.task), directory, progress, cohort)
                loaded = _train_stage(run, prepared, directory, progress, tracker, added)
            except (Exception, KeyboardInterrupt) as error:
                directory.discard_unused()  # a folder where nothing was spent is no run
                if isinstance(error, UnsupportedLayerError):
                    raise ConfigError(str(error)) from error
                if isinstance(error, DpftError) and directory.is_done:
                    listed = ", ".join(damage.name for damage in damaged)
                    raise runs.RunError(
                        f"{error}\nThe run was finished, and what is damaged of it ({listed}) "
                        "could not be made again. It may also be put back from a copy: then the "
                        "same command says that it has run"
                    ) from error
                raise
            _decode_stage(run, prepared, loaded, directory, progress, tracker)
        record = runs.read_record(path)
        write_card(directory.model, record)
        directory.mark_done()
        return FinishedRun(path, record)


def _check_ledger(directory: runs.RunDirectory, damaged: Sequence[runs.Damage]) -> None:
    """Refuse a finished run whose ledger is damaged, which nothing can make again."""
    for damage in damaged:
        if damage.name == LEDGER:
            raise runs.LedgerError(
                f"{directory.path} was finished, but {damage}. It says what privacy the run spent, "
                f"and nothing can make it again. Put {directory.ledger} back from a copy and type "
                f"the same command again, or {runs.START_OVER}"
            )


def _added(run: Run, damaged: Sequence[runs.Damage], path: Path) -> dict[str, dict[str, Any]]:
    """Return the texts and scores that ``dpft score`` added to a record that is made again.

    If the record itself is lost, `dpft score` can make them again.
    """
    try:
        record = {} if RECORD in {damage.name for damage in damaged} else runs.read_record(path)
    except runs.RecordError:
        return {}
    own = (run.decode.split, "canaries")  # made again by the run itself
    return {
        section: {split: value for split, value in record[section].items() if split not in own}
        for section in ("scores", "generations")
        if section in record
    }


def _tracked(
    run: Run, directory: runs.RunDirectory, progress: Progress
) -> AbstractContextManager[Tracking | None]:
    if run.track.name == "none":
        return nullcontext()
    from dpft.training.trackers import Tracking

    return Tracking.of(run, directory, progress.warn)


def _train_stage(
    run: Run,
    prepared: Prepared,
    directory: runs.RunDirectory,
    progress: Progress,
    tracker: Tracking | None,
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
            found = prepared.planted.scores(prepared.objective, model, size)
        measured["scores"] = {"canaries": found}
    record = make_record(run, prepared, directory, session.seconds, measured)
    for section, content in added.items():
        record[section] = {**content, **record.get(section, {})}
    record["flags"] = with_part_flags(record)
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
        runs.fsync_tree(folder)  # before the record says that the model exists
    runs.write_record(directory, record)
    return loaded


def _audited(run: Run, prepared: Prepared, progress: Progress) -> dict[str, Any]:
    """Return the audit's section, before the clipper is closed: canaries need it once more."""
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
    tracker: Tracking | None,
) -> None:
    split = run.decode.split
    file = directory.generations(split)
    write_predictions(file, _answers(run, prepared, loaded, progress))
    with progress.phase("scoring", None):
        scores = score_file(prepared.task, file)
    name = str(file.relative_to(directory.path))
    runs.update_record(directory, stage="scored", scores={split: scores}, generations={split: name})
    if tracker is not None:
        signature, found = scores["signature"], scores["metrics"].items()
        tracker.scores(split, {k: shown(k, v, signature) for k, v in found if v is not None})


def _answers(
    run: Run, prepared: Prepared, loaded: LoadedModel, progress: Progress
) -> list[Prediction]:
    """Return the model's answers; a collective, of which every rank has all answers."""
    asked = (prepared.task, loaded, prepared.instances, run.decode, run.seed, progress)
    return predict(*asked, cohort=prepared.cohort)
