"""``dpft recipe`` and ``--config FILE``: files of settings, one on a line, as they are typed."""

import re
import shlex
from pathlib import Path
from typing import Annotated

import typer

from dpft.config.errors import ConfigError, suggestion
from dpft.config.overrides import override, setting_of
from dpft.config.regular_files import regular
from dpft.report.terminal import echo

RECIPES = Path(__file__).parents[1] / "config/recipes"
FLAG = "--config"
# Values of several runs in Hydra's grammar, for dpft sweep --config FILE.
_SEVERAL = re.compile(r"(choice|range|interval|glob)\(.*\)")


def main(
    recipe: Annotated[str | None, typer.Argument(help="Its name. None: list all recipes.")] = None,
    file: Annotated[
        Path | None, typer.Argument(help="Where to write the copy. Default: ./RECIPE.yaml.")
    ] = None,
) -> None:
    """List recipes, or copy one to edit: dpft recipe lora-chat-8b mine.yaml

    A recipe is a commented file with all settings of a job. Run it with
    dpft train --config mine.yaml
    """
    known = {path.stem: path.read_text(encoding="utf-8") for path in sorted(RECIPES.glob("*.yaml"))}
    if recipe is None:
        width = max(map(len, known))
        for name, text in known.items():
            echo(f"  {name:<{width}}  {text.partition(chr(10))[0].lstrip('# ')}")
        return
    if recipe not in known:
        expected = f"expected one of {', '.join(known)}"
        raise ConfigError(f"there is no recipe {recipe!r}{suggestion(recipe, known)}; {expected}")
    file = file or Path(f"{recipe}.yaml")
    with file.open("x", encoding="utf-8") as stream:  # never over another file
        stream.write(known[recipe])
    echo(f"wrote {file}; edit it, then type dpft train --config {shlex.quote(str(file))}")


def expanded(arguments: list[str]) -> list[str]:
    """Return the arguments with the settings of a file in the place of ``--config FILE``.

    A typed setting wins over the file. If another choice of a group is typed, the file's settings
    of that group are left out, since they belong to the file's choice.
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
        groups = {
            "/".join(parts[:depth]) for depth in range(1, len(parts))
        }  # such as hydra/launcher
        if ".".join(parts) not in typed:
            (dropped if groups & typed else kept).append(word)
    if dropped:
        echo(f"left out of {file}, since another choice was typed: {' '.join(dropped)}", err=True)
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
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise ConfigError(
            f"cannot read {file} ({reason}); expected lines such as eps: 3. To start from a "
            "recipe type dpft recipe"
        ) from error
    if not isinstance(content, dict) or not content:
        raise ConfigError(f"{file} has no settings; expected lines such as eps: 3")
    words = []
    for key, value in content.items():
        flat = isinstance(key, str) and re.fullmatch(r"[+~]{0,2}[\w./@-]+", key)
        if not flat or isinstance(value, dict):
            raise ConfigError(
                f"{file} has {str(key)[:40]!r}; expected each setting on a line, as it is typed, "
                "such as optim.lr: 0.001. To continue a run type resume=RUN"
            )
        several = isinstance(value, str) and _SEVERAL.fullmatch(value)
        name = str(key)
        words.append(f"{name}={value}" if several else override(name, value, literal=False))
    return words
