"""Rules for the layers of torch: linear layers, embeddings, normalisation, and convolutions.

The scale and shift of a normalisation act elementwise on a normalised input: with
``y = weight * n(a) + bias`` the gradient of one record is ``sum_t n(a)_it g_it`` for the scale and
``sum_t g_it`` for the shift, over the record's positions ``t``. Both are as small as the parameter
and are held. Each layer normalises within one record; layers whose statistics span the batch have
no rule.

**Convolutions**: ``G_i = sum_t g_it p_it^T`` over patches ``p_it`` of the input.

A convolution is a linear layer on the patches its kernel sees (Rochette et al. 2019; Bu et al.
2022), so all that `MatrixUse` does could be done to unfolded inputs, which are as many times larger
as the kernel has places. Nothing here unfolds where that is avoidable:

- Gradients are formed by one ordinary weight-gradient call in which each record is a group.
- The Gram matrix of the patches is a sum of shifted windows of the Gram matrix of the *pixels*.
- The weighted sum over records is one ordinary weight-gradient call on scaled gradients.

Where an image is large compared with the kernel, the formed gradients are smaller than ``(a, g)``
or not much larger. They cost one weight-gradient computation, which ordinary training pays too, and
serve both norm and sum. Where it is small, the Gram form costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpft.privacy.clipping.rules.interface import (
    Rule,
    SquaredNorm,
    UnsupportedLayerError,
    Use,
    batched_gram,
    floor,
    sequence,
    trains,
    zero_rows,
)
from dpft.privacy.clipping.rules.uses import (
    MAX_TRANSIENT_NUMEL,
    MULTIPLICATIONS_PER_NUMBER,
    PIECE,
    DirectUse,
    EmbeddingUse,
    Form,
    MatrixUse,
    squared_rows,
    uncancelled,
)


class LinearRule(Rule):
    """``nn.Linear``: weight ``(p, d)``, input ``(B, ..., d)``, output gradient ``(B, ..., p)``.

    With ``transposed`` the weight is stored as ``(d, p)``: GPT-2's ``Conv1D``.
    """

    sums_over_positions = True
    keeps_halves = True

    def __init__(self, transposed: bool = False) -> None:
        self.transposed = transposed

    def uses(self, module: nn.Module, a: Tensor | None, g: Tensor) -> dict[str, Use]:
        g = sequence(g)
        uses: dict[str, Use] = {}
        if trains(module, "weight"):
            assert a is not None
            uses["weight"] = MatrixUse(sequence(a), g, self.transposed)
        if trains(module, "bias"):
            uses["bias"] = DirectUse(g.sum(1, dtype=torch.promote_types(g.dtype, torch.float32)))
        return uses

    def needs_input(self, module: nn.Module) -> bool:
        return trains(module, "weight")


class EmbeddingRule(Rule):
    """``nn.Embedding``: indices ``(B, ...)``, output gradient ``(B, ..., d)``."""

    sums_over_positions = True

    def uses(self, module: nn.Module, a: Tensor | None, g: Tensor) -> dict[str, Use]:
        assert isinstance(module, nn.Embedding)
        assert a is not None
        if module.max_norm is not None or module.scale_grad_by_freq or module.sparse:
            raise UnsupportedLayerError(
                "Embedding with max_norm, scale_grad_by_freq or sparse=True has gradients that "
                "depend on the whole batch; expected all three at their defaults"
            )
        ids, g = a.flatten(1), g.flatten(1, -2)
        if module.padding_idx is not None:
            g = g.masked_fill((ids == module.padding_idx)[:, :, None], 0)
        use = EmbeddingUse(ids, g, module.num_embeddings)
        # No larger than g: a table of relative positions is asked for all pairs of positions.
        small = module.num_embeddings <= ids.shape[1]
        return {"weight": DirectUse(use.per_example(), owned=True) if small else use}


class NormRule(Rule):
    """The trainable ones of ``weight`` and ``bias``, from the normalised input.

    Input and output gradient are ``(B, ..., *weight.shape)``. ``normalised`` returns what the layer
    multiplies by its weight, a new tensor of the shape of its input.
    """

    sums_over_positions = True

    def __init__(self, normalised: Callable[[nn.Module, Tensor], Tensor]) -> None:
        self._normalised = normalised

    def uses(self, module: nn.Module, a: Tensor | None, g: Tensor) -> dict[str, Use]:
        assert isinstance(module.weight, Tensor)
        positions = tuple(range(1, g.dim() - module.weight.dim()))
        uses: dict[str, Use] = {}
        if trains(module, "weight"):
            assert a is not None
            product = self._normalised(module, a)
            # In place but for mixed precision, where the product has the wider of the two types.
            product = product.mul_(g) if product.dtype == g.dtype else product * g
            uses["weight"] = DirectUse(product.sum(positions) if positions else product)
        if trains(module, "bias"):
            uses["bias"] = DirectUse(g.sum(positions) if positions else g.clone())
        return uses

    def needs_input(self, module: nn.Module) -> bool:
        return trains(module, "weight")


def layer_norm(module: nn.Module, a: Tensor) -> Tensor:
    """Normalise as ``nn.LayerNorm``."""
    assert isinstance(module, nn.LayerNorm)
    return F.layer_norm(a, module.normalized_shape, eps=module.eps)


def rms_norm(module: nn.Module, a: Tensor) -> Tensor:
    """Normalise as ``nn.RMSNorm`` (Zhang & Sennrich 2019): without mean and shift."""
    assert isinstance(module, nn.RMSNorm)
    return F.rms_norm(a, module.normalized_shape, eps=module.eps)


class GroupNormRule(Rule):
    """``nn.GroupNorm`` (Wu & He 2018): input and output gradient ``(B, C, ...)``."""

    def uses(self, module: nn.Module, a: Tensor | None, g: Tensor) -> dict[str, Use]:
        weight, bias = trains(module, "weight"), trains(module, "bias")
        uses: dict[str, Use] = {}
        if weight:
            assert a is not None
            assert isinstance(module, nn.GroupNorm)
            of_weight, of_bias = _by_channel(a, g, module.num_groups, module.eps)
            uses["weight"] = DirectUse(of_weight)
        elif bias:
            positions = tuple(range(2, g.dim()))
            of_bias = g.sum(positions) if positions else g.clone()
        if bias:
            uses["bias"] = DirectUse(of_bias)
        return uses

    def needs_input(self, module: nn.Module) -> bool:
        return trains(module, "weight")


def _by_channel(a: Tensor, g: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor]:
    """Return ``sum_t n(a)_it g_it`` and ``sum_t g_it``, each ``(B, C)``.

    Taken from PyTorch's own backward, by giving it the records as further channels of a single
    record: on two cores 1.7 ms for 32 records of 64 channels of 32 by 32, where normalising and
    multiplying takes 4.0.
    """
    batch, channels = a.shape[:2]
    size = a[0, 0].numel()
    a = a.contiguous()
    _, mean, rstd = torch.native_group_norm(a, None, None, batch, channels, size, groups, eps)
    _, of_weight, of_bias = torch.ops.aten.native_group_norm_backward(
        g.contiguous().view(1, -1, size),  # read as such: an expanded gradient has other strides
        a.view(1, -1, size),
        mean.view(1, -1),
        rstd.view(1, -1),
        a.new_ones(batch * channels),
        1,
        batch * channels,
        size,
        batch * groups,
        (False, True, True),
    )
    return of_weight.view(batch, channels), of_bias.view(batch, channels)


Pair = tuple[int, int]

# Formed gradients are worth holding up to this many times the memory of what they replace: for
# 128 channels of 16 by 16 pixels they take 2.25 times as much and save a weight-gradient call.
_WORTH_HOLDING = 4

# From this many positions and input channels on, a convolution with a group for each record forms
# gradients faster than unfolding does; with all records in one call its temporaries outgrow the
# caches: on two cores, of 32 records with 64 channels of 32 by 32, 26 ms in calls of 16 records, 32
# in one call and 76 by unfolding; with 256 channels of 8 by 8, 172, 158 and 68.
_GROUPED_POSITIONS = 256
_GROUPED_CHANNELS = 8
_GROUPED_NUMBERS = 5 * 2**19


@dataclass(frozen=True)
class ConvUse(Use):
    """``G_i = sum_t g_it p_it^T``: ``a`` is ``(B, c, H, W)``, ``g`` is ``(B, p, H', W')``.

    The weight is ``(p, c / groups, kh, kw)``. Padding is by zeros.
    """

    a: Tensor
    g: Tensor
    shape: torch.Size
    stride: Pair
    padding: Pair
    dilation: Pair
    groups: int

    @property
    def kernel(self) -> Pair:
        return self.shape[2], self.shape[3]

    @property
    def positions(self) -> int:
        return self.g.shape[2] * self.g.shape[3]

    def squared_norm(self) -> SquaredNorm:
        chosen = self.chosen(transient=True)
        if chosen is Form.GRAM:
            a, g = self._patch_gram(), batched_gram(self.by_group(self.g).transpose(1, 2))
            batch = self.a.shape[0]
            value = (a * g).sum((1, 2)).view(batch, self.groups).sum(1)
            return SquaredNorm(value, uncancelled(a, g).view(batch, self.groups).sum(1))
        value = torch.cat([squared_rows(piece.per_example()) for piece in self._pieces(PIECE)])
        # The sum is formed from a and g, in another order: what cancels here may not cancel there.
        value = torch.maximum(value, floor(self.bound()))
        return SquaredNorm(value, value)

    def bound(self) -> Tensor:
        pixels = torch.linalg.vector_norm(self._by_pixel(), dim=1).square()
        patches = self._patch_sums(pixels).sqrt()
        terms: Tensor = (patches * torch.linalg.vector_norm(self.by_group(self.g), dim=1)).sum(1)
        return terms.square().view(-1, self.groups).sum(1)

    def rows(self, index: Tensor) -> ConvUse:
        return replace(self, a=self.a[index], g=self.g[index])

    def per_example(self) -> Tensor:
        batch, channels = self.a.shape[:2]
        wide = channels // self.groups >= _GROUPED_CHANNELS
        if wide and self.positions >= _GROUPED_POSITIONS and self.a.device.type == "cpu":
            calls = [
                self._weight_gradient(
                    piece.a.reshape(1, -1, *self.a.shape[2:]),
                    piece.g.reshape(1, -1, *self.g.shape[2:]),
                    len(piece.a),
                ).view(-1, *self.shape)
                for piece in self._pieces(_GROUPED_NUMBERS)
            ]
            return calls[0] if len(calls) == 1 else torch.cat(calls)
        formed = torch.bmm(self.by_group(self.g), self._unfolded().transpose(1, 2))
        return formed.view(batch, *self.shape)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        scale = weights[:, None, None, None]
        # Scaling the smaller one moves less memory; the product is the same.
        if self.a.numel() < self.g.numel():
            formed = self._weight_gradient(self.a * scale, self.g, 1)
        else:
            formed = self._weight_gradient(self.a, self.g * scale, 1)
        return formed.view(self.shape)

    def convolve(self, weight: Tensor) -> Tensor:
        """Return the convolution's output for the filters ``weight`` ``(p, ...)``, without bias."""
        kernel = weight.reshape(len(weight), -1, *self.kernel)
        return F.conv2d(self.a, kernel, None, self.stride, self.padding, self.dilation, self.groups)

    def filter_sums(self) -> Tensor:
        """Return the sum of the numbers of each filter's gradient, ``(B, p)``."""
        patches = self._patch_sums(self._by_pixel().sum(1))
        sums = torch.bmm(self.by_group(self.g), patches[:, :, None])
        return sums.view(len(self.g), -1)

    def without(self, dropped: Tensor) -> ConvUse:
        return replace(self, a=zero_rows(self.a, dropped), g=zero_rows(self.g, dropped))

    def cheapest_form(self, transient: bool) -> Use:
        keep = self.chosen(transient) is Form.KEEP
        return DirectUse(self.per_example(), owned=True) if keep else self

    def chosen(self, transient: bool) -> Form:
        """Return the cheapest form, by multiplications, as `uses.choose_form` does for matrices."""
        batch, length, gradient = self.a.shape[0], self.positions, self.shape.numel()
        if batch == 0:
            return Form.DROP
        held = (self.a.numel() + self.g.numel()) // batch
        gram_time = min(self._pixel_time(), self._unfold_time()) + length * length * self.shape[0]
        keep_time = 3 * MULTIPLICATIONS_PER_NUMBER * gradient
        drop_time = length * gradient + MULTIPLICATIONS_PER_NUMBER * gradient
        times = {Form.DROP: drop_time}
        small = gradient <= _WORTH_HOLDING * held
        if batch == 1 or small or (transient and batch * gradient <= MAX_TRANSIENT_NUMEL):
            times[Form.KEEP] = keep_time if batch > 1 else 0
        if batch * self.groups * 2 * length * length <= max(MAX_TRANSIENT_NUMEL, batch * gradient):
            times[Form.GRAM] = gram_time
        return min(times, key=times.__getitem__)

    def _weight_gradient(self, a: Tensor, g: Tensor, copies: int) -> Tensor:
        """Return the gradient of ``copies`` independent weights, side by side in the channels."""
        groups = copies * self.groups
        geometry = (self.stride, self.padding, self.dilation, False, (0, 0), groups)
        # Of the weight only the shape is used.
        weight = a.new_empty(copies * self.shape[0], self.shape[1], *self.kernel)
        gradients = torch.ops.aten.convolution_backward(
            g, a, weight, None, *geometry, (False, True, False)
        )
        formed: Tensor = gradients[1]
        return formed

    def by_group(self, x: Tensor) -> Tensor:
        """View ``(B, channels, H, W)`` as ``(B groups, channels / groups, H W)``."""
        return x.reshape(x.shape[0] * self.groups, -1, x.shape[2] * x.shape[3])

    def _by_pixel(self) -> Tensor:
        """View ``a`` as ``(B groups, c / groups, H, W)``."""
        return self.a.reshape(len(self.a) * self.groups, -1, *self.a.shape[2:])

    def _patch_sums(self, pixels: Tensor) -> Tensor:
        """Return the sum over each patch of ``pixels`` ``(B groups, H, W)``: ``(B groups, T)``."""
        return self._patches(pixels[:, None]).sum((1, 2, 3)).flatten(1)

    def _unfolded(self) -> Tensor:
        """Return the patches, ``(B groups, c kh kw / groups, T)``.

        ``F.unfold`` gives the same and takes up to six times as long on a CPU.
        """
        return self._patches(self.a).reshape(len(self.a) * self.groups, -1, self.positions)

    def _patches(self, pixels: Tensor) -> Tensor:
        """View the patches of padded ``pixels`` ``(B, c, H, W)`` as ``(B, c, kh, kw, H', W')``."""
        (py, px), (sy, sx), (dy, dx) = self.padding, self.stride, self.dilation
        padded = F.pad(pixels, (px, px, py, py)).contiguous()
        record, channel, row, column = padded.stride()
        return padded.as_strided(
            (*pixels.shape[:2], *self.kernel, *self.g.shape[2:]),
            (record, channel, dy * row, dx * column, sy * row, sx * column),
        )

    def _patch_gram(self) -> Tensor:
        """Return inner products of the patches, ``(B groups, T, T)``.

        Patches at ``t`` and ``s`` have the product ``sum_k <pixel(t + k), pixel(s + k)>`` over the
        places ``k`` of the kernel: windows of the pixels' Gram matrix. With a stride, the pixels
        that one place sees are on a separate grid, and only a grid's pixels ever meet.
        """
        if self._unfold_time() <= self._pixel_time():
            return batched_gram(self._unfolded().transpose(1, 2))
        (py, px), (sy, sx), (h, w) = self.padding, self.stride, self.g.shape[2:]
        pixels = F.pad(self.a, (px, px, py, py))
        total = pixels.new_zeros(len(pixels) * self.groups, h, w, h, w)
        for (top, left), shifts in self._grids().items():
            grid = pixels[:, :, top::sy, left::sx]
            rows, columns = grid.shape[2:]
            gram = batched_gram(self.by_group(grid).transpose(1, 2))
            gram = gram.view(-1, rows, columns, rows, columns)
            for y, x in shifts:
                total += gram[:, y : y + h, x : x + w, y : y + h, x : x + w]
        return total.view(-1, h * w, h * w)

    def _grids(self) -> dict[Pair, list[Pair]]:
        """Return, by the corner of each grid of pixels, where on it the kernel's places begin."""
        grids: dict[Pair, list[Pair]] = {}
        for ky, kx in product(*map(range, self.kernel)):
            (y, top), (x, left) = (
                divmod(k * d, s)
                for k, d, s in zip((ky, kx), self.dilation, self.stride, strict=True)
            )
            grids.setdefault((top, left), []).append((y, x))
        return grids

    def _pixel_time(self) -> int:
        """Return the multiplications of `_patch_gram` by pixels, per record."""
        pixels = 1
        for size, pad, stride in zip(self.a.shape[2:], self.padding, self.stride, strict=True):
            pixels *= -(-(size + 2 * pad) // stride)
        moved = self.shape[2:].numel() * self.positions**2 * self.groups
        grids = len(self._grids())
        return grids * pixels**2 * self.a.shape[1] + MULTIPLICATIONS_PER_NUMBER * moved

    def _unfold_time(self) -> int:
        """Return the multiplications of `_patch_gram` by unfolding, per record."""
        patches = self.positions * self.a.shape[1] * self.shape[2:].numel()
        return patches * (self.positions + MULTIPLICATIONS_PER_NUMBER)

    def _pieces(self, numbers: int) -> Iterator[ConvUse]:
        """Cut the batch into nearly equal parts whose gradients have about so many numbers."""
        parts = -(-len(self.a) * self.shape.numel() // numbers)
        for a, g in zip(self.a.tensor_split(parts), self.g.tensor_split(parts), strict=True):
            if len(a):
                yield replace(self, a=a, g=g)


class ConvRule(Rule):
    """``nn.Conv2d``: input ``(B, c, H, W)``, output gradient ``(B, p, H', W')``.

    Any stride, padding and padding mode, dilation and groups.
    """

    def uses(self, module: nn.Module, a: Tensor | None, g: Tensor) -> dict[str, Use]:
        assert isinstance(module, nn.Conv2d)
        if g.dim() != module.weight.dim():
            raise UnsupportedLayerError(
                f"{type(module).__name__} gave an output of {g.dim()} dimensions; expected "
                f"{module.weight.dim()}, of which the first is the batch's: a call without batch "
                "dimension has no row for each record"
            )
        uses: dict[str, Use] = {}
        if trains(module, "weight"):
            assert a is not None
            uses["weight"] = self.weight_use(module, conv_use(module, a, g))
        if trains(module, "bias"):
            uses["bias"] = DirectUse(g.flatten(2).sum(2))
        return uses

    def weight_use(self, module: nn.Module, use: ConvUse) -> Use:
        """Return the use of the stored weight, given that of the weight that was convolved."""
        return use

    def needs_input(self, module: nn.Module) -> bool:
        return trains(module, "weight")


def conv_use(module: nn.Conv2d, a: Tensor, g: Tensor) -> ConvUse:
    """Return the use of the weight in a call of ``module``, its padding reduced to equal zeros."""
    # Amounts as for F.pad, the last dimension's two sides first.
    amounts = module._reversed_padding_repeated_twice
    before, after = amounts[::2], amounts[1::2]
    padding = (before[1], before[0])
    mode = "constant" if module.padding_mode == "zeros" else module.padding_mode
    if mode != "constant" or before != after:  # unequal: "same", and a kernel of even extent
        a = F.pad(a, amounts, mode=mode)
        padding = (0, 0)
    (sy, sx), (dy, dx) = module.stride, module.dilation
    return ConvUse(a, g, module.weight.shape, (sy, sx), padding, (dy, dx), module.groups)
