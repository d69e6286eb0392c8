"""The folders of runs: their names, the search for them, and the marker of a finished run.

``DONE`` is the marker and the list of what a finished run consists of, with size and SHA-256 of
each file: record, ledger, settings, model and generations. The card (``model/README.md``), pages of
``dpft report``, checkpoints and ``private/`` are not in it: they may be edited, made again or go.
"""

import hashlib
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dpft.config.errors import ConfigError, RecordError, RunError, suggestion
from dpft.config.foreign import regular
from dpft.config.schema import Run
from dpft.runs.atomic import parse_json, sha256_file, write_atomic
from dpft.runs.identity import config_hash, opened, sealed

PRIVATE = "private"
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
            f"expected a file in the run's own folder {GENERATIONS}, as dpft writes it: decode "
            "again with dpft score"
        )
    return file


DONE = "DONE"
CARD = "model/README.md"
RECORD, LEDGER, CONFIG = "record.json", "ledger.jsonl", "config.yaml"
MODEL, ADAPTER, GENERATIONS = "model/", "adapter/", "generations/"


@dataclass(frozen=True)
class Marker:
    """The content of ``DONE``: hash of the configuration, and the files by path in the folder."""

    config_hash: str
    files: Mapping[str, dict[str, Any]]  # ``size`` and ``sha256`` of each


def read_marker(folder: Path) -> Marker | None:
    """Return the content of ``DONE``; None without one, or if it is damaged and proves nothing."""
    try:
        body = opened(parse_json(regular(folder / DONE).read_bytes()))
        return Marker(str(body["config_hash"]), body["files"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def is_finished(path: Path, digest: str) -> bool:
    """Return whether the configuration of this hash ran to its end in the folder; takes no lock."""
    marker = read_marker(path)
    return marker is not None and marker.config_hash == digest


def is_intact(path: Path, digest: str) -> bool:
    """Return whether it is finished, and record and ledger are what they were."""
    return is_finished(path, digest) and not damages(path, (RECORD, LEDGER))


def marked(folder: Path, config_hash: str) -> str:
    """Return the text of ``DONE`` for a run whose files are all as they should be."""
    found = [folder / name for name in (RECORD, LEDGER, CONFIG)]
    for part in (MODEL, ADAPTER, GENERATIONS):
        found += [file for file in (folder / part).rglob("*") if not file.name.startswith(".")]
    files = {
        file.relative_to(folder).as_posix(): {
            "sha256": sha256_file(file),
            "size": file.stat().st_size,
        }
        for file in sorted(found)
        if file.is_file() and file != folder / CARD
    }
    return _spelled(config_hash, files)


def _spelled(config_hash: str, files: Mapping[str, dict[str, Any]]) -> str:
    body = {"config_hash": config_hash, "files": files}
    return json.dumps(sealed(body), indent=1, sort_keys=True) + "\n"


def damages(folder: Path, parts: Sequence[str] = ()) -> list[str]:
    """Return files of a finished run that are gone or changed, and how; each is a clause.

    Hashing takes about 1 s for 500 MB, so name the parts where weights are not used.

    ``parts`` are names, or beginnings such as ``model/``, of what to check; all if empty.
    """
    marker = read_marker(folder)
    if marker is None:
        return []
    files = {n: s for n, s in marker.files.items() if not parts or n.startswith(tuple(parts))}
    found = []
    for name, state in files.items():
        file, expected = folder / name, state["size"]
        size = file.stat().st_size if file.is_file() else None
        if size is None:
            found.append(f"{name} is gone")
        elif size != expected:
            found.append(f"{name} has {size:,} bytes, expected {expected:,}")
        elif sha256_file(file) != state["sha256"]:
            found.append(f"{name} is not what it was when the run was finished")
    return found


def check_whole(folder: Path, parts: Sequence[str] = ()) -> None:
    """Refuse a finished run of which something is damaged; the arguments are those of `damages`."""
    if found := damages(folder, parts):
        raise RunError(
            f"the finished run {folder} is damaged: {'; '.join(found)}; expected the "
            f"files that {DONE} lists. Put them back from a copy, or remove {DONE} and type dpft "
            f"train {shlex.quote(f'resume={folder}')}, which makes everything but the ledger again "
            "from the last checkpoint"
        )


@contextmanager
def replacing(folder: Path, file: Path, content: bytes | str) -> Iterator[None]:
    """Let a file of a finished run be replaced by this content, or made, without being damage.

    Inside, the marker does not list it: after a kill it is not checked. In other runs nothing
    happens. This process holds the lock of the run.
    """
    marker = read_marker(folder)
    if marker is None:
        yield
        return
    name = file.relative_to(folder).as_posix()
    others = {other: state for other, state in marker.files.items() if other != name}
    write_atomic(folder / DONE, _spelled(marker.config_hash, others))
    yield
    data = content.encode() if isinstance(content, str) else content
    files = {**others, name: {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}}
    write_atomic(folder / DONE, _spelled(marker.config_hash, files))
