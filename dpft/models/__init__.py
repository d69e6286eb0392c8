"""Models: loading by name, building from scratch, tying and untying."""

from dpft.models.load import LoadedModel, load_model, load_tokenizer

__all__ = ["LoadedModel", "load_model", "load_tokenizer"]
