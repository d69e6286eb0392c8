"""Image classification on five published data sets, with one reader for each form of files.

Names of classes, and what CIFAR's archives hold, are in ``images.yaml``.
"""

from __future__ import annotations

import hashlib
import io
import math
import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import yaml

from dpft.config.errors import ConfigError, DataError, ModelError, SplitError, suggestion
from dpft.config.files import regular
from dpft.config.flags import Flag, Stored, flag, sentences
from dpft.config.schema import Count
from dpft.models.needs import Needs
from dpft.tasks.classification import Classes
from dpft.tasks.objectives.base import Instance, Question
from dpft.tasks.objectives.records import LabelledImage, Pixels
from dpft.tasks.samples import images as samples
from dpft.tasks.sources import Dataset, Form, Hub, ParquetForm, table_rows, text_lines
from dpft.tasks.table_files import Separated

if TYPE_CHECKING:
    from dpft.models.load import LoadedModel
    from dpft.tasks.objectives.image import ImageClassifier

Rows = list[LabelledImage]

# The formats that `LabelledImage` reads.
_SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".webp")
KEPT = 1 << 14
"""Up to this many bytes an encoded image is kept in memory; of a larger one, its path."""
# Pixels a side of CIFAR and SVHN.
_SIDE = 32
_SETS: Mapping[str, Mapping[str, Any]] = yaml.safe_load(
    Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
)


class _Array:
    """Stands in for an array in a pickle, and collects its bytes."""

    array: npt.NDArray[np.uint8]

    def __setstate__(self, state: Any) -> None:
        _, shape, dtype, fortran, data = state
        self.fill(data, dtype, shape, "F" if fortran else "C")

    def fill(self, data: Any, dtype: Any, shape: Any, order: Any) -> _Array:
        if not isinstance(dtype, _DType) or dtype.name not in ("u1", "uint8", b"u1"):
            raise pickle.UnpicklingError("an array that is not of 8-bit numbers")
        if not isinstance(data, bytes | bytearray) or math.prod(shape) != len(data):
            raise pickle.UnpicklingError("an array whose shape does not fit its contents")
        self.array = np.frombuffer(data, np.uint8).reshape(shape, order=order)
        return self


class _DType:
    """Stands in for an array's type in a pickle."""

    def __init__(self, name: str | bytes, *_: Any) -> None:
        self.name = name

    def __setstate__(self, state: Any) -> None:
        """Ignore the byte order and the like: one byte has none."""


class _Unpickler(pickle.Unpickler):
    """Reads plain values and 8-bit arrays, and calls nothing that a file names.

    It knows the names that numpy's arrays are pickled with, from Python 2 to protocol 5.
    """

    def find_class(self, module: str, name: str) -> Any:
        # Before numpy 2 the module was called numpy.core.
        match module.replace("numpy.core.", "numpy._core."), name:
            case "numpy", "ndarray":
                return _Array
            case "numpy", "dtype":
                return _DType
            case "numpy._core.multiarray", "_reconstruct":
                return lambda *_: _Array()
            case "numpy._core.numeric", "_frombuffer":
                return lambda *args: _Array().fill(*args)
            case "_codecs", "encode":
                return lambda text, coding: text.encode("latin-1")
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not called")


def _unpickled(path: Path) -> dict[str, Any]:
    """Return a pickled dictionary, with keys as text; texts of Python 2 come out as bytes."""
    try:
        content = _Unpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        return {
            key.decode() if isinstance(key, bytes) else str(key): (
                value.array if isinstance(value, _Array) else value
            )
            for key, value in content.items()
        }
    except OSError as error:
        raise DataError(
            f"cannot read {path}: {error.strerror}; expected all files of the official archive"
        ) from error
    except Exception as error:  # a broken pickle can raise almost anything
        raise DataError(
            f"{path} is no pickle of plain values and 8-bit arrays: {error}; expected a dictionary "
            "of those"
        ) from error


