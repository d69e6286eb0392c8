"""Settings as they are typed: how they are read, and Hydra's errors in one sentence each."""

import os
import re
import shlex
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dpft.config.errors import ConfigError, NotInstalledError, suggestion
from dpft.config.folder import choices, groups, settings, settings_of
from dpft.config.schema import SHORTHANDS

# Hydra's flags, except --experimental-rerun, which runs the content of a pickle. A value may
# directly follow a short one.
_FLAGS = re.compile(
    r"(--(help|hydra-help|version|cfg|resolve|package|(multi)?run|shell-completion|info"
    r"|config-(path|name|dir))$|-[hcprmsi])"
)
# Choices of Hydra's own groups that optional packages bring, and the extra that installs them.
_EXTRAS = {
    "hydra/launcher/joblib": "joblib",
    "hydra/launcher/submitit_local": "submitit",
    "hydra/launcher/submitit_slurm": "submitit",
    "hydra/launcher/ray": "ray",
}
# The characters of a text that needs no quotation marks, and those that make it more than a text.
_PLAIN = re.compile(r"[\w .:/%@?|*+-]*", re.ASCII)
_GRAMMAR = re.compile(r"[(){}\"'\\$]")
_EMPTY = ("", "null")


def setting_of(word: str) -> str:
    """Return the name of the setting that an override changes: ``eps`` of ``++eps=3``."""
    return word.lstrip("+~").partition("=")[0]


def quoted(text: str) -> str:
    """Return a text in quotation marks, as Hydra reads them; ``${...}`` in it is resolved."""
    # A backslash escapes only a quotation mark.
    escaped = re.sub(r'(\\*)("|$)', lambda m: m[1] * 2 + (r"\"" if m[2] else ""), text)
    return f'"{escaped}"'


def override(key: str, value: Any, literal: bool = True) -> str:
    """Return ``key=value`` in Hydra's grammar; if ``literal``, ``${...}`` is not resolved."""
    import yaml

    def spelled(value: Any) -> str:
        if value is None:
            return "null"
        if isinstance(value, bool):
            return str(value).lower()
        if isinstance(value, list | tuple):
            return f"[{','.join(map(spelled, value))}]"
        if not isinstance(value, str):
            return str(value)
        # A word that reads as a number, a truth value or null is quoted to stay a word.
        if re.fullmatch(r"[\w./-]+", value, re.ASCII) and yaml.safe_load(value) == value:
            number = re.fullmatch(r"[-+.\d].*|nan|inf", value.lower())
            return quoted(value) if number else value
        return quoted(value).replace("${", r"\${") if literal else quoted(value)

    return f"{key}={spelled(value)}"


def readable(word: str) -> str:
    """Return the word with quotation marks around texts that Hydra cannot read without.

    Its grammar has ASCII letters and few signs. A word that may mean more than a text, or a list of
    texts, is returned as it is.
    """
    key, _, value = word.partition("=")
    listed = value.startswith("[") and value.endswith("]")
    if word.startswith("-") or _PLAIN.fullmatch(value) or _GRAMMAR.search(value):
        return word
    if not listed and ("[" in value or "]" in value):
        return word
    parts = re.split(r"([][,])", value)
    for number, part in enumerate(parts):
        text = part.strip()
        if text not in ("[", "]", ",") and not _PLAIN.fullmatch(text) and text[0] != "~":
            parts[number] = part.replace(text, quoted(text))
    return f"{key}={''.join(parts)}"


def check_flags(flags: Sequence[str]) -> None:
    """Raise ConfigError for settings that are typed as flags, such as ``--epsilon 3``."""
    for word in flags:
        name = word.partition("=")[0]
        if word.startswith("="):
            raise ConfigError(f"got {word!r}; expected NAME=VALUE, as in eps=3")
        if word.startswith("-") and word != "-" and not _FLAGS.match(name):
            meant = _meant(name.strip("-").replace("-", "_"))
            raise ConfigError(
                f"there is no flag {name}{meant}; settings are typed as NAME=VALUE, as in eps=3"
            )


def check_budget(words: Sequence[str], *, of_point: bool = False) -> None:
    """Raise ConfigError for a budget that was typed next to noise, or next to ``clip=none``.

    The latter is allowed ``of_point``: a sweep of ``clip=none,bk`` has points without privacy.
    """
    pairs = (word.partition("=") for word in words if "=" in word)
    typed = {key.lstrip("+"): value for key, _, value in pairs}
    noise, why = typed.get("privacy.noise_multiplier", "null"), ""
    if noise not in _EMPTY:
        why = f"privacy.noise_multiplier={noise}, from which epsilon follows"
    elif typed.get("clip") == "none" and not of_point:
        why = "clip=none, which trains without privacy"
    for budget in ("eps", "privacy.epsilon"):
        if why and typed.get(budget, "null") not in _EMPTY:
            raise ConfigError(
                f"got {budget}={typed[budget]} next to {why}; expected one of them: leave {budget} "
                f"out, or type {budget}=null"
            )


