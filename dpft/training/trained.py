"""A trained run, as the verbs that use its model open it, and its export as a folder.

Torch is imported with the model, after what is wrong with a folder is reported. Other tools load an
exported folder without dpft. For it, files are copied and nothing is computed: LoRA was merged when
the run saved its model. Only files that a finished run lists as its own are copied, so that no
other file in its folders is exported.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpft import runs
from dpft.config import offline
from dpft.config.errors import ConfigError
from dpft.config.schema import Run, parse
from dpft.models.hub import hub_name
from dpft.report.card import ModelFacts, model_card, on_hub
from dpft.runs.folders import ADAPTER, CARD, MODEL, check_no_trial, stored_config
from dpft.tasks import load_task
from dpft.tasks.task import Task

if TYPE_CHECKING:
    import torch

    from dpft.models.load import LoadedModel


@dataclass(frozen=True)
class TrainedRun:
    """A run's folder, the text of its ``config.yaml``, its settings and its record."""

    path: Path
    text: str
    run: Run
    record: dict[str, Any]

    @cached_property
    def task(self) -> Task:
        return load_task(self.run.task)

    @cached_property
    def loaded(self) -> LoadedModel:
        """The trained model, on `device`."""
        folder = self.path / "model"
        runs.check_whole(self.path, ("model/",))
        if not folder.is_dir():  # or the loader would look for such a name on the hub
            raise ConfigError(
                f"{folder} is gone; expected the weights of the run: type dpft train "
                f"{shlex.quote(f'resume={self.path}')}, which takes them from a checkpoint"
            )
        from dpft.models.save import load_saved

        loaded = load_saved(self.run.model, self.task.needs, self.run.seed, folder)
        loaded.model.to(self.device)  # type: ignore[arg-type]
        return loaded

    @cached_property
    def device(self) -> torch.device:
        """This process's GPU if there is one and the run did not ask for the CPU."""
        from dpft.training.devices import device_of

        return device_of("cpu" if self.run.device == "cpu" else "auto")


def loaded_run(path: Path) -> TrainedRun:
    """Open the run in a folder, and ask whether the hub can be reached, for what is loaded next."""
    check_no_trial(path)
    record = runs.read_record(path)
    text, content = stored_config(path)
    runs.check_whole(path, ("record.json", "ledger.jsonl", "config.yaml"))
    found = TrainedRun(path, text, parse_stored(path, content), record)
    offline.stay_offline_if_unreachable()
    return found


def parse_stored(path: Path, content: Mapping[str, Any]) -> Run:
    """Return the settings in ``config.yaml``, see `dpft.runs.folders.stored_config`."""
    try:
        return parse(content)
    except ConfigError as error:
        raise ConfigError(
            f"{path / 'config.yaml'}: {error}. Restore the file, or use the dpft that wrote it"
        ) from error


# Files of the weights in a run's ``model/``; the others are the tokenizer's.
_OF_WEIGHTS = ("config.json", "generation_config.json", "dpft.json")
_WEIGHTS = (".safetensors", ".safetensors.index.json", ".bin")
_CONFIG = "adapter_config.json"
_TEMPLATES = "additional_chat_templates"  # the one folder of a tokenizer below a model's


def export(
    trained: TrainedRun, folder: Path, *, merge: bool, base: str | None = None
) -> ModelFacts:
    """Export a finished run into a new or empty folder, which gets its name when it is complete.

    Args:
        trained: the run.
        folder: the folder.
        merge: whether to export a whole model rather than an adapter.
        base: name of the adapter's base model; None: that on the hub.

    Returns:
        Whether the folder has a whole model or an adapter.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists; give an empty or a new folder: --to FOLDER")
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
    files = {
        name.removeprefix(MODEL): path / name
        for name in listed
        if name.startswith(MODEL)
        and name.removeprefix(MODEL).rpartition("/")[0] in ("", _TEMPLATES)
    }
    shape, written = ModelFacts(), dict[str, str]()
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
        written["preprocessor_config.json"] = preprocessor(config)
    written["README.md"] = model_card(trained.record, shape)
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)  # of an export that was stopped
    unfinished.mkdir(parents=True)
    for name, source in files.items():
        (unfinished / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(source, unfinished / name)
    for name, text in written.items():
        (unfinished / name).write_text(text, encoding="utf-8")
    unfinished.replace(folder)
    return shape


def preprocessor(config: Mapping[str, Any]) -> str:
    """Return ``preprocessor_config.json``, which does what `ImageClassifier` of a task does."""
    side = config["image_size"]
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
