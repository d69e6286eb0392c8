"""Generated images in the file formats of the published data sets.

A class is a pattern and a colour: every image is one shape or texture, at a place and of a size of
its own, before a dull background with noise. Nothing is taken from any data set but the format.
"""

from __future__ import annotations

import csv
import pickle
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from PIL import Image

from dpft.tasks.objectives.records import Pixels

if TYPE_CHECKING:
    from dpft.tasks.images import Layout

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
    """One image of each label: ``(N, 32, 32, 3)``."""
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


def _splits(classes: int, train: int, test: int, seed: int) -> Iterator[tuple[str, Labelled]]:
    """``train`` and ``test`` with so many images of each class, in random order."""
    for split, each in (("train", train), ("test", test)):
        generator = np.random.default_rng([seed, classes, split == "test"])
        labels = generator.permutation(np.repeat(np.arange(classes), each))
        yield split, (labels, draw(labels, generator), generator)


Labelled = tuple[npt.NDArray[np.int64], Pixels, np.random.Generator]


def write_cifar(layout: Layout, folder: Path, seed: int) -> None:
    """1000 and 200 images as the pickles of CIFAR-10 or CIFAR-100."""
    to = folder / layout.folder
    to.mkdir(parents=True, exist_ok=True)
    count = len(layout.classes)
    for split, (labels, images, _) in _splits(count, 1000 // count, 200 // count, seed):
        files = layout.files(split)
        planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
        parts = zip(*(np.array_split(all_, len(files)) for all_ in (planes, labels)), strict=True)
        for name, (data, classes) in zip(files, parts, strict=True):
            content = {b"data": data, layout.labels.encode(): classes.tolist()}
            (to / name).write_bytes(pickle.dumps(content, 4))


def write_svhn(folder: Path, seed: int) -> None:
    """1000 and 200 images as MATLAB files, the class of 0 numbered 10."""
    from scipy.io import savemat

    for split, (labels, images, _) in _splits(10, 100, 20, seed):
        classes = np.where(labels == 0, 10, labels).astype(np.uint8)[:, None]
        content = {"X": images.transpose(1, 2, 3, 0), "y": classes}
        savemat(folder / f"{split}_32x32.mat", content)


def write_gtsrb(folder: Path, seed: int) -> None:
    """20 and 5 images of each class, of several sizes, as PPM files with annotations."""
    for split, (labels, images, generator) in _splits(43, 20, 5, seed):
        rows: dict[Path, list[list[object]]] = {}
        training = folder / "GTSRB" / "Final_Training" / "Images"
        testing = folder / "GTSRB" / "Final_Test" / "Images"
        for number, (label, pixels) in enumerate(zip(labels.tolist(), images, strict=True)):
            to, table = testing, folder / "GT-final_test.csv"
            if split == "train":
                to = training / f"{label:05d}"
                table = to / f"GT-{label:05d}.csv"
            to.mkdir(parents=True, exist_ok=True)
            width, height = generator.integers(24, 41, 2).tolist()
            name = f"{number:05d}.ppm"
            Image.fromarray(pixels).resize((width, height)).save(to / name)
            roi = [5, 5, width - 5, height - 5]
            rows.setdefault(table, []).append([name, width, height, *roi, label])
        for table, lines in rows.items():
            with table.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, delimiter=";")
                corners = ("Roi.X1", "Roi.Y1", "Roi.X2", "Roi.Y2")
                writer.writerow(["Filename", "Width", "Height", *corners, "ClassId"])
                writer.writerows(lines)


def write_food101(classes: Sequence[str], folder: Path, seed: int) -> None:
    """Four images and one of each class, as JPEG files with lists."""
    root = folder / "food-101"
    (root / "meta").mkdir(parents=True, exist_ok=True)
    for split, (labels, images, _) in _splits(len(classes), 4, 1, seed):
        entries = []
        for number, (label, pixels) in enumerate(zip(labels.tolist(), images, strict=True)):
            # Numbers are never used twice, as in the archive.
            entry = f"{classes[label]}/{number + (0 if split == 'train' else 1_000_000)}"
            file = root / "images" / f"{entry}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).resize((64, 48)).save(file, quality=90)
            entries.append(entry)
        text = "".join(f"{entry}\n" for entry in entries)
        (root / "meta" / f"{split}.txt").write_text(text, encoding="utf-8")
