"""Saving a trained model so that others can load it, and loading it again.

The folder of a run's model holds an ordinary model in ``save_pretrained`` form, whatever the
adaptation: LoRA is merged into it, RGP has moved its weights. With prefix tuning it is the frozen
model, which the prefix in ``adapter/`` belongs to.
"""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

from dpft.config.errors import ModelError
from dpft.config.schema import Model
from dpft.models.load import ADAPTER, ADAPTER_CONFIG, LoadedModel, has_prefix, load_model
from dpft.models.needs import Needs
from dpft.runs.lineage import base_model

_CARD = """# Adapter

In peft's format. LoRA belongs to the base model named in `adapter_config.json`, and is merged into
the model in the folder above; where no base is named, its weights were drawn by the run or got a
token more, and only the merged model is to be had. A prefix belongs to the model in the folder
above, which is the base model as it was; without the prefix that model has learned nothing.

    from peft import PeftModel
    from transformers import AutoModel  # or the class of the task

    model = PeftModel.from_pretrained(AutoModel.from_pretrained("BASE"), "adapter")

What it was trained on, and with which guarantee, says the card of the folder above.
"""


def save_model(loaded: LoadedModel, folder: Path) -> None:
    """Write model and tokenizer in ``save_pretrained`` form, and an adapter beside them.

    The model in memory stays as it is.
    """
    if hasattr(loaded.model, "peft_config"):
        _save_adapted(loaded, folder)
    elif loaded.reparametrisation is not None:
        from dpft.models.rgp import LowRank

        assert isinstance(loaded.reparametrisation, LowRank)
        with loaded.reparametrisation.plain():
            loaded.model.save_pretrained(folder)
    else:
        loaded.model.save_pretrained(folder)
    if loaded.tokenizer is not None:
        loaded.tokenizer.save_pretrained(folder)


def load_saved(settings: Model, needs: Needs, seed: int, folder: Path) -> LoadedModel:
    """Load what `save_model` wrote.

    Args:
        settings: ``conf/model`` of the run.
        needs: what the task's objective works with.
        seed: of the run.
        folder: where the model was saved.

    Raises:
        ModelError: if its classes are not those that are needed: a head would be drawn anew.
    """
    _check_classes(folder, needs)
    trained = dataclasses.replace(settings, path=str(folder), init="pretrained", tied=None)
    loaded = load_model(trained, needs, seed, own=True)
    if not has_prefix(folder / ADAPTER / ADAPTER_CONFIG):
        return loaded
    from dpft.models.prefix import load_prefix

    return load_prefix(loaded, folder / ADAPTER)


def _check_classes(folder: Path, needs: Needs) -> None:
    if not needs.classes:
        return
    stored = json.loads((folder / "config.json").read_text()).get("id2label", {})
    names = tuple(str(stored[key]) for key in sorted(stored, key=int))
    if names != needs.classes:
        raise ModelError(
            f"the model in {folder} tells {', '.join(names)} apart, the task "
            f"{', '.join(needs.classes)}; expected the same classes in the same order: has the "
            "training data changed since?"
        )


def _save_adapted(loaded: LoadedModel, folder: Path) -> None:
    model: Any = loaded.model
    config = model.peft_config["default"]
    # A folder's name and no more of this machine; nothing where that model is another than this.
    stored = loaded.as_stored or config.is_prompt_learning
    # Neither of the methods changes embeddings; left to itself, peft asks the hub about them.
    model.save_pretrained(str(folder / ADAPTER), save_embedding_layers=False)
    file = folder / ADAPTER / ADAPTER_CONFIG
    content = json.loads(file.read_text(encoding="utf-8"))
    content["base_model_name_or_path"] = base_model(model.name_or_path) if stored else None
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    (folder / ADAPTER / "README.md").write_text(_CARD, encoding="utf-8")
    if config.is_prompt_learning:
        model.get_base_model().save_pretrained(folder)
    else:
        copy.deepcopy(model).merge_and_unload().save_pretrained(folder)
