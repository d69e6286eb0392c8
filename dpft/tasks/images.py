"""Image classification on five published data sets: the hub's parquet files, and CIFAR's pickles.

Names of classes, columns of the hub and what CIFAR's archives hold are in ``images.yaml``.

A class of the generated sample is a pattern and a colour: every image is one shape or texture,
whose place and size vary, before a dull background with noise. Nothing is taken from any data set
but the format.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet
import yaml
from PIL import Image

from dpft.config.errors import DataError, ModelError, SplitError
from dpft.config.flags import Flag, Stored, flag, sentences
from dpft.models.needs import Needs
from dpft.tasks.classification import Classes
from dpft.tasks.objectives.record_types import LabelledImage, Pixels
from dpft.tasks.sources import Dataset, Form, Hub, ParquetForm, table_rows

if TYPE_CHECKING:
    from dpft.models.load import LoadedModel
    from dpft.tasks.objectives.classifier import ImageClassifier

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


_SETS: Mapping[str, Mapping[str, Any]] = yaml.safe_load(
    Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
)


class _Unpickler(pickle.Unpickler):
    """Reads plain values and arrays: calls only what numpy's arrays are pickled with.

    It knows their names from Python 2 to protocol 5.
    """

    def find_class(self, module: str, name: str) -> Any:
        module = module.replace("numpy.core.", "numpy._core.")  # its name before numpy 2
        match module, name:
            case (
                ("numpy", "ndarray" | "dtype")
                | ("numpy._core.multiarray", "_reconstruct")
                | ("numpy._core.numeric", "_frombuffer")
            ):
                return super().find_class(module, name)
            case "_codecs", "encode":
                return lambda text, coding: text.encode("latin-1")
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not called")


def read_pickles(first: Path, layout: Mapping[str, Any]) -> list[LabelledImage]:
    """Read the CIFAR split whose first file is ``first``."""
    rows: list[LabelledImage] = []
    for name in layout["test" if first.name in layout["test"] else "train"]:
        file = first.with_name(name)
        try:
            batch = _Unpickler(io.BytesIO(file.read_bytes()), encoding="bytes").load()
            data, labels = np.asarray(batch[b"data"]), list(batch[layout["labels"].encode()])
            if data.dtype != np.uint8 or data.shape != (len(labels), 3072):
                raise ValueError(f"data of shape {data.shape} in {data.dtype}")
        except OSError as error:
            raise DataError(
                f"cannot read {file}: {error.strerror}; expected all files of the official archive"
            ) from error
        except Exception as error:  # a broken pickle can raise almost anything
            raise DataError(
                f"{file} is no pickle of CIFAR ({type(error).__name__}: {error}); expected data of "
                f"shape (N, 3072) in 8-bit numbers, and N {layout['labels']}"
            ) from error
        # Stored plane by plane: red, green, blue.
        pixels = np.ascontiguousarray(data.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
        rows += [
            LabelledImage(image, label, f"{name}, image {number}")
            for number, (image, label) in enumerate(zip(pixels, labels, strict=True))
        ]
    return rows


def _from_hub(
    rows: Iterable[Mapping[str, Any]],
    split: str,
    image: str = "image",
    label: str = "label",
    *,
    pixels: bool = False,
) -> list[LabelledImage]:
    """Return rows of the hub's copy: an encoded image, or ``pixels``, and the index of its class.

    Pixels are the same records as those of the official files, where encoding is lossless.
    """
    if hasattr(rows, "cast_column"):
        from datasets import Image

        # The library would decode every image as it is read.
        rows = rows.cast_column(image, Image(decode=False))
    found = []
    for number, row in enumerate(rows):
        data, index = _encoded(row[image]), row[label]
        if data is None or not isinstance(index, int):
            raise DataError(
                f"image {number}: got {image} of type {type(row[image]).__name__} and {label} "
                f"{index!r}; expected an encoded image and the number of its class"
            )
        record = LabelledImage(data, index, f"image {number}")
        found.append(LabelledImage(record.pixels(), index, record.source) if pixels else record)
    return found


def _encoded(cell: Any) -> bytes | None:
    """Return the encoded image of a cell of the hub's form; None if it has none."""
    data = cell.get("bytes") if isinstance(cell, Mapping) else cell
    return data if isinstance(data, bytes) else None


