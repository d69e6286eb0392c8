"""Images: pickles, files of the hub, what is an error, what a model sees of them, and losses."""

import hashlib
import io
import os
import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from dpft.config.errors import DataError, ModelError
from dpft.config.flags import Flag, flag, sentence, sentences
from dpft.models.load import LoadedModel
from dpft.tasks.images import CIFAR10, SVHN
from dpft.tasks.objectives.classifier import ImageClassifier
from dpft.tasks.objectives.record_types import LabelledImage
from dpft.tasks.task import fingerprint
from tests.tasks.files import write, write_parquet
from tests.tasks.objectives.support import standin

TEN = CIFAR10.layout


def noise(count, seed=0, height=32, width=32):
    return np.random.default_rng(seed).integers(0, 256, (count, height, width, 3), np.uint8)


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
    rows = [
        {"img": {"bytes": coded(pixels), "path": None}, "label": label}
        for pixels, label in zip(images, labels, strict=True)
    ]
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


CLASSES = ("cat", "dog", "ship")
HALF = (0.5, 0.5, 0.5)
OBJECTIVE = ImageClassifier(8, HALF, HALF, 4, CLASSES)


def coded(pixels, kind="PNG", **options):
    file = io.BytesIO()
    Image.fromarray(pixels, **options).save(file, kind)
    return file.getvalue()


def batch_of(*records, objective=OBJECTIVE):
    return objective.collate([objective.encode(record) for record in records])


def records():
    sizes = ((8, 8), (8, 8), (5, 9), (20, 13))
    pixels = [noise(1, seed, *size)[0] for seed, size in enumerate(sizes)]
    return [LabelledImage(one, n % 3, f"image {n}") for n, one in enumerate(pixels)]


@pytest.mark.parametrize(
    ("columns", "resized"),
    [
        ((0, 255), (0, 64, 191, 255)),  # a quarter of the way from one centre to the other
        # Of two columns that one is made of 3/7 each, of the next one 1/7.
        ((0, 0, 175, 175), (25, 150)),
    ],
)
def test_resizing_is_bilinear_by_hand(columns, resized):
    square = np.tile(np.array(columns, np.uint8)[None, :, None], (len(columns), 1, 3))
    for pixels in (square, square.transpose(1, 0, 2)):
        found = LabelledImage(pixels, 0, "").pixels(len(resized))
        line = found[0, :, 1] if pixels is square else found[:, 0, 1]
        assert line.tolist() == [*resized]


def test_contents_are_what_tells_records_apart():
    pixels = np.zeros((2, 6, 3), np.uint8)
    changed = pixels.copy()
    changed[1, 5, 2] = 1
    seen = [
        (pixels, 1),
        (pixels, 2),
        (changed, 1),
        (pixels.reshape(4, 3, 3), 1),
        (coded(pixels), 1),
    ]
    for name in "ab":
        keys = {tuple(LabelledImage(*one, name).parts()) for one in seen}
        assert len(keys) == 5
        assert tuple(LabelledImage(pixels, 1, "other").parts()) in keys


@pytest.mark.parametrize(
    "data",
    [
        b"not an image",
        coded(noise(1)[0])[:-200],
        coded(noise(1)[0], "GIF"),
        coded(np.zeros((5000, 5000), bool)),  # some hundred bytes
    ],
    ids=["text", "cut short", "a format with several images", "too many pixels"],
)
def test_what_is_no_image_is_named(data):
    record = LabelledImage(data, 0, "00003.png")
    with pytest.raises(DataError, match=r"00003\.png is not an image.*expected one of .*JPEG"):
        batch_of(record)


def test_a_row_is_the_image_alone():
    together = batch_of(*records()).tensors["pixels"]
    for row, record in zip(together, records(), strict=True):
        assert torch.equal(row, batch_of(record).tensors["pixels"][0])


@pytest.mark.parametrize("family", ["vit", "wrn"])
def test_the_loss_of_an_image_depends_on_no_other_image(family):
    model, _ = standin(family, "image", CLASSES)
    objective = replace(OBJECTIVE, size=32)
    batch = batch_of(*records(), objective=objective)
    pixels = batch.tensors["pixels"].requires_grad_()
    losses = objective.losses(model, batch)
    assert losses.shape == (4,)
    for i in range(4):
        (g,) = torch.autograd.grad(losses[i], pixels, retain_graph=True)
        others = torch.arange(4) != i
        assert g[i].abs().sum() > 0
        assert g[others].abs().sum() == 0
