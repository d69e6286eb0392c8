"""Settings as they are typed: how they are read, and Hydra's errors in one sentence each."""

import os
import re
import shlex
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dpft.config.errors import ConfigError, suggestion
from dpft.config.folder import groups, settings

# The flags of Hydra that dpft takes, of which a value may directly follow a short one. Not
# --experimental-rerun, which runs the content of a pickle.
_FLAGS = re.compile(r"(--(help|cfg|resolve|package|multirun|config-dir)$|-[hcpm])")
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


def value_of(word: str) -> tuple[str, Any]:
    """Return key and value of ``key=value`` as Hydra reads it, which composes nothing here."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    with hydra_errors():
        (parsed,) = OverridesParser.create().parse_overrides([word])
    return parsed.key_or_group, parsed.value()


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
        raise ConfigError(_explained(error)) from error
    except ValueError as error:  # as of a group that is a number
        *_, (last, _) = traceback.walk_tb(error.__traceback__)
        if not last.f_globals.get("__name__", "").startswith("hydra."):
            raise
        raise ConfigError(_explained(error)) from error
    finally:
        os.environ["HYDRA_FULL_ERROR"] = before


def _explained(error: Exception) -> str:
    """Return an error of Hydra in one sentence: what was got, what was expected, what to type."""
    text = str(error)
    if several := re.match(r"Ambiguous value for argument '(.+)'$", text, re.MULTILINE):
        key, _, values = several[1].partition("=")
        return (
            f"got {several[1]}; expected one value. For a run of each type dpft sweep "
            f"{several[1]}, for a list {shlex.quote(f'{key}=[{values}]')}"
        )
    if (word := getattr(error, "override", None)) is not None:
        return _unreadable(word, text)
    if (missing := getattr(error, "missing_cfg_file", None)) is not None:
        return _no_choice(missing, sorted(getattr(error, "options", None) or ()))
    if (got := re.match(r"Could not override '(.+?)'", text)) and got[1] not in groups():
        if got[1] in settings():
            return f"{got[1]} is no setting of the choice in its group; `dpft ls` shows the choices"
        return f"unknown setting {got[1]}{_meant(got[1])}; `dpft train --cfg job` shows all"
    cause = error.__cause__
    texts = [text] if cause is None or str(cause) in text else [f"{text}:", str(cause)]
    return " ".join(" ".join(texts).split()) or type(error).__name__


def _no_choice(missing: str, options: Sequence[str]) -> str:
    """Return the message for a choice that does not exist, such as ``task/e2``."""
    group, _, name = missing.rpartition("/")
    place, _, path = missing.partition("/")
    if "/" in path and place == "model":  # a folder in the place of a name
        return f"model is {path!r}; type model=custom model.name=NAME model.path={path}"
    expected = f"one of {', '.join(options)}" if options else "a name that `dpft ls` shows"
    if place == "hydra":
        expected += ", or what an extra of dpft brings (docs/how-to/sweeps.md)"
    return f"{group} is {name!r}{suggestion(name, options)}; expected {expected}"


def _meant(key: str) -> str:
    """Return ``; did you mean 'x'?``, also where the name is right and its group is not."""
    leaf, known = key.rpartition(".")[2], settings()
    same = [name for name in known if name.rpartition(".")[2] == leaf]
    return f"; did you mean {same[0]!r}?" if len(same) == 1 else suggestion(key, known)


def _unreadable(word: str, text: str) -> str:
    """Return the message for an override that Hydra cannot read."""
    key, equals, value = word.partition("=")
    if not equals:
        meant = "" if word in settings() else _meant(word)
        return f"got {word!r}{meant}; expected NAME=VALUE without blanks, as in eps=3"
    if value.startswith("~"):
        return f"cannot read {word!r}: Hydra does not expand ~; type $HOME instead"
    reason = text.partition("\nSee ")[0].removeprefix(f"Error parsing override '{word}'")
    spelled = quoted(value)
    if value[:1] + value[-1:] == "[]":
        names = (name.strip().strip("\"'") for name in value[1:-1].split(","))
        spelled = f"[{','.join(map(quoted, names))}]"
    typed = shlex.quote(f"{key}={spelled}")
    return (
        f"cannot read {word!r} ({' '.join(reason.split())}); texts with other signs than letters "
        f"and digits are typed in quotation marks, in a list each of them: {typed}"
    )
