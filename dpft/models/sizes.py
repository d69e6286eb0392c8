"""Architectures by their published sizes: what `dpft plan` needs of a model, without a download."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from dpft.config.errors import ModelError, suggestion

PREFIX = "sizes:"


def _gpt2(width: int, layers: int, heads: int, positions: int = 1024) -> Callable[[], Any]:
    def config() -> Any:
        from transformers import GPT2Config

        return GPT2Config(n_embd=width, n_layer=layers, n_head=heads, n_positions=positions)

    return config


def _llama_3_8b() -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=128_256, hidden_size=4096, intermediate_size=14_336, num_hidden_layers=32,
        num_attention_heads=32, num_key_value_heads=8, max_position_embeddings=8192,
        rms_norm_eps=1e-5, tie_word_embeddings=False, bos_token_id=128_000, eos_token_id=128_001,
    )  # fmt: skip


def _roberta(width: int, layers: int, heads: int) -> Callable[[], Any]:
    def config() -> Any:
        from transformers import RobertaConfig

        return RobertaConfig(
            vocab_size=50_265, hidden_size=width, num_hidden_layers=layers,
            num_attention_heads=heads, intermediate_size=4 * width,
            max_position_embeddings=514, type_vocab_size=1, layer_norm_eps=1e-5,
        )  # fmt: skip

    return config


def _vit(width: int, layers: int, heads: int) -> Callable[[], Any]:
    def config() -> Any:
        from transformers import ViTConfig

        return ViTConfig(
            hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
            intermediate_size=4 * width,
        )  # fmt: skip

    return config


def _t5(width: int, inner: int, layers: int, heads: int) -> Callable[[], Any]:
    def config() -> Any:
        from transformers import T5Config

        made: Any = T5Config(d_model=width, d_ff=inner, num_layers=layers, num_heads=heads)
        made.decoder_start_token_id = 0
        return made

    return config


SIZES: Mapping[str, Callable[[], Any]] = MappingProxyType(
    {
        # Radford et al. 2019, table 2; heads have a width of 64.
        "openai-community/gpt2": _gpt2(768, 12, 12),
        "openai-community/gpt2-medium": _gpt2(1024, 24, 16),
        "openai-community/gpt2-large": _gpt2(1280, 36, 20),
        "openai-community/gpt2-xl": _gpt2(1600, 48, 25),
        # Zhang et al. 2020 (DialoGPT), table 2.
        "microsoft/DialoGPT-medium": _gpt2(1024, 24, 16),
        # Liu et al. 2019, appendix B, table 9; two positions lie before those of a text.
        "FacebookAI/roberta-base": _roberta(768, 12, 12),
        "FacebookAI/roberta-large": _roberta(1024, 24, 16),
        # Raffel et al. 2020, section 3.7 and, for the base, 3.1.1; heads have a width of 64.
        "google-t5/t5-small": _t5(512, 2048, 6, 8),
        "google-t5/t5-base": _t5(768, 3072, 12, 12),
        # Steiner et al. 2022 ("How to train your ViT?"), table 2.
        "WinKawaks/vit-small-patch16-224": _vit(384, 12, 6),
        # Dosovitskiy et al. 2021, table 1; patches of 16 pixels, images of 224 a side.
        "google/vit-base-patch16-224": _vit(768, 12, 12),
        "google/vit-large-patch16-224": _vit(1024, 24, 16),
        # Grattafiori et al. 2024 ("The Llama 3 Herd of Models"), table 3. It has 128 thousand
        # tokens and 256 special ones, and in this size no tied head.
        "meta-llama/Meta-Llama-3-8B": _llama_3_8b,
        # Brown et al. 2020, table 2.1; the vocabulary and the blocks of GPT-2. Its weights were
        # never published. Attention is dense here, and every other layer's was sparse.
        f"{PREFIX}gpt3-175b": _gpt2(12_288, 96, 96, positions=2048),
    }
)
"""By ``model.path``: each makes a configuration of transformers."""


def refuse(path: str) -> ModelError:
    """The error for a path that names sizes where weights are needed."""
    known = [name for name in SIZES if name.startswith(PREFIX)]
    meant = "" if path in known else suggestion(path, known)
    return ModelError(
        f"model.path is {path!r}, which has sizes and no weights{meant}; expected a "
        "model that can be loaded. dpft plan says what training it would take"
    )
