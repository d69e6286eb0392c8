"""Composing a config of choices and settings: the only place that asks Hydra to.

Hydra reads and merges all files anew for every config, which takes a tenth of a second or more, and
a table has hundreds of them. So each file of a group is read once, and each value put in its place.
What is unusual (keys that are added or deleted, files that reach beyond their group, errors) is
left to Hydra. A test compares both.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from dpft.config import folder, plugins
from dpft.config.defaults import with_defaults
from dpft.config.errors import ConfigError
from dpft.config.folder import Config
from dpft.config.overrides import check_flags, check_words, explained, readable, refusals_told


class _UnusualError(Exception):
    """Something that only Hydra itself should compose."""


def compose(overrides: Sequence[str]) -> Config:
    """The resolved config for ``overrides``.

    Raises:
        ConfigError: for an override that Hydra refuses.
    """
    check_flags([word for word in overrides if word.startswith("=")])
    overrides = [readable(word) for word in overrides]
    check_words(overrides)
    try:
        return with_defaults(_composed_of_files(overrides), overrides)
    except _UnusualError:
        return compose_by_hydra(overrides)


def compose_by_hydra(overrides: Sequence[str], resolve: bool = True) -> Config:
    """As `compose`, whatever the overrides; interpolations may be left as they are."""
    from hydra import compose as hydra_compose

    with initialised(), refusals_told():
        config = plain(hydra_compose("config", overrides=list(overrides)), resolve)
    return with_defaults(config, overrides) if resolve else config


def sweeper(overrides: Sequence[str]) -> Config:
    """The settings of Hydra's sweeper for ``overrides``, interpolations left as they are."""
    from hydra import compose as hydra_compose

    with initialised(), refusals_told():
        whole = hydra_compose("config", overrides=list(overrides), return_hydra_config=True)
        return plain(whole.hydra.sweeper, resolve=False)


def shipped(names: Mapping[str, str]) -> Config:
    """The resolved config of some choices by group, and of the default ones in other groups.

    A group is empty where there is no such choice.
    """
    config = {
        group: folder.settings_of(group, name) or {}
        for group, name in (folder.defaults() | dict(names)).items()
    }
    return with_defaults(
        _resolved(config | folder.main()), [f"{group}={n}" for group, n in names.items()]
    )


@contextmanager
def initialised() -> Iterator[None]:
    """Hydra, set up unless it is, as in one of its jobs."""
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    if GlobalHydra.instance().is_initialized():
        yield
        return
    find_packages_choices()
    # Refusals are told where they arise, so that the caller can say which of many it was.
    with initialize_config_dir(str(folder.conf_dir()), version_base="1.3"):
        yield


@cache
def find_packages_choices() -> None:
    """Have Hydra look for choices in other installed packages too, behind dpft's own."""
    from hydra.core.config_search_path import ConfigSearchPath
    from hydra.core.plugins import Plugins
    from hydra.plugins.search_path_plugin import SearchPathPlugin

    class PackagesChoices(SearchPathPlugin):
        def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
            for part, place in plugins.conf_dirs():
                search_path.append(part.package, f"file://{place}")

    Plugins.instance().register(PackagesChoices)


def plain(config: Any, resolve: bool = True) -> Config:
    """What Hydra composed as a mapping."""
    from omegaconf import OmegaConf

    content = OmegaConf.to_container(config, resolve=resolve)
    assert isinstance(content, dict)
    return {str(key): value for key, value in content.items()}


def resolved(config: Any, words: Sequence[str]) -> Config:
    """`compose` in a job of Hydra's, which composed ``words`` and would add a line to an error.

    Raises:
        ConfigError: for an interpolation of what is not there.
    """
    from omegaconf.errors import OmegaConfBaseException

    try:
        return with_defaults(plain(config), words)
    except OmegaConfBaseException as error:
        raise ConfigError(explained(error)) from error


def _composed_of_files(overrides: Sequence[str]) -> Config:
    chosen = tuple(word for word in overrides if word.partition("=")[0] in folder.defaults())
    values = [_key_and_value(word) for word in overrides if word not in chosen]
    config = copy.deepcopy(_unresolved(chosen))
    for key, value in values:
        _set(config, key, value)
    return _resolved(config)


@cache
def _unresolved(chosen: tuple[str, ...]) -> Config:
    """The config of some choices of dpft's own, interpolations left as they are."""
    names = folder.defaults() | {
        group: name for group, _, name in (w.partition("=") for w in chosen)
    }
    if any(name not in folder.choices(group) for group, name in names.items()):
        raise _UnusualError
    config = {group: folder.settings_of(group, name) for group, name in names.items()}
    if None in config.values():  # a file sets what other groups define, as adapt=scratch does
        return compose_by_hydra(chosen, resolve=False)
    return config | folder.main()


@cache
def _key_and_value(word: str) -> tuple[str, Any]:
    """Of an override that only sets a value."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import OverrideType
    from hydra.errors import HydraException

    try:
        override = OverridesParser.create().parse_override(word)
    except HydraException as error:
        raise _UnusualError from error
    value = override.value()
    changes = override.type is OverrideType.CHANGE and override.package is None
    if not changes or override.is_sweep_override() or isinstance(value, dict) or "$" in str(value):
        raise _UnusualError
    return override.key_or_group, value


def _set(config: Config, key: str, value: Any) -> None:
    *folders, leaf = key.split(".")
    place: Any = config
    for name in folders:
        place = place.get(name) if isinstance(place, dict) else None
    if not isinstance(place, dict) or leaf not in place or isinstance(place[leaf], dict):
        raise _UnusualError
    place[leaf] = copy.deepcopy(value)


def _resolved(config: Config) -> Config:
    """Interpolations resolved; they ask for settings at the top and of the task alone."""
    part = {
        key: value
        for key, value in config.items()
        if key == "task" or not isinstance(value, dict) or "${" in json.dumps(value)
    }
    return config | copy.deepcopy(_resolved_part(json.dumps(part)))


@cache
def _resolved_part(text: str) -> Config:
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        return plain(OmegaConf.create(json.loads(text)))
    except OmegaConfBaseException as error:
        raise _UnusualError from error
