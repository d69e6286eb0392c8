"""Text as Markdown: a reader of Markdown finds what was written, and nothing else."""

from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from dpft.report.markdown import escape, inline, table
from dpft.report.terminal import plain

READER = MarkdownIt("commonmark").enable("table")
TEXTS = st.text(st.sampled_from("a1 \n\t\\|*_<>`~[]()&#;!-\x1b\u202e"), max_size=12)


def cells(markdown):
    """What stands in each cell of a table, in order."""
    tokens = READER.parse(markdown)
    assert tokens[0].type == "table_open"
    return [token.children or [] for token in tokens if token.type == "inline"]


@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=3))
def test_a_table_of_escaped_text_reads_as_the_text(rows):
    written = table(("a", "b"), [[escape(text) for text in row] for row in rows])
    read = ["".join(part.content for part in cell) for cell in cells(written)]
    assert read == ["a", "b", *(plain(" ".join(text.split())) for row in rows for text in row)]
    assert inline(escape("a|b <i> \\|")) == escape("a|b <i> \\|")
