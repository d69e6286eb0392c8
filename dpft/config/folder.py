"""The files of conf/: groups, their choices, and what each sets. Nothing is composed here.

Imports nothing heavy, so that whoever lists choices answers at once.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from dpft.config import plugins
from dpft.config.errors import ConfigError

Config = dict[str, Any]

PRESETS = ("experiment", "hparams_search")
"""Groups whose files set what other groups define: chosen with ``+``, none by default."""


def conf_dir() -> Path:
    """The packaged config groups: inside the wheel, or beside the package in a checkout."""
    package = Path(__file__).resolve().parents[1]
    inside, beside = package / "conf", package.parent / "conf"
    return inside if inside.is_dir() else beside


def groups() -> list[str]:
    """The names of all groups."""
    return sorted(path.name for path in conf_dir().iterdir() if path.is_dir())


def choices(group: str) -> list[str]:
    """What may be chosen in a group, of dpft's own and of other installed packages'."""
    places = [conf_dir(), *(place for _, place in plugins.conf_dirs())]
    return sorted({file.stem for place in places for file in (place / group).glob("*.yaml")})


def package_of(group: str, name: str) -> str | None:
    """The other package that brings a choice, with its version; None: dpft does."""
    found = _source(group, name)[0]
    return None if found is None else f"{found.package} {found.version}"


def _source(group: str, name: str) -> tuple[plugins.Plugin | None, Path]:
    """Whose a choice is, and its file: dpft's, if it has one, as Hydra has it.

    Raises:
        ConfigError: if several other packages have one.
    """
    own, other = conf_dir() / group / f"{name}.yaml", f"{group}/{name}.yaml"
    if own.is_file():
        return None, own
    having = [(part, place / other) for part, place in plugins.conf_dirs()]
    having = [(part, file) for part, file in having if file.is_file()]
    if len(having) > 1:
        packages = [part.package for part, _ in having]
        raise ConfigError(
            f"{other} is in several packages: {', '.join(packages)}; expected one: pip uninstall "
            f"{packages[-1]}"
        )
    return having[0] if having else (None, own)


def own_choices(place: Path) -> list[str]:
    """What a folder of one's own (``--config-dir``) adds, each as it is typed.

    Raises:
        ConfigError: there is no such folder, or one of its files is never read.
    """
    if not place.is_dir():
        raise ConfigError(
            f"--config-dir is {str(place)!r}; expected a folder with files such as "
            "experiment/mine.yaml"
        )
    own = []
    for file in sorted(place.glob("*/*.yaml")):
        group, name = file.parent.name, file.stem
        if group in groups() and name in choices(group):
            has = package_of(group, name) or "dpft"
            raise ConfigError(
                f"{file} is never read, since {has} has {group}={name} itself; expected another "
                "name: rename it"
            )
        own.append(f"{typed(group) if group in groups() else f'+{group}='}{name}")
    return own


def typed(group: str) -> str:
    """What is typed before a choice: ``task=``, ``+experiment=``."""
    return f"{'+' if group in PRESETS else ''}{group}="


def summary(group: str, name: str) -> str:
    """The comment on the first line of a choice's file."""
    lines = _text(group, name).splitlines()
    first = next((line for line in lines if "@package" not in line), "")
    return first.lstrip("# ") if first.startswith("#") else ""


@cache
def main() -> Config:
    """``config.yaml`` without the default choices and Hydra's own settings; not to be changed."""
    content = _read(conf_dir() / "config.yaml")
    return {key: value for key, value in content.items() if key not in ("defaults", "hydra")}


@cache
def defaults() -> dict[str, str]:
    """The choice of each group that has one by default; not to be changed."""
    listed = _read(conf_dir() / "config.yaml")["defaults"]
    entries = [entry for entry in listed if isinstance(entry, dict)]
    return {key: name for entry in entries for key, name in entry.items() if " " not in key}


@cache
def settings_of(group: str, name: str) -> Config | None:
    """What a choice sets, interpolations left as they are; not to be changed.

    Returns:
        The settings of its group, with those of the choices that it changes; None if there is no
        such choice, or if it does more than that.
    """
    if group in PRESETS or name not in choices(group) or "@package" in _text(group, name):
        return None
    content = _read(_source(group, name)[1])
    bases = content.pop("defaults", [])
    if bases and any(isinstance(value, dict) for value in content.values()):
        return None
    for base in bases:
        below = settings_of(group, base) if isinstance(base, str) else None
        if below is None:
            return None
        content = {**below, **content}
    return content


def settings() -> list[str]:
    """Every setting as it is typed: those of the main config, groups, and what their files set."""
    known = dict.fromkeys([*main(), *groups()])
    for group in groups():
        for name in choices(group):
            known |= dict.fromkeys(f"{group}.{key}" for key in settings_of(group, name) or ())
    return list(known)


def _text(group: str, name: str) -> str:
    return _source(group, name)[1].read_text(encoding="utf-8")


def _read(file: Path) -> Config:
    from omegaconf import OmegaConf

    content = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    assert isinstance(content, dict)
    return {str(key): value for key, value in content.items()}
