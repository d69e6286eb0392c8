"""Published models of the hub: the sizes that `dpft plan` simulates."""

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

from dpft.config.errors import ModelError, suggestion

PREFIX = "sizes:"

_ENCODER = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
_COLUMNS = {
    "gpt2": ("n_embd", "n_layer", "n_head", "n_positions"),
    "llama": (*_ENCODER, "num_key_value_heads"),
    "roberta": _ENCODER,
    "t5": ("d_model", "num_layers", "num_heads", "d_ff"),
    "vit": _ENCODER,
}
# What the defaults of transformers lack. Llama 3 has 128 thousand tokens and 256 special ones, and
# no tied head; RoBERTa has two positions before those of a text.
_REST: Mapping[str, Mapping[str, Any]] = {
    "llama": {
        **{"vocab_size": 128_256, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5},
        **{"tie_word_embeddings": False, "bos_token_id": 128_000, "eos_token_id": 128_001},
    },
    "roberta": {
        **{"vocab_size": 50_265, "max_position_embeddings": 514},
        **{"type_vocab_size": 1, "layer_norm_eps": 1e-5},
    },
    "t5": {"decoder_start_token_id": 0},
}
_TABLE: Mapping[str, tuple[str, tuple[int, ...]]] = {
    # Radford et al. 2019, table 2; heads have a width of 64.
    "openai-community/gpt2": ("gpt2", (768, 12, 12, 1024)),
    "openai-community/gpt2-medium": ("gpt2", (1024, 24, 16, 1024)),
    "openai-community/gpt2-large": ("gpt2", (1280, 36, 20, 1024)),
    "openai-community/gpt2-xl": ("gpt2", (1600, 48, 25, 1024)),
    # Zhang et al. 2020 (DialoGPT), table 2.
    "microsoft/DialoGPT-medium": ("gpt2", (1024, 24, 16, 1024)),
    # Liu et al. 2019, appendix B, table 9.
    "FacebookAI/roberta-base": ("roberta", (768, 12, 12, 3072)),
    "FacebookAI/roberta-large": ("roberta", (1024, 24, 16, 4096)),
    # Raffel et al. 2020, section 3.7 and, for the base, 3.1.1; heads have a width of 64.
    "google-t5/t5-small": ("t5", (512, 6, 8, 2048)),
    "google-t5/t5-base": ("t5", (768, 12, 12, 3072)),
    # Steiner et al. 2022 ("How to train your ViT?"), table 2.
    "WinKawaks/vit-small-patch16-224": ("vit", (384, 12, 6, 1536)),
    # Dosovitskiy et al. 2021, table 1; patches of 16 pixels, images of 224 a side.
    "google/vit-base-patch16-224": ("vit", (768, 12, 12, 3072)),
    "google/vit-large-patch16-224": ("vit", (1024, 24, 16, 4096)),
    # Grattafiori et al. 2024 ("The Llama 3 Herd of Models"), table 3.
    "meta-llama/Meta-Llama-3-8B": ("llama", (4096, 32, 32, 14_336, 8)),
    # Brown et al. 2020, table 2.1; the vocabulary and the blocks of GPT-2. Its weights were
    # never published. Attention is dense here, and every other layer's was sparse.
    f"{PREFIX}gpt3-175b": ("gpt2", (12_288, 96, 96, 2048)),
}


def _sized(path: str) -> Any:
    from transformers import AutoConfig

    family, numbers = _TABLE[path]
    sizes = dict(zip(_COLUMNS[family], numbers, strict=True))
    return AutoConfig.for_model(family, **sizes, **_REST.get(family, {}))


SIZES: Mapping[str, Callable[[], Any]] = MappingProxyType(
    {path: partial(_sized, path) for path in _TABLE}
)
"""By ``model.path``: each makes a configuration of transformers."""


def refuse(path: str) -> ModelError:
    """Return the error for a path that names sizes where weights are needed."""
    known = [name for name in SIZES if name.startswith(PREFIX)]
    meant = "" if path in known else suggestion(path, known)
    return ModelError(
        f"model.path is {path!r}, which has sizes and no weights{meant}; expected a "
        "model that can be loaded. dpft plan says what training it would take"
    )
