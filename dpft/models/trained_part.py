"""Selection: which of a model's own parameters are trained, the others being frozen."""

from collections.abc import Iterable, Mapping

from torch import nn

from dpft.config.errors import ModelError
from dpft.config.schema import Adapt
from dpft.models.needs import Needs
from dpft.privacy.clipping.groups import find_blocks


def select(model: nn.Module, settings: Adapt, needs: Needs) -> None:
    """Freeze what ``settings.name`` does not train; a new classification head is always trained."""
    name, cls = settings.name, type(model).__name__
    trained: list[nn.Parameter] = []
    match name:
        case "linear":
            what, trained = "a head apart from the embedding", own_head_parameters(model, needs)
        case "bias":
            what = "biases"
            trained = [p for n, p in model.named_parameters() if n.split(".")[-1] == "bias"]
        case "attention":
            what, trained = "self-attention", _parameters(attention_modules(model).values())
        case _:
            what, blocks, count = "transformer blocks", transformer_blocks(model), settings.blocks
            assert count is not None
            if blocks and count > len(blocks):
                raise ModelError(
                    f"adapt.blocks is {count}; expected 1 to {len(blocks)}, the blocks of {cls}"
                )
            if blocks:
                last = [blocks[block] for block in [*blocks][-count:]]
                trained = _parameters([*last, *_norms_above(model, blocks, needs)])
                trained += own_head_parameters(model, needs)
    if not trained:
        other = "model.tied=false, or another adaptation" if name == "linear" else "adapt=full"
        raise ModelError(f"adapt={name} trains {what}, and {cls} has none; type {other}")
    if has_new_head(needs):
        trained += own_head_parameters(model, needs)
    chosen = {id(parameter) for parameter in trained}
    for parameter in model.parameters():
        if id(parameter) not in chosen:
            parameter.requires_grad_(False)


def has_new_head(needs: Needs) -> bool:
    """Return whether the model's head was made for this task, with drawn weights."""
    return needs.kind in ("classifier", "image")


def head_modules(model: nn.Module, needs: Needs) -> dict[str, nn.Module]:
    """Return the modules outside a model's body, by name: ``lm_head``, ``classifier``.

    The body is what transformers calls the base model. In other networks the head is the last
    linear layer. A new classification head takes the body's pooler along: it was pretrained for
    another head, or drawn anew as well.
    """
    children = dict(model.named_children())
    body = getattr(model, "base_model_prefix", "")
    if body in children:
        outside = {name: m for name, m in children.items() if name != body and list(m.parameters())}
        if outside and has_new_head(needs):
            outside |= {n: m for n, m in model.named_modules() if n == f"{body}.pooler"}
        if outside:
            return outside
    linear = [(name, m) for name, m in model.named_modules() if isinstance(m, nn.Linear)]
    if not linear:
        raise ModelError(f"{type(model).__name__} has no linear layer as its head; type adapt=full")
    return dict(linear[-1:])


def own_head_parameters(model: nn.Module, needs: Needs) -> list[nn.Parameter]:
    """Return the head's parameters, without one that is the input embedding as well."""
    heads = {m for head in head_modules(model, needs).values() for m in head.modules()}
    elsewhere = {
        id(p) for m in model.modules() if m not in heads for p in m.parameters(recurse=False)
    }
    found = {
        id(p): p
        for m in model.modules()
        if m in heads
        for p in m.parameters(recurse=False)
        if id(p) not in elsewhere
    }
    return list(found.values())


def attention_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Return the outermost attention modules, by name; empty for a network without attention."""
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if "Attention" in type(module).__name__ and not _within(name, found):
            found[name] = module
    return found


def transformer_blocks(model: nn.Module) -> dict[str, nn.Module]:
    """Return the blocks that attend, in order; empty for a network without attention."""
    return {name: b for name, b in find_blocks(model).items() if attention_modules(b)}


def _norms_above(
    model: nn.Module, blocks: Mapping[str, nn.Module], needs: Needs
) -> list[nn.Module]:
    """Return the final norm: computed after the blocks, and no part of the head.

    Models register modules in the order in which they compute them, but for OPT, whose final norm
    comes before its blocks.
    """
    heads = head_modules(model, needs)
    final = list(blocks)[-1]
    around = final.rpartition(".")[0].rpartition(".")[0]
    found, reached = [], False
    for name, module in model.named_modules():
        if _within(name, blocks):
            reached = reached or name == final
            continue
        parent, _, own = name.rpartition(".")
        last = parent == around and own.startswith("final")
        norm = "Norm" in type(module).__name__ and not _within(name, heads)
        # BART registers the norm of its decoder's embeddings behind the blocks.
        if norm and (reached or last) and own != "layernorm_embedding":
            found.append(module)
    return found


def _within(name: str, parents: Iterable[str]) -> bool:
    return any(name == parent or name.startswith(f"{parent}.") for parent in parents)


def _parameters(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    return [p for module in modules for p in module.parameters()]
