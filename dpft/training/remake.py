"""A finished run, opened again: checked, and what is damaged made again or named."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from dpft import runs
from dpft.config.schema import Run
from dpft.privacy.rounding import up
from dpft.report.card import write_card
from dpft.runs.finished import ADAPTER, CARD, CONFIG, GENERATIONS, LEDGER, MODEL, RECORD
from dpft.training.predictions import predict, score_file, spelled, write_predictions
from dpft.training.progress import Progress
from dpft.training.trained import TrainedRun


def is_whole(
    run: Run, text: str, directory: runs.RunDirectory, found: Sequence[runs.Damage]
) -> bool:
    """Mend what needs no training of a finished run, with a sentence for each file.

    Args:
        run: the settings.
        text: of ``config.yaml``.
        directory: of the run, which is finished.
        found: what is damaged there.

    Returns:
        Whether the run is whole now. If not, record or model are to be made again from the last
        checkpoint, as in a run that was killed; nothing was changed for that yet.

    Raises:
        LedgerError: the ledger is damaged, which nothing can make again.
        DpftError: what was asked of the model cannot be asked again.
    """
    if not found:
        return True
    names = [damage.name for damage in found]
    if LEDGER in names:
        raise runs.LedgerError(_lost(directory, next(d for d in found if d.name == LEDGER)))
    trained = any(n == RECORD or (n.startswith((MODEL, ADAPTER)) and n != CARD) for n in names)
    own = f"{GENERATIONS}{run.decode.split}.jsonl"
    with Progress() as progress:
        for damage in found:
            progress.warn(f"{directory.path} was finished, but {damage}; {_way(damage, own)}")
        if trained:
            return False
        if CONFIG in names:
            directory.keep_config()
        record = runs.read_record(directory.path)
        if own in names:
            _decode(TrainedRun(directory.path, text, run, record), directory, progress)
        if CARD in names or own in names:
            write_card(directory.model, runs.read_record(directory.path))
    directory.mark_done()
    return True


def others(run: Run, found: Sequence[runs.Damage], path: Path) -> dict[str, dict[str, Any]]:
    """What ``dpft decode`` and ``score`` added to a record that is made again.

    Of a finished run that is damaged, or of one that was trained and stopped before its end.

    Args:
        run: the settings.
        found: what is damaged.
        path: of the run.

    Returns:
        Sections of a record. Where the record is lost, so are those scores.
    """
    damaged = {damage.name for damage in found}
    marker = runs.read_marker(path)
    record: dict[str, Any] = {}
    if RECORD not in damaged:
        # Of a run that is not finished there may be none.
        with suppress(runs.RecordError) if marker is None else nullcontext():
            record = runs.read_record(path)
    scores, generations = record.get("scores", {}), dict(record.get("generations", {}))
    for name in marker.files if marker else ():
        if name.startswith(GENERATIONS) and name not in damaged:
            generations.setdefault(Path(name).name.removesuffix(".jsonl"), name)
    sections = {"scores": scores, "generations": generations}
    own = (run.decode.split, "canaries")  # which the run finds out itself
    kept = {
        section: {split: value for split, value in content.items() if split not in own}
        for section, content in sections.items()
    }
    return {section: content for section, content in kept.items() if content}


def _way(damage: runs.Damage, own: str) -> str:
    if damage.name == own:
        return "the model writes it again"
    if damage.name == CARD:
        return "it is made again from the record"
    if damage.name == CONFIG:
        return "it is written again from the settings of this command"
    if damage.name.startswith(GENERATIONS):
        return "if you miss it, type the command of dpft decode that made it"
    return "it is made again from the last checkpoint"


def _lost(directory: runs.RunDirectory, damage: runs.Damage) -> str:
    try:
        privacy = runs.read_record(directory.path)["privacy"]
        told = f" record.json tells of {privacy['steps_taken']} steps, at an epsilon of "
        told += f"{up(privacy['stated'])}, and that stands."
    except (runs.RecordError, KeyError, TypeError):
        told = ""
    return (
        f"{directory.path} was finished, but {damage}. It says what privacy the run spent, and "
        f"nothing can make it again.{told} Put {directory.ledger} back from a copy and type the "
        f"same command again, or {runs.START_OVER}"
    )


def _decode(trained: TrainedRun, directory: runs.RunDirectory, progress: Progress) -> None:
    """What the model answers, and its scores unless the answers are those that were scored."""
    run, split = trained.run, trained.run.decode.split
    file = directory.generations(split)
    name = f"{GENERATIONS}{split}.jsonl"
    instances = trained.task.instances(split)
    found = predict(trained.task, trained.loaded, instances, run.decode, run.seed, progress)
    marker = runs.read_marker(directory.path)
    same = marker is not None and runs.state_of_content(spelled(found)) == marker.files.get(name)
    # Not in the marker yet: a kill before it is scored must leave it damaged.
    write_predictions(file, found)
    if same and split in trained.record.get("scores", {}):
        return
    with progress.phase("scoring", None):
        scores = {split: score_file(trained.task, file)}
    runs.update_record(directory, scores=scores, generations={split: name})
