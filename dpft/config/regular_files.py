"""Opening files that someone else wrote."""

import errno
from pathlib import Path


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
