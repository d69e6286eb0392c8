"""Layer rules, and the uses that they return: per-example gradients that are not formed.

A layer's forward call is captured as its input ``a`` and the gradient ``g`` of the summed losses
with respect to its output. For record ``i`` the gradient of a linear weight is
``G_i = sum_t g_it a_it^T`` (Li et al. 2022, eq. 1). A `Rule` turns the call into a `Use` for each
trainable parameter: its per-example gradient, of which squared norm (eq. 2) and weighted sums over
records can be had without forming it.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from dpft.privacy.precision import bmm, in_halves

# A squared norm smaller than this many rounding errors of the terms it was summed from is not
# trusted: it could understate the norm, and clipping would let too much through.
_TRUSTED_ROUNDINGS = 1e3

# Rounding errors of its terms, by which a sum that cancels may be off.
_ROUNDINGS = 8


class UnsupportedLayerError(ValueError):
    """A trainable parameter, or a use of one, cannot be clipped exactly. It is never skipped."""


class SquaredNorm(NamedTuple):
    """Squared norms ``(B,)``, and ``scale`` ``(B,)``: the size of the terms that were summed.

    ``scale`` is what the value would be had nothing cancelled, an upper bound. Where the value is
    a tiny fraction of it, the digits that are left are rounding errors. ``rounding`` ``(B,)`` is
    the squared norm of what a sum in half precision may add (`uses`); None: none is formed so.
    """

    value: Tensor
    scale: Tensor
    rounding: Tensor | None = None

    @property
    def exact(self) -> bool:
        """True if the value is a sum of squares, in which nothing can cancel."""
        return self.value is self.scale

    def trusted(self) -> Tensor:
        """Return where the value is right to about a percent, bool ``(B,)``; NaN never is."""
        smallest = _TRUSTED_ROUNDINGS * torch.finfo(self.value.dtype).eps
        return self.value > smallest * self.scale

    def sound(self) -> Tensor:
        """Return where the value is finite, and trusted or of nothing at all; bool ``(B,)``."""
        return (self.trusted() | (self.scale == 0)) & (self.value < math.inf)

    def certain(self) -> SquaredNorm:
        """Add what rounding may have taken from the value."""
        if self.exact:
            return self
        lost = _ROUNDINGS * torch.finfo(self.value.dtype).eps * self.scale
        return self._replace(value=self.value.clamp(min=0) + lost)

    def allowing(self) -> Tensor:
        """Return the squared norm that a record has at most once it was summed."""
        if self.rounding is None:
            return self.value
        return (self.value.clamp(min=0).sqrt() + self.rounding.sqrt()).square()


def floor(scale: Tensor) -> Tensor:
    """Return what rounding may leave of a squared norm whose terms, ``scale``, cancel in a sum."""
    return (_ROUNDINGS * torch.finfo(scale.dtype).eps) ** 2 * scale


# Above this many multiplications one product per record is faster on a CPU than a batched one,
# whose threads share out the records (measured in docs/explanation/performance.md).
_LOOPED_GRAM = 2**24


def batched_gram(x: Tensor) -> Tensor:
    """Return ``x x^T`` of each record: ``(B, T, d)`` to ``(B, T, T)``."""
    batch, length, width = x.shape
    looped = x.device.type == "cpu" and length * length * width >= _LOOPED_GRAM
    if looped and not in_halves(x, x):
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        gram = wide.new_empty(batch, length, length)
        for i in range(batch):
            torch.mm(wide[i], wide[i].t(), out=gram[i])
        return gram
    return bmm(x, x.transpose(1, 2))


class Use(ABC):
    """The contribution of one call to one parameter, for each of ``B`` records."""

    @abstractmethod
    def squared_norm(self) -> SquaredNorm:
        """Return the squared Frobenius norm of each record's gradient."""

    def bound(self) -> Tensor:
        """Return the squared norm had nothing cancelled, ``(B,)``: ``scale`` of `SquaredNorm`."""
        return self.squared_norm().scale

    def rounding(self) -> Tensor | None:
        """Return that of `SquaredNorm`, from what is known without a norm."""
        return None

    @abstractmethod
    def rows(self, index: Tensor) -> Use:
        """Return the use of the records that ``index`` (int64) picks."""

    @abstractmethod
    def per_example(self) -> Tensor:
        """Form the gradients themselves, shape ``(B, *parameter.shape)``."""

    def add_per_example(self, out: Tensor) -> None:
        """Add the same to ``out``."""
        out += self.per_example()

    @abstractmethod
    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return ``sum_i weights[i] G_i``, of the parameter's shape; weights ``(B,)``."""

    def last_sum(self, weights: Tensor) -> Tensor:
        """Return the same as `weighted_sum`, after which the use is not used again."""
        return self.weighted_sum(weights)

    def add_weighted_sum(self, weights: Tensor, out: Tensor) -> None:
        """Add the same to ``out``."""
        out += self.weighted_sum(weights)

    @abstractmethod
    def without(self, dropped: Tensor) -> Use:
        """Return the use in which ``dropped`` records, bool ``(B,)``, contribute exactly zero.

        A weight of 0 does not silence a record that is not finite: zero times infinity is not zero.
        """

    def cheapest_form(self, transient: bool) -> Use:
        """Return the form that is cheapest for a norm now and a weighted sum later.

        With ``transient`` the sum follows at once and frees what is formed for the norm; otherwise
        it is held until the whole backward is done.
        """
        return self


