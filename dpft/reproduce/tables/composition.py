"""Many configs composed fast: each file of a config group read once, each value put in its place.

Hydra reads and merges all files anew for every config, which takes a tenth of a second or more; a
table has up to hundreds of them. What is unusual (keys that are added or deleted, files that reach
beyond their group, errors) is left to Hydra, so that the result is what `dpft.config.compose`
gives.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Self

from dpft.config.compose import compose_here, initialised
from dpft.config.errors import ConfigError
from dpft.config.folder import conf_dir
from dpft.config.overrides import explained
from dpft.runs.closing import Closing

Config = dict[str, Any]


class _UnusualError(Exception):
    """Something that only Hydra itself should compose."""


class Composer(Closing):
    """Composes configs within ``with Composer() as composer``; Hydra is set up once."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._unresolved: dict[tuple[str, ...], Config] = {}
        self._files: dict[tuple[str, str], Config] = {}
        self._values: dict[str, tuple[str, Any]] = {}
        self._resolutions: dict[str, Config] = {}
        self._defaults = _default_choices()

    def __enter__(self) -> Self:
        self._stack.enter_context(initialised())
        return self

    def close(self) -> None:
        """Leave Hydra as it was found."""
        self._stack.close()

    def compose(self, words: Sequence[str]) -> Config:
        """The resolved config of ``words``, as `dpft.config.compose.compose` would return it.

        Raises:
            ConfigError: for an override that Hydra refuses.
        """
        from hydra.errors import HydraException
        from omegaconf.errors import OmegaConfBaseException

        try:
            choices = tuple(word for word in words if word.partition("=")[0] in self._defaults)
            try:
                values = [self._value(word) for word in words if word not in choices]
                return self._resolved(_with_values(self._choices(choices), values))
            except _UnusualError:
                return compose_here(words)
        except (HydraException, OmegaConfBaseException) as error:
            # Here, where the caller can still say which row it was.
            raise ConfigError(explained(error)) from error

    def _choices(self, choices: tuple[str, ...]) -> Config:
        config = dict(self._read(()))
        for choice in choices:
            group, _, name = choice.partition("=")
            try:
                # If the default's file is all of its group, so is another's.
                if self._file(group, self._defaults[group]) != self._read(())[group]:
                    raise _UnusualError
                config[group] = self._file(group, name)
            except _UnusualError:
                return self._read(choices)
        return config

    def _read(self, choices: tuple[str, ...]) -> Config:
        """What Hydra composes for some choices, interpolations left as they are."""
        if choices not in self._unresolved:
            from hydra import compose

            composed = compose("config", overrides=list(choices))
            self._unresolved[choices] = _plain(composed, resolve=False)
        return self._unresolved[choices]

    def _file(self, group: str, name: str) -> Config:
        if (group, name) not in self._files:
            from omegaconf import OmegaConf

            path = conf_dir() / group / f"{name}.yaml"
            if not path.is_file() or "@package" in path.read_text(encoding="utf-8"):
                raise _UnusualError
            content = _plain(OmegaConf.load(path), resolve=False)
            bases = content.pop("defaults", [])
            # Another file of the group, which this one changes at its top.
            if not all(isinstance(base, str) and base.isalnum() for base in bases):
                raise _UnusualError
            if bases and any(isinstance(value, dict) for value in content.values()):
                raise _UnusualError
            for base in bases:
                content = {**self._file(group, base), **content}
            self._files[group, name] = content
        return self._files[group, name]

    def _value(self, word: str) -> tuple[str, Any]:
        """The key and the value of an override that only sets a value."""
        if word not in self._values:
            from hydra.core.override_parser.overrides_parser import OverridesParser
            from hydra.errors import HydraException

            try:
                override = OverridesParser.create().parse_override(word)
            except HydraException as error:
                raise _UnusualError from error
            if (
                override.is_add()
                or override.is_force_add()
                or override.is_delete()
                or override.is_sweep_override()
                or override.package is not None
            ):
                raise _UnusualError
            value = override.value()
            if isinstance(value, dict) or "$" in str(value):
                raise _UnusualError
            self._values[word] = (override.key_or_group, value)
        return self._values[word]

    def _resolved(self, config: Config) -> Config:
        """Interpolations resolved; they ask for settings at the top and of the task alone."""
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        part = {
            key: value
            for key, value in config.items()
            if key == "task" or not isinstance(value, dict) or "${" in json.dumps(value)
        }
        text = json.dumps(part)
        if text not in self._resolutions:
            try:
                self._resolutions[text] = _plain(OmegaConf.create(part), resolve=True)
            except OmegaConfBaseException as error:
                raise _UnusualError from error
        return copy.deepcopy({**config, **self._resolutions[text]})


def _with_values(config: Mapping[str, Any], values: Sequence[tuple[str, Any]]) -> Config:
    changed: Config = copy.deepcopy(dict(config))
    for key, value in values:
        *folders, leaf = key.split(".")
        place: Any = changed
        for folder in folders:
            place = place.get(folder) if isinstance(place, dict) else None
        if not isinstance(place, dict) or leaf not in place or isinstance(place[leaf], dict):
            raise _UnusualError
        place[leaf] = value
    return changed


def _plain(config: Any, resolve: bool) -> Config:
    from omegaconf import OmegaConf

    content = OmegaConf.to_container(config, resolve=resolve)
    assert isinstance(content, dict)
    return {str(key): value for key, value in content.items()}


def _default_choices() -> dict[str, str]:
    """The choice of each group that has one by default."""
    import yaml

    main = yaml.safe_load((conf_dir() / "config.yaml").read_text(encoding="utf-8"))
    return {
        str(group): str(name)
        for entry in main["defaults"]
        if isinstance(entry, dict)
        for group, name in entry.items()
        if " " not in group
    }
