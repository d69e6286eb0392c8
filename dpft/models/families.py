"""Which family a shipped model of the hub is of, for what is asked of it without the hub."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

FAMILIES: Mapping[str, str] = MappingProxyType(
    {
        "distilbert/distilgpt2": "gpt2",
        "facebook/bart-base": "bart",
        "facebook/bart-large": "bart",
        "FacebookAI/roberta-base": "roberta",
        "FacebookAI/roberta-large": "roberta",
        "google-bert/bert-base-uncased": "bert",
        "google-bert/bert-large-uncased": "bert",
        "google-t5/t5-base": "t5",
        "google-t5/t5-small": "t5",
        "google/flan-t5-base": "t5",
        "google/vit-base-patch16-224": "vit",
        "google/vit-large-patch16-224": "vit",
        "meta-llama/Meta-Llama-3-8B": "llama",
        "microsoft/DialoGPT-medium": "gpt2",
        "openai-community/gpt2": "gpt2",
        "openai-community/gpt2-large": "gpt2",
        "openai-community/gpt2-medium": "gpt2",
        "openai-community/gpt2-xl": "gpt2",
        "openai-community/openai-gpt": "openai-gpt",
        "WinKawaks/vit-small-patch16-224": "vit",
    }
)
"""By ``model.path``: ``model_type`` of its ``config.json``, as transformers calls it."""
