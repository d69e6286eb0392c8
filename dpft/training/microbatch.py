"""``optim.microbatch_tokens=auto``: as many tokens at once as serve, found before the first step.

On a GPU as many as fit, by trial: steps of made up records, checked ones too, on the device itself.
On a CPU a thousand, beyond which caches and padding make a step slower, or what fits of it: by
simulation against what is free, since too much would bring down others. What is found depends
on the settings and the machine and on nobody's records. It holds for the whole run: other
microbatches would round a replayed step otherwise, which would be a second release of it.
"""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from dpft import runs
from dpft.config.errors import ConfigError
from dpft.config.schema import Run
from dpft.parallel.metering import Meter
from dpft.parallel.simulate import steps
from dpft.runs.atomic import write_atomic
from dpft.runs.errors import START_OVER, disk_report
from dpft.runs.identity import opened, sealed
from dpft.runs.memory import available, is_out_of_memory
from dpft.training.devices import device_of
from dpft.training.plan import SHARE, largest, most_of, peak_of
from dpft.training.planned_step import StepShape, shape_of, training_of
from dpft.training.progress import Progress

# docs/reference/optimisation.md has the measurements.
_CPU_TOKENS = 1024


def with_microbatch(run: Run, directory: runs.RunDirectory, progress: Progress) -> Run:
    """Return the run with a number of tokens in place of ``auto``: the first one found, if any was.

    Raises:
        ConfigError: if it cannot be found, or not one record fits.
        RunError: if the run has released steps and what it began with is lost.
    """
    file = directory.private / "microbatches.json"
    tokens = begun_with(file)
    if tokens is None:
        if directory.ledger.exists() and runs.read_ledger(directory.ledger).steps_spent:
            raise runs.RunError(
                f"{file} is missing, which says how many tokens the microbatches of released steps "
                "had; expected it beside the ledger. Put it back, or type force=true to start over"
            )
        with progress.phase("finding a microbatch that fits", None):
            tokens = _found(run)
        begin_with(file, tokens)
        progress.say(f"optim.microbatch_tokens=auto: {tokens} tokens")
    return replace(run, optim=replace(run.optim, microbatch_tokens=tokens))


def begun_with(file: Path) -> int | None:
    """The tokens that `begin_with` wrote; None: it has written none.

    Raises:
        RunError: if the file is damaged.
    """
    if not file.exists():
        return None
    try:
        tokens = opened(json.loads(file.read_text(encoding="utf-8")))["tokens"]
        if type(tokens) is not int or tokens < 1:
            raise ValueError(f"tokens is {tokens!r}")
    except (OSError, ValueError, KeyError, RecursionError) as error:
        raise runs.RunError(
            f"{file} cannot be read ({error}); expected how many tokens this run's microbatches "
            f"have, without which no step can be repeated. Put it back, or {START_OVER}"
        ) from error
    return tokens


def begin_with(file: Path, tokens: int) -> None:
    """Keep how many tokens a run's microbatches have, before any step is released.

    Raises:
        RunError: if it cannot be written.
    """
    try:
        write_atomic(file, f"{json.dumps(sealed({'tokens': tokens}))}\n", mode=0o600)
    except OSError as error:
        raise runs.RunError(
            f"could not write {file}: {disk_report(file.parent, error)}. Nothing is lost: free "
            "some space and run the same command again"
        ) from error


def _found(run: Run) -> int:
    """Find the tokens of the microbatch that serves this device best.

    Raises:
        ConfigError: if that cannot be said.
    """
    device, shape = device_of(run.device), shape_of(run, 1)
    try:
        if device.type == "cuda":
            room = float(torch.cuda.mem_get_info(device)[0])
            records = largest(_tried(run, shape, device), SHARE * room, most_of(run))
        else:
            free_bytes = available()
            if free_bytes is None:
                raise ConfigError("this system does not say how much memory is free")
            room = float(free_bytes)
            most = min(most_of(run), max(1, _CPU_TOKENS // shape.length))
            peak = peak_of(run, shape, on_gpu=False)
            fits = peak(most) <= SHARE * room  # nearly always, and one question is enough
            records = most if fits else largest(peak, SHARE * room, most)
    except ConfigError as error:
        raise ConfigError(
            f"optim.microbatch_tokens=auto: {error}. Or type a number, such as "
            "optim.microbatch_tokens=4096"
        ) from error
    if not records:
        raise ConfigError(
            f"optim.microbatch_tokens=auto: not one record of {shape.length} tokens fits into "
            f"{SHARE:.0%} of the {room / 2**30:.1f} GiB that are free; expected more memory, a "
            "smaller model, adapt=lora, or a smaller task.max_length"
        )
    return records * shape.length


def _tried(run: Run, shape: StepShape, device: torch.device) -> Callable[[int], float]:
    """Return what the device's allocator takes for a step, by records; infinite where it fails."""

    def peak(batch: int) -> float:
        training = training_of(run, replace(shape, batch=batch))
        torch.cuda.reset_peak_memory_stats(device)
        found = math.inf
        try:
            with torch.device(device), Meter() as meter:
                steps(training, meter, training.build(), counts=False)
            found = float(torch.cuda.max_memory_reserved(device))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
        # Outside of the clause: the exception's frames hold what filled memory.
        gc.collect()
        torch.cuda.empty_cache()
        return found

    return peak
