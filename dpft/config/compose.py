"""Composing a config of choices and settings: the only place that asks Hydra to.

Hydra reads and merges all files anew for every config, which takes a tenth of a second or more, and
a table has hundreds of them. So each file of a group is read once, and each value put in its place.
What is unusual (keys that are added or deleted, files that reach beyond their group, errors) is
left to Hydra. A test compares both.
"""

import copy
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from dpft.config import folder
from dpft.config.defaults import with_defaults
from dpft.config.folder import Config
from dpft.config.overrides import check_budget, check_flags, hydra_errors, readable


class _UnusualError(Exception):
    """Only Hydra itself should compose this."""


def compose(overrides: Sequence[str]) -> Config:
    """Return the resolved config for ``overrides``.

    Raises:
        ConfigError: for an override that Hydra refuses.
    """
    check_flags([word for word in overrides if word.startswith("=")])
    overrides = [readable(word) for word in overrides]
    check_budget(overrides, of_point=True)
    try:
        return with_defaults(_composed_of_files(overrides), overrides)
    except _UnusualError:
        return compose_by_hydra(overrides)


def compose_by_hydra(overrides: Sequence[str], resolve: bool = True) -> Config:
    """Do as `compose`, whatever the overrides; interpolations may be left as they are."""
    config = _by_hydra(overrides, resolve)
    return with_defaults(config, overrides) if resolve else config


def sweeper(overrides: Sequence[str]) -> Config:
    """Return the settings of Hydra's sweeper, interpolations left as they are."""
    return _by_hydra(overrides, resolve=False, of_sweeper=True)


def _by_hydra(overrides: Sequence[str], resolve: bool, of_sweeper: bool = False) -> Config:
    from hydra import compose as hydra_compose

    with initialised(), hydra_errors():
        whole = hydra_compose("config", list(overrides), return_hydra_config=of_sweeper)
        return _plain(whole.hydra.sweeper if of_sweeper else whole, resolve)


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


def _plain(config: Any, resolve: bool = True) -> Config:
    from omegaconf import OmegaConf

    content = OmegaConf.to_container(config, resolve=resolve)
    assert isinstance(content, dict)
    return {str(key): value for key, value in content.items()}


def _composed_of_files(overrides: Sequence[str]) -> Config:
    chosen = tuple(word for word in overrides if word.partition("=")[0] in folder.defaults())
    config = copy.deepcopy(_unresolved(chosen))
    for key, value in [_key_and_value(word) for word in overrides if word not in chosen]:
        *groups, leaf = key.split(".")
        place: Any = config
        for name in groups:
            place = place.get(name) if isinstance(place, dict) else None
        if not isinstance(place, dict) or leaf not in place or isinstance(place[leaf], dict):
            raise _UnusualError
        place[leaf] = copy.deepcopy(value)
    return _resolved(config)


@cache
def _unresolved(chosen: tuple[str, ...]) -> Config:
    """Return the config of some shipped choices, interpolations left as they are."""
    names = folder.defaults() | {
        group: name for group, _, name in (word.partition("=") for word in chosen)
    }
    if any(name not in folder.choices(group) for group, name in names.items()):
        raise _UnusualError
    config = {group: folder.settings_of(group, name) for group, name in names.items()}
    if None in config.values():  # a file sets what other groups define, as adapt=scratch does
        return compose_by_hydra(chosen, resolve=False)
    return config | folder.main()


@cache
def _key_and_value(word: str) -> tuple[str, Any]:
    """Return key and value of an override that only sets a value."""
    key, _, text = word.partition("=")
    if re.fullmatch(r"0|[1-9]\d*", text, re.ASCII) and re.fullmatch(r"[a-z_.]+", key):
        return key, int(text)  # as Hydra, whose parser takes a tenth of a second to import
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


def _resolved(config: Config) -> Config:
    """Resolve interpolations; they refer to settings at the top and of the task alone."""
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
        return _plain(OmegaConf.create(json.loads(text)))
    except OmegaConfBaseException as error:
        raise _UnusualError from error
