import pytest

from dpft.runs.errors import LogError
from dpft.sweep.journal import BEGUN, FAILED, STARTED, Event, Journal


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


def test_an_attempt_begins_at_the_last_start(journal):
    journal.add(Event(FAILED, digest="a"))
    journal.add(Event(BEGUN))
    journal.add(Event(STARTED, digest="b"))
    assert [e.digest for e in journal.attempt()] == ["b"]


@pytest.mark.parametrize(
    "line", ["nonsense", '{"event": "dreamt", "overrides": []}', '{"event": "begun"}']
)
def test_a_damaged_line_is_named(journal, tmp_path, line):
    file = tmp_path / "journal.jsonl"
    file.write_text(f"{line}\n{file.read_text()}")
    with pytest.raises(LogError, match=r"journal.jsonl, line 1: .*runs do not depend on it"):
        journal.read()