@dataclass(frozen=True)
class Layout:
    """The files of CIFAR's archive."""

    folder: str  # what it unpacks to
    train: Sequence[str]  # files of the training split, in order
    test: str
    labels: str  # the key of the classes in each file
    classes: Sequence[str]
    md5: Mapping[str, str]  # of each file of images

    def files(self, split: str) -> Sequence[str]:
        """Return the files of a split, in order."""
        return self.train if split == "train" else (self.test,)


def read_pickles(first: Path, layout: Layout) -> Rows:
    """Read the CIFAR split whose first file is ``first``."""
    rows: Rows = []
    for name in layout.files("test" if first.name == layout.test else "train"):
        file = first.with_name(name)
        batch = _unpickled(file)
        data, labels = batch.get("data"), batch.get(layout.labels)
        shape = getattr(data, "shape", None)
        if shape is None or shape[1:] != (3 * _SIDE**2,) or not isinstance(labels, list):
            raise DataError(
                f"{file}: got data of shape {shape} and {layout.labels} of type "
                f"{type(labels).__name__}; expected (N, {3 * _SIDE**2}) and a list"
            )
        # Stored plane by plane: red, green, blue.
        planes = np.asarray(data).reshape(-1, 3, _SIDE, _SIDE)
        rows += _labelled(planes.transpose(0, 2, 3, 1), labels, file)
    return rows


def read_mat(path: Path) -> Rows:
    """Read ``X`` ``(32, 32, 3, N)`` and classes ``y`` ``(N, 1)`` of a MATLAB file of SVHN.

    The digit 0 is class 10 there; here every digit is its own class.
    """
    from scipy.io import loadmat

    expected = "expected X of shape (32, 32, 3, N) in uint8 and y of shape (N, 1) from 1 to 10"
    try:
        content = loadmat(path, variable_names=("X", "y"))
    # A parser of a binary format: broken files raise almost anything.
    except Exception as error:
        raise DataError(f"cannot read {path} as a MATLAB file: {error}; {expected}") from error
    images, classes = (np.asarray(content.get(name)) for name in ("X", "y"))
    fits = images.dtype == np.uint8 and images.ndim == 4 and images.shape[:3] == (_SIDE, _SIDE, 3)
    if (
        not fits
        or classes.shape != (images.shape[3], 1)
        or not np.isin(classes, np.arange(1, 11)).all()
    ):
        raise DataError(
            f"{path}: got X {images.shape} in {images.dtype} and y {classes.shape}; {expected}"
        )
    labels = (classes[:, 0].astype(int) % 10).tolist()
    return _labelled(images.transpose(3, 0, 1, 2), labels, path)


def _labelled(pixels: Pixels, labels: Sequence[int], file: Path) -> Rows:
    """Return the images of a file, ``(N, H, W, 3)``, with their classes."""
    if len(labels) != len(pixels):
        raise DataError(f"{file}: got {len(labels)} labels for {len(pixels)} images")
    pairs = zip(np.ascontiguousarray(pixels), labels, strict=True)
    return [
        LabelledImage(image, label, f"{file.name}, image {number}")
        for number, (image, label) in enumerate(pairs)
    ]


def read_signs(path: Path) -> Rows:
    """Read the images that an annotation file of GTSRB lists: the whole sign with its margin.

    They are next to it, or, for ``GT-final_test.csv``, where the archive of test images puts them.
    """
    folder = path.parent / "GTSRB" / "Final_Test" / "Images"
    if not folder.is_dir():
        folder = path.parent
    rows: Rows = []
    for row in Separated(path, ";").rows():
        name, number = row.values.get("Filename", ""), row.values.get("ClassId", "")
        if Path(name).name != name or not name or not number.isdecimal():
            raise DataError(
                f"{row.place}: got file {name!r} of class {number!r}; expected Filename;...;ClassId"
            )
        image = image_file(folder / name, row.place)
        rows.append(LabelledImage(image, int(number), f"{folder.name}/{name}"))
    return rows


