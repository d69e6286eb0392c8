"""Image classification on five published data sets: the hub's parquet files, and CIFAR's pickles.

Names of classes, columns of the hub and what CIFAR's archives hold are in ``images.yaml``.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import yaml

from dpft.config.errors import DataError, ModelError, SplitError
from dpft.config.flags import Flag, Stored, flag, sentences
from dpft.models.needs import Needs
from dpft.tasks.classification import Classes
from dpft.tasks.objectives.record_types import LabelledImage
from dpft.tasks.samples.pictures import write_sample
from dpft.tasks.sources import Dataset, Form, Hub, ParquetForm, table_rows

if TYPE_CHECKING:
    from dpft.models.load import LoadedModel
    from dpft.tasks.objectives.image import ImageClassifier

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
        from dpft.tasks.objectives.image import ImageClassifier

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