@contextmanager
def hydra_errors() -> Iterator[None]:
    """Turn an error of Hydra in the block into a ConfigError of one sentence."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    before = os.environ.get("HYDRA_FULL_ERROR", "0")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # otherwise Hydra prints its exceptions and exits
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        absent = getattr(error, "missing_cfg_file", None) in _EXTRAS
        raise (NotInstalledError if absent else ConfigError)(_explained(error)) from error
    except ValueError as error:
        *_, (last, _) = traceback.walk_tb(error.__traceback__)
        if not last.f_globals.get("__name__", "").startswith("hydra."):
            raise
        null = "a group is null; expected one of its choices, which `dpft ls` shows"
        raise ConfigError(null if "NoneType" in str(error) else str(error)) from error
    finally:
        os.environ["HYDRA_FULL_ERROR"] = before


def _explained(error: Exception) -> str:
    """Return an error of Hydra in one sentence: what was got, what was expected, what to type."""
    text = str(error)
    if (word := getattr(error, "override", None)) is not None:
        return _unreadable(word, text)
    if (missing := getattr(error, "missing_cfg_file", None)) is not None:
        return _no_choice(missing, sorted(getattr(error, "options", None) or ()))
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
    if got := re.match(r"(?:Ambiguous value for argument|Sweep parameters) '(.+?)'", text):
        key, _, value = got[1].partition("=")
        return (
            f"got several values in {got[1]}; for a run of each type dpft train -m {got[1]}, for a "
            f"list type '{key}=[{value}]', for one text {_typed(key, value)}"
        )
    if (key := getattr(error, "full_key", None)) and "Interpolation" in type(error).__name__:
        reason = text.partition("\n")[0]
        return f"{key}: {reason}; expected a setting, as in ${{seed}}, or another value"
    cause = error.__cause__
    texts = [text] if cause is None or str(cause) in text else [f"{text}:", str(cause)]
    return " ".join(" ".join(texts).split()) or type(error).__name__


def _no_choice(missing: str, options: Sequence[str]) -> str:
    """Return the message for a choice that does not exist, such as ``task/e2``."""
    group, _, name = missing.rpartition("/")
    if missing in _EXTRAS:
        return f"{group}={name} is not installed; type pip install 'dpft[{_EXTRAS[missing]}]'"
    place, _, path = missing.partition("/")
    if "/" in path and place in groups():  # a folder in the place of a name
        custom = f". For a folder type model=custom model.name=NAME model.path={path}"
        expected = f"{place} is {path!r}; expected a name that `dpft ls {place}` shows"
        return expected + (custom if place == "model" else "")
    if not group or not options:
        return f"there is no config {missing!r}; expected one that `dpft ls` shows"
    return f"{group} is {name!r}{suggestion(name, options)}; expected one of {', '.join(options)}"


def _meant(key: str) -> str:
    """Return ``; did you mean 'x'?``, also where the name is right and its group is not."""
    leaf = key.rpartition(".")[2]
    known = settings()
    short = SHORTHANDS.values()  # suggested by their other names
    same = [name for name in known if name.rpartition(".")[2] == leaf and name not in short]
    return suggestion(same[0], same) if len(same) == 1 else suggestion(key, known)


def _unreadable(word: str, text: str) -> str:
    """Return the message for an override that Hydra cannot read."""
    key, equals, value = word.partition("=")
    if not equals and word in settings():
        return f"got {word!r} without a value; type {word}={'3' if word == 'eps' else 'VALUE'}"
    if not equals:
        return f"got {word!r}{_meant(word)}; expected NAME=VALUE, as in eps=3"
    if value.startswith("~"):
        return f"cannot read {word!r}: Hydra does not expand ~; type $HOME instead"
    reason = text.partition("\nSee ")[0].removeprefix(f"Error parsing override '{word}'")
    return (
        f"cannot read {word!r} ({' '.join(reason.split())}); for this very text type "
        f"{_typed(key, value)}"
    )


def _typed(key: str, value: str) -> str:
    """Return a setting with a value of any characters, as it is typed in a shell."""
    return shlex.quote(f"{key}={quoted(value)}")
