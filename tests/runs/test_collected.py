"""The table of committed runs: read as written, the same bytes for the same runs, never half."""

import gzip

import pytest

from dpft.runs.collected import TABLE, CollectedRun, read_table, write_table
from dpft.runs.errors import RecordError

RUNS = [CollectedRun("a/b-s1", {"é": [1.5, None]}, "x\ny\n"), CollectedRun("a/b/c", {"z": 1})]


def test_a_table_is_read_as_written_and_its_bytes_follow_from_its_runs(tmp_path):
    assert read_table(tmp_path) == []
    write_table(tmp_path, RUNS)
    written = (tmp_path / TABLE).read_bytes()
    assert read_table(tmp_path) == RUNS[::-1]  # in the order of paths, as folders are sorted
    write_table(tmp_path, reversed(read_table(tmp_path)))
    assert (tmp_path / TABLE).read_bytes() == written


def test_a_damaged_table_is_an_error_that_names_it(tmp_path):
    write_table(tmp_path, RUNS)
    written = (tmp_path / TABLE).read_bytes()
    flipped = bytes([written[-9] ^ 1])
    damages = [b"", b"{}", written[:-9], written[:-9] + flipped + written[-8:]]
    damages += [gzip.compress(text) for text in (b"[]", b'{"path": "a"', b'{"name": "a"}', b"\xff")]
    for content in damages[1:]:
        (tmp_path / TABLE).write_bytes(content)
        with pytest.raises(RecordError, match=rf"{TABLE} cannot be read .* restore it from a copy"):
            read_table(tmp_path)
