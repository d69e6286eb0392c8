"""A Java that misbehaves is ended and reported."""

import pytest

from dpft.tasks.metrics import java
from dpft.tasks.metrics.java import JavaError


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
    file = tmp_path / "java"
    file.write_text(f"#!/bin/sh\n{commands}\n")
    file.chmod(0o700)
    monkeypatch.setattr(java, "find_java", lambda: file)
    with pytest.raises(JavaError, match=message):
        java.run(["-jar", "x.jar"], ["text"], timeout_s=0.2)
