"""Parameters without the embeddings, by which Li et al. 2022 order models (Figures 1 and 5)."""

from __future__ import annotations

# Width and number of blocks: of GPT-2, BERT and RoBERTa, whose blocks have the same parts, and of
# the models that stand in for them.
_SHAPES: dict[str, tuple[int, int]] = {
    "tiny": (128, 2),
    "minilm": (384, 6),
    "distilgpt2": (768, 6),
    "gpt2": (768, 12),
    "gpt2-medium": (1024, 24),
    "gpt2-large": (1280, 36),
    "gpt2-xl": (1600, 48),
    "bert-base": (768, 12),
    "bert-large": (1024, 24),
    "roberta-base": (768, 12),
    "roberta-large": (1024, 24),
}


def non_embedding(model: str) -> float | None:
    """Millions of parameters in the blocks; None for a model whose shape is not known.

    A block has attention (``4 d^2 + 4 d``), two dense layers (``8 d^2 + 5 d``) and two norms
    (``4 d``). Norms outside the blocks and heads are left out: less than a thousandth.

    Args:
        model: a name of ``conf/model``.
    """
    if model not in _SHAPES:
        return None
    d, blocks = _SHAPES[model]
    return blocks * (12 * d * d + 13 * d) / 1e6
