"""Numbers that follow without a run: by counting, by the accountants, or by clipping a tiny model.

A file of claims names a function and the range of its ``value``; the file's text may show the other
numbers. They are kept on disk for the same code, since to import torch takes two seconds.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import itertools
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dpft
from dpft.runs.atomic import write_atomic

if TYPE_CHECKING:
    from torch import Tensor, nn

    from dpft.reproduce.figures.computed import Layer

Numbers = dict[str, Any]
Groups = Sequence[tuple[int, int]]

# The code and the packages that the numbers are computed with.
_SOURCES = ("privacy/**/*.py", "reproduce/claims/derived.py", "reproduce/figures/computed.py")
_PACKAGES = ("dp-accounting", "numpy", "scipy", "torch")


def numbers_of(function: str, arguments: Mapping[str, Any]) -> Numbers:
    """Return what the function of that name returns, now or in an earlier process."""
    key, known = json.dumps([function, arguments]), {}
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError, RuntimeError):
        known = dict(json.loads((cache_folder() / "claims.json").read_text())[_code()])
    if key not in known:
        known[key] = FUNCTIONS[function](**arguments)
        # A cache that cannot be written saves no time, and must not stop anything.
        with contextlib.suppress(OSError, RuntimeError):
            cache_folder().mkdir(parents=True, exist_ok=True)
            write_atomic(cache_folder() / "claims.json", json.dumps({_code(): known}))
    numbers: Numbers = known[key]
    return numbers


def cache_folder() -> Path:
    """Return ``$DPFT_CACHE_DIR``, else ``dpft`` in the user's cache folder."""
    if folder := os.environ.get("DPFT_CACHE_DIR"):
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "dpft")


@functools.cache
def _code() -> str:
    files = (x for pattern in _SOURCES for x in sorted(Path(dpft.__file__).parent.glob(pattern)))
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    return f"{digest} {' '.join(map(importlib.metadata.version, _PACKAGES))}"


def embedding_memory(length: int, matrices: int) -> Numbers:
    """GPT-2's formed gradient to Gram matrices of ``T^2`` numbers (Li et al. 2022, section 4.2)."""
    formed, held = 50_257 * 768, matrices * length**2  # vocabulary times width
    return {"value": formed / held, "formed": formed, "held": held}


def bell_numbers(layers: int) -> Numbers:
    """log10 of the ways to group layers (Bu et al. 2023, section 5), by the Bell triangle."""
    row = [1]
    for _ in range(layers - 1):
        row = list(itertools.accumulate(row, initial=row[-1]))
    return {"value": math.log10(row[-1]), "ways": row[-1]}


def clippings_not_nested(norm: float) -> Numbers:
    """Theorem 2 of Bu et al. 2023: gradients ``[3, 4]`` and ``[norm, 0]`` over two layers, R = 4.

    Clipping all layers together scales the first to norm 4. Layer-wise clipping needs the rest of
    its first part as first threshold, with which the second gradient differs by ``value``. The
    paper's second gradient has norm 6; the proof needs one that stays unclipped.
    """
    needed, together = 3.0 * 4.0 / math.hypot(3.0, 4.0), min(norm, 4.0)
    alone = min(norm, needed)
    return {"value": together - alone, "needed": needed, "alone": alone, "together": together}


def bound_rises_with_groups(xi: float) -> Numbers:
    """The factor ``(20 xi + sqrt(M)/5) M^(1/4)`` of Theorem 1 (Bu et al. 2023), by groups ``M``."""
    factors = [(20 * xi + math.sqrt(m) / 5) * m**0.25 for m in (1, 2, 12, 76, 149)]
    return {
        "value": min(more / fewer for fewer, more in itertools.pairwise(factors)),
        "factors": ", ".join(f"{factor:.3g}" for factor in factors),
    }


def vit_large_peaks(quantity: str, groups: str = "one group a layer") -> Numbers:
    """Peaks of ViT-large's memory (Bu et al. 2023, Equation 8 and section 6.1), by ``quantity``.

    ``formula``: the printed Equation 8 to a count with the groups' ends; ``first``: the peak of the
    group processed first to the highest; ``highest``: that to the peak without privacy; ``fall``:
    of the highest peaks from one group to one a layer, the largest ratio of one to the last.
    """
    from dpft.reproduce.figures import computed as figures

    layers = figures.vit(1024, 24)
    groupings: dict[str, Groups] = {"one group": ((0, len(layers)),)}
    groupings |= {
        f"{count} groups": figures.uniform(layers, count) for count in (2, 3, 4, 6, 12, 24)
    }
    groupings["one group a layer"] = figures.each(layers)
    heights = figures.peaks(layers, groupings[groups])
    if quantity == "formula":
        printed = max(peaks_as_printed(layers, groupings[groups]))
        return {"value": printed / max(heights), "counted": max(heights)}
    if quantity == "first":
        return {"value": heights[-1] / max(heights)}
    highest = {
        name: figures.peak(layers, ends) / figures.peak(layers, None)
        for name, ends in groupings.items()
    }
    if quantity == "highest":
        return {"value": highest[groups]}
    falls = itertools.pairwise(highest.values())
    listed = ", ".join(f"{height:.3f}" for height in highest.values())
    return {"value": max(more / fewer for fewer, more in falls), "peaks": listed}


