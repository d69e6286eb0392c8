"""What every task shares: loading by name, fingerprints, forms of a data set."""

from dataclasses import replace

import pytest

from dpft.config.compose import compose
from dpft.config.errors import ConfigError, DataError, SplitError
from dpft.tasks import TASKS, load_task
from dpft.tasks.classification import Glue
from dpft.tasks.e2e import E2E
from dpft.tasks.objectives.record_types import LabelledText, TextRecord
from dpft.tasks.task import fingerprint
from tests.tasks.files import write_parquet

HUB_ROW = {"meaning_representation": "name[A]", "human_reference": "A."}


def test_the_fingerprint_tells_datasets_apart():
    a, b = TextRecord(("ab",), "c"), TextRecord(("a",), "bc")
    assert fingerprint([a]) != fingerprint([b])
    assert fingerprint([a, b]) != fingerprint([b, a])
    assert fingerprint([a]) == fingerprint([TextRecord(("ab",), "c")])
    assert fingerprint([TextRecord(("a", "b"), "c")]) != fingerprint([TextRecord(("a",), "b")])
    one, other = ([f"anna@example.{end}"] for end in ("org", "com"))
    assert fingerprint([a], one) != fingerprint([a], other) != fingerprint([a])
    assert fingerprint([LabelledText(("a",), 0)]) != fingerprint([LabelledText(("a",), 1)])


def test_a_task_is_named_by_its_module_and_an_unknown_one_is_an_error():
    assert isinstance(load_task({"name": "dpft.tasks.e2e:E2E", "max_length": 50}), E2E)
    for name, message in (
        ("e3e", "did you mean 'e2e'"),
        ("dpft.tasks.e2e:X", "cannot be imported"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_task({"name": name})


@pytest.mark.parametrize("name", ["os:system", "dpft.config.schema:Sweep"])
def test_only_a_task_is_made_of_what_a_config_names(name, monkeypatch):
    monkeypatch.setattr("os.system", lambda *_: pytest.fail("called"))
    with pytest.raises(ConfigError, match="which is no task; expected a subclass"):
        load_task({"name": name, "args": "touch mark"})


@pytest.mark.parametrize("name", TASKS)
def test_the_shipped_settings_are_those_of_the_class(name, monkeypatch):
    shipped = compose([f"task={name}", "model=gpt2"])["task"]
    task = load_task(shipped)
    # Of the file alone.
    words = {"template": "", "label_words": {}} if isinstance(task, Glue) else {}
    assert replace(task, **words) == type(task)()
    assert f"{type(task).__module__}:{type(task).__name__}" == TASKS[name]


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["train.parquet", "old/train_before_cleaning.parquet"], 1),
        (["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet"], 2),
        (["train.parquet", "old/train.parquet"], None),
        (["data/train-00000-of-00002.parquet"], None),
        (["a/train-00000-of-00002.parquet", "b/train-00001-of-00002.parquet"], None),
    ],
)
def test_one_copy_of_a_split_is_read_and_two_are_an_error(tmp_path, names, found):
    """A record that is there twice would be two, each of which is protected by itself."""
    for name in names:
        write_parquet(tmp_path / name, [HUB_ROW])
    task = E2E(data_dir=str(tmp_path))
    if found is None:
        with pytest.raises(DataError, match=r"expected one train\.parquet, or all parts"):
            task.records("train")
    else:
        assert len(task.records("train")) == found


# Sizes as the authors publish them; replies of Persona-Chat as ParlAI counts them.
SIZES = {"e2e": 42061, "dart": 62659, "samsum": 14732, "personachat": 131438}
SIZES |= {"sst2": 67349, "qnli": 104743, "qqp": 363846, "mnli": 392702}
IMAGES = {"cifar10": 50000, "cifar100": 50000, "svhn": 73257, "gtsrb": 26640, "food101": 75750}


@pytest.mark.parametrize("name", SIZES | IMAGES)
def test_the_shipped_size_and_decoding_are_those_that_were_published(name):
    """Epsilon is computed of the size without the data; of samples p is Li et al.'s."""
    config = compose([f"task={name}"])
    assert config["task"]["train_size"] == (SIZES | IMAGES)[name]
    if name in IMAGES:
        assert config["decode"]["split"] == "test"
        assert load_task(config["task"]).needs.kind == "image"
        return
    usual = {"sample": False, "top_p": 1.0, "length_penalty": 1.0, "max_new_tokens": 100}
    assert usual.items() <= config["decode"].items()
    assert config["decode"]["beams"] == (4 if name == "samsum" else 5)
    sampled = {"sample": True, "top_p": 0.9, "beams": 1}
    assert sampled.items() <= compose([f"task={name}", "decode=nucleus"])["decode"].items()


# Records and instances by split; None: the copy has no such file.
REAL = {
    "e2e": {"train": (42061, None), "dev": (4672, 547), "test": (4693, 630)},
    # One reference of DART's test file is empty.
    "dart": {"train": None, "dev": (6980, 2768), "test": (12552 - 1, 5097)},
    "samsum": {"train": (14732, None), "dev": (818, 818), "test": (819, 819)},
    "personachat": {"dev": (7801, 7801)},
    "sst2": {"train": (67349, None), "dev": (872, 872)},
    "qnli": {"train": None, "dev": (5463, 5463)},
    "qnli_subset": {"train": (8999, None), "dev": (1000, 1000)},
    "qqp_subset": {"train": (8999, None), "dev": (1000, 1000)},
    "mnli_subset": {"train": (8999, None), "dev": (1000, 1000)},
}


@pytest.mark.parametrize("folder", REAL)
def test_the_real_files_have_their_published_sizes(data_root, folder):
    task = load_task({"name": folder.removesuffix("_subset"), "data_dir": str(data_root / folder)})
    for split, sizes in REAL[folder].items():
        if sizes is None:
            with pytest.raises(SplitError, match=f"holds no {split} split"):
                task.records(split)
            continue
        records, instances = sizes
        assert len(task.records(split)) == records
        if instances is not None:
            assert len(task.instances(split)) == instances
            assert all(reference for i in task.instances(split) for reference in i.references)
