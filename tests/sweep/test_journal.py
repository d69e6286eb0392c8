"""The journal survives kills, and says so where it was damaged otherwise."""

import pytest

from dpft.config.errors import ConfigError, DpftError
from dpft.sweep.journal import BEGUN, FAILED, FINISHED, STARTED, Event, Journal


@pytest.fixture
def journal(tmp_path):
    made = Journal(tmp_path / "journal.jsonl")
    made.add(Event(BEGUN))
    made.add(Event(STARTED, digest="a", run="../a", overrides=("seed=1",)))
    return made


def test_events_come_back_in_order(journal):
    journal.add(Event(FAILED, digest="a", error="no data"))
    events = journal.read()
    assert [e.event for e in events] == [BEGUN, STARTED, FAILED]
    assert events[1].overrides == ("seed=1",)
    assert events[2].error == "no data"
    assert events[0].seconds <= events[2].seconds


def test_a_journal_is_its_owners_alone_and_no_link_out_of_its_folder(journal, tmp_path):
    file = tmp_path / "journal.jsonl"
    assert file.stat().st_mode & 0o777 == 0o600  # an error may quote the data
    mine = file.rename(tmp_path / "mine")
    before = mine.read_bytes()
    file.symlink_to(mine)
    with pytest.raises(DpftError, match="could not write"):
        journal.add(Event(BEGUN))
    assert mine.read_bytes() == before


@pytest.mark.parametrize("torn", [1, 40, 10_000])
def test_a_torn_last_line_is_passed_over_and_cut_off(journal, tmp_path, torn):
    file = tmp_path / "journal.jsonl"
    whole = file.read_bytes()
    with file.open("ab") as stream:
        stream.write((b'{"event": "started", "run": "' + b"x" * 10_000)[:torn])
    assert [e.event for e in journal.read()] == [BEGUN, STARTED]
    journal.add(Event(FINISHED, digest="a"))
    assert [e.event for e in journal.read()] == [BEGUN, STARTED, FINISHED]
    assert file.read_bytes().startswith(whole)


def test_a_file_torn_in_its_first_line_begins_anew(tmp_path):
    file = tmp_path / "journal.jsonl"
    file.write_text('{"event"')
    journal = Journal(file)
    assert journal.read() == []
    journal.add(Event(BEGUN))
    assert [e.event for e in journal.read()] == [BEGUN]


def test_an_attempt_begins_at_the_last_start(journal):
    journal.add(Event(FAILED, digest="a"))
    journal.add(Event(BEGUN))
    journal.add(Event(STARTED, digest="b"))
    assert [e.digest for e in journal.attempt()] == ["b"]


@pytest.mark.parametrize(
    "line", ["nonsense", "[1]", '{"event": "dreamt", "overrides": []}', '{"event": "begun"}']
)
def test_a_damaged_line_is_named(journal, tmp_path, line):
    file = tmp_path / "journal.jsonl"
    file.write_text(f"{line}\n{file.read_text()}")
    with pytest.raises(ConfigError, match=r"journal.jsonl, line 1: "):
        journal.read()
