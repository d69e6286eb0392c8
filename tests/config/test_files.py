"""Files that never end, or whose opening never returns."""

import os
import signal

import pytest

from dpft.cli.run_file import settings_in
from dpft.config.errors import DpftError
from dpft.runs import read_record
from dpft.runs.errors import RunError
from dpft.runs.stored import stored_config
from dpft.sweep.arguments import read_list
from dpft.tasks import load_task
from dpft.tasks.images import image_file
from dpft.tasks.own_texts import LanguageModeling
from dpft.training.predictions import read_predictions


@pytest.fixture(autouse=True)
def _at_once():
    def late(*_):
        raise AssertionError("waited for a file that nobody writes")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def own(path):
    return list(LanguageModeling(train_file=str(path)).records("train"))


def published(path):
    return load_task({"name": "e2e", "data_dir": str(path.parent)}).records("train")


READERS = {
    **{f"train.{suffix}": own for suffix in ("jsonl", "csv", "parquet")},
    "trainset.csv": published,
    "image.png": lambda path: image_file(path, "row 1"),
    "predictions.jsonl": read_predictions,
    "record.json": read_record,
    "config.yaml": lambda path: stored_config(path.parent),
    "settings.yaml": settings_in,
    "points.txt": read_list,
}


@pytest.mark.parametrize("name", READERS)
def test_what_is_no_regular_file_is_refused_at_once(tmp_path, name):
    for kind in ("pipe", "device", "folder"):
        file = tmp_path / kind / name
        file.parent.mkdir()
        if kind == "pipe":
            os.mkfifo(file)
        elif kind == "device":
            file.symlink_to("/dev/zero")
        else:
            file.mkdir()
        with pytest.raises((DpftError, RunError)) as refused:
            READERS[name](file)
        assert name in str(refused.value), kind
