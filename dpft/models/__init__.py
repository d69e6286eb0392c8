"""Models: loading by name, building from scratch, tying, adapting and saving."""

from dpft.models.adapt import adapt
from dpft.models.load import LoadedModel, load_model, load_tokenizer
from dpft.models.needs import Needs
from dpft.models.save import load_saved, save_model

__all__ = [
    "LoadedModel",
    "Needs",
    "adapt",
    "load_model",
    "load_saved",
    "load_tokenizer",
    "save_model",
]
