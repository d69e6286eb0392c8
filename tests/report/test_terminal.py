"""Text from elsewhere is shown on a terminal or in Markdown, and directs nothing."""

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.table import Table
from rich.text import Text
from typer.testing import CliRunner

from dpft.cli.app import app
from dpft.report import terminal, text_table
from dpft.report.console import Console
from tests.report.pages.example import a_run, record

# Clears the screen; colours; a link; the title of the window; in one byte; right to left.
ORDERS = ["\x1b[2J", "\x1b[8m", "\x1b]8;;http://evil\x1b\\", "\x1b]0;t\x07", "\x9b2J", "\u202e"]
EVIL = "".join(ORDERS) + "[bold]loud[/bold] [link=http://evil]here[/link] :smile: \r0"
FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def test_what_is_no_text_is_spelt_out():
    assert terminal.plain("\x1b[2Ja\x9b\u202e\r\ud800") == r"\x1b[2Ja\x9b\u202e\r\ud800"
    assert terminal.plain("äé中\t\n \u200f🙂") == "äé中\t\n \u200f🙂"


@pytest.mark.parametrize("tell", [terminal.echo, terminal.secho])
@pytest.mark.parametrize("err", [False, True])
def test_messages_hold_no_orders(tell, err, capsys):
    tell(EVIL, err=err)
    told = capsys.readouterr()
    said = told.err if err else told.out
    assert not FORBIDDEN.search(said)
    assert "[bold]loud[/bold]" in said


def test_a_console_shows_markup_and_orders_as_text():
    table = Table(title=EVIL, caption=EVIL)
    table.add_column(EVIL)
    table.add_row(EVIL)
    table.add_row(Text(EVIL))
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=300)
    for thing in (EVIL, table, Text.assemble((EVIL, "bold"))):
        console.print(thing)
    said = file.getvalue()
    assert "]8;" not in said.replace(r"\x1b]8;", "")
    assert not any(order in said for order in ORDERS)
    # Only colours and the like of rich itself are left.
    assert not FORBIDDEN.search(re.sub(r"\x1b\[[0-9;]*m", "", said))
    assert said.count("[bold]loud[/bold]") == 6
    assert ":smile:" in said


def test_no_record_directs_a_terminal(tmp_path):
    privacy = record()["privacy"] | {"statement": f"statement {EVIL}", "caveats": [EVIL]}
    scores = {"test": {"metrics": {EVIL: 0.5}, "examples": 3, "signature": EVIL}}
    flags = [{"flag": "note", "text": EVIL}]
    run = a_run(tmp_path / "run", record(flags=flags, privacy=privacy, scores=scores))
    result = CliRunner().invoke(app, ["report", str(run)], color=True)
    assert result.exit_code == 0, result.output
    assert not FORBIDDEN.search(re.sub(r"\x1b\[[0-9;]*m\b", "", result.output))
    assert "[bold]loud[/bold]" in result.output.replace("\n", "")


READER = MarkdownIt("commonmark").enable("table")
TEXTS = st.text(st.sampled_from("a1 \n\t\\|*_<>`~[]()&#;!-\x1b\u202e"), max_size=12)


@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=3))
def test_a_table_of_escaped_text_reads_as_the_text(rows):
    escaped = [[text_table.escape(text) for text in row] for row in rows]
    tokens = READER.parse(text_table.markdown_table(("a", "b"), escaped))
    assert tokens[0].type == "table_open"
    cells = [token.children or [] for token in tokens if token.type == "inline"]
    read = ["".join(part.content for part in cell) for cell in cells]
    texts = [" ".join(text.split()) for row in rows for text in row]
    assert read == ["a", "b", *map(terminal.plain, texts)]
    once = text_table.escape("a|b <i> \\|")
    assert text_table.inline(once) == once
