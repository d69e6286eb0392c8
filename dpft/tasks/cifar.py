"""CIFAR-10 and CIFAR-100 (Krizhevsky 2009): 32 by 32 pixels, in the authors' Python files."""

from __future__ import annotations

import hashlib
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import IO, Any, ClassVar

import numpy as np

from dpft.config.errors import DataError
from dpft.tasks import unpickle
from dpft.tasks.images import Images, Rows, hub_images, labelled, names
from dpft.tasks.objectives.images import LabelledImage
from dpft.tasks.samples.images import write_cifar
from dpft.tasks.sources import Dataset, Form, Hub, ParquetForm, table_rows

SIDE = 32
# 60,000 images with labels and file names are about 187 MB.
_MOST = 1 << 28
OTHER_FILES = "images from other files than the published ones (checksums differ)"
LOSSY = "lossy JPEG copies of the published images"
_JPEG = b"\xff\xd8\xff"


@dataclass(frozen=True)
class Layout:
    """What the official archive holds.

    Attributes:
        archive: its name.
        folder: what it unpacks to.
        train: files of the training split, in order.
        meta: the file that names the classes.
        names: the key of the names there.
        labels: the key of the classes in the other files.
        classes: the names that are expected.
        md5: of the archive and of each file of images, as its authors (the archive) and torchvision
            (all of them) publish it.
    """

    archive: str
    folder: str
    train: tuple[str, ...]
    test: str
    meta: str
    names: str
    labels: str
    classes: tuple[str, ...]
    md5: Mapping[str, str]

    def files(self, split: str) -> tuple[str, ...]:
        """The files of a split, in order."""
        return self.train if split == "train" else (self.test,)

    def forms(self) -> tuple[Form, ...]:
        """Unpacked, or as the archive."""
        splits = ("train", "test")
        first = {split: f"{self.folder}/{self.files(split)[0]}" for split in splits}
        packed = (
            Form({split: self.archive}, partial(self.read_archive, split=split)) for split in splits
        )
        return Form(first, self.read_folder), *packed

    def read_folder(self, first: Path) -> Rows:
        """The split whose first file is ``first``.

        Raises:
            DataError: naming a file of the split that is missing or malformed, or for a file that
                is no split's first.
        """
        if first.is_file() and first.name not in (self.train[0], self.test):
            raise DataError(
                f"{first} is no whole split; expected {self.train[0]}, with which all of the "
                f"training split is read, or {self.test}"
            )
        split = "test" if first.name == self.test else "train"
        return self._read(split, lambda name: (first.parent / name).open("rb"), str(first.parent))

    def read_archive(self, archive: Path, split: str) -> Rows:
        """A split, read from the archive without unpacking it.

        Raises:
            DataError: as above, or if it is not such an archive.
        """

        def member(name: str) -> IO[bytes]:
            try:
                found = tar.extractfile(f"{self.folder}/{name}")
            except KeyError:
                found = None
            if found is None:
                raise FileNotFoundError(2, "No such file in the archive")
            return found

        try:
            with tarfile.open(archive, mode="r:gz") as tar:
                return self._read(split, member, f"{archive}:{self.folder}")
        except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
            raise DataError(f"cannot read {archive}: {error}; expected {self.archive}") from error

    def are_published(self, first: Path, split: str) -> bool:
        """Whether the split whose first file, or archive, is ``first`` is what was published."""
        names = self.files(split)
        files = [first] if first.name == self.archive else [first.parent / name for name in names]
        return all(_md5(file) == self.md5[file.name] for file in files)

    def _read(self, split: str, opened: Callable[[str], IO[bytes]], where: str) -> Rows:
        self._check_names(_load(opened, self.meta, where), f"{where}/{self.meta}")
        rows: Rows = []
        for name in self.files(split):
            rows += self._images(_load(opened, name, where), f"{where}/{name}", name)
        return rows

    def _check_names(self, meta: dict[str, Any], where: str) -> None:
        got = meta.get(self.names)
        found = [n.decode() if isinstance(n, bytes) else n for n in got] if got else []
        if tuple(found) != self.classes:
            raise DataError(
                f"{where}: got {self.names} {found}; expected {', '.join(self.classes)}"
            )

    def _images(self, batch: dict[str, Any], where: str, name: str) -> Rows:
        data, labels = batch.get("data"), batch.get(self.labels)
        if not isinstance(data, np.ndarray) or data.shape[1:] != (3 * SIDE * SIDE,):
            shape = getattr(data, "shape", "nothing")
            raise DataError(f"{where}: got data of shape {shape}; expected (N, {3 * SIDE * SIDE})")
        if not isinstance(labels, list) or len(labels) != len(data):
            count = len(labels) if isinstance(labels, list) else "no"
            raise DataError(
                f"{where}: got {count} {self.labels} for {len(data)} images; expected one each"
            )
        for number, label in enumerate(labels):
            if not isinstance(label, int) or not 0 <= label < len(self.classes):
                raise DataError(
                    f"{where}: image {number} has {self.labels} {label!r}; expected 0 to "
                    f"{len(self.classes) - 1}"
                )
        # Stored plane by plane: red, green, blue.
        planes = data.reshape(-1, 3, SIDE, SIDE)
        pixels = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
        return labelled(pixels, labels, name)


