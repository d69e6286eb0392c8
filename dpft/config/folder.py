"""The files of conf/: groups, their choices, and what each sets. Nothing is composed here.

Imports nothing heavy, so that listing choices answers at once.
"""

from functools import cache
from pathlib import Path
from typing import Any

from dpft.config.errors import ConfigError

Config = dict[str, Any]

PRESETS = ("experiment", "hparams_search")
"""Groups whose files set what other groups define: chosen with ``+``, none by default."""


def conf_dir() -> Path:
    """Return the folder of the config groups: inside the wheel, or next to a checkout's package."""
    package = Path(__file__).resolve().parents[1]
    inside, checkout = package / "conf", package.parent / "conf"
    return inside if inside.is_dir() else checkout


def groups() -> list[str]:
    """Return the names of all groups."""
    return sorted(path.name for path in conf_dir().iterdir() if path.is_dir())


def choices(group: str) -> list[str]:
    """Return what may be chosen in a group."""
    return sorted(file.stem for file in (conf_dir() / group).glob("*.yaml"))


def check_choices(place: Path) -> None:
    """Check a folder of the user (``--config-dir``).

    Raises:
        ConfigError: one of its files is never read.
    """
    for file in place.glob("*/*.yaml"):
        if _file(file.parent.name, file.stem).exists():
            raise ConfigError(f"{file} is never read, since dpft has that choice too; rename it")


@cache
def main() -> Config:
    """Return ``config.yaml`` without default choices and Hydra's settings; not to be changed."""
    content = _read(conf_dir() / "config.yaml")
    return {key: value for key, value in content.items() if key not in ("defaults", "hydra")}


@cache
def defaults() -> dict[str, str]:
    """Return the choice of each group that has one by default; not to be changed."""
    listed = _read(conf_dir() / "config.yaml")["defaults"]
    entries = [entry for entry in listed if isinstance(entry, dict)]
    return {key: name for entry in entries for key, name in entry.items() if " " not in key}


@cache
def settings_of(group: str, name: str) -> Config:
    """Return what a choice sets in its group, interpolations left as they are; not to be changed.

    Empty if there is no such choice, or if it sets what other groups define.
    """
    file = _file(group, name)
    if group in PRESETS or not file.is_file() or "@package" in file.read_text(encoding="utf-8"):
        return {}
    content = _read(file)
    for base in content.pop("defaults", []):
        content = settings_of(group, base) | content
    return content


def summary(group: str, name: str) -> str:
    """Return the comment on the first line of a choice's file."""
    lines = _file(group, name).read_text(encoding="utf-8").splitlines()
    first = next((line for line in lines if "@package" not in line), "")
    return first.lstrip("# ") if first.startswith("#") else ""


def settings() -> list[str]:
    """Return every setting as it is typed: of the main config, groups, and what their files set."""
    known = dict.fromkeys([*main(), *groups()])
    for group in groups():
        for name in choices(group):
            known |= dict.fromkeys(f"{group}.{key}" for key in settings_of(group, name))
    return list(known)


def _file(group: str, name: str) -> Path:
    return conf_dir() / group / f"{name}.yaml"


def _read(file: Path) -> Config:
    from omegaconf import OmegaConf

    content = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    assert isinstance(content, dict)
    return {str(key): value for key, value in content.items()}
