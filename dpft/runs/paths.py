"""Where a run lies, told from its settings alone; without torch, so that sweeps can ask it."""

from __future__ import annotations

from pathlib import Path

from dpft.config.errors import ConfigError
from dpft.config.schema import Run
from dpft.runs.identity import config_hash


def run_path(run: Run) -> Path:
    """``runs_dir/name``; without a name, one made of the main choices and the config's hash.

    Raises:
        ConfigError: the choices make no folder name, so that the run could lie anywhere.
    """
    if run.resume is not None:
        return Path(run.resume)
    if run.name is not None:
        return Path(run.runs_dir) / run.name
    parts = [str(run.task["name"]).rpartition(":")[2], run.model.name]
    parts += [run.adapt.name] if run.adapt.name != "full" else []
    parts += [run.clip.style]
    if run.clip.private:
        sigma = run.privacy.noise_multiplier
        parts += [f"sigma{sigma:g}" if sigma else f"eps{run.privacy.epsilon:g}"]
    parts += [f"s{run.seed}", config_hash(run.identity())[:8]]
    folder = "-".join(parts)
    if Path(folder).name != folder or not folder.isprintable():
        raise ConfigError(
            f"the run's folder would be {folder!r}, made of task.name, model.name and other "
            "choices; expected a plain folder name: give one without / and control characters, "
            "such as model.name=mine. Where a model lies says model.path"
        )
    return Path(run.runs_dir) / folder
