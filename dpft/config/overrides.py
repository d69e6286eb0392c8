"""What Hydra refuses to compose, in one sentence each, with what to type instead."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from dpft.config.errors import ConfigError, NotInstalledError, suggestion
from dpft.config.folder import choices, groups, settings, settings_of
from dpft.config.schema import SHORTHANDS

# Hydra's own flags, but for --experimental-rerun, which runs whatever is in a pickle. The long ones
# may be abbreviated; a value may follow a short one at once.
_LONG = (
    *("--help", "--hydra-help", "--version", "--cfg", "--resolve", "--package", "--run"),
    *("--multirun", "--shell-completion", "--config-path", "--config-name", "--config-dir"),
    "--info",
)
_SHORT = ("-h", "-c", "-p", "-r", "-m", "-s", "-i")
# Choices of Hydra's own groups that optional packages bring, and the extra that installs them.
_EXTRAS = {
    "hydra/sweeper/optuna": "sweep",
    "hydra/launcher/joblib": "joblib",
    "hydra/launcher/submitit_local": "submitit",
    "hydra/launcher/submitit_slurm": "submitit",
    "hydra/launcher/ray": "ray",
}
# What a text may hold without quotation marks, and what makes more of it than a text.
_PLAIN = re.compile(r"[\w .:/%@?|*+-]*", re.ASCII)
_GRAMMAR = re.compile(r"[(){}\"'\\$]")
# The budget, and what takes it away.
_BUDGETS, _EMPTY = ("eps", "privacy.epsilon"), ("", "null")


def setting_of(word: str) -> str:
    """The name of the setting that an override changes: ``eps`` of ``++eps=3``."""
    return word.lstrip("+~").partition("=")[0]


def quoted(text: str) -> str:
    """A text in quotation marks, as Hydra reads them; ``${...}`` in it is resolved all the same."""
    # Backslashes are themselves but before a quotation mark.
    escaped = re.sub(r'(\\*)("|$)', lambda m: m[1] * 2 + (r"\"" if m[2] else ""), text)
    return f'"{escaped}"'


def override(key: str, value: Any, literal: bool = True) -> str:
    """Return ``key=value`` in Hydra's grammar.

    Args:
        key: of the setting.
        value: a text, a number, a list or the like.
        literal: whether ``${...}`` in a text is itself, and does not stand for another setting.
    """
    return f"{key}={_value(value, literal)}"


def _value(value: Any, literal: bool) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(_value(one, literal) for one in value)}]"
    if not isinstance(value, str):
        return str(value)
    import yaml

    # A word that reads as a number, a truth value or null is quoted to stay a word.
    if re.fullmatch(r"[\w./-]+", value, re.ASCII) and yaml.safe_load(value) == value:
        return value if not re.fullmatch(r"[-+.\d].*|nan|inf", value.lower()) else quoted(value)
    return quoted(value).replace("${", r"\${") if literal else quoted(value)


def readable(word: str) -> str:
    """The word, with quotation marks around texts that Hydra reads with such alone.

    Its grammar knows ASCII letters and few signs. What may be meant as more than a text, or a list
    of some, is left as it was typed.
    """
    key, _, value = word.partition("=")
    listed = value.startswith("[") and value.endswith("]")
    if word.startswith("-") or _PLAIN.fullmatch(value) or _GRAMMAR.search(value):
        return word
    if not listed and ("[" in value or "]" in value):
        return word
    return f"{key}={''.join(map(_readable, re.split(r'([][,])', value)))}"


def _readable(part: str) -> str:
    text = part.strip()
    if _PLAIN.fullmatch(text) or text in ("[", "]", ",") or text.startswith("~"):
        return part
    return part.replace(text, quoted(text))


def check_flags(flags: Sequence[str]) -> None:
    """Refuse settings that are typed as flags, such as ``--epsilon 3``.

    Raises:
        ConfigError: naming the setting that was meant, if one is like it.
    """
    for word in flags:
        name = word.partition("=")[0]
        if word.startswith("="):
            raise ConfigError(f"got {word!r}; expected NAME=VALUE, as in eps=3")
        if not word.startswith("-") or word == "-":
            continue  # the value of a flag
        if word.startswith("--"):
            known = any(flag.startswith(name) for flag in _LONG)
        else:
            known = word.startswith(_SHORT)
        if not known:
            key = name.strip("-").replace("-", "_")
            raise ConfigError(
                f"there is no flag {name}{_meant(key)}; settings are typed as NAME=VALUE, as in "
                "eps=3"
            )


def check_words(words: Sequence[str]) -> None:
    """Refuse settings that Hydra would take, and of which one would be ignored.

    Raises:
        ConfigError: for a budget beside the noise that decides instead of it, and for a group
            without a choice.
    """
    pairs = (word.partition("=") for word in words if "=" in word)
    typed = {key.lstrip("+"): value for key, _, value in pairs}
    for group in groups():
        if typed.get(group) in ("", "null"):
            raise ConfigError(
                f"{group} is {typed[group] or 'empty'!r}; expected one of "
                f"{', '.join(choices(group))}"
            )
    noise = typed.get("privacy.noise_multiplier", "null")
    for budget in _BUDGETS:
        if noise not in _EMPTY and typed.get(budget, "null") not in _EMPTY:
            raise ConfigError(
                f"got {budget}={typed[budget]} beside privacy.noise_multiplier={noise}, from which "
                f"epsilon follows; expected one of them: leave {budget} out, or type "
                "privacy.noise_multiplier=null"
            )


def check_spellings(config: Mapping[str, Any], words: Sequence[str]) -> None:
    """Raise ConfigError if a short name was typed and the setting has another value."""
    typed = {setting_of(word): word.lstrip("+") for word in words}
    for short, setting in SHORTHANDS.items():
        group, _, leaf = setting.partition(".")
        values = config.get(group)
        if short in typed and isinstance(values, Mapping) and values.get(leaf) != config[short]:
            raise ConfigError(
                f"got {typed[short]} and {setting}={values.get(leaf)}, two values of one setting; "
                f"expected one: leave {short} or {setting} out"
            )


def check_budget(words: Sequence[str]) -> None:
    """Refuse a budget that is typed where all that is typed trains without privacy.

    A sweep may have `clip=none,bk` beside it: its points without privacy are one.

    Raises:
        ConfigError: for ``clip=none`` beside ``eps``.
    """
    typed = {key.lstrip("+"): value for key, _, value in (word.partition("=") for word in words)}
    if typed.get("clip") != "none":
        return
    for budget in _BUDGETS:
        if typed.get(budget, "null") not in _EMPTY:
            raise ConfigError(
                f"got {budget}={typed[budget]} beside clip=none, which trains without privacy: no "
                f"epsilon is kept to; expected one of them: leave {budget} out, or type "
                f"{budget}=null or clip=bk"
            )


@contextmanager
def refusals_told() -> Iterator[None]:
    """What Hydra raises inside becomes a ConfigError of one sentence.

    Hydra would print its exceptions and leave. With HYDRA_FULL_ERROR=1 it raises them; who has set
    that gets them as they are.
    """
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    if os.environ.get("HYDRA_FULL_ERROR") == "1":
        yield
        return
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        absent = getattr(error, "missing_cfg_file", None) in _EXTRAS
        raise (NotInstalledError if absent else ConfigError)(explained(error)) from error
    finally:
        if before is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = before


def explained(error: Exception) -> str:
    """Hydra's refusal in one sentence: what was got, what was expected, what to type."""
    from omegaconf.errors import InterpolationResolutionError

    text = str(error)
    override = getattr(error, "override", None)
    if override is not None:
        return _unreadable(override, text)
    missing = getattr(error, "missing_cfg_file", None)
    if missing is not None:
        group, _, name = missing.rpartition("/")
        if missing in _EXTRAS:
            return f"{group}={name} is not installed; type pip install 'dpft[{_EXTRAS[missing]}]'"
        options = sorted(getattr(error, "options", None) or ())
        place, _, path = missing.partition("/")
        if "/" in path and place in groups():  # a folder, where a name is asked for
            hint = f"model=custom model.name=NAME model.path={path}" if place == "model" else ""
            return f"{place} is {path!r}; expected a name that `dpft ls {place}` shows" + (
                hint and f". For a folder type {hint}"
            )
        if not group or not options:
            return f"there is no config {missing!r}; expected one that `dpft ls` shows"
        return (
            f"{group} is {name!r}{suggestion(name, options)}; expected one of {', '.join(options)}"
        )
    if got := re.match(r"Could not override '(.+?)'", text):
        key = got[1]
        if "No match in the defaults list" in text and key in groups():
            return f"{key} has no choice by default; type +{key}=NAME, one that `dpft ls` shows"
        if key in settings():
            group, _, leaf = key.partition(".")
            having = [name for name in choices(group) if leaf in (settings_of(group, name) or {})]
            names = ", ".join(f"{group}={name}" for name in having)
            return f"the {group} that was chosen has no setting {key}; it belongs to {names}"
        return f"unknown setting {key}{_meant(key)}; `dpft train --cfg job` shows all"
    if got := re.search(r"An item is already at '(.+?)'", text):
        return f"{got[1]} is a setting already; type {got[1]}=VALUE, without +"
    if got := re.match(r"(?:Ambiguous value for argument|Sweep parameters) '(.+?)'", text):
        key, _, value = got[1].partition("=")
        said = (
            f"got several values in {got[1]}; for a run of each type dpft train -m {got[1]}, for a "
            f"list type '{key}=[{value}]'"
        )
        words = re.search(r"[^\W\d]", value) is not None
        return f"{said}, for one text {_typed(key, value)}" if words else said
    if isinstance(error, InterpolationResolutionError):
        reason = text.partition("\n")[0]
        return f"{error.full_key}: {reason}; expected a setting, as in ${{seed}}, or another value"
    return _one_line(error)


