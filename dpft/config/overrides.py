"""Settings as they are typed: how they are read, and what Hydra refuses in one sentence each."""

import os
import re
import shlex
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from dpft.config.errors import ConfigError, NotInstalledError, suggestion
from dpft.config.folder import choices, groups, settings, settings_of
from dpft.config.schema import SHORTHANDS

# Hydra's own flags, but for --experimental-rerun, which runs whatever is in a pickle. A value may
# follow a short one at once.
_FLAGS = re.compile(
    r"(--(help|hydra-help|version|cfg|resolve|package|(multi)?run|shell-completion|info"
    r"|config-(path|name|dir))$|-[hcprmsi])"
)
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
_EMPTY = ("", "null")


def setting_of(word: str) -> str:
    """Return the name of the setting that an override changes: ``eps`` of ``++eps=3``."""
    return word.lstrip("+~").partition("=")[0]


def quoted(text: str) -> str:
    """Return a text in quotation marks, as Hydra reads them; ``${...}`` in it is resolved."""
    # Backslashes are themselves but before a quotation mark.
    escaped = re.sub(r'(\\*)("|$)', lambda m: m[1] * 2 + (r"\"" if m[2] else ""), text)
    return f'"{escaped}"'


def override(key: str, value: Any, literal: bool = True) -> str:
    """Return ``key=value`` in Hydra's grammar.

    ``literal``: ``${...}`` in a text is itself, and does not stand for another setting.
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
    """Return the word with quotation marks around texts that Hydra reads with such alone.

    Its grammar knows ASCII letters and few signs. What may be meant as more than a text, or a list
    of texts, is left as it was typed.
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


def check_words(words: Sequence[str]) -> None:
    """Raise ConfigError for a budget next to the noise that it would determine."""
    noise = _typed_values(words).get("privacy.noise_multiplier", "null")
    if noise not in _EMPTY:
        _refuse_budget(words, f"privacy.noise_multiplier={noise}, from which epsilon follows")


def check_budget(words: Sequence[str]) -> None:
    """Raise ConfigError for a budget next to ``clip=none``.

    Not called for a point of a sweep of ``clip=none,bk``, whose points without privacy ignore it.
    """
    if _typed_values(words).get("clip") == "none":
        _refuse_budget(words, "clip=none, which trains without privacy")


def _typed_values(words: Sequence[str]) -> dict[str, str]:
    pairs = (word.partition("=") for word in words if "=" in word)
    return {key.lstrip("+"): value for key, _, value in pairs}


def _refuse_budget(words: Sequence[str], why: str) -> None:
    typed = _typed_values(words)
    for budget in ("eps", "privacy.epsilon"):
        if typed.get(budget, "null") not in _EMPTY:
            raise ConfigError(
                f"got {budget}={typed[budget]} next to {why}; expected one of them: leave {budget} "
                f"out, or type {budget}=null"
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


@contextmanager
def refusals_told() -> Iterator[None]:
    """Turn what Hydra raises inside into a ConfigError of one sentence."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    before = os.environ.get("HYDRA_FULL_ERROR", "0")
    os.environ["HYDRA_FULL_ERROR"] = "1"  # otherwise Hydra prints its exceptions and exits
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        absent = getattr(error, "missing_cfg_file", None) in _EXTRAS
        raise (NotInstalledError if absent else ConfigError)(explained(error)) from error
    except ValueError as error:
        *_, (last, _) = traceback.walk_tb(error.__traceback__)
        if not last.f_globals.get("__name__", "").startswith("hydra."):
            raise
        null = "a group is null; expected one of its choices, which `dpft ls` shows"
        raise ConfigError(null if "NoneType" in str(error) else str(error)) from error
    finally:
        os.environ["HYDRA_FULL_ERROR"] = before


def explained(error: Exception) -> str:
    """Return Hydra's refusal in one sentence: what was got, what was expected, what to type."""
    from omegaconf.errors import InterpolationResolutionError

    text = str(error)
    word = getattr(error, "override", None)
    if word is not None:
        return _unreadable(word, text)
    missing = getattr(error, "missing_cfg_file", None)
    if missing is not None:
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
    said = " ".join(text.split())
    if isinstance(error, InterpolationResolutionError):
        reason = text.partition("\n")[0]
        return f"{error.full_key}: {reason}; expected a setting, as in ${{seed}}, or another value"
    cause = error.__cause__
    if cause is not None and f"{cause}" not in text:
        said = " ".join(f"{said}: {cause}".split())
    return said or type(error).__name__


def _no_choice(missing: str, options: Sequence[str]) -> str:
    """Return what is said of a choice that does not exist, such as ``task/e2``."""
    group, _, name = missing.rpartition("/")
    if missing in _EXTRAS:
        return f"{group}={name} is not installed; type pip install 'dpft[{_EXTRAS[missing]}]'"
    place, _, path = missing.partition("/")
    if "/" in path and place in groups():  # a folder, where a name is asked for
        said = f"{place} is {path!r}; expected a name that `dpft ls {place}` shows"
        custom = f". For a folder type model=custom model.name=NAME model.path={path}"
        return said + custom if place == "model" else said
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
    """Return what is said of an override that Hydra cannot read."""
    key, equals, value = word.partition("=")
    if not equals and word in settings():
        return f"got {word!r} without a value; type {word}={'3' if word == 'eps' else 'VALUE'}"
    if not equals:
        return f"got {word!r}{_meant(word)}; expected NAME=VALUE, as in eps=3"
    if value.startswith("~"):
        return f"cannot read {word!r}: ~ stands for nothing there; type $HOME instead"
    reason = text.partition("\nSee ")[0].removeprefix(f"Error parsing override '{word}'")
    return (
        f"cannot read {word!r} ({' '.join(reason.split())}); for this very text type "
        f"{_typed(key, value)}"
    )


def _typed(key: str, value: str) -> str:
    """Return a setting with a value of any signs, as it is typed in a shell."""
    return shlex.quote(f"{key}={quoted(value)}")
