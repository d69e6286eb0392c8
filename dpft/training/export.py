"""Export a trained model as a folder that other tools load without dpft.

Files are copied and nothing is computed: LoRA was merged when the run saved its model. Only files
that a finished run lists as its own are copied, so that no other file in its folders is exported.
"""

import json
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dpft import runs
from dpft.config.errors import ConfigError, DataError
from dpft.models.hub import hub_name
from dpft.report.card import ModelFacts, model_card, on_hub
from dpft.runs.atomic import disk_report
from dpft.runs.finished import ADAPTER, CARD, MODEL
from dpft.tasks.base import Generation
from dpft.tasks.classification import Classification
from dpft.training.trained import TrainedRun

# Files of the weights in a run's ``model/``; the others are the tokenizer's.
_OF_WEIGHTS = ("config.json", "generation_config.json", "dpft.json")
_WEIGHTS = (".safetensors", ".safetensors.index.json", ".bin")
_CONFIG = "adapter_config.json"
# Tasks whose prompt has no single source between fixed texts, or whose tokenizer has a template.
_UNFRAMED = ("chat", "language_modeling", "personachat")
_TEMPLATES = "additional_chat_templates"  # the one folder of a tokenizer below a model's


@dataclass(frozen=True)
class ExportPlan:
    """The content of an exported folder.

    Attributes:
        files: where each file is copied from, by its name in the folder.
        written: texts of the files that are made.
        shape: whether it is a whole model or an adapter.
    """

    files: dict[str, Path]
    written: dict[str, str]
    shape: ModelFacts

    def size(self) -> int:
        """Return the bytes of all files."""
        copied = sum(path.stat().st_size for path in self.files.values())
        return copied + sum(len(text.encode()) for text in self.written.values())


def plan_export(trained: TrainedRun, *, merge: bool, base: str | None = None) -> ExportPlan:
    """Return the files to copy of a finished run, and its card."""
    path, adaptation = trained.path, trained.run.adapt.name
    adapter = adaptation in ("lora", "prefix") and not merge
    if adaptation == "prefix" and merge:
        raise ConfigError(
            "adapt=prefix with --merge: a prefix precedes every text, and the model has no weights "
            "for it; leave --merge out, for an adapter that peft loads"
        )
    if base is not None and not adapter:
        raise ConfigError(
            f"--base {base}, which an adapter names, and this is a whole model; leave it out"
        )
    runs.check_whole(path, (MODEL, ADAPTER))
    marker = runs.read_marker(path)
    if marker is None:
        raise runs.RunError(
            f"{path} is not finished; expected a run that is: type dpft train "
            f"{shlex.quote(f'resume={path}')}"
        )
    listed = [name for name in marker.files if name.startswith((MODEL, ADAPTER)) and name != CARD]
    for name in listed:
        if (path / name).resolve() != path.resolve() / name:
            raise runs.RunError(
                f"{path / name} is a link, or in a folder that is one; expected a file of the run "
                "itself: put it there"
            )
    files = {
        name.removeprefix(MODEL): path / name
        for name in listed
        if name.startswith(MODEL)
        and name.removeprefix(MODEL).rpartition("/")[0] in ("", _TEMPLATES)
    }
    shape, written = ModelFacts(asked=_asked(trained)), {}
    if adapter:
        where = ADAPTER if ADAPTER + _CONFIG in listed else MODEL + ADAPTER  # of a prefix
        config = json.loads((path / where / _CONFIG).read_text(encoding="utf-8"))
        if base is None and config["base_model_name_or_path"] is None:
            raise ConfigError(
                "the adapter belongs to weights that this run drew, or gave a token more, and that "
                "are nowhere else; type --merge, for the whole model"
            )
        hub = on_hub(trained.record.get("model", {})) if base is None else hub_name(base)
        if (named := base or hub) is None:
            raise ConfigError(
                f"the adapter's base, model.path={trained.run.model.path}, is on no hub; type "
                "--merge, for the whole model, or --base NAME, a hub id or a folder that has it"
            )
        shape = replace(shape, base=named, hub=hub, classes=trained.task.needs.classes)
        files = {
            name: file
            for name, file in files.items()
            if name not in _OF_WEIGHTS and not name.endswith(_WEIGHTS)
        }
        for name in listed:
            if name.startswith(where) and not name.endswith((_CONFIG, ".md")):
                files[name.removeprefix(where)] = path / name
        config["base_model_name_or_path"] = named
        written[_CONFIG] = json.dumps(config, indent=2) + "\n"
    if trained.task.needs.kind == "image":
        config = json.loads((path / MODEL / "config.json").read_text(encoding="utf-8"))
        size = getattr(trained.task, "image_size", None)
        written["preprocessor_config.json"] = preprocessor(config, size)
    written["README.md"] = model_card(trained.record, shape)
    return ExportPlan(files, written, shape)


def export(plan: ExportPlan, folder: Path) -> None:
    """Write a plan into a new or empty folder, which gets its name when it is complete."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists; give an empty or a new folder: --to FOLDER")
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    try:
        shutil.rmtree(unfinished, ignore_errors=True)  # of an export that was stopped
        unfinished.mkdir(parents=True)
        for name, source in plan.files.items():
            (unfinished / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(source, unfinished / name)
        for name, text in plan.written.items():
            (unfinished / name).write_text(text, encoding="utf-8")
        unfinished.replace(folder)
    except OSError as error:
        raise DataError(
            f"cannot write {folder}: {disk_report(folder.parent, error)}. Free some space and type "
            "the same command again"
        ) from error


def preprocessor(config: Mapping[str, Any], size: int | None) -> str:
    """Return ``preprocessor_config.json``, which does what `dpft.tasks.objectives.image` does."""
    side = size or config["image_size"]
    side = side if isinstance(side, int) else side[0]
    content = {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": side, "width": side},
        "resample": 2,  # bilinear
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": config["image_mean"],
        "image_std": config["image_std"],
    }
    return json.dumps(content, indent=2) + "\n"


def _asked(trained: TrainedRun) -> str:
    """Return Python that asks the model as it was trained; see `dpft.report.card.ModelFacts`."""
    task = trained.task
    pipeline = trained.record.get("model", {}).get("pipeline")
    if pipeline == "text-classification" and (longest := trained.run.task.get("max_length")):
        pairs = getattr(task, "pair_column", None) is not None
        if isinstance(task, Classification):
            pairs = task.texts == 2
        texts = "text, pair" if pairs else "text"
        return f"tokenizer({texts}, truncation=True, max_length={longest}, return_tensors='pt')"
    if not isinstance(task, Generation) or task.name in _UNFRAMED:
        return ""
    frame = {"before": "", "after": "", "ends": True, **task.prompt_settings}
    end = ""
    # An encoder's tokenizer ends the last text, be it the source or the text after it.
    if frame["ends"] and (pipeline == "text-generation" or frame["after"]):
        config = trained.path / MODEL / "tokenizer_config.json"
        token = json.loads(config.read_text(encoding="utf-8"))["eos_token"]
        end = token if isinstance(token, str) else token["content"]
    pieces = (repr(frame["before"]), "source", repr(end + frame["after"]))
    text = " + ".join(piece for piece in pieces if piece != "''")
    apart = ""
    if frame["before"].endswith(" "):  # which other tokenizers may join to the next word
        apart = f"  # the training tokenized {frame['before']!r} by itself"
    return f"tokenizer({text}, return_tensors='pt'){apart}"