def peaks_as_printed(layers: Sequence[Layer], groups: Groups) -> list[int]:
    """Return Equation 8: inputs below a group's last layer, output gradients between its ends."""
    return [
        sum(one.T * one.d for one in layers[: last - 1])
        + sum(one.T * one.p for one in layers[first + 1 : last - 1])
        for first, last in groups
    ]


def square_root_rule(k: int) -> Numbers:
    """The noise multiplier at ``q = 2^-k`` to ``c sqrt(q)`` (Li et al. 2022, Figure 6).

    ``c`` is the geometric mean of ``sigma / sqrt(q)`` from 2^-2, the largest rate that the figure
    shows, to 2^-7, where Tramèr and Boneh (2021) let the rule hold.
    """
    from dpft.reproduce.figures import computed as figures

    sigmas = {i: figures.least_noise(2.0**-i, figures.EPOCHS * 2**i) for i in {*range(2, 8), k}}
    c = math.exp(sum(math.log(sigmas[i] / math.sqrt(2.0**-i)) for i in range(2, 8)) / 6)
    rule, sigma = c * math.sqrt(2.0**-k), sigmas[k]
    return {"value": sigma / rule, "c": c, "rule": rule, "sigma": sigma}


def groups_and_guarantee(groups: int, quantity: str) -> Numbers:
    """A quantity of one budget over several groups to that over one (Bu et al. 2023, Table 5)."""
    return {"value": _guarantee(groups)[quantity] / _guarantee(1)[quantity]}


@functools.cache
def _guarantee(groups: int) -> Mapping[str, float]:
    from dpft.privacy import Mechanism

    mechanism = Mechanism.calibrate(
        dataset_size=42_061,
        batch_size=1024,
        steps=410,
        thresholds=(0.1 / math.sqrt(groups),) * groups,
        delta=1 / 84_122,
        target_epsilon=3.0,
    )
    return {
        "noise to sensitivity": mechanism.noise_multiplier,
        "sensitivity": mechanism.sensitivity,
        "epsilon": mechanism.rdp_after(410),
    }


def cost_of_quantiles(share: float) -> Numbers:
    """Noise on the gradients if a share of the budget goes to quantiles (He et al., Prop. 3.1)."""
    from dpft.privacy.quantiles import split_noise

    return {"value": split_noise(1.0, 100, budget=share)[0]}


def backward_passes(style: str) -> Numbers:
    """Count how often a batch's backward goes through the model, once the first was checked."""
    from dpft.privacy import make_clipper

    model, losses = _tiny_model()
    passes: list[Tensor] = []

    def watch(_module: nn.Module, _inputs: Any, output: Tensor) -> None:
        output.register_hook(passes.append)

    model[1].register_forward_hook(watch)
    clipper = make_clipper(model, style, threshold=None if style == "none" else 0.1)
    for _ in range(2):  # the first batch is also checked against autograd
        model.zero_grad()
        passes.clear()
        clipper.backward(losses())
    clipper.close()
    return {"value": len(passes)}


def scaled_loss(scale: float, scaled_threshold: bool) -> Numbers:
    """A scaled loss's clipped sum, scaled back, to the plain one: relative difference.

    With threshold CK it is K times the plain one. With the threshold left at C it is not (Li et al.
    2022, appendix T), and noise at ``sigma C`` would then be a different share of the signal.
    """
    plain = _clipped_sum(1.0, 0.1)
    scaled = _clipped_sum(scale, 0.1 * scale if scaled_threshold else 0.1) / scale
    return {"value": float((scaled - plain).norm() / plain.norm())}


def _clipped_sum(scale: float, threshold: float) -> Tensor:
    import torch

    from dpft.privacy import make_clipper

    model, losses = _tiny_model()
    clipper = make_clipper(model, "bk", threshold=threshold)
    clipper.backward(scale * losses())
    clipper.close()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def _tiny_model() -> tuple[nn.Sequential, Callable[[], Tensor]]:
    """Return two layers, and the losses of eight records; the same at every call."""
    import torch
    from torch import nn

    generator = torch.Generator().manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    x = torch.randn(8, 6, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 3, (8,), generator=generator)
    return model, lambda: nn.functional.cross_entropy(model(x), labels, reduction="none")


FUNCTIONS: Mapping[str, Callable[..., Numbers]] = {
    function.__name__: function
    for function in (
        *(embedding_memory, bell_numbers, clippings_not_nested, bound_rises_with_groups),
        *(vit_large_peaks, square_root_rule, groups_and_guarantee, cost_of_quantiles),
        *(backward_passes, scaled_loss),
    )
}
