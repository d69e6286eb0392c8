"""Reading DART in all its forms, its records and instances, and the generated sample."""

import pytest

from dpft.config.errors import ConfigError, DataError
from dpft.config.flags import sentences
from dpft.tasks.dart import DART, Lexicalisation, linearise, read_json
from tests.tasks.files import write

TRIPLES = (("Aromi", "AREA_CODE", "9"), ("Aromi", "food", "Thai"))
GOOD = {
    "tripleset": [list(triple) for triple in TRIPLES],
    "subtree_was_extended": True,
    "annotations": [{"source": "a", "text": "One."}, {"source": "b", "text": "Two."}],
}


def folder_of(path, **splits):
    for split, content in splits.items():
        write(path / f"dart-v1.1.1-full-{split}.json", content)
    return str(path)


def entry(subject, *texts):
    return {
        "tripleset": [[subject, "is", "x"]],
        "annotations": [{"source": "a", "text": text} for text in texts],
    }


def test_json_is_read_one_row_a_reference(tmp_path):
    assert read_json(write(tmp_path / "a.json", [GOOD, entry("B", " Three. ")])) == [
        Lexicalisation(0, TRIPLES, "One."),
        Lexicalisation(0, TRIPLES, "Two."),
        Lexicalisation(1, (("B", "is", "x"),), "Three."),
    ]


def test_triples_become_prompts():
    assert linearise(TRIPLES) == "Aromi : area_code : 9 | Aromi : food : Thai"


def test_empty_references_and_bare_triple_sets_are_left_out(tmp_path):
    content = [entry("A", "", "One."), entry("B"), entry("C", " "), entry("D", "Two.")]
    task = DART(data_dir=folder_of(tmp_path, test=content))
    assert [i.references for i in task.instances("test")] == [("One.",), ("Two.",)]
    assert [r.target for r in task.records("test")] == ["One.", "Two."]


def test_the_dev_split_may_be_trained_on_and_is_then_no_evaluation_split(tmp_path):
    folder = folder_of(tmp_path, dev=[GOOD], test=[entry("B", "Three.")])
    task = DART(data_dir=folder, train_split="dev")
    assert [r.target for r in task.records("train")] == ["One.", "Two."]
    assert "trained on the dev split" in sentences(task.flags())
    assert len(task.instances("test")) == 1
    for read in (task.records, task.instances):
        with pytest.raises(DataError, match=r"train_split=dev.*Type decode\.split=test"):
            read("dev")
    assert sentences(DART(data_dir=folder).flags()) == []
    with pytest.raises(DataError, match="no train split"):
        DART(data_dir=folder).records("train")
    with pytest.raises(ConfigError, match="train_split is 'test'; expected one of train, dev"):
        DART(train_split="test")
