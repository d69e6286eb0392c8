"""What can be measured: models with their usual shapes, clipping styles, peers, number types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from types import MappingProxyType

from dpft.config.errors import ConfigError


@dataclass(frozen=True)
class ModelInfo:
    """A model that `dpft.reproduce.bench.models` builds with random weights.

    Attributes:
        summary: one line.
        batch: default batch size ``B``.
        length: default number of tokens ``T``; None for images.
        longest: the most tokens it takes; None for images.
        steps: default number of timed steps per process: more where a step is short.
        head: whether it has an output head that shares the input embedding's weight.
    """

    summary: str
    batch: int
    length: int | None
    longest: int | None
    steps: int
    head: bool


MODELS: Mapping[str, ModelInfo] = MappingProxyType(
    {
        "tiny": ModelInfo("the bundled GPT-2, 0.76 million parameters", 8, 64, 256, 30, True),
        "gpt2": ModelInfo("GPT-2 small", 4, 100, 1024, 5, True),
        "gpt2-medium": ModelInfo("GPT-2 medium", 4, 100, 1024, 5, True),
        "gpt2-large": ModelInfo("GPT-2 large", 4, 100, 1024, 5, True),
        "gpt2-xl": ModelInfo("GPT-2 XL", 4, 100, 1024, 5, True),
        "smollm2-135m": ModelInfo(
            "SmolLM2-135M: Llama with grouped-query attention", 4, 100, 8192, 5, True
        ),
        "roberta-base": ModelInfo("RoBERTa-base, two classes", 8, 128, 512, 5, False),
        "roberta-base-mlm": ModelInfo("RoBERTa-base with its MLM head", 8, 128, 512, 5, True),
        "vit-small": ModelInfo("ViT-small, patch 16, 224 pixels", 8, None, None, 5, False),
        "vit-base": ModelInfo("ViT-base, patch 16, 224 pixels", 8, None, None, 5, False),
        "wrn16-4": ModelInfo("Wide ResNet 16-4, 32 pixels", 32, None, None, 5, False),
    }
)

BASELINE = "none"
STYLES = (
    BASELINE,
    *("materialised", "lee_kifer", "ghost", "bk"),
    *("per_layer", "per_param", "block_wise", "uniform", "two_group", "by_type"),
    *("per_layer_adaptive", "flat_adaptive"),
)
# Styles that take a number after a colon: how many groups, or blocks in the first group.
COUNTED = ("uniform", "two_group")
DEFAULT_STYLES = "none,materialised,ghost,bk,per_layer"

PEERS: Mapping[str, str] = MappingProxyType(
    {
        "opacus": "Opacus, per-example gradients by hooks",
        "opacus-linear": "the same, with every Conv1D swapped for a Linear",
        "opacus-ghost": "Opacus, ghost clipping",
        "opacus-ghost-linear": "the same, with every Conv1D swapped for a Linear",
    }
)

# bfloat16 means autocast: parameters, norms and sums stay in float32.
DTYPES = ("float32", "bfloat16", "float64")
DEVICES = ("auto", "cpu", "cuda")


def require_peers() -> None:
    """Raises ConfigError unless the peers are installed."""
    if find_spec("opacus") is None:
        raise ConfigError(
            "peers need Opacus, which is not installed: type pip install 'dpft[peers]'"
        )
