"""The model card: what was trained, what is guaranteed, what is not, and what a hub reads of it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpft.config.flags import Flag, has, sentences
from dpft.privacy.guarantee import Guarantee
from dpft.privacy.rounding import number
from dpft.report import statements
from dpft.report.text_table import inline
from dpft.runs.atomic import write_atomic
from dpft.runs.lineage import FILE, lineage_of
from dpft.tasks.scores import cautions, shown

if TYPE_CHECKING:
    from jinja2 import Template

_CLASSES = {
    "text-generation": "CausalLM",
    "text2text-generation": "Seq2SeqLM",
    "text-classification": "SequenceClassification",
    "fill-mask": "MaskedLM",
    "image-classification": "ImageClassification",
}
# peft has a class that loads an adapter of these together with its base.
_WITH_BASE = ("text-generation", "text2text-generation", "text-classification")


@dataclass(frozen=True)
class ModelFacts:
    """The part of a model that a folder holds.

    A whole model has no ``base``, an adapter that of its base, and perhaps the base's name on the
    ``hub``. ``classes`` are those of a classifier's adapter, whose base has another head.
    """

    base: str | None = None
    hub: str | None = None
    classes: tuple[str, ...] = ()


WHOLE = ModelFacts()


def write_card(model: Path, record: Mapping[str, Any]) -> None:
    """Put the model card of a run's record into the folder of its weights."""
    write_atomic(model / "README.md", model_card(record))


def write_lineage(model: Path, record: Mapping[str, Any]) -> None:
    """Put into the folder of the weights what a run that trains them further must know."""
    write_atomic(model / FILE, lineage_of(record))


@functools.cache
def _template() -> Template:
    from jinja2 import ChainableUndefined

    from dpft.report.text_table import environment

    # Markdown, not HTML: untrusted text goes through `inline`.
    cards = environment(autoescape=False, undefined=ChainableUndefined)
    cards.filters |= {"inline": inline, "number": number, "thousands": "{:,}".format}
    cards.globals |= {"cautions": cautions, "shown": shown}
    return cards.get_template("card.md")


def model_card(record: Mapping[str, Any], shape: ModelFacts = WHOLE) -> str:
    """Render a run record as Markdown with the YAML head that model hubs read."""
    guarantee = Guarantee.of_record(record)
    model = record.get("model", {})
    rows: list[tuple[str, str]] = []
    if record["mechanism"] is not None:
        seed = record.get("seeds", {}).get("noise")
        mechanism = statements.mechanism_rows(record["mechanism"], record.get("config", {}), seed)
        rows = [*statements.audit_rows(record), *mechanism]
    code = loader(record, shape)
    return _template().render(
        {
            "config": {},
            "plugins": [],
            **record,
            "labels": sentences(record.get("flags")),
            "quantised": has(record.get("flags", []), Flag.QUANTISED_WEIGHTS),
            "model": model,
            "head": head(record, shape),
            "shape": shape,
            "hub": on_hub(model),
            # Not in the template, whose braces a formatter of Markdown takes for Python's.
            "loader": code and f"```python\n{code}\n```",
            "guarantee": guarantee,
            "privacy": statements.as_markdown(guarantee, rows),
            "counts": ", ".join(f"{k} {n:,}" for k, n in record["dataset"]["counts"].items()),
            "warnings": statements.score_warnings(record),
            "evaluation": [inline(line) for line in statements.evaluation_remarks(record)],
            "scores": record.get("scores", {}),
        }
    )


def on_hub(model: Mapping[str, Any]) -> str | None:
    """Return the base model's name on a hub, of a record's section ``model``; None without one."""
    named = model.get("base_model") or ""  # with a colon it is one of dpft's own
    found: str | None = model.get("hub_model", named if ":" not in named else None)
    return found or None


def head(record: Mapping[str, Any], shape: ModelFacts) -> str:
    """Return the metadata of a card, in YAML; what is not known is left out."""
    from huggingface_hub import ModelCardData

    model, adapter = record.get("model", {}), shape.base is not None
    base = shape.hub or on_hub(model)
    tags = ["dpft", *(["differential-privacy"] if Guarantee.of_record(record).private else [])]
    return str(
        ModelCardData(
            base_model=base,
            base_model_relation=("adapter" if adapter else "finetune") if base else None,
            library_name="peft" if adapter else "transformers",
            pipeline_tag=model.get("pipeline"),
            tags=[*tags, *(["lora"] if adapter and model.get("adaptation") == "lora" else [])],
        ).to_yaml()
    )


def loader(record: Mapping[str, Any], shape: ModelFacts) -> str | None:
    """Return Python that loads the folder ``FOLDER``; None where that takes more words."""
    model = record.get("model", {})
    tag = model.get("pipeline")
    if tag not in _CLASSES or (shape.base is None and model.get("adaptation") == "prefix"):
        return None
    name, given = f"AutoModelFor{_CLASSES[tag]}", ""
    if shape.classes:
        given = f", num_labels={len(shape.classes)}, ignore_mismatched_sizes=True"
    if shape.base is None:
        lines = [f"from transformers import {name}\n", f'model = {name}.from_pretrained("FOLDER")']
    elif tag in _WITH_BASE:
        name = f"AutoPeftModelFor{_CLASSES[tag]}"
        lines = [f"from peft import {name}\n", f'model = {name}.from_pretrained("FOLDER"{given})']
    else:
        lines = [
            "from peft import PeftModel",
            f"from transformers import {name}\n",
            f'base = {name}.from_pretrained("{shape.base}"{given})',
            'model = PeftModel.from_pretrained(base, "FOLDER")',
        ]
    return "\n".join(lines)
