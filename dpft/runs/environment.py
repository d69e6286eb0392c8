"""Code, packages and machine of a run, its peak memory, and errors of running out of memory."""

import contextlib
import functools
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import dpft
from dpft.config.errors import TrainingError

PACKAGES = (
    *("torch", "transformers", "tokenizers", "datasets", "safetensors", "peft", "accelerate"),
    *("numpy", "scipy", "hydra-core", "omegaconf", "sacrebleu", "rouge-score", "pycocoevalcap"),
    *("prv-accountant", "opacus", "bitsandbytes"),
)
# Messages of allocators: torch's on the CPU, CUDA's, and those of its libraries.
_MESSAGES = ("can't allocate memory", "out of memory", "ALLOC_FAILED")


def environment() -> dict[str, Any]:
    """Return facts for the record: no host name, no user name, no paths. Never fails.

    Returns:
        ``dpft`` (see `code_version`), ``python``, ``packages`` (name to version, those installed),
        ``platform``, ``cpu``, ``cores`` (usable ones), ``threads`` (torch's), ``gpu`` (name or
        None) and ``ram_bytes``.
    """
    threads = gpu = ram = None
    with contextlib.suppress(Exception):  # a broken driver must not lose a finished run's record
        import torch

        threads = torch.get_num_threads()
        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    with contextlib.suppress(AttributeError, ValueError, OSError):
        ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cpu = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((x.partition(":")[2].strip() for x in lines if x.startswith("model name")), cpu)
    return {
        "dpft": code_version(),
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := version_of(name)) is not None},
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": cpu,
        "cores": usable_cores(),
        "threads": threads,
        "gpu": gpu,
        "ram_bytes": ram,
    }


def code_version() -> dict[str, Any]:
    """Return version, git commit, and whether files had uncommitted changes. Never fails."""
    commit: str | None = None
    dirty: bool | None = None
    # An installed dpft may be inside another repository, whose commit is not dpft's.
    if _git("ls-files", "--error-unmatch", "__init__.py") is not None:
        commit = _git("rev-parse", "HEAD")
        changes = _git("status", "--porcelain", "--", ".")
        dirty = None if changes is None else bool(changes)
    return {"version": dpft.__version__, "commit": commit, "dirty": dirty}


def _git(*arguments: str) -> str | None:
    """Return what git prints in the package's folder; None if it fails."""
    # Hooks set GIT_DIR and the like for their own repository, which is another one.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command, folder = ["git", "--no-optional-locks", *arguments], Path(dpft.__file__).parent
    try:
        result = subprocess.run(
            command, cwd=folder, env=variables, capture_output=True, text=True, timeout=20
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() if result.returncode == 0 else None


@functools.cache
def version_of(package: str) -> str | None:
    """Return the version of an installed package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def usable_cores() -> int | None:
    """Return the number of cores that this process may run on; None if it is not known."""
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return os.cpu_count()


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception says that memory ran out, of the machine or of the GPU."""
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _MESSAGES)


@contextmanager
def explained(doing: str, advice: str) -> Iterator[None]:
    """Turn running out of memory within this context into a TrainingError."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        first = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        raise TrainingError(
            f"out of memory in {doing} ({first}); expected room for it: {advice}"
        ) from error


def peak(device: str = "cpu") -> int:
    """Return the peak bytes since `forget_peak`: of the GPU's allocator, or of the resident set."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.max_memory_allocated(device)
    with contextlib.suppress(OSError):  # not Linux
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    # Kilobytes on Linux, bytes on macOS.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def forget_peak() -> None:
    """Begin a new peak, or each run of a process would report the largest of those before it."""
    import torch

    if torch.cuda.is_initialized():
        for device in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(device)
    with contextlib.suppress(OSError):  # not Linux, or not allowed: the process's peak stays
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets the high-water mark