class Rule(ABC):
    """A description of how one type of layer uses its parameters; stateless.

    To support a new layer, write a subclass and pass an object of it as
    ``make_clipper(..., rules={"your.module.ClassName": YourRule()})``.
    """

    sums_over_positions = False
    """True if all dimensions between the first and the last are positions of one record."""

    one_row_for_all = False
    """True if the layer's output may be one row ``(1, ...)`` that all records share."""

    keeps_halves = False
    """True if `uses` may be given ``a`` and ``g`` in bfloat16; otherwise they come in float32."""

    @abstractmethod
    def uses(self, module: nn.Module, a: Tensor | None, g: Tensor) -> dict[str, Use]:
        """Return one use per *trainable* parameter, by its local name (``"weight"``).

        Args:
            module: the layer.
            a: its first input; None if `needs_input` said that it is not needed.
            g: gradient of the summed losses with respect to its output, of the output's shape.
        """

    def needs_input(self, module: nn.Module) -> bool:
        """Return whether `uses` needs the layer's input; otherwise it is not kept."""
        return True


Changed = tuple[tuple[Any, ...], dict[str, Any]]
Change = Callable[[Any, tuple[Any, ...], dict[str, Any], int], Changed | None]
"""Maps a module, its call's arguments and the number of records to other arguments, or None."""


class Family(Protocol):
    """The clipping rules for the layers of a library. A module with these names is one.

    Attributes:
        RULES: rules by qualified class name.
    """

    @property
    def RULES(self) -> Mapping[str, Rule]: ...

    def copied(self, cls: type[nn.Module]) -> str | None:
        """Return the qualified name of the class in `RULES` that a class is a copy of, or None."""

    def for_records(self, module: nn.Module) -> Change | None:
        """Return what gives a module arguments with a row for each record; None: it has them."""


def trains(module: nn.Module, name: str) -> bool:
    """Return whether ``module`` has a parameter of that name that requires gradients."""
    parameter = getattr(module, name, None)
    return parameter is not None and bool(parameter.requires_grad)


def zero_rows(tensor: Tensor, dropped: Tensor) -> Tensor:
    """Set the rows where ``dropped`` (bool, ``(B,)``) to zero."""
    return tensor.masked_fill(dropped.view(-1, *[1] * (tensor.dim() - 1)), 0)


def sequence(tensor: Tensor) -> Tensor:
    """View ``(B, ..., d)`` as ``(B, T, d)``: all middle dimensions are positions of one record."""
    return tensor.flatten(1, -2) if tensor.dim() > 2 else tensor.unsqueeze(1)
