"""Image classification on five published data sets, with one reader for each form of files.

Names of classes, and what CIFAR's archives hold, are in ``images.yaml``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import yaml

from dpft.config.errors import ConfigError, DataError, ModelError, SplitError, suggestion
from dpft.config.files import regular
from dpft.config.flags import Flag, Stored, flag, sentences
from dpft.config.schema import Count
from dpft.models.needs import Needs
from dpft.tasks import unpickle
from dpft.tasks.classification import Classes
from dpft.tasks.objectives.base import Instance, Question
from dpft.tasks.objectives.images import LabelledImage, Pixels
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
# Pixels a side of images that are kept decoded.
_SMALL = 64
# Pixels a side of CIFAR and SVHN.
_SIDE = 32
_SETS: Mapping[str, Mapping[str, Any]] = yaml.safe_load(
    Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
)


@dataclass(frozen=True)
class Layout:
    """The files of CIFAR's archive."""

    folder: str  # what it unpacks to
    train: Sequence[str]  # files of the training split, in order
    test: str
    meta: str  # the file that names the classes
    names: str  # the key of the names there
    labels: str  # the key of the classes in the other files
    classes: Sequence[str]
    md5: Mapping[str, str]  # of each file of images

    def files(self, split: str) -> Sequence[str]:
        """Return the files of a split, in order."""
        return self.train if split == "train" else (self.test,)


def read_pickles(first: Path, layout: Layout) -> Rows:
    """Read the CIFAR split whose first file is ``first``."""
    if first.name not in (layout.train[0], layout.test):
        raise DataError(
            f"{first} is no whole split; expected {layout.train[0]}, with which the whole training "
            f"split is read, or {layout.test}"
        )
    folder = first.parent
    meta = unpickle.load(folder / layout.meta)
    names = [n.decode() if isinstance(n, bytes) else n for n in meta.get(layout.names) or []]
    if names != list(layout.classes):
        raise DataError(
            f"{folder / layout.meta}: got {layout.names} {names}; expected "
            f"{', '.join(layout.classes)}"
        )
    rows: Rows = []
    for name in layout.files("test" if first.name == layout.test else "train"):
        batch = unpickle.load(folder / name)
        data, labels = batch.get("data"), batch.get(layout.labels)
        shape = getattr(data, "shape", None)
        if shape is None or shape[1:] != (3 * _SIDE**2,) or not isinstance(labels, list):
            raise DataError(
                f"{folder / name}: got data of shape {shape} and {layout.labels} of type "
                f"{type(labels).__name__}; expected (N, {3 * _SIDE**2}) and a list"
            )
        # Stored plane by plane: red, green, blue.
        planes = np.asarray(data).reshape(-1, 3, _SIDE, _SIDE)
        rows += _labelled(planes.transpose(0, 2, 3, 1), labels, folder / name)
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
    if not fits or classes.shape != (images.shape[3], 1):
        raise DataError(
            f"{path}: got X {images.shape} in {images.dtype} and y {classes.shape}; {expected}"
        )
    for number in np.flatnonzero((classes < 1) | (classes > 10)):
        raise DataError(f"{path}: y of image {number} is {classes[number, 0]}; {expected}")
    labels = (classes[:, 0].astype(int) % 10).tolist()
    return _labelled(images.transpose(3, 0, 1, 2), labels, path)


