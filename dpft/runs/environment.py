"""What a run ran on: code, packages and machine, as far as results and speed depend on them."""

import contextlib
import functools
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import dpft

PACKAGES = (
    *("torch", "transformers", "tokenizers", "datasets", "safetensors", "peft", "accelerate"),
    *("numpy", "scipy", "hydra-core", "omegaconf", "sacrebleu", "rouge-score", "pycocoevalcap"),
    *("prv-accountant", "opacus"),
)
_GIT_SECONDS = 20


def code_version(package: Path | None = None) -> dict[str, Any]:
    """Return version, git commit, and whether files had uncommitted changes. Never fails."""
    folder = package or Path(dpft.__file__).parent
    commit: str | None = None
    dirty: bool | None = None
    # An installed dpft may be inside another repository, whose commit says nothing of it.
    if _git(folder, "ls-files", "--error-unmatch", "__init__.py") is not None:
        commit = _git(folder, "rev-parse", "HEAD")
        changes = _git(folder, "status", "--porcelain", "--", ".")
        dirty = None if changes is None else bool(changes)
    return {"version": dpft.__version__, "commit": commit, "dirty": dirty}


def environment() -> dict[str, Any]:
    """Return facts for the record: no host name, no user name, no paths. Never fails.

    Returns:
        ``dpft`` (see `code_version`), ``python``, ``packages`` (name to version, those installed),
        ``platform``, ``cpu``, ``cores`` (usable ones), ``threads`` (torch's), ``gpu`` (name or
        None) and ``ram_bytes``.
    """
    threads = gpu = None
    with contextlib.suppress(Exception):  # a broken driver must not lose a finished run's record
        import torch

        threads = torch.get_num_threads()
        gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    try:
        ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        ram = None
    return {
        "dpft": code_version(),
        "python": platform.python_version(),
        "packages": {name: found for name in PACKAGES if (found := version_of(name)) is not None},
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _cpu_model(),
        "cores": usable_cores(),
        "threads": threads,
        "gpu": gpu,
        "ram_bytes": ram,
    }


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


def _git(folder: Path, *arguments: str) -> str | None:
    # Hooks set GIT_DIR and the like for their own repository, which is not the one asked about.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        result = subprocess.run(
            ["git", "--no-optional-locks", *arguments],
            cwd=folder,
            env=variables,
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            check=False,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() if result.returncode == 0 else None


def _cpu_model() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
