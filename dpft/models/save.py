"""Saving a trained model so that others can load it, and loading it again.

The folder of a run's model holds an ordinary model in ``save_pretrained`` form: LoRA is merged into
it, RGP has moved its weights. With prefix tuning it is the frozen model, and what was trained is in
``adapter/``. LoRA's own update is kept in another folder too: put on the merged model, it would
count twice.
"""

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

from dpft.config.errors import ModelError
from dpft.config.schema import Model
from dpft.models.hub import hub_name
from dpft.models.load import ADAPTER, ADAPTER_CONFIG, LoadedModel, holds_prefix, load_model
from dpft.models.needs import Needs
from dpft.models.nf4 import unpack
from dpft.runs.lineage import base_model

_CARD = """# Adapter

In peft's format. A LoRA belongs to the base model that `adapter_config.json` names, and is merged
into the run's `model/` already; where no base is named, only the merged model can be used. A prefix
belongs to the model in the folder above, which is the base model as it was. `model/README.md` of
the run says what it was trained on, and with which guarantee.
"""


def save_model(loaded: LoadedModel, folder: Path, adapter: Path | None = None) -> None:
    """Write model and tokenizer in ``save_pretrained`` form, and a prefix next to them.

    Args:
        loaded: the model, which stays as it is.
        folder: for it.
        adapter: for LoRA's update, as peft keeps it; None: it is in the model alone.

    Raises:
        OSError, SafetensorError: a file cannot be written.
    """
    model: Any = loaded.model
    if hasattr(model, "peft_config"):
        if model.peft_config["default"].is_prompt_learning:
            _save_adapter(model, folder / ADAPTER, stored=True)
            model.get_base_model().save_pretrained(folder)
        else:
            if adapter is not None:
                _save_adapter(model, adapter, stored=loaded.as_stored)
            copied = copy.deepcopy(model)
            unpack(copied)
            copied.merge_and_unload().save_pretrained(folder)
    elif loaded.reparametrisation is not None:
        from dpft.models.rgp import LowRank

        assert isinstance(loaded.reparametrisation, LowRank)
        with loaded.reparametrisation.plain():
            model.save_pretrained(folder)
    else:
        model.save_pretrained(folder)
    # safetensors makes files for their owner alone, whatever the umask.
    for place in filter(None, (folder, adapter)):
        for file in place.rglob("*.safetensors"):
            file.chmod(next(file.parent.glob("*.json")).stat().st_mode)
    if loaded.tokenizer is not None:
        loaded.settle_tokenizer()
        try:
            loaded.tokenizer.save_pretrained(folder)
        except Exception as error:
            if type(error) is not Exception:
                raise
            # The library in Rust has no other type for a file that it cannot write.
            raise OSError(str(error)) from error


def load_saved(settings: Model, needs: Needs, seed: int, folder: Path) -> LoadedModel:
    """Load what `save_model` wrote, given settings, needs and seed of the run.

    Raises:
        ModelError: if its classes are not those that are needed: a head would be drawn anew.
    """
    if needs.classes:
        stored = json.loads((folder / "config.json").read_text()).get("id2label", {})
        names = tuple(str(stored[key]) for key in sorted(stored, key=int))
        if names != needs.classes:
            raise ModelError(
                f"the model in {folder} has the classes {', '.join(names)}, and the task "
                f"{', '.join(needs.classes)}; expected the same classes in the same order: has the "
                "training data changed since?"
            )
    trained = dataclasses.replace(
        settings, path=str(folder), revision=None, init="pretrained", tied=None, pooling=None
    )
    if settings.dtype == "nf4":  # LoRA was merged into the unpacked base
        trained = dataclasses.replace(trained, dtype="bfloat16")
    loaded = load_model(trained, needs, seed, own=True)
    if not holds_prefix(folder / ADAPTER / ADAPTER_CONFIG):
        return loaded
    from dpft.models.adapters import load_prefix

    return load_prefix(loaded, folder / ADAPTER)


def _save_adapter(model: Any, folder: Path, *, stored: bool) -> None:
    """Save as peft does, naming the base where the base's weights are those ``stored``."""
    # Neither of the methods changes embeddings; left to itself, peft asks the hub about them.
    model.save_pretrained(str(folder), save_embedding_layers=False)
    file = folder / ADAPTER_CONFIG
    content = json.loads(file.read_text(encoding="utf-8"))
    path = model.name_or_path
    content["base_model_name_or_path"] = (hub_name(path) or base_model(path)) if stored else None
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(_CARD, encoding="utf-8")
