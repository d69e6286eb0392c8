"""Image classification: what a model sees of an image, its loss, and predictions."""

import io

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import ViTConfig, ViTForImageClassification

from dpft.config.errors import DataError
from dpft.models.wrn import WideResNetConfig, WideResNetForImageClassification
from dpft.tasks.objectives.image import ImageClassifier
from dpft.tasks.objectives.records import LabelledImage

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


def vit(seed=0):
    torch.manual_seed(seed)
    config = ViTConfig(
        hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20,
        image_size=8, patch_size=4, num_labels=3, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = ViTForImageClassification(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def wrn(seed=0):
    torch.manual_seed(seed)
    return WideResNetForImageClassification(WideResNetConfig(depth=10, width=1, num_labels=3))


def records():
    sizes = ((8, 8), (8, 8), (5, 9), (20, 13))
    return [image(i, *size, label=i % 3) for i, size in enumerate(sizes)]


# What the model sees.


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


def test_contents_are_what_tells_records_apart(tmp_path):
    def key(record):
        return tuple(record.parts())

    pixels = np.zeros((2, 6, 3), np.uint8)
    changed = pixels.copy()
    changed[1, 5, 2] = 1
    assert key(LabelledImage(pixels, 1, "a")) == key(LabelledImage(pixels, 1, "b"))
    others = [
        LabelledImage(pixels, 2, "a"),
        LabelledImage(changed, 1, "a"),
        LabelledImage(pixels.reshape(4, 3, 3), 1, "a"),
        LabelledImage(coded(pixels), 1, "a"),
    ]
    assert len({key(LabelledImage(pixels, 1, "a")), *map(key, others)}) == 5


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


# Privacy.


def test_a_row_is_the_image_alone():
    together = batch_of(*records()).tensors["pixels"]
    for row, record in zip(together, records(), strict=True):
        assert torch.equal(row, batch_of(record).tensors["pixels"][0])


@pytest.mark.parametrize("build", [vit, wrn])
def test_the_loss_of_an_image_depends_on_no_other_image(build):
    model = build().train()
    batch = batch_of(*records())
    pixels = batch.tensors["pixels"].requires_grad_()
    losses = OBJECTIVE.losses(model, batch)
    assert losses.shape == (4,)
    for i in range(4):
        (g,) = torch.autograd.grad(losses[i], pixels, retain_graph=True)
        others = torch.arange(4) != i
        assert g[i].abs().sum() > 0
        assert g[others].abs().sum() == 0
