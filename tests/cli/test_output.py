"""The format of what is shown: as asked for, else by the file's suffix."""

from pathlib import Path

import pytest

from dpft.cli.output import chosen_format
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