def read_list(path: Path) -> Rows:
    """Read the images that Food-101's ``meta/{train,test}.txt`` lists, ``class/number`` a line."""
    index = {name: number for number, name in enumerate(_SETS["food101"]["classes"])}
    images = path.parent.parent / "images"
    rows: Rows = []
    for number, line in enumerate(text_lines(path, "a list of images"), 1):
        if not (entry := line.strip()):
            continue
        where = f"{path}, line {number}"
        name, _, image = entry.partition("/")
        if name not in index or not image or Path(image).name != image:
            raise DataError(
                f"{where}: got {entry!r}{suggestion(name, index)}; expected class/number, as in "
                "apple_pie/1005649, with one of Food-101's classes"
            )
        file = image_file(images / f"{entry}.jpg", where)
        rows.append(LabelledImage(file, index[name], f"{entry}.jpg"))
    return rows


def image_file(file: Path, where: str) -> bytes | Path:
    """Return the bytes of a small encoded image, or the path of a large one."""
    try:
        return file if regular(file).stat().st_size > KEPT else file.read_bytes()
    except OSError as error:
        raise DataError(f"{where}: cannot read {file}: {error.strerror}") from error


def _hub(
    dataset: str,
    image: str = "image",
    label: str = "label",
    *,
    decode: bool = False,
    test: str = "test",
    config: str | None = None,
) -> Hub:
    """Return the hub's copy, whose rows are an encoded image and the index of its class.

    With ``decode`` pixels are kept, which is right for images no larger than their encoding. They
    are then the same records as those of the official files, where encoding is lossless.
    """

    def read(rows: Iterable[Mapping[str, Any]]) -> Rows:
        if hasattr(rows, "cast_column"):
            from datasets import Image

            # The library would decode every image as it is read.
            rows = rows.cast_column(image, Image(decode=False))
        found: Rows = []
        for number, row in enumerate(rows):
            cell, index = row[image], row[label]
            data, path = _encoded(cell), cell.get("path") if isinstance(cell, Mapping) else None
            if data is None or not isinstance(index, int):
                raise DataError(
                    f"image {number}: got {image} of type {type(cell).__name__} and {label} "
                    f"{index!r}; expected an encoded image and the number of a class"
                )
            name = f"image {number}" + (f" ({Path(path).name})" if path is not None else "")
            record = LabelledImage(data, index, name)
            found.append(LabelledImage(record.pixels(), index, name) if decode else record)
        return found

    return Hub(dataset, {"train": "train", "test": test}, read, config)


def _encoded(cell: Any) -> bytes | None:
    """Return the encoded image of a cell of the hub's form; None if it has none."""
    data = cell.get("bytes") if isinstance(cell, Mapping) else cell
    return data if isinstance(data, bytes) else None


