"""How far two sets of texts are apart, by the vectors that an encoder makes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpft.config.compose import compose
from dpft.config.errors import ConfigError
from dpft.config.schema import parse
from dpft.models.load import load_model
from dpft.models.needs import Needs
from dpft.tasks.objectives.evaluation import evaluating

Vectors = npt.NDArray[np.float64]

MOST = 2000
"""Texts of a set that are compared: the distance takes time and memory by the square of them."""
_LONGEST = 256
_BATCH = 32


def mmd(x: Vectors, y: Vectors) -> float:
    """Squared maximum mean discrepancy, estimated without bias (Gretton et al. 2012, lemma 6).

    The kernel is Gaussian on vectors of length 1: ``exp(cos(x, y) - 1)``. It is 0 on average where
    both sets are drawn from one distribution, and may then be a little below.

    Args:
        x: ``(m, d)``, rows of length 1, two at least.
        y: ``(n, d)``, the same.

    Raises:
        ValueError: for fewer than two rows.
    """
    m, n = len(x), len(y)
    if min(m, n) < 2:
        raise ValueError(f"got {m} and {n} texts; expected two of each at least")

    def within(a: Vectors) -> float:
        kernel = np.exp(a @ a.T - 1)
        return float((kernel.sum() - np.trace(kernel)) / (len(a) * (len(a) - 1)))

    return within(x) + within(y) - 2 * float(np.exp(x @ y.T - 1).mean())


def unit_rows(x: Vectors) -> Vectors:
    """Rows divided by their lengths; rows of zeros stay."""
    lengths = np.linalg.norm(x, axis=1, keepdims=True)
    return x / np.where(lengths == 0, 1, lengths)


def encoder(name: str) -> Callable[[Sequence[str]], Vectors]:
    """What makes vectors of texts: means of a model's last hidden states over the tokens of a text.

    Args:
        name: of ``conf/model``, a folder or a hub id. ``tiny`` is a language model of restaurants:
            it tells little of other texts, and is there offline.

    Returns:
        The function, texts to ``(n, d)`` with rows of length 1.

    Raises:
        ModelError, ConfigError: if it cannot be had.
    """
    try:
        settings = parse(compose([f"model={name}"])).model
    except ConfigError:
        settings = parse(compose(["model=custom", f'model.path="{name}"'])).model
    kind = Needs("causal") if name == "tiny" else Needs("classifier", ("a", "b"))
    loaded = load_model(settings, kind, 0)
    body, tokenizer = loaded.model.base_model, loaded.text_tokenizer

    @torch.no_grad()
    def encode(texts: Sequence[str]) -> Vectors:
        rows: list[Vectors] = []
        with evaluating(loaded.model):
            for start in range(0, len(texts), _BATCH):
                rows.append(_means(body, tokenizer, texts[start : start + _BATCH]))
        return unit_rows(np.concatenate(rows))

    return encode


def _means(body: torch.nn.Module, tokenizer: object, texts: Sequence[str]) -> Vectors:
    ids = [tokenizer.encode(t, truncation=True, max_length=_LONGEST) for t in texts]  # type: ignore[attr-defined]
    width = max(1, *map(len, ids))
    tokens = torch.zeros(len(ids), width, dtype=torch.long)
    mask = torch.zeros_like(tokens)
    for row, one in enumerate(ids):
        tokens[row, : len(one)] = torch.tensor(one)
        mask[row, : len(one)] = 1
    states: Tensor = body(input_ids=tokens, attention_mask=mask).last_hidden_state
    weights = mask[..., None].to(states.dtype)
    means = (states * weights).sum(1) / weights.sum(1).clamp(min=1)
    return means.double().numpy()
