"""Parts that other installed packages bring, which say so by entry points (docs/how-to/extend.md).

What there is stands in the packages' metadata. Nothing of them is imported until it is asked for.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Any

from dpft.config.errors import ConfigError

KINDS: Mapping[str, str] = MappingProxyType(
    {
        "tasks": "task",
        "clip_functions": "clip function",
        "styles": "clipping style",
        "rules": "layer rule",
        "metrics": "metric",
    }
)
"""Groups of entry points behind ``dpft.``, and what is in them."""

TYPED: Mapping[str, str] = MappingProxyType(
    {
        "tasks": "task.name=NAME",
        "clip_functions": "clip.clip_function=NAME",
        "styles": "clip.groups=NAME",
        "rules": "for layers of this class",
        "metrics": "+task.metrics=[NAME]",
    }
)
"""How each kind is asked for."""

# The further group, whose entry points name folders with files such as task/mine.yaml.
_CONF = "conf"


@dataclass(frozen=True)
class Plugin:
    """A part of another package.

    Attributes:
        kind: a key of `KINDS`, or ``conf``.
        name: what it is asked for by; of a rule, the qualified name of its layer's class.
        package: the distribution that brings it, as pip calls it.
        version: of that.
        entry: where it is.
    """

    kind: str
    name: str
    package: str
    version: str
    entry: EntryPoint

    def __str__(self) -> str:
        return f"{KINDS[self.kind]} {self.name} of {self.package} {self.version}"

    def load(self) -> Any:
        """The part itself.

        Raises:
            ConfigError: naming the package, if it cannot be imported.
        """
        try:
            return self.entry.load()
        except Exception as error:  # whatever another's module raises
            said = str(error).strip().partition("\n")[0]
            raise ConfigError(
                f"{self} cannot be imported ({self.entry.value}: {type(error).__name__}: {said}); "
                f"mend the package, or leave it out: pip uninstall {self.package}"
            ) from error

    def origin(self) -> dict[str, str]:
        """What a record says of the part: where it came from, and what its code was."""
        self.load()
        file = getattr(sys.modules[self.entry.module], "__file__", None)
        code = Path(file).read_bytes() if file else b""
        return {
            "kind": KINDS[self.kind],
            "name": self.name,
            "package": self.package,
            "version": self.version,
            "sha256": hashlib.sha256(code).hexdigest(),
        }


def parts(kind: str) -> list[Plugin]:
    """All parts of a kind, by name."""
    found = [
        Plugin(kind, entry.name, entry.dist.name, entry.dist.version, entry)
        for entry in entry_points(group=f"dpft.{kind}")
        if entry.dist is not None
    ]
    return sorted(found, key=lambda part: (part.name, part.package))


def names(kind: str) -> list[str]:
    """What parts of a kind are asked for by."""
    return list(dict.fromkeys(part.name for part in parts(kind)))


def find(kind: str, name: str) -> Plugin | None:
    """The part of that name; None where no package has one.

    Raises:
        ConfigError: if several packages have one.
    """
    having = [part for part in parts(kind) if part.name == name]
    if len(having) > 1:
        packages = [part.package for part in having]
        raise ConfigError(
            f"the {KINDS[kind]} {name} is in several packages: {', '.join(packages)}; expected "
            f"one: pip uninstall {packages[-1]}"
        )
    return having[0] if having else None


def load(kind: str, name: str) -> Any:
    """The part of that name.

    Raises:
        ConfigError: if no package has it, or it cannot be imported.
    """
    part = find(kind, name)
    if part is None:
        known = ", ".join(names(kind)) or "none"
        raise ConfigError(
            f"no installed package has a {KINDS[kind]} {name}; there is: {known}. Type dpft ls "
            "plugins"
        )
    return part.load()


def conf_dirs() -> list[tuple[Plugin, Path]]:
    """Folders of choices, as `conf/`, that packages bring: ``module:folder`` beside the module."""
    return _conf_dirs(tuple(sys.path))


@cache  # asked for each of hundreds of configs
def _conf_dirs(path: tuple[str, ...]) -> list[tuple[Plugin, Path]]:
    found = []
    for part in parts(_CONF):
        spec = importlib.util.find_spec(part.entry.module.partition(".")[0])  # imports nothing
        for place in (spec and spec.submodule_search_locations) or ():
            found.append((part, Path(place, *part.entry.module.split(".")[1:], part.entry.attr)))
    return found