@dataclass(frozen=True)
class Images(Classes):
    """Classify the images of one data set; rows are `LabelledImage`s."""

    image_size: Count | None = None

    record_is = "one image of the training set with its class"
    layout: ClassVar[Layout | None] = None

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
        if not isinstance(row.label, int) or not 0 <= row.label < len(self.classes):
            raise DataError(
                f"{self.name}, {row.source}: got class {row.label!r}; expected 0 to "
                f"{len(self.classes) - 1}"
            )
        return row

    def questions(self, path: Path) -> list[Question]:
        """Return a folder's images in the order of their names, or one image."""
        files = [path] if path.is_file() else sorted(path.glob("*"))
        images = [file for file in files if file.suffix.lower() in _SUFFIXES]
        if not images:
            raise DataError(
                f"{path} is no image, and no folder with any; expected files ending in "
                f"{', '.join(_SUFFIXES)}"
            )
        return [
            Question({"file": file.name}, Instance(LabelledImage(file, 0, file.name), ()))
            for file in images
        ]

    @property
    def needs(self) -> Needs:
        return Needs("image", self.classes)

    def objective(self, loaded: LoadedModel) -> ImageClassifier:
        from dpft.tasks.objectives.image import ImageClassifier

        image = loaded.image
        if image is None:
            raise ModelError("the model takes no images; expected one such as model=vit-base")
        size = self.image_size or image.size
        parameters = (name for name, _ in loaded.model.named_parameters())
        if size != image.size and any(n.endswith("position_embeddings") for n in parameters):
            raise ConfigError(
                f"task.image_size is {size}, but the model has positions for images of "
                f"{image.size} pixels a side; type task.image_size=null"
            )
        return ImageClassifier(size, image.mean, image.std, image.patch, self.classes)

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
        if kind != "files" or folder is None or layout is None:
            return ()
        for split in ("train", "test"):
            found = ((form, form.found(folder, split)) for form in self.dataset.all_forms())
            form, files = next(((form, files) for form, files in found if files), (None, []))
            if isinstance(form, ParquetForm):
                cells = [cell for file in files for cell in next(table_rows(file), {}).values()]
                if any((_encoded(cell) or b"").startswith(b"\xff\xd8\xff") for cell in cells):
                    flags.append(Flag.LOSSY_COPIES)  # JPEG
            elif files:
                for path in (files[0].with_name(name) for name in layout.files(split)):
                    digest = hashlib.md5(path.read_bytes(), usedforsecurity=False)
                    if digest.hexdigest() != layout.md5[path.name]:
                        flags.append(Flag.OTHER_FILES)
        return tuple(dict.fromkeys(flags))


def _cifar(layout: Layout, hub: str, label: str) -> Dataset:
    first = {split: f"{layout.folder}/{layout.files(split)[0]}" for split in ("train", "test")}
    return Dataset(
        (Form(first, partial(read_pickles, layout=layout)),),
        _hub(hub, "img", label, decode=True),
        partial(samples.write_cifar, layout),
    )


class CIFAR10(Images):
    """CIFAR-10 (Krizhevsky 2009): ten kinds of objects, 32 by 32 pixels."""

    name = "cifar10"
    layout = Layout(**_SETS["cifar10"])
    classes = tuple(layout.classes)
    dataset = _cifar(layout, "uoft-cs/cifar10", "label")


class CIFAR100(Images):
    """CIFAR-100 (Krizhevsky 2009): the hundred fine labels, 32 by 32 pixels."""

    name = "cifar100"
    layout = Layout(**_SETS["cifar100"])
    classes = tuple(layout.classes)
    dataset = _cifar(layout, "uoft-cs/cifar100", "fine_label")


class SVHN(Images):
    """SVHN (Netzer et al. 2011): cropped house-number digits of 32 by 32 pixels."""

    name = "svhn"
    classes = tuple(_SETS["svhn"]["classes"])
    dataset = Dataset(
        (Form({"train": "train_32x32.mat", "test": "test_32x32.mat"}, read_mat),),
        _hub("ufldl-stanford/svhn", decode=True, config="cropped_digits"),
        samples.write_svhn,
    )


class GTSRB(Images):
    """GTSRB (Stallkamp et al. 2012): 43 German traffic signs of 15 to 250 pixels a side."""

    name = "gtsrb"
    classes = tuple(_SETS["gtsrb"]["classes"])
    # The second is the smaller set of the competition's first stage, which torchvision downloads.
    dataset = Dataset(
        tuple(
            Form({"train": f"GTSRB/{training}/*/GT-*.csv", "test": "GT-final_test.csv"}, read_signs)
            for training in ("Final_Training/Images", "Training")
        ),
        _hub("tanganke/gtsrb"),
        samples.write_gtsrb,
    )


class Food101(Images):
    """Food-101 (Bossard et al. 2014): photographs of dishes, up to 512 pixels a side."""

    name = "food101"
    classes = tuple(_SETS["food101"]["classes"])
    dataset = Dataset(
        tuple(
            Form({split: f"{root}meta/{split}.txt" for split in ("train", "test")}, read_list)
            for root in ("food-101/", "")
        ),
        _hub("ethz/food101", test="validation"),
        partial(samples.write_food101, _SETS["food101"]["classes"]),
    )
