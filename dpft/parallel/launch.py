"""How this process was started: alone, as a rank of torchrun, or among strangers."""

from __future__ import annotations

import os

from dpft.config.errors import ConfigError

# What torchrun tells each process, without which it cannot find the others.
_TOLD = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
# Where other launchers than torchrun say how many processes they started: Open MPI, srun.
_PROCESSES = ("OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")


def launched() -> int:
    """How many processes torchrun started for this run; 1 where it did not."""
    size = os.environ.get("WORLD_SIZE", "1")
    return int(size) if size.isdecimal() else 1


def restarted() -> bool:
    """Whether torchrun began these processes again, in the place of others that ended."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") not in ("", "0")


def check_launcher(ranks: int | None = None) -> None:
    """Refuse to be one of several processes that are no group, or of another number than asked.

    Started by another launcher than torchrun, all but one would stop at the run's lock, and the
    launcher would take that one down with them; on machines without a common disk each would train
    and release a run of its own.

    Args:
        ranks: the setting of that name.

    Raises:
        ConfigError: naming the variable that tells it.
    """
    several = launched()
    if several == 1:
        for name in _PROCESSES:
            size = os.environ.get(name, "")
            if size.isdecimal() and int(size) > 1:
                raise ConfigError(
                    f"{name} is {size}: this process is one of several that do not know of each "
                    "other; start them by torchrun: torchrun --nproc-per-node N -m dpft train ..., "
                    "or start one task that does: dpft train ... ranks=N"
                )
    absent = [name for name in _TOLD if not os.environ.get(name)]
    if several > 1 and absent:
        raise ConfigError(
            f"WORLD_SIZE is {several}, but {', '.join(absent)} is not set; expected all that "
            "torchrun sets: start the processes by torchrun --nproc-per-node N -m dpft train ..., "
            "or unset WORLD_SIZE for one process"
        )
    if ranks not in (None, several):
        here = "one process" if several == 1 else f"one of {several} processes"
        raise ConfigError(
            f"ranks is {ranks}, but this is {here}; leave out ranks=, or type dpft train ... "
            f"ranks={ranks} without torchrun, which it starts itself"
        )
