"""The benchmark's models, their inputs and losses, and one step of a style or of a peer.

Models have random weights and are built offline, without dropout and key-value cache; attention is
what transformers chooses. A step is forward, backward and clipping, without noise and optimizer.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpft.config.errors import ModelError
from dpft.privacy.token_losses import IGNORED, token_losses

CLASSES = 10
_SHORT = 8  # tokens of a record where their number does not matter
_GPT2_SIZES = {
    "gpt2": (768, 12, 12),
    "gpt2-medium": (1024, 24, 16),
    "gpt2-large": (1280, 36, 20),
    "gpt2-xl": (1600, 48, 25),
}

Inputs = Mapping[str, Tensor]
Losses = Callable[[nn.Module, Inputs], Tensor]


@dataclass(frozen=True)
class Workload:
    """A model in training mode with everything that a step needs.

    ``inputs(batch)`` draws the same batch every time, with ``short=True`` one of few tokens.
    ``losses(model, inputs)`` has shape ``(B,)``, by PyTorch's functions, and takes the model since
    peers wrap it; ``own_losses`` are the same as dpft's runs compute them. ``blocks`` is the number
    of repeated blocks.
    """

    model: nn.Module
    inputs: Callable[..., Inputs]
    losses: Losses
    own_losses: Losses
    blocks: int


def build(
    name: str, *, length: int | None, untied: bool, seed: int, device: str, dtype: torch.dtype
) -> Workload:
    """Build a model of the catalog, with weights and inputs that follow from the seed."""
    torch.manual_seed(seed)
    with torch.device(device):
        model, blocks = _build_model(name, untied)
    model = model.to(device=device, dtype=dtype).train()

    def inputs(batch: int, *, short: bool = False) -> Inputs:
        generator = torch.Generator().manual_seed(seed)
        tokens = min(length, _SHORT) if short and length is not None else length
        if tokens is None:
            drawn = _draw_images(model, batch, generator)
        else:
            drawn = _draw_tokens(name, model, batch, tokens, generator)
        return {
            key: value.to(device, dtype if value.is_floating_point() else value.dtype)
            for key, value in drawn.items()
        }

    losses, own_losses = (partial(_losses, entropy=e) for e in (_cross_entropy, token_losses))
    return Workload(model, inputs, losses, own_losses, blocks)


def _build_model(name: str, untied: bool) -> tuple[Any, int]:
    import transformers as hf

    config: Any
    if name == "tiny" or name in _GPT2_SIZES:
        if name == "tiny":
            from dpft.models.load import BUNDLED

            config = hf.GPT2Config.from_pretrained(str(BUNDLED / name), trust_remote_code=False)
        else:
            width, layers, heads = _GPT2_SIZES[name]
            config = hf.GPT2Config(n_embd=width, n_layer=layers, n_head=heads)
        config.tie_word_embeddings = not untied
        config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
        return hf.GPT2LMHeadModel(config), config.n_layer
    if name == "smollm2-135m":
        config = hf.LlamaConfig(
            vocab_size=49152,
            hidden_size=576,
            num_hidden_layers=30,
            num_attention_heads=9,
            num_key_value_heads=3,
            intermediate_size=1536,
            max_position_embeddings=8192,
            rms_norm_eps=1e-5,
            tie_word_embeddings=not untied,
        )
        return hf.LlamaForCausalLM(config), config.num_hidden_layers
    if name == "roberta-base":
        config = hf.RobertaConfig(
            vocab_size=50265,
            max_position_embeddings=514,
            type_vocab_size=1,
            layer_norm_eps=1e-5,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        config.num_labels = 2
        return hf.RobertaForSequenceClassification(config), config.num_hidden_layers
    if name.startswith("vit"):
        width, heads = (384, 6) if name == "vit-small" else (768, 12)
        config = hf.ViTConfig(
            hidden_size=width, num_attention_heads=heads, intermediate_size=4 * width
        )
        config.num_labels = CLASSES
        return hf.ViTForImageClassification(config), config.num_hidden_layers
    from dpft.models.wrn import WideResNet

    return WideResNet(), 6  # three stages of two blocks each: 16 = 6 * 2 + 4 layers


def _draw_tokens(
    name: str, model: Any, batch: int, length: int, generator: torch.Generator
) -> dict[str, Tensor]:
    ids = torch.randint(5, model.config.vocab_size, (batch, length), generator=generator)
    if name == "roberta-base":
        labels = torch.randint(model.config.num_labels, (batch,), generator=generator)
        return {"input_ids": ids, "labels": labels}
    # The last token predicts nothing.
    labels = torch.cat([ids[:, 1:], torch.full((batch, 1), IGNORED)], dim=1)
    # One row per record: positions that are broadcast over the batch hide whose gradient is whose.
    positions = torch.arange(length).repeat(batch, 1)
    return {"input_ids": ids, "position_ids": positions, "labels": labels}


def _draw_images(model: Any, batch: int, generator: torch.Generator) -> dict[str, Tensor]:
    config = getattr(model, "config", None)
    side = 32 if config is None else config.image_size
    return {
        "images": torch.randn(batch, 3, side, side, generator=generator),
        "labels": torch.randint(CLASSES, (batch,), generator=generator),
    }


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of each token, ``(B, T, V)`` to ``(B, T)``."""
    return F.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), reduction="none", ignore_index=IGNORED
    ).view_as(labels)


