"""Names of run folders, the search for runs, and files in a run's folder."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from dpft.config.errors import ConfigError, RecordError, suggestion
from dpft.config.foreign import regular
from dpft.config.schema import Run
from dpft.runs.identity import config_hash

PRIVATE = "private"
GENERATIONS = "generations"
# Next to a selection's private folder, and in it; either shows that it is one.
DESCRIPTION = "selection.json"
SELECTION_KEY = "selection_key"

_SET_ASIDE = re.compile(r"\.old-\d+$")


def run_path(run: Run) -> Path:
    """Return ``runs_dir/name``; without a name, one made of the main choices and the hash."""
    if run.resume is not None:
        return Path(run.resume)
    if run.name is not None:
        return Path(run.runs_dir) / run.name
    parts = [str(run.task["name"]).rpartition(":")[2], run.model.name]
    parts += [run.adapt.name] if run.adapt.name != "full" else []
    parts += [str(run.clip.style)]
    if run.clip.private:
        sigma = run.privacy.noise_multiplier
        parts += [f"sigma{sigma:g}" if sigma else f"eps{run.privacy.epsilon:g}"]
    parts += [f"s{run.seed}", config_hash(run.identity())[:8]]
    folder = "-".join(parts)
    if Path(folder).name != folder or not folder.isprintable():
        raise ConfigError(
            f"the run's folder would be {folder!r}, made of task.name, model.name and other "
            "choices; expected a plain folder name: give one without / and control characters, "
            "such as model.name=mine. The model's place belongs into model.path"
        )
    return Path(run.runs_dir) / folder


def is_run(folder: Path) -> bool:
    """Return whether it is a run's directory, finished or not."""
    return any((folder / n).is_file() for n in ("record.json", "identity.json", "ledger.jsonl"))


def is_set_aside(folder: Path) -> bool:
    """Return whether it is what ``force=true`` set aside."""
    return bool(_SET_ASIDE.search(folder.name))


def runs_below(folder: Path) -> list[Path]:
    """Return the run directories at and below a folder, sorted.

    Folders called ``private`` are left out, since not even the number of a selection's trials may
    be known, and so is what ``force=true`` set aside. The name of ``folder`` itself is ignored.
    """
    found = []
    for path, names, _ in os.walk(folder):
        names[:] = [name for name in names if name != PRIVATE and not _SET_ASIDE.search(name)]
        if is_run(Path(path)):
            found.append(Path(path))
    return sorted(found)


def run_names(paths: Sequence[Path]) -> list[str]:
    """Return distinct names of runs: of their folders, or paths below a common one."""
    # Not resolved: a link may have a name that says more.
    whole = [Path(os.path.abspath(path)) for path in paths]  # noqa: PTH100
    runs = [path.parent if path.name == "record.json" else path for path in whole]
    short = [run.name for run in runs]
    if len(set(short)) == len(set(runs)):
        return short
    base = common_folder(runs)
    return [run.relative_to(base).as_posix() for run in runs]


def common_folder(runs: Sequence[Path]) -> Path:
    """Return the folder that holds them all."""
    return Path(os.path.commonpath([run.parent for run in runs]))


def check_no_trial(path: Path) -> None:
    """Refuse a path among the secret trials of a private selection.

    A page or a table that shows one of them, or lets them be counted, voids the guarantee of the
    run that was chosen.
    """
    whole = path.resolve()
    for folder in (whole, *whole.parents):
        if folder.name == PRIVATE and (
            (folder / SELECTION_KEY).is_file() or (folder.parent / DESCRIPTION).is_file()
        ):
            raise ConfigError(
                f"{path} is one of the secret trials of a selection: showing one of them, or how "
                f"many there are, voids the guarantee of the chosen run. Expected what was "
                f"released: {folder.parent / 'chosen'}"
            )


def meant(path: Path) -> str:
    """Return ``; did you mean 'x'?`` for a folder that is not there, but one like it is."""
    near = [] if path.exists() else [other.name for other in path.parent.glob("*")]
    return suggestion(path.name, near)


def stored_config(path: Path) -> tuple[str, dict[str, Any]]:
    """Return text and content of the ``config.yaml`` of a run directory."""
    file = path / "config.yaml"
    try:
        text = regular(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} holds no config.yaml that can be read; expected a run directory, such as "
            f"runs/NAME{meant(path)}"
        ) from error
    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        why = "no YAML" if mark is None else f"no YAML in line {mark.line + 1}"
        raise ConfigError(f"{file} is damaged ({why}); restore the file") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{file} is damaged: expected the settings of a run; restore the file")
    return text, content


def generations_files(run: Path, record: Mapping[str, Any]) -> dict[str, Path]:
    """Return the files that a run's record names, by split or by what was decoded."""
    named = record.get("generations") or {}
    return {str(split): generations_file(run, str(name)) for split, name in named.items()}


def generations_file(run: Path, name: str) -> Path:
    """Return the file of this name in the record of ``run``; it need not exist."""
    file = run / name
    if file.resolve().parent != run.resolve() / GENERATIONS:
        raise RecordError(
            f"{run}: got {name!r} as generations, which is elsewhere, perhaps by a link; "
            f"expected a file in the run's own folder {GENERATIONS}/, as dpft writes it: decode "
            "again with dpft score"
        )
    return file
