"""What a model hub reads of a card: its head in YAML, and how the model is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from dpft.privacy.guarantee import Guarantee

# As the cards of these models on the hub have it; of a name that ends in a dash all sizes.
_LICENCES: Mapping[str, str] = MappingProxyType(
    {
        "FacebookAI/roberta-": "mit",
        "HuggingFaceTB/SmolLM2-": "apache-2.0",
        "WinKawaks/vit-small-patch16-224": "apache-2.0",
        "distilbert/distilgpt2": "apache-2.0",
        "facebook/bart-base": "apache-2.0",
        "facebook/bart-large": "apache-2.0",
        "google-bert/bert-": "apache-2.0",
        "google-t5/t5-": "apache-2.0",
        "google/flan-t5-": "apache-2.0",
        "google/vit-": "apache-2.0",
        "meta-llama/Meta-Llama-3-": "llama3",
        "microsoft/DialoGPT-": "mit",
        "openai-community/gpt2": "mit",
        "openai-community/gpt2-": "mit",
        "openai-community/openai-gpt": "mit",
        "sentence-transformers/all-MiniLM-": "apache-2.0",
    }
)
_CLASSES: Mapping[str, str] = MappingProxyType(
    {
        "text-generation": "CausalLM",
        "text2text-generation": "Seq2SeqLM",
        "text-classification": "SequenceClassification",
        "fill-mask": "MaskedLM",
        "image-classification": "ImageClassification",
    }
)
# Of these peft has a class that loads an adapter with its base.
_WITH_BASE = ("text-generation", "text2text-generation", "text-classification")


@dataclass(frozen=True)
class ModelFacts:
    """What of a model lies in a folder.

    Attributes:
        base: whose adapter it is, as peft finds it, perhaps in a folder; None: a whole model.
        hub: the name of the base on the hub; None: the one that the run knows, if any.
        classes: those that a classifier's adapter tells apart, whose base has another head.
        licence: what the hub calls it; None: that of the base, if it is known.
        asked: Python, of ``tokenizer`` and a text, that asks as the training did; empty: as the
            tokenizer's template does, or of an image its preprocessor.
    """

    base: str | None = None
    hub: str | None = None
    classes: tuple[str, ...] = ()
    licence: str | None = None
    asked: str = ""


WHOLE = ModelFacts()


def on_hub(model: Mapping[str, Any]) -> str | None:
    """The base model on a hub, of a record's section ``model``; None if it is on none."""
    # Records of earlier versions do not say; a name with a colon is one of dpft's own.
    earlier = model.get("base_model") or ""
    found: str | None = model.get("hub_model", earlier if ":" not in earlier else None)
    return found or None


def licence_of(base: str | None) -> str | None:
    """The licence of a base model on the hub, as the hub spells it; None if it is not known."""
    sizes = (licence for name, licence in _LICENCES.items() if base and _names(name, base))
    return next(sizes, None)


def _names(name: str, base: str) -> bool:
    return base.startswith(name) if name.endswith("-") else base == name


def head(record: Mapping[str, Any], shape: ModelFacts) -> str:
    """The metadata of a card, in YAML; what is not known is left out."""
    from huggingface_hub import ModelCardData

    model, adapter = record.get("model", {}), shape.base is not None
    base = shape.hub or on_hub(model)
    tags = ["dpft", *(["differential-privacy"] if Guarantee.of_record(record).private else [])]
    return str(
        ModelCardData(
            base_model=base,
            base_model_relation=("adapter" if adapter else "finetune") if base else None,
            library_name="peft" if adapter else "transformers",
            license=shape.licence or licence_of(base),
            pipeline_tag=model.get("pipeline"),
            tags=[*tags, *(["lora"] if adapter and model.get("adaptation") == "lora" else [])],
        ).to_yaml()
    )


def loader(record: Mapping[str, Any], shape: ModelFacts) -> str | None:
    """Python that loads the folder ``FOLDER``; None where that takes more words."""
    model = record.get("model", {})
    tag = model.get("pipeline")
    if tag not in _CLASSES or (shape.base is None and model.get("adaptation") == "prefix"):
        return None
    name, given = f"AutoModelFor{_CLASSES[tag]}", ""
    if shape.classes:
        given = f", num_labels={len(shape.classes)}, ignore_mismatched_sizes=True"
    if shape.base is None:
        lines = [f"from transformers import {name}", f'model = {name}.from_pretrained("FOLDER")']
    elif tag in _WITH_BASE:
        name = f"AutoPeftModelFor{_CLASSES[tag]}"
        lines = [f"from peft import {name}", f'model = {name}.from_pretrained("FOLDER"{given})']
    else:
        lines = [
            "from peft import PeftModel",
            f"from transformers import {name}",
            f'base = {name}.from_pretrained("{shape.base}"{given})',
            'model = PeftModel.from_pretrained(base, "FOLDER")',
        ]
    if shape.asked:
        lines += [
            "from transformers import AutoTokenizer",
            'tokenizer = AutoTokenizer.from_pretrained("FOLDER")',
            f"inputs = {shape.asked}",
        ]
    return "\n".join(lines)
