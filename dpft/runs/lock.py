"""One process per run: an advisory lock that the kernel releases when its holder dies."""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path

from dpft.config.errors import RunLockedError
from dpft.runs.atomic import Closing

LOCK_NAME = ".lock"


class DirectoryLock(Closing):
    """An exclusive ``flock`` on ``<folder>/.lock``, made by `acquire`.

    Nothing has to be cleaned up after a kill: the lock belongs to the open file, not to the file's
    existence. Child processes made by ``fork`` share it until they exit.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    @classmethod
    def acquire(cls, folder: Path) -> DirectoryLock:
        """Lock ``folder``, which is made if it does not exist.

        Raises:
            RunLockedError: another process, or another `DirectoryLock` of this one, holds it.
        """
        path = folder / LOCK_NAME
        while True:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
            lock = cls(descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # If the folder was moved aside between open and flock, this lock is the old run's.
                if path.exists() and os.path.samestat(path.stat(), os.fstat(descriptor)):
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, f"{os.getpid()} on {socket.gethostname()}\n".encode(), 0)
                    return lock
            except BlockingIOError:
                holder = os.pread(descriptor, 256, 0).decode(errors="replace").strip()
                lock.close()
                raise RunLockedError(
                    f"{folder} is in use by process {holder or 'unknown'}; expected to be its only "
                    "user: two processes must not train one run. Wait for that process or stop it, "
                    "then run the same command again; it continues where it stopped"
                ) from None
            except FileNotFoundError:
                pass
            lock.close()

    def close(self) -> None:
        """Release the lock; harmless if it was already released."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
