"""The format of what is shown: as asked for, else by the file's suffix."""

import errno
from pathlib import Path

import pytest

from dpft.cli.output import chosen_format, write_or_print
from dpft.config.errors import ConfigError

SUFFIXES = {".txt": "terminal", ".md": "markdown"}


@pytest.mark.parametrize(
    ("form", "out", "chosen"),
    [
        (None, None, "terminal"),
        (None, "a.md", "markdown"),
        ("markdown", None, "markdown"),
        ("markdown", "a.txt", "markdown"),
        ("terminal", "a.pdf", "terminal"),
    ],
)
def test_what_is_asked_for_goes_before_the_suffix(form, out, chosen):
    assert chosen_format(form, None if out is None else Path(out), SUFFIXES) == chosen


def test_what_there_is_not_is_refused_by_name():
    with pytest.raises(ConfigError) as told:
        chosen_format("markdwn", None, SUFFIXES)
    assert str(told.value) == (
        "--format is 'markdwn'; did you mean 'markdown'?; expected one of terminal, markdown"
    )
    with pytest.raises(ConfigError) as told:
        chosen_format(None, Path("a.pdf"), SUFFIXES)
    assert str(told.value) == ("--out is 'a.pdf'; expected a file ending in .txt, .md, or --format")


def test_a_result_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    out = tmp_path / "a.md"
    out.write_text("before")

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("dpft.runs.atomic.os.fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        write_or_print(out, "markdown", lambda: "after", print)
    assert out.read_text() == "before"
    assert [file.name for file in tmp_path.iterdir()] == ["a.md"]
    write_or_print(Path("/dev/null"), "markdown", lambda: "after", print)
