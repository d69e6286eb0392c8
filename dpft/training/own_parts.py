"""The parts of other packages in a run: found, tried, and told (`dpft.config.plugins`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpft.config import plugins
from dpft.config.errors import ConfigError
from dpft.config.schema import Clip, Run
from dpft.privacy.clipping import CLIP_FUNCTIONS
from dpft.privacy.clipping.functions import ClipFunction, own_function
from dpft.privacy.clipping.rules import RULES, Rule
from dpft.tasks import TASKS

if TYPE_CHECKING:
    from torch import nn


def clip_function(clip: Clip) -> str | ClipFunction:
    """The clip function of the settings: a name of dpft's, or another package's function.

    Raises:
        ConfigError: if that cannot be imported, or is none that bounds what a record contributes.
    """
    if clip.clip_function in CLIP_FUNCTIONS:
        return clip.clip_function
    function = plugins.load("clip_functions", clip.clip_function)
    try:
        own_function(function, clip.clip_function)
    except ValueError as error:
        raise ConfigError(f"{error} ({_part('clip_functions', clip.clip_function)})") from error
    found: ClipFunction = function
    return found


def rules_for(model: nn.Module) -> dict[str, Rule]:
    """Other packages' rules for layers of a model, by qualified class name.

    Raises:
        ConfigError: if one cannot be imported, is no rule, or is for a layer that dpft has one for.
    """
    rules: dict[str, Rule] = {}
    for name in _layers_with_rule(model):
        part = _part("rules", name)
        if name in RULES:
            raise ConfigError(
                f"{part}: dpft has a rule for that layer itself; expected one for a class of the "
                f"package's own: pip uninstall {part.package}"
            )
        found = part.load()
        rule = found() if isinstance(found, type) else found
        if not isinstance(rule, Rule):
            raise ConfigError(
                f"{part} is a {type(rule).__name__}; expected a subclass of "
                "dpft.privacy.clipping.rules.Rule"
            )
        rules[name] = rule
    return rules


def used(run: Run, model: nn.Module) -> list[dict[str, str]]:
    """Where each part came from that another package brought to a run, and what its code was."""
    task = str(run.task["name"])
    asked = [] if task in TASKS or ":" in task else [("tasks", task)]
    asked += [("metrics", name) for name in run.task.get("metrics") or ()]
    if run.clip.private:
        if run.clip.clip_function not in CLIP_FUNCTIONS:
            asked.append(("clip_functions", run.clip.clip_function))
        if run.clip.own_groups:
            asked.append(("styles", str(run.clip.groups)))
        asked += [("rules", name) for name in _layers_with_rule(model)]
    return [_part(kind, name).origin() for kind, name in asked]


def deciding(run: Run, model: nn.Module) -> dict[str, str]:
    """The code of other packages that a step's sum follows from, for the head of the ledger."""
    return {
        f"{part['kind']} {part['name']}": f"{part['package']} {part['version']} {part['sha256']}"
        for part in used(run, model)
        if part["kind"] != plugins.KINDS["metrics"]
    }


def _layers_with_rule(model: nn.Module) -> list[str]:
    known = plugins.names("rules")
    classes = {
        f"{cls.__module__}.{cls.__qualname__}"
        for kind in {type(module) for module in model.modules()}
        for cls in kind.__mro__
    }
    return [name for name in known if name in classes]


def _part(kind: str, name: str) -> plugins.Plugin:
    part = plugins.find(kind, name)
    assert part is not None, f"{name} was found before"
    return part
