"""Reparametrised gradient perturbation: gradients of two thin carriers for each matrix.

Yu et al. 2021c, "Large scale private learning via low-rank reparametrization", algorithm 2.

A matrix ``W`` of shape ``(p, d)`` is written, anew at each step, as ``W = W_res + L R`` with
``L: (p, r)`` of orthonormal columns and ``R: (r, d)`` of orthonormal rows. Clipping and noise are
of the carriers ``L`` and ``R`` alone. From the noisy ``dL`` and ``dR`` the gradient of ``W``,
projected onto the carriers' spaces, is put together again, and the optimizer moves ``W``:

    dW = (dL) R + L (dR) - L L^T (dL) R

The carriers are a function of weights that were released already and of public randomness, so
that they cost no privacy.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from dpft.config.errors import ModelError
from dpft.config.schema import Adapt
from dpft.models.load import LoadedModel
from dpft.models.needs import Needs
from dpft.models.trained_part import has_new_head, own_head_parameters, transformer_blocks
from dpft.privacy import keys


class CarriedLinear(nn.Module):
    """A linear layer whose gradient passes through two thin carriers: ``(..., d)`` to ``(..., p)``.

    Its value is that of the layer within, exactly: the carriers' product is added and, with
    constants in their place, taken off again. Inputs get the gradient of the whole layer.

    Args:
        base_layer: the layer; its weight and bias are frozen.
        rank: ``r``; at most ``min(p, d)``.
        follow: what the carriers follow: the ``update`` since the start, or the ``weight`` itself.
    """

    start: Tensor | None

    def __init__(self, base_layer: nn.Linear | Conv1D, rank: int, follow: str) -> None:
        super().__init__()
        self.base_layer = base_layer.requires_grad_(False)
        self.transposed = isinstance(base_layer, Conv1D)
        p, d = self.weight.shape
        r = min(rank, p, d)
        like = {"device": self.weight.device, "dtype": self.weight.dtype}
        self.right = nn.Linear(d, r, bias=False, **like)
        self.left = nn.Linear(r, p, bias=False, **like)
        start = self.weight.detach().clone() if follow == "update" else None
        self.register_buffer("start", start, persistent=False)

    @property
    def weight(self) -> Tensor:
        """Return ``W``: ``(p, d)``, whichever way the layer keeps it."""
        return self.matrix.T if self.transposed else self.matrix

    @property
    def matrix(self) -> nn.Parameter:
        """Return the parameter itself, as the layer keeps it."""
        matrix = self.base_layer.weight
        assert isinstance(matrix, nn.Parameter)
        return matrix

    def forward(self, x: Tensor) -> Tensor:
        value: Tensor = self.base_layer(x)
        if not torch.is_grad_enabled():
            return value
        carried = self.left(self.right(x))
        constant = F.linear(F.linear(x, self.right.weight.detach()), self.left.weight.detach())
        output: Tensor = value + (carried - constant)
        return output

    @torch.no_grad()
    def begin(self, name: str, seed: int, step: int) -> None:
        """Take one power iteration from a random start, and drop gradients.

        Where there is nothing to follow, at the first step, the carriers are random.
        """
        followed = self.weight if self.start is None else self.weight - self.start
        public = keys.generator(keys.public_key(seed), "carriers", name, step)

        def draw(*shape: int) -> Tensor:
            return torch.from_numpy(public.standard_normal(shape)).to(followed)

        r = self.right.out_features
        p, d = followed.shape
        first, second = draw(d, r), draw(p, r)
        moved = bool(followed.any())
        left = torch.linalg.qr(followed @ first if moved else second)[0]
        right = torch.linalg.qr(followed.T @ left if moved else first)[0].T
        self.left.weight.copy_(left)
        self.right.weight.copy_(right)
        self.left.weight.grad = self.right.weight.grad = None

    @torch.no_grad()
    def transfer(self) -> None:
        """Turn the carriers' gradients into one of the weight, projected onto their spaces."""
        L, R = self.left.weight, self.right.weight
        dL, dR = L.grad, R.grad
        if dL is None or dR is None:
            self.matrix.grad = None
            return
        dW = dL @ R + L @ (dR - (L.T @ dL) @ R)
        self.matrix.grad = dW.T.contiguous() if self.transposed else dW


class LowRank:
    """The `Reparametrisation` of a model with `CarriedLinear` layers; its seed is public."""

    def __init__(self, model: nn.Module, seed: int) -> None:
        self._model = model
        self._seed = seed
        self._layers = {n: m for n, m in model.named_modules() if isinstance(m, CarriedLinear)}

    def moved(self) -> Mapping[str, nn.Parameter]:
        """Return the matrices, by their names in the plain model, and what is trained as usual."""
        layers = self._layers.values()
        carriers = {id(p) for x in layers for p in (x.left.weight, x.right.weight)}
        usual = {
            name: p
            for name, p in self._model.named_parameters()
            if p.requires_grad and id(p) not in carriers
        }
        return {f"{name}.weight": x.matrix for name, x in self._layers.items()} | usual

    def begin(self, step: int) -> None:
        """Derive the carriers from the weights as they are and from ``step``."""
        for name, layer in self._layers.items():
            layer.begin(name, self._seed, step)

    def transfer(self) -> None:
        """Give each matrix the gradient that its carriers represent."""
        for layer in self._layers.values():
            layer.transfer()

    @contextmanager
    def plain(self) -> Iterator[None]:
        """Give the model its own layers again, within this context."""
        try:
            for name, layer in self._layers.items():
                self._model.set_submodule(name, layer.base_layer)
            yield
        finally:
            for name, layer in self._layers.items():
                self._model.set_submodule(name, layer)


def with_rgp(loaded: LoadedModel, settings: Adapt, needs: Needs, seed: int) -> LoadedModel:
    """Add carriers to every matrix of the model's transformer blocks.

    A new classification head is trained as usual; embeddings, norms, biases and a language
    model's head are frozen, as in the code that Yu et al. published.
    """
    model = loaded.model
    blocks = transformer_blocks(model)
    if not blocks:
        raise ModelError(
            f"adapt=rgp adapts the matrices of transformer blocks, and {type(model).__name__} has "
            "none; type adapt=full"
        )
    assert settings.rank is not None
    assert settings.follow is not None
    head = own_head_parameters(model, needs) if has_new_head(needs) else []
    model.requires_grad_(False)
    for parameter in head:
        parameter.requires_grad_(True)
    matrices = {
        f"{block}.{name}": module
        for block, holder in blocks.items()
        for name, module in holder.named_modules()
        if isinstance(module, nn.Linear | Conv1D)
    }
    for name, module in matrices.items():
        model.set_submodule(name, CarriedLinear(module, settings.rank, settings.follow))
    lowrank = LowRank(model, seed)
    lowrank.begin(0)
    return dataclasses.replace(loaded, reparametrisation=lowrank)
