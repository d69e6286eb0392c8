"""One run from composed config to record: train, decode, score, in stages that can be resumed."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from omegaconf import OmegaConf
from safetensors import SafetensorError

from dpft import runs
from dpft.config.defaults import origin_in_words
from dpft.config.errors import ConfigError
from dpft.config.published import with_part_flags
from dpft.config.schema import SHORTHANDS, Effect, Run, names_with
from dpft.models.load import LoadedModel
from dpft.models.nf4 import check_nf4
from dpft.models.save import save_model
from dpft.parallel.cohort import TrainingCohort, together
from dpft.parallel.launch import check_launcher, check_processes, launched, restarted
from dpft.parallel.layouts import joined
from dpft.privacy import UnsupportedLayerError
from dpft.privacy.guarantee import least_claim
from dpft.report.card import write_card, write_lineage
from dpft.runs.environment import forget_peak, version_of
from dpft.runs.folders import run_path
from dpft.runs.identity import differences
from dpft.tasks import load_task
from dpft.tasks.scores import shown
from dpft.training.devices import device_of
from dpft.training.mechanisms import Data, read_data
from dpft.training.predictions import predict, score_file, write_predictions
from dpft.training.progress import Progress
from dpft.training.recording import make_record
from dpft.training.session import Session
from dpft.training.setup import Prepared, prepare

if TYPE_CHECKING:
    from dpft.training.trackers import Tracking

# The threads that the process started with, unless a run sets them.
_THREADS = torch.get_num_threads()
# Packages that a record's tokens and gradient follow from.
_COMPUTING = ("dpft", "torch", "transformers", "tokenizers", "peft", "numpy", "bitsandbytes")


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
    device = device_of(run.device)
    if run.model.dtype == "nf4":
        check_nf4(device)
    forget_peak()
    with joined(device, run.parallel) as cohort:
        check_alike(run, cohort)
        try:
            return _stages(run, data, cohort)
        except UnsupportedLayerError as error:
            raise ConfigError(str(error)) from error


def check_alike(run: Run, cohort: TrainingCohort) -> None:
    """Check that all ranks were started with the settings and packages of the first one.

    Only the first one's are recorded. With another threshold or clip function, or another version
    of a package, a rank would add something else to the sum than noise and record account for.

    Raises:
        ConfigError: on the rank that differs, naming what differs.
        RankError: on the others.
    """
    places = names_with(Run, Effect.PLACE) | SHORTHANDS.keys()
    own = {name: value for name, value in run.raw.items() if name not in places}
    own |= {f"package {name}": version_of(name) for name in _COMPUTING}
    first = cohort.broadcast_object(own)
    with together(cohort):
        if unlike := differences(first, own):
            raise ConfigError(
                f"rank {cohort.rank} of {cohort.size} was started with other settings or packages "
                f"than the first (first -> this): {', '.join(unlike)}; expected the same: start "
                "every rank by the same command, with the same packages on every machine"
            )


def _stages(run: Run, data: Data | None, cohort: TrainingCohort) -> FinishedRun:
    """Train, decode and score; all ranks call this, and the first one has the folder."""
    path, directory, tracker = run_path(run), None, None
    with ExitStack() as stack:
        if cohort.rank == 0:
            # Neither is a setting of the run: kept, `force` would start it over when resumed.
            kept = {**run.raw, "force": False, "resume": None}
            text = OmegaConf.to_yaml(OmegaConf.create(kept))
            # When torchrun restarts the ranks, the same command means to continue.
            force = run.force and not restarted()
            opened = runs.RunDirectory.open(path, run.identity(), text, force=force)
            directory = stack.enter_context(opened)
        done = directory is not None and directory.is_done
        if done:
            runs.check_whole(path)
        # Several runs may share a process.
        done, threads = cohort.broadcast_object((done, run.threads or _THREADS))
        if done:
            return FinishedRun(path, {} if directory is None else runs.read_record(path), True)
        torch.set_num_threads(threads)
        progress = stack.enter_context(Progress(directory is None, run.verbosity))
        if directory is not None and directory.moved is not None:
            progress.warn(
                f"the earlier run is in {directory.moved} now: if anything of it is published, its "
                "cost adds to what this run costs"
            )
        if not run.clip.private:
            progress.say("clip=none: training without privacy; eps is of no effect")
        if run.origin:
            progress.say(origin_in_words(run.origin))
        try:
            if directory is not None and run.track.name != "none":
                from dpft.training.trackers import Tracking

                tracker = stack.enter_context(Tracking(run, path, progress.warn))
            data = data or read_data(run, load_task(run.task), progress)
            prepared = prepare(run, data, directory, progress, cohort)
            loaded = _train_stage(prepared, tracker)
        except (Exception, KeyboardInterrupt):
            if directory is not None:
                directory.discard_unused()  # a folder where nothing was spent is no run
            raise
        _decode_stage(prepared, loaded, tracker)
        if directory is None:
            return FinishedRun(path, {})
        record = runs.read_record(path)
        write_card(directory.model, record)
        directory.mark_done()
        return FinishedRun(path, record)


def _train_stage(prepared: Prepared, tracker: Tracking | None) -> LoadedModel:
    """Take the steps, and write model, card and record."""
    run, directory, progress = prepared.run, prepared.directory, prepared.progress
    measured: dict[str, Any] = {}
    with Session(prepared) as session:
        if directory is not None:
            directory.keep_config()
        session.train(tracker)
        if prepared.auditor is not None:
            epsilon = least_claim(prepared.parts.mechanism.epsilons())
            with progress.phase("auditing", None):
                measured["audit"] = prepared.auditor.result(epsilon=epsilon)
        if session.evaluation:
            measured["evaluation"] = session.evaluation
        loaded = session.whole_model()
    if directory is None:
        return loaded
    if prepared.planted is not None:
        with progress.phase("asking for secrets", None):
            found = prepared.planted.scores(prepared.objective, loaded.model, run.decode.rows)
        measured["scores"] = {"canaries": found}
    record = make_record(prepared, session.seconds, measured)
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
            "the same command again, which continues from the last checkpoint"
        ) from error
    write_card(directory.model, record)
    for folder in filter(Path.is_dir, (directory.model, directory.adapter)):
        runs.fsync_tree(folder)  # before the record says that the model exists
    runs.write_record(directory, record)
    return loaded


def _decode_stage(prepared: Prepared, loaded: LoadedModel, tracker: Tracking | None) -> None:
    """Answer the questions, of which every rank has a share, and score the answers."""
    run, task, directory = prepared.run, prepared.task, prepared.directory
    asked = (task, loaded, prepared.instances, run.decode, run.seed, prepared.progress)
    answers = predict(*asked, cohort=prepared.cohort)
    if directory is None:
        return
    split = run.decode.split
    file = directory.generations(split)
    write_predictions(file, answers)
    with prepared.progress.phase("scoring", None):
        scores = score_file(task, file)
    name = str(file.relative_to(directory.path))
    runs.update_record(directory, stage="scored", scores={split: scores}, generations={split: name})
    if tracker is not None:
        signature, found = scores["signature"], scores["metrics"].items()
        values = {f"{split}/{k}": shown(k, v, signature) for k, v in found if v is not None}
        tracker.log(None, values)
