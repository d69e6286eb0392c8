"""Which layers own trainable parameters, and by which rule each is clipped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from torch import nn
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized

from dpft.privacy.clipping.rules import Rule, UnsupportedLayerError, find_rule, rule_names
from dpft.privacy.clipping.rules.broadcast import BroadcastRule


@dataclass(frozen=True)
class Site:
    """A layer that owns trainable parameters: its rule and its parameters' canonical names."""

    name: str
    module: nn.Module
    rule: Rule
    names: Mapping[str, str]


def check_joins(site: Site, rows: int) -> None:
    """Check that a layer can be clipped where a record has several rows of the model's batch.

    Raises:
        UnsupportedLayerError: if its rule does not sum over further positions.
    """
    if rows > 1 and not site.rule.sums_over_positions:
        raise UnsupportedLayerError(
            f"{site.name} ({type(site.module).__name__}) cannot be clipped with {rows} rows for "
            "each record; expected layers of texts: linear, embedding and layer norm"
        )


def find_sites(
    model: nn.Module,
    parameters: Mapping[str, nn.Parameter],
    rules: Mapping[str, Rule],
    sharded: bool = False,
) -> dict[str, Site]:
    """The layers with a rule, one entry per module; others are computed again (`frames`).

    Raises:
        UnsupportedLayerError: for layers that mix records; where parameters are sharded, for each
            trainable parameter whose layer has no rule.
    """
    canonical = {id(parameter): name for name, parameter in parameters.items()}
    sites: dict[str, Site] = {}
    without_rule: dict[str, str] = {}
    for module_name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._NormBase) and (
            module.track_running_stats or isinstance(module, nn.modules.batchnorm._BatchNorm)
        ):
            raise UnsupportedLayerError(
                f"{module_name or 'the model'} ({type(module).__name__}) mixes or keeps statistics "
                "of the records of a batch, trained or frozen; expected a layer that treats each "
                "record alone, such as GroupNorm"
            )
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None:
            raise UnsupportedLayerError(
                f"{module_name or 'the model'} ({type(module).__name__} with max_norm) rescales "
                "what is looked up, trained or frozen: its table tells what the records hold, "
                "without noise; expected max_norm=None"
            )
        own = {
            local: canonical[id(parameter)]
            for local, parameter in module.named_parameters(recurse=False, remove_duplicate=False)
            if id(parameter) in canonical
        }
        if not own:
            continue
        rule = None if is_parametrized(module) else find_rule(module, rules)
        if rule is not None:
            sites[module_name] = Site(module_name, module, rule, MappingProxyType(own))
            continue
        # What holds parameters for others to use is never called, and hooks hear nothing of it.
        runs = type(module).forward is not nn.Module.forward
        broadcasts = runs and not isinstance(module, ParametrizationList)
        for local, name in own.items():
            if parameters[name].dim() > 1 and len(parameters[name]) == 1 and broadcasts:
                bare = BroadcastRule(local)
                sites[name] = Site(name, module, bare, MappingProxyType({local: name}))
            else:
                without_rule[name] = type(module).__name__
    # A parameter may also be registered with a module that does not use it (an MLM head's bias);
    # that it is used by the layer with a rule only is checked on the graph.
    covered = {name for site in sites.values() for name in site.names.values()}
    unsupported = [f"{n} ({kind})" for n, kind in without_rule.items() if n not in covered]
    if unsupported and sharded:
        raise UnsupportedLayerError(
            f"no clipping rule for {len(unsupported)} trainable and sharded parameter(s): "
            f"{', '.join(unsupported)}. Layers with a rule: {rule_names(rules)}; parameters of "
            "shape (1, ...) that are broadcast over the batch need none. Freeze the "
            "parameters (requires_grad_(False)), leave them whole on every rank "
            "(parallel=data), or pass rules={'module.Class': rule}"
        )
    return sites