def _losses(
    model: nn.Module, inputs: Inputs, entropy: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    """Return losses of shape ``(B,)``: of classes, or the mean over a record's labelled tokens."""
    labels = inputs["labels"]
    if "images" in inputs:
        out = model(inputs["images"])
        return F.cross_entropy(getattr(out, "logits", out), labels, reduction="none")
    shown = {key: value for key, value in inputs.items() if key != "labels"}
    if "position_ids" in inputs:
        shown["use_cache"] = False  # type: ignore[assignment]
    logits = model(**shown).logits
    if labels.dim() == 1:
        return F.cross_entropy(logits, labels, reduction="none")
    return entropy(logits, labels).sum(1) / (labels != IGNORED).sum(1)


@dataclass(frozen=True)
class Step:
    """A variant, ready to run.

    ``run`` is timed, ``reset`` clears all gradients, ``gradients`` are what `run` left.
    """

    run: Callable[[Inputs], None]
    reset: Callable[[], None]
    gradients: Callable[[], Iterable[Tensor]]


def style_step(name: str, workload: Workload, threshold: float, dtype: str) -> Step:
    """Return a step of a clipping style; for ``none`` of training with PyTorch's own losses."""
    from dpft.privacy import make_clipper

    style, options = style_options(name, workload.blocks)
    private = style != "none"
    if private:
        options["threshold"] = threshold
    clipper = make_clipper(workload.model, style, **options)

    def run(inputs: Inputs) -> None:
        # As in training: where rules are to be checked, on some records ahead of the batch.
        some = clipper.to_check(len(next(iter(inputs.values()))))
        if some is not None:
            few = {name: rows[some.to(rows.device)] for name, rows in inputs.items()}
            clipper.check(forward(workload, workload.model, few, dtype, private))
        losses = forward(workload, workload.model, inputs, dtype, private)
        clipper.backward(losses)
        clipper.policy.release(len(losses))  # as in training, but for the noise on the counts

    return Step(run, workload.model.zero_grad, lambda: left_in(workload.model))


def left_in(model: nn.Module) -> list[Tensor]:
    """Return the gradients of a model's parameters that have one."""
    return [p.grad for p in model.parameters() if p.grad is not None]


def style_options(name: str, blocks: int) -> tuple[str, dict[str, Any]]:
    """Return ``make_clipper``'s style and keywords for a style as typed, such as ``uniform:6``."""
    style, _, number = name.partition(":")
    if style == "uniform":
        return style, {"count": int(number or min(4, blocks))}
    if style == "two_group":
        return style, {"boundary": int(number or max(1, blocks // 2))}
    return style, {}


def forward(
    workload: Workload, model: nn.Module, inputs: Inputs, dtype: str, own: bool = False
) -> Tensor:
    """Return losses of shape ``(B,)``, under autocast for ``bfloat16``; ``own``: as dpft does."""
    losses = workload.own_losses if own else workload.losses
    if dtype != "bfloat16":
        return losses(model, inputs)
    with torch.autocast(next(iter(inputs.values())).device.type, dtype=torch.bfloat16):
        return losses(model, inputs).float()


def peer_step(name: str, workload: Workload, batch: int, threshold: float, dtype: str) -> Step:
    """Return a step of one of `dpft.reproduce.bench.catalog.PEERS`, which may change the model.

    It ends where ours does: the sum of clipped gradients is formed, nothing is noised. ``opacus``
    has per-example gradients by hooks, then what `DPOptimizer.step` does before noise;
    ``opacus-ghost`` norms by hooks, then a second backward over reweighted losses.
    """
    from opacus import grad_sample, optimizers
    from opacus.utils.fast_gradient_clipping_utils import DPTensorFastGradientClipping

    model = workload.model
    if name.endswith("-linear"):
        swap_conv1d(model)
    ghost = name.startswith("opacus-ghost")
    clipping = {"max_grad_norm": threshold, "use_ghost_clipping": True}
    module: Any = (
        grad_sample.GradSampleModuleFastGradientClipping(model, loss_reduction="sum", **clipping)
        if ghost
        else grad_sample.GradSampleModule(model, loss_reduction="sum")
    )
    kind: Any = optimizers.DPOptimizer
    if ghost:
        kind = optimizers.DPOptimizerFastGradientClipping
    optimizer = kind(
        torch.optim.SGD(model.parameters(), lr=0.0),  # never steps
        noise_multiplier=0.0,
        max_grad_norm=threshold,
        expected_batch_size=batch,
        loss_reduction="sum",
    )

    def run(inputs: Inputs) -> None:
        losses = forward(workload, module, inputs, dtype)
        if ghost:
            DPTensorFastGradientClipping(module, optimizer, losses, "sum").backward()
        else:
            losses.sum().backward()
            optimizer.clip_and_accumulate()

    def gradients() -> list[Tensor]:
        return left_in(model) if ghost else [p.summed_grad for p in optimizer.params]

    return Step(run, lambda: optimizer.zero_grad(set_to_none=True), gradients)


def swap_conv1d(model: nn.Module) -> None:
    """Replace every GPT-2 ``Conv1D`` by an equal ``Linear``, for which Opacus has faster rules."""
    from transformers.pytorch_utils import Conv1D

    found = [name for name, module in model.named_modules() if isinstance(module, Conv1D)]
    if not found:
        raise ModelError(
            "the model has no Conv1D to swap for a Linear: take the peer without -linear"
        )
    for name in found:
        parent, _, child = name.rpartition(".")
        old: Any = model.get_submodule(name)
        inputs, outputs = old.weight.shape
        new = nn.Linear(inputs, outputs, device=old.weight.device, dtype=old.weight.dtype)
        new.weight = nn.Parameter(old.weight.detach().T.contiguous())
        new.bias = old.bias
        setattr(model.get_submodule(parent), child, new)
