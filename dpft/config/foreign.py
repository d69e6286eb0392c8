"""Files and parts that someone else wrote."""

import errno
import hashlib
import importlib
import sys
from pathlib import Path
from typing import Any

from dpft.config.errors import SettingError


def regular(path: Path) -> Path:
    """Return the path of a file that can be read to its end.

    Opening a named pipe waits for a writer, and a device such as ``/dev/zero`` never ends. A path
    that does not exist, or is a folder, is returned too: opening it raises the usual error.

    Raises:
        OSError: it is a pipe, a socket or a device.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(
            errno.EINVAL, "it is a pipe, a socket or a device, not a regular file", str(path)
        )
    return path


def load(key: str, path: str) -> Any:
    """Import the part at ``your.module:name``.

    Raises:
        SettingError: for the setting ``key``, if it cannot be imported.
    """
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # whatever the user's module raises
        said = f"{type(error).__name__}: {error}".strip().partition("\n")[0]
        advice = f"it cannot be imported ({said})"
        raise SettingError(key, path, "an import path, as in your.module:name", advice) from error


def origin(kind: str, path: str) -> dict[str, str]:
    """Return what a record says of a part: where it comes from, and what its code was."""
    from importlib.metadata import packages_distributions, version

    module = path.partition(":")[0]
    package = module.partition(".")[0]
    file = getattr(sys.modules[module], "__file__", None)
    held = packages_distributions().get(package)
    return {
        "kind": kind,
        "name": path,
        "package": package,
        "version": version(held[0]) if held else "",
        "sha256": hashlib.sha256(Path(file).read_bytes() if file else b"").hexdigest(),
    }
