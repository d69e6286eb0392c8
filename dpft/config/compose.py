"""Composing a config of choices and settings: the only place that asks Hydra to.

Hydra reads and merges all files anew for every config, which takes a tenth of a second, and the
papers' claims have hundreds of them. So each combination of choices is composed once, from files
that are read once where dpft ships all choices, and Hydra applies the other settings to a copy. A
test compares both.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from dpft.config import folder
from dpft.config.defaults import with_defaults
from dpft.config.folder import Config
from dpft.config.overrides import check_budget, hydra_errors, readable

if TYPE_CHECKING:
    from omegaconf import DictConfig


def compose(overrides: Sequence[str]) -> Config:
    """Return the resolved config for ``overrides``.

    Raises:
        ConfigError: for an override that Hydra refuses.
    """
    overrides = [readable(word) for word in overrides]
    check_budget(overrides, of_point=True)
    return with_defaults(copy.deepcopy(_composed(tuple(overrides))), overrides)


def sweeper(overrides: Sequence[str]) -> Config:
    """Return the settings of Hydra's sweeper, interpolations left as they are."""
    from hydra import compose as hydra_compose

    with initialised(), hydra_errors():
        whole = hydra_compose("config", list(overrides), return_hydra_config=True)
        return _plain(whole.hydra.sweeper, resolve=False)


@contextmanager
def initialised() -> Iterator[None]:
    """Set Hydra up, unless it is, as in one of its jobs."""
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    if GlobalHydra.instance().is_initialized():
        yield
        return
    with initialize_config_dir(str(folder.conf_dir()), version_base="1.3"):
        yield


def resolved(config: Any, words: Sequence[str]) -> Config:
    """Return the config in a job of Hydra's, which composed ``words``."""
    with hydra_errors():
        return with_defaults(_plain(config), words)


@cache
def _composed(words: tuple[str, ...]) -> Config:
    """Return the resolved config as Hydra composes it; not to be changed."""
    from hydra._internal.config_loader_impl import ConfigLoaderImpl

    with hydra_errors():
        parsed = [_parsed(word) for word in words]
        groups = folder.groups()
        values = [
            one
            for one in parsed
            if one.key_or_group not in groups
            and not one.is_sweep_override()
            and not one.is_hydra_override()
        ]
        choices = tuple(str(one.input_line) for one in parsed if one not in values)
        config = copy.deepcopy(_of_choices(choices))
        ConfigLoaderImpl._apply_overrides_to_config(values, config)
        return _plain(config)


@cache
def _parsed(word: str) -> Any:
    """Return Hydra's reading of an override; not to be changed."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create().parse_overrides([word])[0]


@cache
def _of_choices(words: tuple[str, ...]) -> "DictConfig":
    """Return the config of some choices, interpolations left as they are; not to be changed."""
    from hydra import compose as hydra_compose
    from omegaconf import OmegaConf

    typed = dict(word.split("=", 1) for word in words if "=" in word)
    names = folder.defaults() | typed
    groups = {group: folder.settings_of(group, name) for group, name in names.items()}
    shipped = len(typed) == len(words) and typed.keys() <= folder.defaults().keys()
    if shipped and all(groups.values()):
        config = OmegaConf.create({**groups, **folder.main()})
        OmegaConf.set_struct(config, True)
        return config
    with initialised():
        return hydra_compose("config", list(words))


def _plain(config: Any, resolve: bool = True) -> Config:
    from omegaconf import OmegaConf

    content = OmegaConf.to_container(config, resolve=resolve)
    assert isinstance(content, dict)
    return {str(key): value for key, value in content.items()}
