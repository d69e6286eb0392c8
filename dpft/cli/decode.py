"""``dpft decode RUN``: decode again with other settings, without training."""

import dataclasses
import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from dpft.cli.options import DecodeSettings, RunFolder
from dpft.config.errors import ConfigError
from dpft.config.schema import Decode, Parallel, build
from dpft.report.terminal import echo


def main(path: RunFolder, overrides: DecodeSettings = None) -> None:
    """Decode again with other settings, without training: dpft decode RUN decode.beams=1

    Under torchrun every process writes some of the texts.
    """
    from dpft import runs
    from dpft.training.trained import loaded_run

    trained = loaded_run(path)
    run = trained.run
    settings = decoding(overrides or (), run.decode)
    before, after = dataclasses.asdict(run.decode), dataclasses.asdict(settings)
    changed = [f"{k}={v}" for k, v in after.items() if k != "split" and v != before[k]]
    name = "-".join([*([settings.split] if settings.split else []), *changed])
    from dpft.parallel.cohort import together
    from dpft.parallel.layouts import joined
    from dpft.training.held_out import check_scored, must_be_apart
    from dpft.training.predictions import predict, spelled, write_predictions
    from dpft.training.progress import Progress

    with ExitStack() as stack:
        # Each process has a whole model, however it was trained.
        cohort = stack.enter_context(joined(trained.device, Parallel()))
        directory = None
        with together(cohort):
            if cohort.rank == 0:
                opened = runs.RunDirectory.open(path, run.identity(), trained.text)
                directory = stack.enter_context(opened)
            task, loaded = trained.task, trained.loaded
            instances = task.instances(settings.split)
            if must_be_apart(run, task):
                check_scored(task, settings.split, [one.record for one in instances])
        progress = stack.enter_context(Progress(quiet=cohort.rank > 0))
        predictions = predict(task, loaded, instances, settings, run.seed, progress, cohort=cohort)
        if directory is None:  # the first rank writes
            return
        file = directory.generations(name)
        with runs.replacing(directory.path, file, spelled(predictions)):
            write_predictions(file, predictions)
        relative = str(file.relative_to(directory.path))
        runs.update_record(directory, generations={name: relative})
    echo(f"{path / relative}\nscore it with: dpft score {shlex.quote(str(path))}")


def decoding(overrides: Sequence[str], usual: Decode) -> Decode:
    """Return the settings of decoding, changed by words such as ``decode.beams=1``."""
    values = dataclasses.asdict(usual)
    for override in overrides:
        key, equals, value = override.partition("=")
        if not key.startswith("decode.") or not equals:
            raise ConfigError(f"got {override!r}; expected settings such as decode.beams=1")
        values[key.removeprefix("decode.")] = read_value(value)
    return build(Decode, values, "decode")


def read_value(text: str) -> Any:
    """Return a value as it is read before training: ``9e-1`` is a number, as it is not to PyYAML.

    What cannot be read stays a text, which is refused where it is checked.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    try:
        read = OmegaConf.from_dotlist([f"value={text}"])
    except (YAMLError, OmegaConfBaseException):
        return text
    content = OmegaConf.to_container(read, resolve=False)
    assert isinstance(content, dict)
    return content["value"]
