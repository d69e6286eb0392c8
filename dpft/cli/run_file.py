"""``--config FILE``: a flat file of settings, as if they were typed before the others."""

import re
from pathlib import Path

from dpft.config.errors import ConfigError
from dpft.config.files import regular
from dpft.config.overrides import override, setting_of
from dpft.report.terminal import echo

FLAG = "--config"
# Values of several runs, in Hydra's own words: dpft sweep --config FILE.
_SEVERAL = re.compile(r"(choice|range|interval|glob)\(.*\)")


def expanded(arguments: list[str]) -> list[str]:
    """Return the arguments with the settings of a file in the place of ``--config FILE``.

    What is typed as well, anywhere, wins over the file. If another choice of a group is typed, the
    file's settings of that group are left out, since they were meant for its own choice.
    """
    words: list[str] = []
    for word in arguments:
        words += word.split("=", 1) if word.startswith(f"{FLAG}=") else [word]
    if FLAG not in words:
        return arguments
    at = words.index(FLAG)
    before, after = words[:at], words[at + 2 :]
    if FLAG in after or len(words) < at + 2 or "=" in words[at + 1]:
        raise ConfigError(f"{FLAG} takes one file, as in {FLAG} run.yaml")
    file = Path(words[at + 1])
    typed = {setting_of(word) for word in (*before, *after) if "=" in word}
    kept, dropped = list[str](), list[str]()
    for word in settings_in(file):
        parts = setting_of(word).split(".")
        # The group, such as `model` or `hydra/launcher`, of which another choice was typed.
        groups = {"/".join(parts[:depth]) for depth in range(1, len(parts))}
        if ".".join(parts) not in typed:
            (dropped if groups & typed else kept).append(word)
    if dropped:
        echo(f"left out of {file}, for a typed choice: {' '.join(dropped)}", err=True)
    return [*before, *kept, *after]


def settings_in(file: Path) -> list[str]:
    """Return the settings of a file, each as it is typed."""
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
        flat = isinstance(key, str) and re.fullmatch(r"[+~]{0,2}[\w./@-]+", key)
        if not flat or isinstance(value, dict):
            raise ConfigError(
                f"{file} holds {str(key)[:40]!r}; expected each setting on a line, as it is typed, "
                "such as optim.lr: 0.001. To go on with a run type resume=RUN"
            )
        several = isinstance(value, str) and _SEVERAL.fullmatch(value)
        name = str(key)
        words.append(f"{name}={value}" if several else override(name, value, literal=False))
    return words