@dataclass(frozen=True)
class Images(Classes):
    """Classify the images of one data set; rows are `LabelledImage`s."""

    record_is = "one image of the training set with its class"
    layout: ClassVar[Mapping[str, Any]]  # of the data set in images.yaml

    def __init_subclass__(cls) -> None:
        if "name" not in vars(cls):  # a user's task that reads another one's files
            return
        cls.layout = layout = _SETS[cls.name]
        cls.classes = tuple(layout["classes"])
        hub, forms = dict(layout["hub"]), tuple[Form, ...]()
        if "folder" in layout:
            first = {s: f"{layout['folder']}/{layout[s][0]}" for s in ("train", "test")}
            forms = (Form(first, partial(read_pickles, layout=layout)),)
        place, config, splits = (hub.pop(key, None) for key in ("id", "config", "test"))
        splits = {"train": "train", "test": splits or "test"}
        copy = Hub(place, splits, partial(_from_hub, **hub), config)
        cls.dataset = Dataset(forms, copy, partial(write_sample, cls.name, layout))

    def rows(self, split: str) -> Sequence[LabelledImage]:
        if split not in ("train", "test"):
            raise SplitError(
                f"{self.name} has no {split} split: its authors published train and test only; "
                "type decode.split=test"
            )
        rows = super().rows(split)
        _ = self._copies  # while the files are there: training may take days
        return rows

    def record(self, row: LabelledImage) -> LabelledImage:
        if not 0 <= row.label < len(self.classes):
            raise DataError(
                f"{self.name}, {row.source}: got class {row.label!r}; expected 0 to "
                f"{len(self.classes) - 1}"
            )
        return row

    @property
    def needs(self) -> Needs:
        return Needs("image", self.classes)

    def objective(self, loaded: LoadedModel) -> ImageClassifier:
        from dpft.tasks.objectives.classifier import ImageClassifier

        image = loaded.image
        if image is None:
            raise ModelError("the model takes no images; expected one such as model=vit-base")
        return ImageClassifier(image.size, image.mean, image.std, image.patch, self.classes)

    def signature(self) -> str:
        return f"accuracy:share of equal names|classes:{len(self.classes)}"

    def flags(self) -> list[Stored]:
        return [*super().flags(), *map(flag, self._copies)]

    def details(self, split: str) -> Sequence[str]:
        return sentences(map(flag, self._copies))

    @cached_property
    def _copies(self) -> tuple[Flag, ...]:
        """Flags of CIFAR's files that are not the published ones."""
        (kind, folder), layout, flags = self.location, self.layout, list[Flag]()
        if kind != "files" or folder is None or "md5" not in layout:
            return ()
        form = self.dataset.form_in(folder)
        for split in ("train", "test"):
            files = form.found(folder, split) if form is not None else []
            if isinstance(form, ParquetForm):
                first = [_encoded(cell) for f in files for cell in next(table_rows(f), {}).values()]
                if any((data or b"").startswith(b"\xff\xd8\xff") for data in first):
                    flags.append(Flag.LOSSY_COPIES)  # JPEG
            elif files:
                for path in (files[0].with_name(name) for name in layout[split]):
                    digest = hashlib.md5(path.read_bytes(), usedforsecurity=False)
                    if digest.hexdigest() != layout["md5"][path.name]:
                        flags.append(Flag.OTHER_FILES)
        return tuple(dict.fromkeys(flags))


class CIFAR10(Images):
    """CIFAR-10 (Krizhevsky 2009): ten kinds of objects, 32 by 32 pixels."""

    name = "cifar10"


class CIFAR100(Images):
    """CIFAR-100 (Krizhevsky 2009): the hundred fine labels, 32 by 32 pixels."""

    name = "cifar100"


class SVHN(Images):
    """SVHN (Netzer et al. 2011): cropped house-number digits of 32 by 32 pixels."""

    name = "svhn"


class GTSRB(Images):
    """GTSRB (Stallkamp et al. 2012): 43 German traffic signs of 15 to 250 pixels a side."""

    name = "gtsrb"


class Food101(Images):
    """Food-101 (Bossard et al. 2014): photographs of dishes, up to 512 pixels a side."""

    name = "food101"
