"""Scores of predictions, and what of the references a record may hold."""

import json

import pytest

from dpft.predictions import score_file
from dpft.tasks.e2e import E2E
from dpft.tasks.own_texts import LanguageModeling


class Mine(E2E):
    """A task of another package, which may read anything."""


class MinePublished(Mine):
    """One whose author says that anyone may have its data."""

    published = True


OWN = [
    LanguageModeling(train_file="mine.jsonl", test_share=0.1),
    LanguageModeling(train_file="mine.jsonl", test_file="test.jsonl"),
    LanguageModeling(hub="me/mine"),
]


@pytest.mark.parametrize("task", OWN)
def test_no_hash_of_ones_own_references_is_recorded(tmp_path, task):
    """Whoever guesses a held-out record could test the guess against a plain hash."""
    file = tmp_path / "test.jsonl"
    line = {"prediction": "", "references": ["my secret"], "nll": 2.0, "tokens": 2}
    file.write_text(json.dumps(line) + "\n")

    section = score_file(task, file)
    assert set(section) == {"metrics", "examples", "signature"}
    generated = score_file(LanguageModeling(source="sample"), file)
    assert generated == {**section, "references": generated["references"]}


def test_only_known_data_sets_count_as_published():
    assert E2E().published
    assert not Mine().published
    assert MinePublished().published
