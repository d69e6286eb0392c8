"""The benchmark's models, their inputs and losses, and one step of a clipping style or of Opacus.

Models have random weights and are built offline, without dropout and key-value cache. A step is
forward, backward and clipping, without noise and optimizer.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpft.config.folder import settings_of
from dpft.privacy.spec import Partition
from dpft.privacy.token_losses import IGNORED, token_losses

_SHORT = 8  # tokens of a record where their number does not matter
# Sizes of SmolLM2-135M; those of the others are known to `dpft.models`.
_SMOLLM2 = {
    **{"vocab_size": 49152, "hidden_size": 576, "num_hidden_layers": 30},
    **{"num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 1536},
    **{"max_position_embeddings": 8192, "rms_norm_eps": 1e-5},
}
Inputs = Mapping[str, Tensor]


@dataclass(frozen=True)
class Workload:
    """A model in training mode with everything that a step needs.

    ``inputs(batch)`` draws the same batch every time, with ``short=True`` one of few tokens.
    ``blocks`` is the number of repeated blocks.
    """

    model: nn.Module
    inputs: Callable[..., Inputs]
    blocks: int


@dataclass(frozen=True)
class Step:
    """A variant, ready to run.

    ``run`` is timed, ``reset`` clears all gradients, ``gradients`` are what `run` left.
    """

    run: Callable[[Inputs], None]
    reset: Callable[[], None]
    gradients: Callable[[], Iterable[Tensor]]


def build(
    name: str, *, length: int | None, untied: bool, seed: int, device: str, dtype: torch.dtype
) -> Workload:
    """Build a model of the catalog, with weights and inputs that follow from the seed."""
    torch.manual_seed(seed)
    with torch.device(device):
        model, blocks = _build_model(name, untied)
    model = model.to(device=device, dtype=dtype).train()

    def inputs(batch: int, *, short: bool = False) -> Inputs:
        drawn = torch.Generator().manual_seed(seed)
        if length is None:
            side = model.config.image_size
            images = torch.randn(batch, 3, side, side, generator=drawn)
            labels = torch.randint(model.config.num_labels, (batch,), generator=drawn)
            return {"images": images.to(device, dtype), "labels": labels.to(device)}
        tokens = min(length, _SHORT) if short else length
        ids = torch.randint(5, model.config.vocab_size, (batch, tokens), generator=drawn)
        found = {"input_ids": ids}
        if name == "roberta-base":
            found["labels"] = torch.randint(model.config.num_labels, (batch,), generator=drawn)
        else:
            # One row per record: positions that are broadcast over the batch hide whose gradient
            # is whose. The last token predicts nothing.
            found["position_ids"] = torch.arange(tokens).repeat(batch, 1)
            found["labels"] = torch.cat([ids[:, 1:], torch.full((batch, 1), IGNORED)], dim=1)
        return {key: value.to(device) for key, value in found.items()}

    return Workload(model, inputs, blocks)


def _build_model(name: str, untied: bool) -> tuple[Any, int]:
    """Return a model and the number of its repeated blocks."""
    import transformers as hf

    from dpft.models.architecture import draw, suit
    from dpft.models.families import sized
    from dpft.models.load import BUNDLED
    from dpft.models.needs import Needs

    auto: Any = hf.AutoModelForCausalLM
    needs = Needs("causal")
    if name == "roberta-base":
        auto, needs = hf.AutoModelForSequenceClassification, Needs("classifier", ("0", "1"))
    elif name.startswith(("vit", "wrn")):
        auto, needs = hf.AutoModelForImageClassification, Needs("image", tuple("0123456789"))
    path = str((settings_of("model", name) or {})["path"])
    if name == "smollm2-135m":
        config: Any = hf.AutoConfig.for_model("llama", **_SMOLLM2)
    elif path.startswith("bundled:"):
        config = hf.AutoConfig.from_pretrained(str(BUNDLED / name), trust_remote_code=False)
    else:
        config = sized(path)
    suit(config, needs, 0.0)
    config.tie_word_embeddings = not untied
    # WRN16-4 has three stages of two blocks each: 16 = 6 * 2 + 4 layers.
    return draw(auto, config), getattr(config, "num_hidden_layers", 6)


def losses(
    workload: Workload, model: nn.Module, inputs: Inputs, dtype: str, own: bool = False
) -> Tensor:
    """Return losses of shape ``(B,)``: of classes, or the mean over a record's labelled tokens.

    Args:
        workload: whose model it is.
        model: the same, or a peer's wrapper of it.
        inputs: of a batch.
        dtype: ``bfloat16`` is autocast.
        own: compute losses of tokens as dpft's runs do, not by PyTorch's functions.
    """

    def of(inputs: Inputs) -> Tensor:
        labels = inputs["labels"]
        if "images" in inputs:
            return F.cross_entropy(model(inputs["images"]).logits, labels, reduction="none")
        shown: dict[str, Any] = {key: x for key, x in inputs.items() if key != "labels"}
        if "position_ids" in inputs:
            shown["use_cache"] = False
        logits = model(**shown).logits
        if labels.dim() == 1:
            return F.cross_entropy(logits, labels, reduction="none")
        if own:
            of_tokens = token_losses(logits, labels)
        else:  # (B, T, V) to (B, T)
            flat = F.cross_entropy(
                logits.flatten(0, 1), labels.flatten(), reduction="none", ignore_index=IGNORED
            )
            of_tokens = flat.view_as(labels)
        return of_tokens.sum(1) / (labels != IGNORED).sum(1)

    if dtype != "bfloat16":
        return of(inputs)
    with torch.autocast(next(iter(inputs.values())).device.type, dtype=torch.bfloat16):
        return of(inputs).float()


def style_step(name: str, workload: Workload, threshold: float, dtype: str) -> Step:
    """Return a step of a style as typed, such as ``uniform:6``; of ``none`` by PyTorch's losses."""
    from dpft.privacy import make_clipper

    style, _, number = name.partition(":")
    options: dict[str, Any] = {} if style == "none" else {"threshold": threshold}
    if style == "uniform":
        options["groups"] = Partition(style, int(number or min(4, workload.blocks)))
    elif style == "two_group":
        first = int(number or max(1, workload.blocks // 2))
        options["groups"] = Partition(style, boundary=first)
    clipper = make_clipper(workload.model, style, **options)
    forward = partial(losses, workload, workload.model, dtype=dtype, own=style != "none")

    def run(inputs: Inputs) -> None:
        # As in training: where rules are to be checked, on some records ahead of the batch.
        some = clipper.to_check(len(next(iter(inputs.values()))))
        if some is not None:
            few = {name: rows[some.to(rows.device)] for name, rows in inputs.items()}
            clipper.check(forward(few))
        found = forward(inputs)
        clipper.backward(found)
        clipper.policy.release(len(found))  # as in training, but for the noise on the counts

    return Step(run, workload.model.zero_grad, lambda: left_in(workload.model))


def left_in(model: nn.Module) -> list[Tensor]:
    """Return the gradients of a model's parameters that have one."""
    return [p.grad for p in model.parameters() if p.grad is not None]


def peer_step(name: str, workload: Workload, batch: int, threshold: float, dtype: str) -> Step:
    """Return a step of one of `dpft.reproduce.bench.choices.PEERS`, which changes the model.

    ``opacus`` has per-example gradients by hooks, then what `DPOptimizer.step` does before noise;
    ``opacus-ghost`` norms by hooks, then a second backward over reweighted losses. Every ``Conv1D``
    of GPT-2 becomes an equal ``Linear``, for which Opacus has faster rules.
    """
    from opacus import grad_sample, optimizers
    from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping

    model = workload.model
    _swap_conv1d(model)
    ghost = name == "opacus-ghost"
    wrapper: Any = grad_sample.GradSampleModule
    kind: Any = optimizers.DPOptimizer
    options: dict[str, Any] = {}
    if ghost:
        wrapper = grad_sample.GradSampleModuleFastGradientClipping
        kind = optimizers.DPOptimizerFastGradientClipping
        options = {"max_grad_norm": threshold, "use_ghost_clipping": True}
    module = wrapper(model, loss_reduction="sum", **options)
    optimizer = kind(
        torch.optim.SGD(model.parameters(), lr=0.0),  # never steps
        noise_multiplier=0.0,
        max_grad_norm=threshold,
        expected_batch_size=batch,
        loss_reduction="sum",
    )

    def run(inputs: Inputs) -> None:
        found = losses(workload, module, inputs, dtype)
        if ghost:
            DPTensorFastGradientClipping(module, optimizer, found, "sum").backward()
        else:
            found.sum().backward()
            optimizer.clip_and_accumulate()

    def gradients() -> list[Tensor]:
        return left_in(model) if ghost else [p.summed_grad for p in optimizer.params]

    return Step(run, lambda: optimizer.zero_grad(set_to_none=True), gradients)


def _swap_conv1d(model: nn.Module) -> None:
    from transformers.pytorch_utils import Conv1D

    for name in [name for name, module in model.named_modules() if isinstance(module, Conv1D)]:
        parent, _, child = name.rpartition(".")
        old: Any = model.get_submodule(name)
        inputs, outputs = old.weight.shape
        new = nn.Linear(inputs, outputs, device=old.weight.device, dtype=old.weight.dtype)
        new.weight = nn.Parameter(old.weight.detach().T.contiguous())
        new.bias = old.bias
        setattr(model.get_submodule(parent), child, new)