def _labelled(pixels: Pixels, labels: Sequence[int], file: Path) -> Rows:
    """Return the images of a file, ``(N, H, W, 3)``, with their classes."""
    if len(labels) != len(pixels):
        raise DataError(f"{file}: got {len(labels)} labels for {len(pixels)} images")
    return [
        LabelledImage(image, label, f"{file.name}, image {number}")
        for number, (image, label) in enumerate(
            zip(np.ascontiguousarray(pixels), labels, strict=True)
        )
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
    """Read the images that Food-101's ``meta/{train,test}.txt`` lists, as ``class/number`` a line.

    Images are not decoded, and of all but the smallest only the path is kept.
    """
    index = {name: number for number, name in enumerate(_SETS["food101"]["classes"])}
    images = path.parent.parent / "images"
    rows: dict[str, LabelledImage] = {}
    for number, line in enumerate(text_lines(path, "a list of images"), 1):
        if not (entry := line.strip()):
            continue
        where = f"{path}, line {number}"
        if entry in rows:
            raise DataError(f"{where}: {entry} is there twice; expected each image once")
        name, _, image = entry.partition("/")
        if not image or Path(image).name != image:
            raise DataError(f"{where}: got {entry!r}; expected class/number, as apple_pie/1005649")
        if name not in index:
            raise DataError(
                f"{where}: got class {name!r}{suggestion(name, index)}; expected one of Food-101's"
            )
        file = image_file(images / name / f"{image}.jpg", where)
        rows[entry] = LabelledImage(file, index[name], f"{entry}.jpg")
    return [*rows.values()]


def image_file(file: Path, where: str) -> bytes | Path:
    """Return the bytes of a small encoded image, or the path of a large one."""
    try:
        return file if regular(file).stat().st_size > KEPT else file.read_bytes()
    except OSError as error:
        raise DataError(
            f"{where}: cannot read {file}: {error.strerror}; expected an image"
        ) from error


def hub_images(
    image: str, label: str, *, decode: bool = False
) -> Callable[[Iterable[Mapping[str, Any]]], Rows]:
    """Return a reader of rows of the hub's form: an encoded image and the index of its class.

    With ``decode`` pixels are kept, which is right for images no larger than their encoding. They
    are then the same records as those of the official files, where encoding is lossless.
    """

    def read(rows: Iterable[Mapping[str, Any]]) -> Rows:
        if hasattr(rows, "cast_column"):
            from datasets import Image

            # The library would decode every image as it is read.
            rows = rows.cast_column(image, Image(decode=False))
        return [record(number, row) for number, row in enumerate(rows)]

    def record(number: int, row: Mapping[str, Any]) -> LabelledImage:
        cell, index = row.get(image), row.get(label)
        data = cell.get("bytes") if isinstance(cell, Mapping) else cell
        if not isinstance(data, bytes) or not isinstance(index, int):
            raise DataError(
                f"image {number}: got {image} of type {type(cell).__name__} and {label} {index!r}; "
                "expected an encoded image and the number of a class"
            )
        path = cell.get("path") if isinstance(cell, Mapping) else None
        name = f"image {number}" if path is None else f"image {number} ({Path(path).name})"
        found = LabelledImage(data, index, name)
        if not decode:
            return found
        pixels = found.pixels()
        if max(pixels.shape) > _SMALL:
            raise DataError(
                f"{name}: got {pixels.shape[0]} by {pixels.shape[1]} pixels; expected at most "
                f"{_SMALL} a side, as of images that are kept decoded"
            )
        return LabelledImage(pixels, index, name)

    return read


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
        return [*super().details(split), *sentences(map(flag, self._copies))]

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
                if any(_holds_jpeg(next(table_rows(file), {})) for file in files):
                    flags.append(Flag.LOSSY_COPIES)
            elif files:
                for path in (files[0].with_name(name) for name in layout.files(split)):
                    digest = hashlib.md5(path.read_bytes(), usedforsecurity=False)
                    if digest.hexdigest() != layout.md5[path.name]:
                        flags.append(Flag.OTHER_FILES)
        return tuple(dict.fromkeys(flags))


def _holds_jpeg(row: Mapping[str, Any]) -> bool:
    cells = [cell.get("bytes") if isinstance(cell, Mapping) else cell for cell in row.values()]
    return any(isinstance(cell, bytes) and cell.startswith(b"\xff\xd8\xff") for cell in cells)


def _cifar(layout: Layout, hub: str, label: str) -> Dataset:
    first = {split: f"{layout.folder}/{layout.files(split)[0]}" for split in ("train", "test")}
    return Dataset(
        forms=(Form(first, partial(read_pickles, layout=layout)),),
        hub=Hub(hub, {"train": "train", "test": "test"}, hub_images("img", label, decode=True)),
        write_sample=partial(samples.write_cifar, layout),
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
        forms=(Form({"train": "train_32x32.mat", "test": "test_32x32.mat"}, read_mat),),
        hub=Hub(
            "ufldl-stanford/svhn",
            {"train": "train", "test": "test"},
            hub_images("image", "label", decode=True),
            config="cropped_digits",
        ),
        write_sample=samples.write_svhn,
    )


class GTSRB(Images):
    """GTSRB (Stallkamp et al. 2012): 43 German traffic signs of 15 to 250 pixels a side."""

    name = "gtsrb"
    classes = tuple(_SETS["gtsrb"]["classes"])
    # The second is the smaller set of the competition's first stage, which torchvision downloads.
    dataset = Dataset(
        forms=tuple(
            Form({"train": f"GTSRB/{training}/*/GT-*.csv", "test": "GT-final_test.csv"}, read_signs)
            for training in ("Final_Training/Images", "Training")
        ),
        hub=Hub("tanganke/gtsrb", {"train": "train", "test": "test"}, hub_images("image", "label")),
        write_sample=samples.write_gtsrb,
    )


class Food101(Images):
    """Food-101 (Bossard et al. 2014): photographs of dishes, up to 512 pixels a side."""

    name = "food101"
    classes = tuple(_SETS["food101"]["classes"])
    dataset = Dataset(
        forms=tuple(
            Form({split: f"{root}meta/{split}.txt" for split in ("train", "test")}, read_list)
            for root in ("food-101/", "")
        ),
        hub=Hub(
            "ethz/food101", {"train": "train", "test": "validation"}, hub_images("image", "label")
        ),
        write_sample=partial(samples.write_food101, _SETS["food101"]["classes"]),
    )
