"""The way this process was started: alone, as a rank of torchrun, or by another launcher."""

import os

from dpft.config.errors import ConfigError, SettingError
from dpft.config.schema import Run

# The variables by which processes of torchrun find each other.
_TORCHRUN = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
# The number of processes that Open MPI or srun has started.
_PROCESSES = ("OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
# How often torchrun has restarted the ranks, or Slurm has requeued the job.
_RESTARTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")


def launched() -> int:
    """Return how many processes torchrun started for this run; 1 without torchrun."""
    size = os.environ.get("WORLD_SIZE", "1")
    return int(size) if size.isdecimal() else 1


def restarted() -> bool:
    """Return whether torchrun or Slurm started these processes again, after others had ended."""
    return any(os.environ.get(name, "0") not in ("", "0") for name in _RESTARTS)


def check_launcher(ranks: int | None = None) -> None:
    """Refuse to be one of several processes that are no group, or of another number than ``ranks``.

    Each of them would train and release a separate run.

    Raises:
        ConfigError: naming the environment variable.
    """
    several = launched()
    for name in _PROCESSES if several == 1 else ():
        size = os.environ.get(name, "")
        if size.isdecimal() and int(size) > 1:
            raise ConfigError(
                f"{name} is {size}: this process is one of several that do not know of each "
                "other; start them by torchrun --nproc-per-node N -m dpft train ..., or start "
                "one task that does: dpft train ... ranks=N"
            )
    absent = [name for name in _TORCHRUN if not os.environ.get(name)]
    if several > 1 and absent:
        raise ConfigError(
            f"WORLD_SIZE is {several}, but {', '.join(absent)} is not set; expected all variables "
            "of torchrun: start the processes by torchrun --nproc-per-node N -m dpft train ..., "
            "or unset WORLD_SIZE for one process"
        )
    if ranks not in (None, several):
        here = "one process" if several == 1 else f"one of {several} processes"
        raise ConfigError(
            f"ranks is {ranks}, but this is {here}; leave out ranks=, or type dpft train ... "
            f"ranks={ranks} without torchrun, which it starts itself"
        )


def check_processes(run: Run, count: int) -> None:
    """Raise a ConfigError for settings that do not work with so many processes."""
    cores, ranks = os.cpu_count() or 1, run.ranks if launched() == 1 else None
    for name, asked, most in (("threads", run.threads, 64), ("ranks", ranks, 8)):
        if asked is not None and asked > max(most, 4 * cores):  # the machine would stall
            raise SettingError(name, asked, f"{cores}, one for each core, or one for each GPU")
    layout = run.parallel.name
    if count == 1 and layout != "data":
        raise ConfigError(
            f"parallel={layout} with one process; expected several: type ranks=N, or torchrun "
            "--nproc-per-node N -m dpft train ..., or leave it out"
        )
    if count == 1:
        return
    if layout == "fsdp" and run.adapt.name == "prefix":
        # A prefix's keys and values reach a layer in an object that FSDP's hooks do not look into.
        raise ConfigError("adapt=prefix with parallel=fsdp; expected parallel=data")
    for name, used in (("audit", run.audit.active), ("adapt=rgp", run.adapt.name == "rgp")):
        if used:
            raise ConfigError(
                f"{name} with {count} processes; expected one: without torchrun and ranks="
            )
