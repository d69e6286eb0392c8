"""Generated images in the file formats of the published data sets.

A class is a pattern and a colour: every image is one shape or texture, at a place and of a size of
its own, before a dull background with noise. Nothing is taken from any data set but the format.
"""

import io
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet
from PIL import Image

from dpft.tasks.objectives.record_types import Pixels

SIDE = 32
Floats = npt.NDArray[np.float32]

# What is filled at ``(u, v)``, in units of the shape's size from its centre.
_PATTERNS: tuple[Callable[[Floats, Floats], npt.NDArray[np.bool_]], ...] = (
    lambda u, v: u**2 + v**2 < 1,
    lambda u, v: np.maximum(abs(u), abs(v)) < 0.9,
    lambda u, v: (v < 0.9) & (abs(u) < (v + 1) / 1.8),
    lambda u, v: (np.minimum(abs(u), abs(v)) < 0.3) & (np.maximum(abs(u), abs(v)) < 1.1),
    lambda u, v: abs(u**2 + v**2 - 0.8) < 0.35,
    lambda u, v: np.sin(4 * v) > 0,
    lambda u, v: np.sin(4 * u) > 0,
    lambda u, v: np.sin(3 * (u + v)) > 0,
    lambda u, v: np.sin(4 * u) * np.sin(4 * v) > 0,
    lambda u, v: np.cos(6 * u) + np.cos(6 * v) > 1,
)


def draw(labels: npt.NDArray[np.int64], generator: np.random.Generator) -> Pixels:
    """Return one image of each label: ``(N, 32, 32, 3)``."""
    count = len(labels)
    y, x = np.mgrid[:SIDE, :SIDE].astype(np.float32) / SIDE
    place = generator.uniform(0.35, 0.65, (2, count, 1, 1)).astype(np.float32)
    size = generator.uniform(0.22, 0.38, (count, 1, 1)).astype(np.float32)
    u, v = (x - place[0]) / size, (y - place[1]) / size
    kinds = labels % len(_PATTERNS)
    filled = np.zeros((count, SIDE, SIDE), bool)
    for kind, pattern in enumerate(_PATTERNS):
        chosen = kinds == kind
        filled[chosen] = pattern(u[chosen], v[chosen])
    # Classes of one pattern differ in hue; so do those that are numbered one after another.
    hue = kinds / len(_PATTERNS) + labels // len(_PATTERNS) / 11
    hue = hue + generator.uniform(-0.02, 0.02, count)
    thirds = np.arange(3) / 3
    colour = 0.55 + 0.4 * np.cos(2 * np.pi * (hue[:, None] + thirds))
    dull = generator.uniform(0.2, 0.5, (count, 1)) + generator.uniform(-0.05, 0.05, (count, 3))
    chosen = np.where(filled[..., None], colour[:, None, None], dull[:, None, None])
    image = chosen.astype(np.float32)
    noise = 0.04 * generator.standard_normal(image.shape, np.float32)
    pixels: Pixels = ((image + noise).clip(0, 1) * 255).astype(np.uint8)
    return pixels


def write_sample(name: str, layout: Mapping[str, Any], folder: Path, seed: int) -> None:
    """Write the pickles of CIFAR or the hub's parquet files, images in random order.

    Signs are PPM files of several sizes in the order of their classes, and dishes are JPEG files.
    """
    classes, hub = len(layout["classes"]), layout["hub"]
    for split, each in zip(("train", "test"), layout["sample"], strict=True):
        generator = np.random.default_rng([seed, classes, split == "test"])
        labels = generator.permutation(np.repeat(np.arange(classes), each))
        images = draw(labels, generator)
        if "folder" in layout:
            to = folder / layout["folder"]
            to.mkdir(parents=True, exist_ok=True)
            planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
            count = len(layout[split])
            parts = (np.array_split(planes, count), np.array_split(labels, count))
            for file, data, numbers in zip(layout[split], *parts, strict=True):
                content = {b"data": data, layout["labels"].encode(): numbers.tolist()}
                (to / file).write_bytes(pickle.dumps(content, 4))
            continue
        rows = []
        for label, pixels in zip(labels.tolist(), images, strict=True):
            image, file = Image.fromarray(pixels), io.BytesIO()
            if name == "gtsrb":
                image.resize(tuple(generator.integers(24, 41, 2).tolist())).save(file, "PPM")
            elif name == "food101":
                image.resize((64, 48)).save(file, "JPEG", quality=90)
            else:
                image.save(file, "PNG")
            rows.append({"image": {"bytes": file.getvalue(), "path": None}, "label": label})
        if name == "gtsrb" and split == "train":
            rows.sort(key=lambda row: row["label"])
        to = folder / f"{hub.get(split, split)}.parquet"
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), to)
