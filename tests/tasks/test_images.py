"""The image tasks: published files, what is refused, generated samples, splits and scores."""

import dataclasses
import hashlib
import io
import os
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from PIL import Image
from scipy.io import savemat
from torch import nn

from dpft.config.compose import compose
from dpft.config.errors import ConfigError, DataError, ModelError
from dpft.config.flags import Flag, flag, sentence, sentences
from dpft.models.architecture import ImageInput
from dpft.models.load import LoadedModel
from dpft.models.needs import Needs
from dpft.tasks import load_task
from dpft.tasks.base import fingerprint
from dpft.tasks.images import (
    CIFAR10,
    CIFAR100,
    GTSRB,
    KEPT,
    SVHN,
    Food101,
    read_mat,
)
from tests.tasks.files import write

TEN, HUNDRED = CIFAR10.layout, CIFAR100.layout
TASKS = {task.name: task for task in (CIFAR10, CIFAR100, SVHN, GTSRB, Food101)}


def noise(count, seed=0, side=32):
    return np.random.default_rng(seed).integers(0, 256, (count, side, side, 3), np.uint8)


def png(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


# CIFAR.


def planes(images):
    return images.transpose(0, 3, 1, 2).reshape(len(images), -1)


def write_cifar10(folder, images, labels, protocol=4):
    """Every batch holds the same images."""
    batch = pickle.dumps({b"data": planes(images), b"labels": labels}, protocol)
    for name in (*TEN.train, TEN.test):
        write(folder / TEN.folder / name, batch)


@pytest.mark.parametrize("protocol", [2, 5])
def test_official_pickles_are_read_in_every_protocol(tmp_path, protocol):
    images = noise(3)
    write_cifar10(tmp_path, images, [7, 0, 9], protocol)
    task = CIFAR10(data_dir=str(tmp_path))
    assert len(task.records("train")) == 15
    records = task.records("test")
    assert [record.label for record in records] == [7, 0, 9]
    for record, image in zip(records, images, strict=True):
        assert (record.pixels() == image).all()
    assert records[2].source == "test_batch, image 2"
    assert task.instances("test")[0].references == ("horse",)


def python2_batch(row, label):
    """One image as Python 2 and an old numpy pickled it, byte by byte."""
    return (
        b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\n"
        b"cnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01K\x01M\x00\x0c\x86"
        b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff"
        b"K\x00tb\x89T\x00\x0c\x00\x00" + row.tobytes() + b"tb"
        b"U\x06labels]K" + bytes([label]) + b"aU\x0bbatch_labelU\x01xu."
    )


def test_pickles_of_python_2_are_read(tmp_path):
    images = noise(1, seed=4)
    write_cifar10(tmp_path, images, [0])
    write(tmp_path / TEN.folder / TEN.test, python2_batch(planes(images)[0], 6))
    (record,) = CIFAR10(data_dir=str(tmp_path)).records("test")
    assert record.label == 6
    assert (record.pixels() == images[0]).all()


@pytest.mark.parametrize("changed", [None, "data_batch_4", "test_batch"])
def test_files_other_than_the_published_ones_are_labelled(tmp_path, monkeypatch, changed):
    write_cifar10(tmp_path, noise(1), [1])
    files = [tmp_path / TEN.folder / name for name in (*TEN.train, TEN.test)]
    md5 = {file.name: hashlib.md5(file.read_bytes()).hexdigest() for file in files}
    monkeypatch.setattr(CIFAR10, "layout", dataclasses.replace(TEN, md5=md5))
    if changed is not None:
        write_cifar10(tmp_path / "b", noise(1, seed=1), [1])
        (tmp_path / "b" / TEN.folder / changed).rename(tmp_path / TEN.folder / changed)
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
def test_a_malicious_pickle_is_refused_and_not_run(tmp_path, payload, named):
    write_cifar10(tmp_path, noise(1), [1])
    trap = tmp_path / "trap"
    content = {b"data": planes(noise(1)), b"labels": [1], b"more": payload(trap)}
    for protocol in (0, 2, 5):
        write(tmp_path / TEN.folder / TEN.test, pickle.dumps(content, protocol))
        with pytest.raises(DataError, match=rf"test_batch is no pickle.*asks for .*{named}"):
            CIFAR10(data_dir=str(tmp_path)).records("test")
    assert not trap.exists()


def test_cifar100_takes_the_fine_labels(tmp_path):
    batch = {b"data": planes(noise(2)), b"fine_labels": [99, 3], b"coarse_labels": [5, 6]}
    for name, content in (("train", batch), ("test", batch)):
        write(tmp_path / HUNDRED.folder / name, pickle.dumps(content))
    task = CIFAR100(data_dir=str(tmp_path))
    assert [i.references for i in task.instances("test")] == [("worm",), ("bear",)]
    assert len(task.records("train")) == 2


# SVHN.


def mat(tmp_path, **content):
    savemat(tmp_path / "train_32x32.mat", content)
    return tmp_path / "train_32x32.mat"


def test_class_10_of_svhn_is_the_digit_0(tmp_path):
    images = noise(3)
    y = np.array([[10], [1], [9]], np.uint8)
    records = read_mat(mat(tmp_path, X=images.transpose(1, 2, 3, 0), y=y))
    assert [record.label for record in records] == [0, 1, 9]
    assert [SVHN.classes[record.label] for record in records] == ["0", "1", "9"]
    for record, image in zip(records, images, strict=True):
        assert (record.pixels() == image).all()


# GTSRB.

SIGNS = "Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId\n"


def ppm(file, pixels):
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(file, "PPM")


def signs(tmp_path, training="GTSRB/Final_Training/Images"):
    for label in (0, 42):
        folder = tmp_path / training / f"{label:05d}"
        ppm(folder / "00000_00000.ppm", noise(1, label, 20)[0])
        write(folder / f"GT-{label:05d}.csv", f"{SIGNS}00000_00000.ppm;20;20;5;5;15;15;{label}\r\n")
    ppm(tmp_path / "GTSRB/Final_Test/Images/00000.ppm", noise(1, 9, 20)[0])
    write(tmp_path / "GT-final_test.csv", f"{SIGNS}00000.ppm;20;20;5;5;15;15;14\n")


@pytest.mark.parametrize("training", ["GTSRB/Final_Training/Images", "GTSRB/Training"])
def test_signs_are_read_from_the_folders_of_both_archives(tmp_path, training):
    signs(tmp_path, training)
    task = GTSRB(data_dir=str(tmp_path))
    assert [record.label for record in task.records("train")] == [0, 42]
    for record, seed in zip(task.records("train"), (0, 42), strict=True):
        assert (record.pixels() == noise(1, seed, 20)[0]).all()
    (instance,) = task.instances("test")
    assert instance.references == ("stop",)
    assert (instance.record.pixels() == noise(1, 9, 20)[0]).all()


# Food-101.


def dish(tmp_path, entry, side=8):
    file = tmp_path / f"images/{entry}.jpg"
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(noise(1, side, side)[0]).save(file)
    return file


def test_dishes_are_read_by_list_and_large_ones_stay_on_disk(tmp_path):
    dish(tmp_path, "cheese_plate/1")
    large = dish(tmp_path, "waffles/22", 300)
    assert large.stat().st_size > KEPT
    for split, entries in (("train", "cheese_plate/1\nwaffles/22\n"), ("test", "waffles/22")):
        write(tmp_path / f"meta/{split}.txt", entries)
    first, second = Food101(data_dir=str(tmp_path)).records("train")
    assert [Food101.classes[r.label] for r in (first, second)] == ["cheese_plate", "waffles"]
    assert isinstance(first.image, bytes)
    assert second.image == large
    assert second.pixels(8).shape == (8, 8, 3)
    assert second.source == "waffles/22.jpg"
    (tmp_path / "food-101").mkdir()
    for name in ("meta", "images"):
        (tmp_path / name).rename(tmp_path / "food-101" / name)
    assert len(Food101(data_dir=str(tmp_path)).records("test")) == 1


# The hub's form.


def test_parquet_files_hold_the_same_records_as_the_official_files(tmp_path):
    images, labels = noise(3), [4, 0, 9]
    cells = [{"bytes": png(image), "path": None} for image in images]
    table = pa.table({"img": cells, "label": labels})
    for split in ("train", "test"):
        (tmp_path / "plain_text").mkdir(exist_ok=True)
        pyarrow.parquet.write_table(table, tmp_path / f"plain_text/{split}-00000-of-00001.parquet")
    hub = CIFAR10(data_dir=str(tmp_path))
    assert hub.location == ("files", tmp_path)
    write_cifar10(tmp_path / "official", images, labels)
    official = CIFAR10(data_dir=str(tmp_path / "official"))
    assert fingerprint(hub.records("test")) == fingerprint(official.records("test"))


# Tasks.


@pytest.mark.parametrize(
    ("name", "size"), list(zip(TASKS, (50000, 50000, 73257, 39209, 75750), strict=True))
)
def test_the_shipped_settings_name_the_published_size_and_split(name, size):
    config = compose([f"task={name}"])
    assert (config["task"]["train_size"], config["decode"]["split"]) == (size, "test")
    assert load_task(config["task"]).needs == Needs("image", TASKS[name].classes)


def test_models_that_do_not_fit_are_refused():
    with pytest.raises(ModelError, match="takes no images"):
        SVHN().objective(LoadedModel(nn.Linear(1, 1), None, ()))
    model = nn.ParameterDict({"position_embeddings": torch.zeros(1, 65, 4)})
    inputs = ImageInput(size=32, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6), patch=4)
    with pytest.raises(ConfigError, match=r"image_size is 64.*of 32 pixels.*image_size=null"):
        SVHN(image_size=64).objective(LoadedModel(model, None, (), image=inputs))
