"""``--config FILE``: a flat file of settings, as if they were typed before the others."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from dpft.config.errors import ConfigError
from dpft.config.files import regular
from dpft.config.overrides import override, setting_of
from dpft.report.terminal import echo

FLAG = "--config"
# Values of several runs, in Hydra's own words: dpft sweep --config FILE.
_SEVERAL = re.compile(r"(choice|range|interval|glob)\(.*\)")


def expanded(arguments: list[str]) -> list[str]:
    """The arguments with the settings of a file in the place of ``--config FILE``.

    What is typed as well, anywhere, is left out of the file's: it wins. So are, if another choice
    of a group is typed, the file's settings of that group, which were meant for its own choice.

    Raises:
        ConfigError: the flag has no value or comes twice, or the file holds no flat settings.
    """
    words = [one for word in arguments for one in _apart(word)]
    if FLAG not in words:
        return arguments
    at = words.index(FLAG)
    before, after = words[:at], words[at + 2 :]
    if FLAG in after or len(words) < at + 2 or "=" in words[at + 1]:
        got = "twice" if FLAG in after else "without a file"
        raise ConfigError(f"got {FLAG} {got}; expected one, as in {FLAG} run.yaml")
    file = Path(words[at + 1])
    typed = {setting_of(word): word for word in (*before, *after) if "=" in word}
    held = [word for word in settings_in(file) if setting_of(word) not in typed]
    dropped = {word: choice for word in held if (choice := _other_choice(word, typed))}
    if dropped:
        groups = dict.fromkeys(dropped.values())
        echo(
            f"left out of {file}, since {' '.join(groups)} was typed: {' '.join(dropped)}", err=True
        )
    return [*before, *(word for word in held if word not in dropped), *after]


def settings_in(file: Path) -> list[str]:
    """The settings of a file, each as it is typed.

    Raises:
        ConfigError: it cannot be read, or holds something else than flat settings.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        # Not PyYAML, which reads 1e-3 as text.
        content = OmegaConf.to_container(
            OmegaConf.create(regular(file).read_text("utf-8")), resolve=False
        )
    except (OSError, UnicodeDecodeError, YAMLError, OmegaConfBaseException) as error:
        said = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise ConfigError(
            f"cannot read {file} ({said}); expected lines such as eps: 3. A recipe to begin with: "
            "dpft cp"
        ) from error
    if not isinstance(content, dict) or not content:
        raise ConfigError(f"{file} holds no settings; expected lines such as eps: 3")
    words = []
    for key, value in content.items():
        if not isinstance(key, str) or not re.fullmatch(r"[+~]{0,2}[\w./@-]+", key):
            raise ConfigError(
                f"{file} holds {str(key)[:40]!r}; expected settings as they are typed, such as "
                "optim.lr: 1e-3"
            )
        if isinstance(value, dict):
            inner = next(iter(value), "NAME")
            raise ConfigError(
                f"{file} holds a group of settings, {key}; expected each on a line of its own, "
                f"such as {key}.{inner}: {value.get(inner, 'VALUE')}. To go on with a run type "
                "resume=RUN"
            )
        elif isinstance(value, str) and _SEVERAL.fullmatch(value):
            words.append(f"{key}={value}")
        else:
            words.append(override(key, value, literal=False))
    return words


def _apart(word: str) -> list[str]:
    return [FLAG, word[len(FLAG) + 1 :]] if word.startswith(f"{FLAG}=") else [word]


def _other_choice(word: str, typed: Mapping[str, str]) -> str | None:
    """The typed choice of the group, such as ``model`` or ``hydra/launcher``, that a word sets."""
    path = setting_of(word).split(".")
    groups = ("/".join(path[:depth]) for depth in range(1, len(path)))
    return next((typed[group] for group in groups if group in typed), None)
