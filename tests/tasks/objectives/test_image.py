"""Image classification: what a model sees of an image, its loss, and predictions."""

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from dpft.config.errors import DataError
from dpft.tasks.objectives.image import ImageClassifier
from dpft.tasks.objectives.records import LabelledImage
from tests.tasks.objectives.support import standin

CLASSES = ("cat", "dog", "ship")
HALF = (0.5, 0.5, 0.5)
OBJECTIVE = ImageClassifier(8, HALF, HALF, 4, CLASSES)


def image(seed=0, height=8, width=8, label=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return LabelledImage(pixels, label, f"image {seed}")


def coded(pixels, kind="PNG", **options):
    file = io.BytesIO()
    Image.fromarray(pixels, **options).save(file, kind)
    return file.getvalue()


def batch_of(*records, objective=OBJECTIVE):
    return objective.collate([objective.encode(record) for record in records])


def records():
    sizes = ((8, 8), (8, 8), (5, 9), (20, 13))
    return [image(i, *size, label=i % 3) for i, size in enumerate(sizes)]


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
        coded(image(1, 40, 40).image)[:-200],
        coded(image().image, "GIF"),
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
