"""What a run on one's own data begins with, where nothing was typed: by model, method and task.

One rate does not serve all: what trains every weight of GPT-2 leaves a new head as it was drawn.
The tasks of the papers, and whoever chooses a preset, keep the settings that stand in ``conf/``.
docs/reference/optimisation.md has the pilots and the papers behind each row.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpft.config import folder
from dpft.config.overrides import check_spellings, setting_of

_MINILM = ("package:minilm", "sentence-transformers/all-MiniLM-L6-v2")
_ENCODERS = (
    *("FacebookAI/roberta-base", "FacebookAI/roberta-large"),
    *("google-bert/bert-base-uncased", "google-bert/bert-large-uncased"),
)
_SMALL_WRITERS = (
    *("distilbert/distilgpt2", "openai-community/gpt2", "openai-community/gpt2-medium"),
    *("openai-community/gpt2-large", "openai-community/gpt2-xl", "microsoft/DialoGPT-medium"),
    *("openai-community/openai-gpt", "google-t5/t5-small", "google-t5/t5-base"),
    *("google/flan-t5-base", "facebook/bart-base", "facebook/bart-large"),
    *("package:smollm2", "HuggingFaceTB/SmolLM2-135M-Instruct"),
)
_VITS = (
    *("google/vit-base-patch16-224", "google/vit-large-patch16-224"),
    "WinKawaks/vit-small-patch16-224",
)
_WRITING = ("text2text", "chat", "language_modeling")
# Of which a user types one, meaning it instead of the others.
_SIZES = ("optim.batch_size", "optim.sampling_rate", "optim.rate_like")
_FLAT = ("bk", "ghost", "lee_kifer", "materialised")


@dataclass(frozen=True)
class Row:
    """Settings for some models, one method and some tasks.

    Attributes:
        models: by ``model.path``.
        adapt: the method.
        tasks: by name.
        source: where the values come from, in a few words.
        values: by the name that is typed.
        usual: whether it is the method of these models and tasks where none is typed.
    """

    models: tuple[str, ...]
    adapt: str
    tasks: tuple[str, ...]
    source: str
    values: Mapping[str, Any] = field(default_factory=dict)
    usual: bool = False


ROWS = (
    Row(
        _MINILM,
        "linear",
        ("classification",),
        "a pilot on 5,000 sentences",
        {
            "model.pooling": "mean",
            "optim.lr": 1e-2,
            "optim.sampling_rate": 0.2,
            "optim.epochs": 10,
            "optim.schedule": "linear",
            "clip.threshold": 3.0,
        },
        usual=True,
    ),
    Row(
        _MINILM,
        "lora",
        ("classification",),
        "a pilot on 5,000 sentences",
        {
            "model.pooling": "mean",
            "optim.lr": 3e-3,
            "optim.sampling_rate": 0.2,
            "optim.epochs": 10,
            "optim.schedule": "linear",
            "clip.threshold": 1.0,
        },
    ),
    Row(
        _MINILM,
        "full",
        ("classification",),
        "results/sst2-minilm, 67,349 sentences; a pilot on 5,000 learned nothing",
        {"optim.lr": 1e-3, "optim.schedule": "linear"},
    ),
    Row(
        _ENCODERS,
        "full",
        ("classification",),
        "Bu et al. 2023, table 6, and He et al. 2022, table 8, without a pilot",
        {"optim.lr": 3e-4, "optim.schedule": "linear"},
    ),
    Row(
        _SMALL_WRITERS,
        "lora",
        _WRITING,
        "the range of Li et al. 2022, table 6, without a pilot",
        {"optim.lr": 1e-3, "optim.schedule": "linear", "optim.microbatch_tokens": 1024},
    ),
    Row(
        ("meta-llama/Meta-Llama-3-8B",),
        "lora",
        _WRITING,
        "what is usual without privacy, without a pilot",
        {"optim.lr": 2e-4, "optim.schedule": "linear", "optim.microbatch_tokens": 1024},
    ),
    Row(
        _VITS,
        "full",
        ("cifar10", "cifar100", "svhn", "gtsrb", "food101"),
        "Bu et al. 2023, table 6, without a pilot",
        {"optim.lr": 5e-4, "optim.batch_size": 1000, "optim.epochs": 5},
    ),
)


def with_defaults(config: folder.Config, words: Sequence[str]) -> folder.Config:
    """The config with the settings of its row in place of those that nobody typed.

    What was taken stands in it under ``origin``: ``values`` by name, and the ``source``.

    Args:
        config: resolved, of dpft's choices and the typed ones; not changed.
        words: what was typed; `check_spellings` refuses two values of one setting.
    """
    check_spellings(config, words)
    typed = set(map(setting_of, words))
    if typed.intersection(folder.PRESETS) or config.get("resume") is not None:
        return config
    chosen = any(key.partition(".")[0] == "adapt" for key in typed)
    try:
        path, task = config["model"]["path"], config["task"]["name"]
        method = config["adapt"]["name"]
    except (KeyError, TypeError):  # refused, with a reason, where the config is read
        return config
    rows = [row for row in ROWS if path in row.models and task in row.tasks]
    fitting = [row for row in rows if row.adapt == method or (row.usual and not chosen)]
    if not fitting:
        return config
    row = max(fitting, key=lambda row: row.usual and not chosen)
    config, taken = copy.deepcopy(config), {}
    if config["adapt"]["name"] != row.adapt:
        config["adapt"] = copy.deepcopy(folder.settings_of("adapt", row.adapt))
        taken["adapt"] = row.adapt
    if typed.intersection(_SIZES):
        typed |= set(_SIZES)
    for key, value in row.values.items():
        if key not in typed and _applies(key, config):
            group, _, leaf = key.partition(".")
            config[group][leaf] = taken[key] = value
            if key == "optim.sampling_rate":
                config["optim"]["batch_size"] = None
    if taken:
        config["origin"] = {"values": taken, "source": row.source}
    return config


def _applies(key: str, config: folder.Config) -> bool:
    """Whether it is of effect, and optimizer and clipping are those that the rows are of."""
    group, _, leaf = key.partition(".")
    if group == "optim":
        if leaf == "epochs" and config["optim"].get("steps") is not None:
            return False  # steps are what counts
        return config["optim"].get("name") in ("adam", "adamw") and leaf in config["optim"]
    if group == "clip":
        flat = config["clip"].get("plan") in _FLAT and config["clip"].get("groups") == "flat"
        return flat and not config["clip"].get("adaptive") and "threshold" in config["clip"]
    return True


def origin_in_words(origin: Mapping[str, Any]) -> str:
    """One line: which settings were taken, and from where."""
    values = " ".join(
        f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in origin["values"].items()
    )
    return f"default here: {values}; from {origin['source']}"
