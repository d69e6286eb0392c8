"""The image tasks: pickles, the hub's files, what is an error, and models that do not fit."""

import hashlib
import io
import os
import pickle

import numpy as np
import pytest
from PIL import Image
from torch import nn

from dpft.config.errors import DataError, ModelError
from dpft.config.flags import Flag, flag, sentence, sentences
from dpft.models.load import LoadedModel
from dpft.tasks.base import fingerprint
from dpft.tasks.images import CIFAR10, SVHN
from tests.tasks.files import write, write_parquet

TEN = CIFAR10.layout


def noise(count, seed=0, side=32):
    return np.random.default_rng(seed).integers(0, 256, (count, side, side, 3), np.uint8)


def planes(images):
    return images.transpose(0, 3, 1, 2).reshape(len(images), -1)


def write_cifar10(folder, images, labels, protocol=4):
    """Every batch holds the same images."""
    batch = pickle.dumps({b"data": planes(images), b"labels": labels}, protocol)
    for name in (*TEN["train"], *TEN["test"]):
        write(folder / TEN["folder"] / name, batch)


def python2_batch(row, label):
    """One image as Python 2 and an old numpy pickled it, byte by byte."""
    return (
        b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\n"
        b"cnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01K\x01M\x00\x0c\x86"
        b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff"
        b"K\x00tb\x89T\x00\x0c\x00\x00" + row.tobytes() + b"tb"
        b"U\x06labels]K" + bytes([label]) + b"aU\x0bbatch_labelU\x01xu."
    )


@pytest.mark.parametrize("protocol", [1, 2, 5])
def test_official_pickles_are_read_in_every_protocol(tmp_path, protocol):
    images = noise(3)
    write_cifar10(tmp_path, images, [7, 0, 9], protocol)
    if protocol == 1:
        write(tmp_path / TEN["folder"] / "test_batch", python2_batch(planes(images)[0], 7))
    task = CIFAR10(data_dir=str(tmp_path))
    assert len(task.records("train")) == 15
    records = task.records("test")
    assert [record.label for record in records] == ([7] if protocol == 1 else [7, 0, 9])
    for record, image in zip(records, images, strict=False):
        assert (record.pixels() == image).all()
    assert records[-1].source == f"test_batch, image {len(records) - 1}"
    assert task.instances("test")[0].references == ("horse",)


@pytest.mark.parametrize("changed", [None, "data_batch_4", "test_batch"])
def test_files_other_than_the_published_ones_are_labelled(tmp_path, monkeypatch, changed):
    write_cifar10(tmp_path, noise(1), [1])
    files = [tmp_path / TEN["folder"] / name for name in (*TEN["train"], *TEN["test"])]
    md5 = {file.name: hashlib.md5(file.read_bytes()).hexdigest() for file in files}
    monkeypatch.setattr(CIFAR10, "layout", {**TEN, "md5": md5})
    if changed is not None:
        write_cifar10(tmp_path / "b", noise(1, seed=1), [1])
        (tmp_path / "b" / TEN["folder"] / changed).rename(tmp_path / TEN["folder"] / changed)
    task = CIFAR10(data_dir=str(tmp_path))
    task.records("train")
    expected = [sentence(flag(Flag.OTHER_FILES))] if changed else []
    assert [sentences(task.flags()), list(task.details("train"))] == [expected, expected]
    for file in files:  # training takes longer than files may be there
        file.unlink(missing_ok=True)
    assert sentences(task.flags()) == expected


class Call:
    """Pickles as a call."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    ("payload", "named"),
    [
        (lambda file: Call(os.system, f"touch {file}"), "system"),
        (lambda file: Call(eval, f"open({str(file)!r}, 'w')"), "eval"),
        (lambda file: np.array([Call(os.system, f"touch {file}")], object), "system"),
    ],
)
def test_a_malicious_pickle_is_an_error_and_not_run(tmp_path, payload, named):
    write_cifar10(tmp_path, noise(1), [1])
    trap = tmp_path / "trap"
    content = {b"data": planes(noise(1)), b"labels": [1], b"more": payload(trap)}
    for protocol in (0, 2, 5):
        write(tmp_path / TEN["folder"] / "test_batch", pickle.dumps(content, protocol))
        with pytest.raises(DataError, match=rf"test_batch is no pickle.*asks for .*{named}"):
            CIFAR10(data_dir=str(tmp_path)).records("test")
    assert not trap.exists()


def test_parquet_files_hold_the_same_records_as_the_official_files(tmp_path):
    images, labels = noise(3), [4, 0, 9]
    rows = []
    for image, label in zip(images, labels, strict=True):
        Image.fromarray(image).save(file := io.BytesIO(), "PNG")
        rows.append({"img": {"bytes": file.getvalue(), "path": None}, "label": label})
    for split in ("train", "test"):
        write_parquet(tmp_path / f"plain_text/{split}-00000-of-00001.parquet", rows)
    hub = CIFAR10(data_dir=str(tmp_path))
    assert hub.location == ("files", tmp_path)
    write_cifar10(tmp_path / "official", images, labels)
    official = CIFAR10(data_dir=str(tmp_path / "official"))
    assert fingerprint(hub.records("test")) == fingerprint(official.records("test"))
    write_parquet(tmp_path / "plain_text/test-00000-of-00001.parquet", [{"img": "x", "label": 1}])
    with pytest.raises(DataError, match="image 0: got img of type str"):
        hub.records("test")


def test_models_that_do_not_fit_are_errors():
    with pytest.raises(ModelError, match="takes no images"):
        SVHN().objective(LoadedModel(nn.Linear(1, 1), None, ()))
