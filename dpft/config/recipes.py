"""Recipes: complete settings of common jobs, one commented file each, to be copied and changed."""

from __future__ import annotations

from pathlib import Path

from dpft.config.errors import ConfigError, suggestion


def names() -> list[str]:
    """All recipes."""
    return sorted(file.stem for file in _folder().glob("*.yaml"))


def summary(name: str) -> str:
    """The comment on a recipe's first line."""
    return text(name).partition("\n")[0].lstrip("# ")


def text(name: str) -> str:
    """The whole file.

    Raises:
        ConfigError: if there is none of that name.
    """
    known = names()
    if name not in known:
        raise ConfigError(
            f"there is no recipe {name!r}{suggestion(name, known)}; expected one of "
            f"{', '.join(known)}"
        )
    return (_folder() / f"{name}.yaml").read_text(encoding="utf-8")


def _folder() -> Path:
    return Path(__file__).with_suffix("")