def _meant(key: str) -> str:
    """``; did you mean 'x'?``, also where the name is right and its group is wrong or missing."""
    leaf = key.rpartition(".")[2]
    known = settings()
    short = SHORTHANDS.values()  # suggested by their other names
    same = [name for name in known if name.rpartition(".")[2] == leaf and name not in short]
    return suggestion(same[0], same) if len(same) == 1 else suggestion(key, known)


def _unreadable(override: str, text: str) -> str:
    if "=" not in override:
        known = settings()
        if override in known:
            example = "3" if override == "eps" else "VALUE"
            return f"got {override!r} without a value; type {override}={example}"
        return f"got {override!r}{_meant(override)}; expected NAME=VALUE, as in eps=3"
    reason = text.partition("\nSee ")[0]
    reason = " ".join(reason.removeprefix(f"Error parsing override '{override}'").split())
    if override.partition("=")[2].startswith("~"):
        return f"cannot read {override!r}: ~ stands for nothing there; type $HOME instead"
    key, _, value = override.partition("=")
    return f"cannot read {override!r} ({reason}); for this very text type {_typed(key, value)}"


def _typed(key: str, value: str) -> str:
    """A setting with a value of any signs, as it is typed in a shell."""
    return shlex.quote(f"{key}={quoted(value)}")


def _one_line(error: BaseException) -> str:
    said = f"{error}"
    cause = error.__cause__
    if cause is not None and f"{cause}" not in said:
        said = f"{said}: {cause}" if said else f"{cause}"
    return " ".join(said.split()) or type(error).__name__
