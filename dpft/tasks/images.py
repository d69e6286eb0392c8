"""Tasks that ask for the class of an image: what they share, and how their files are read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpft.config.errors import ConfigError, DataError, ModelError, SplitError
from dpft.config.files import regular
from dpft.config.schema import Count
from dpft.models.needs import Needs
from dpft.tasks.classification import Classes
from dpft.tasks.objectives.base import Instance, Question
from dpft.tasks.objectives.images import LabelledImage, Pixels

if TYPE_CHECKING:
    from torch import nn

    from dpft.models.load import LoadedModel
    from dpft.tasks.objectives.image import ImageClassifier

Rows = list[LabelledImage]

# Of the formats that `LabelledImage` reads.
_SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".webp")
# Up to this many bytes an encoded image is kept; of a larger one, where it is.
KEPT = 1 << 14
# Pixels a side of images that are kept decoded.
_SMALL = 64


@dataclass(frozen=True)
class Images(Classes):
    """Settings that all of these tasks share; rows are `LabelledImage`s."""

    image_size: Count | None = None

    record_is = "one image of the training set with its class"

    def rows(self, split: str) -> Sequence[LabelledImage]:
        if split not in ("train", "test"):
            raise SplitError(
                f"{self.name} has no {split} split: its authors published train and test only; "
                "type decode.split=test"
            )
        return super().rows(split)

    def record(self, row: LabelledImage) -> LabelledImage:
        if not 0 <= row.label < len(self.classes):
            raise DataError(
                f"{self.name}, {row.source}: got class {row.label}; expected 0 to "
                f"{len(self.classes) - 1}"
            )
        return row

    def questions(self, path: Path) -> list[Question]:
        """A folder's images in the order of their names, or one image."""
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
        if size != image.size and _has_positions(loaded.model):
            raise ConfigError(
                f"task.image_size is {size}, but the model has positions for images of "
                f"{image.size} pixels a side; type task.image_size=null"
            )
        return ImageClassifier(size, image.mean, image.std, image.patch, self.classes)

    def signature(self) -> str:
        return f"accuracy:share of equal names|classes:{len(self.classes)}"


def _has_positions(model: nn.Module) -> bool:
    return any(name.endswith("position_embeddings") for name, _ in model.named_parameters())


def names(text: str, between: str = " ") -> tuple[str, ...]:
    """Class names, in order, from a text of several lines that holds them with ``between``."""
    return tuple(" ".join(text.split()).split(between))


def labelled(pixels: Pixels, labels: Sequence[int], file: str) -> Rows:
    """The images of a file, ``(N, H, W, 3)``, with their classes."""
    return [
        LabelledImage(image, label, f"{file}, image {number}")
        for number, (image, label) in enumerate(zip(pixels, labels, strict=True))
    ]


def image_file(file: Path, where: str) -> bytes | Path:
    """What to keep of an encoded image: its bytes if there are few, else its path.

    Raises:
        DataError: if it is not there.
    """
    try:
        return file if regular(file).stat().st_size > KEPT else file.read_bytes()
    except OSError as error:
        raise DataError(
            f"{where}: cannot read {file}: {error.strerror}; expected an image"
        ) from error


def hub_images(
    image: str, label: str, *, decode: bool = False
) -> Callable[[Iterable[Mapping[str, Any]]], Rows]:
    """How rows of the hub's form are read: an encoded image and the index of its class.

    Args:
        image: the column of the image.
        label: the column of its class.
        decode: whether to keep pixels, which is right for images no larger than their encoding.
            They are then the same records as those of the official files, where encoding is
            lossless.
    """

    def read(rows: Iterable[Mapping[str, Any]]) -> Rows:
        if hasattr(rows, "cast_column"):
            from datasets import Image

            # The library would decode every image as it goes by.
            rows = rows.cast_column(image, Image(decode=False))
        return [record(number, row) for number, row in enumerate(rows)]

    def record(number: int, row: Mapping[str, Any]) -> LabelledImage:
        for column in (image, label):
            if column not in row:
                raise DataError(
                    f"image {number}: got columns {', '.join(row)}; expected {image} and {label}"
                )
        cell, index = row[image], row[label]
        data = cell.get("bytes") if isinstance(cell, Mapping) else cell
        if not isinstance(data, bytes) or not isinstance(index, int):
            raise DataError(
                f"image {number}: got {image} of type {type(cell).__name__} and {label} "
                f"{index!r}; expected an encoded image and the number of a class"
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