def _md5(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, partial(hashlib.md5, usedforsecurity=False)).hexdigest()


def _load(opened: Callable[[str], IO[bytes]], name: str, where: str) -> dict[str, Any]:
    try:
        with opened(name) as file:
            return unpickle.load(file, f"{where}/{name}", _MOST)
    except OSError as error:
        raise DataError(
            f"cannot read {where}/{name}: {error.strerror}; expected all files of the official "
            "archive"
        ) from error


TEN = Layout(
    archive="cifar-10-python.tar.gz",
    folder="cifar-10-batches-py",
    train=tuple(f"data_batch_{number}" for number in range(1, 6)),
    test="test_batch",
    meta="batches.meta",
    names="label_names",
    labels="labels",
    classes=names("airplane automobile bird cat deer dog frog horse ship truck"),
    md5={
        "cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a",
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
    },
)

HUNDRED = Layout(
    archive="cifar-100-python.tar.gz",
    folder="cifar-100-python",
    train=("train",),
    test="test",
    meta="meta",
    names="fine_label_names",
    labels="fine_labels",
    classes=names(
        """apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus
        butterfly camel can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch
        crab crocodile cup dinosaur dolphin elephant flatfish forest fox girl hamster house kangaroo
        keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle mountain
        mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain
        plate poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk
        skyscraper snail snake spider squirrel streetcar sunflower sweet_pepper table tank telephone
        television tiger tractor train trout tulip turtle wardrobe whale willow_tree wolf woman
        worm"""
    ),
    md5={
        "cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85",
        "train": "16019d7e3df5f24257cddd939b257f8d",
        "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    },
)


@dataclass(frozen=True)
class CIFAR(Images):
    """What both have in common: a copy of the images that is not the published one says so."""

    layout: ClassVar[Layout]

    def rows(self, split: str) -> Sequence[LabelledImage]:
        rows = super().rows(split)
        _ = self._copies  # while the files are there: training may take days
        return rows

    def labels(self) -> list[str]:
        return [*super().labels(), *self._copies]

    def details(self, split: str) -> Sequence[str]:
        return [*super().details(split), *self._copies]

    @cached_property
    def _copies(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._look_at_files()))

    def _look_at_files(self) -> Iterator[str]:
        kind, folder = self.location
        if kind != "files" or folder is None:
            return
        for split in ("train", "test"):
            found = ((form, form.found(folder, split)) for form in self.dataset.all_forms())
            form, files = next(((form, files) for form, files in found if files), (None, []))
            if isinstance(form, ParquetForm):
                if any(_holds_jpeg(next(table_rows(file), {})) for file in files):
                    yield LOSSY
            elif files and not self.layout.are_published(files[0], split):
                yield OTHER_FILES


def _holds_jpeg(row: Mapping[str, Any]) -> bool:
    cells = [cell.get("bytes") if isinstance(cell, Mapping) else cell for cell in row.values()]
    return any(isinstance(cell, bytes) and cell.startswith(_JPEG) for cell in cells)


@dataclass(frozen=True)
class CIFAR10(CIFAR):
    """Ten kinds of objects; see ``conf/task/cifar10.yaml``."""

    name = "cifar10"
    layout = TEN
    classes = TEN.classes
    dataset = Dataset(
        forms=TEN.forms(),
        hub=Hub(
            "uoft-cs/cifar10",
            {"train": "train", "test": "test"},
            hub_images("img", "label", decode=True),
        ),
        write_sample=partial(write_cifar, TEN),
    )


@dataclass(frozen=True)
class CIFAR100(CIFAR):
    """A hundred kinds of objects, the fine labels; see ``conf/task/cifar100.yaml``."""

    name = "cifar100"
    layout = HUNDRED
    classes = HUNDRED.classes
    dataset = Dataset(
        forms=HUNDRED.forms(),
        hub=Hub(
            "uoft-cs/cifar100",
            {"train": "train", "test": "test"},
            hub_images("img", "fine_label", decode=True),
        ),
        write_sample=partial(write_cifar, HUNDRED),
    )
