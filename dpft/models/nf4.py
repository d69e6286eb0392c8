"""A frozen base in NF4, 4 bits a weight and a scale for each 64 of them (Dettmers et al. 2023).

bitsandbytes packs the weights and unpacks them. A layer multiplies by its unpacked weight, in
bfloat16, and keeps the packed one alone between forward and backward.
"""

import importlib.util
import logging
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers.pytorch_utils import Conv1D

from dpft.config.errors import ConfigError, ModelError
from dpft.models.architecture import in_head

_BLOCK = 64  # weights that share a scale

# On some CPUs it advises a further package, which is not used here.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)


def check_nf4(device: torch.device | None = None) -> None:
    """Raise ConfigError where no base can be in NF4; ``device`` is None if nothing is trained."""
    if device is not None and device.type != "cuda":
        raise ConfigError(
            f"model.dtype is nf4, which trains on a GPU alone, and the device is {device}; type "
            "model.dtype=bfloat16, or device=cuda on a machine that has one"
        )
    if importlib.util.find_spec("bitsandbytes") is None:
        raise ConfigError(
            "model.dtype is nf4, whose weights bitsandbytes packs, and it is not installed: type "
            "pip install 'dpft[nf4]'"
        )


class PackedLinear(nn.Module):
    """A frozen linear layer whose weight is in NF4."""

    def __init__(self, layer: nn.Linear | Conv1D) -> None:
        super().__init__()
        self.transposed = isinstance(layer, Conv1D)  # whether the layer keeps its weight so
        weight = layer.weight.detach().T if self.transposed else layer.weight.detach()
        self.out_features, self.in_features = weight.shape
        packed, scales = torch.ops.bitsandbytes.quantize_4bit(
            weight.contiguous(), _BLOCK, "nf4", torch.uint8
        )
        self.register_buffer("packed", packed)
        self.register_buffer("scales", scales)
        self.bias = layer.bias

    @property
    def weight(self) -> Tensor:
        """The weight that the layer multiplies by, ``(out, in)`` in bfloat16."""
        unpacked: Tensor = torch.ops.bitsandbytes.dequantize_4bit(
            self.packed,
            self.scales,
            _BLOCK,
            "nf4",
            (self.out_features, self.in_features),
            torch.bfloat16,
        )
        return unpacked

    def forward(self, x: Tensor) -> Tensor:
        """Map ``(..., in)`` to ``(..., out)``."""
        device, kind = x.device.type, x.dtype
        if torch.is_autocast_enabled(device):
            kind = torch.get_autocast_dtype(device)
        weight = self.weight.to(kind)
        place = weight.untyped_storage()._cdata

        # Autograd keeps the weight for the backward: it gets what unpacks it again.
        def kept(saved: Tensor) -> Any:
            own = saved.untyped_storage()._cdata == place
            return (saved.size(), saved.stride()) if own else saved

        def restored(kept: Any) -> Tensor:
            return kept if isinstance(kept, Tensor) else self.weight.to(kind).as_strided(*kept)

        with torch.autograd.graph.saved_tensors_hooks(kept, restored):
            return linear(x, weight, None if self.bias is None else self.bias.to(kind))

    def plain(self) -> nn.Module:
        """Return the layer with its unpacked weight."""
        sizes, weight = (self.in_features, self.out_features), self.weight
        with torch.device("meta"):
            layer: nn.Module = Conv1D(*sizes[::-1]) if self.transposed else nn.Linear(*sizes)
        layer.weight = nn.Parameter(weight.T.contiguous() if self.transposed else weight, False)
        layer.bias = self.bias
        return layer


def pack(model: nn.Module) -> None:
    """Pack the weights of the frozen linear layers in place, except those of head and embedding.

    Raises:
        ModelError: there is none.
    """
    import bitsandbytes  # noqa: F401  # which gives torch the operations

    base: Any = model
    if hasattr(model, "peft_config"):
        base = base.get_base_model()
    ends = [base.get_input_embeddings(), base.get_output_embeddings()]
    kept = {id(end.weight) for end in ends if end is not None}
    frozen = [
        (name, layer)
        for name, layer in base.named_modules()
        if type(layer) in (nn.Linear, Conv1D)  # others may multiply in their own way
        and not (layer.weight.requires_grad or id(layer.weight) in kept or in_head(base, name))
    ]
    if not frozen:
        raise ModelError(
            f"model.dtype is nf4, and {type(base).__name__} has no frozen linear layer to pack; "
            "type model.dtype=bfloat16"
        )
    for name, layer in frozen:
        base.set_submodule(name, PackedLinear(layer))


def unpack(model: nn.Module) -> None:
    """Undo `pack`, but for the rounding."""
    for name, layer in [*model.named_modules()]:
        if isinstance(layer, PackedLinear):
            model.set_submodule(name, layer.plain())


def count(model: nn.Module) -> int:
    """Return the number of a model's parameters, packed ones included."""
    packed = [m for m in model.modules() if isinstance(m, PackedLinear)]
    return sum(p.numel() for p in model.parameters()) + sum(
        m.in_features * m.out_features for m in packed
    )
