"""Image classification: the loss is the cross entropy of the record's class."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from dpft.tasks.objectives.classifier import Choice
from dpft.tasks.objectives.objective import Batch
from dpft.tasks.objectives.record_types import LabelledImage


@dataclass(frozen=True, eq=False)
class ImageExample:
    """A record on its way into a batch; pixels are made when the batch is."""

    record: LabelledImage  # the image and its class
    length: int  # patches of the image, and one for the class token


@dataclass(frozen=True)
class ImageClassifier(Choice):
    """An image in, a class out.

    Guarantee: a row of a batch is a function of its image alone. Images are decoded, resized and
    normalised one by one, and nothing is cropped, flipped or mixed at random.
    """

    size: int  # pixels a side of the model's input, to which images are resized
    # Subtracted from each channel of values between 0 and 1, and its divisor after that: constants
    # of the model, since the mean of the private images would be a release.
    mean: tuple[float, ...]
    std: tuple[float, ...]
    patch: int  # pixels a side of a patch; with `size` it says how much memory an image takes
    classes: tuple[str, ...]  # in the order of the model's outputs

    def encode(self, record: LabelledImage) -> ImageExample:
        return ImageExample(record, *self.widest())

    def widths(self, example: ImageExample, coarse: bool = False) -> tuple[int]:
        return self.widest()

    def widest(self) -> tuple[int]:
        return ((self.size // self.patch) ** 2 + 1,)

    def blank(self) -> ImageExample:
        black = np.zeros((self.size, self.size, 3), dtype=np.uint8)
        return self.encode(LabelledImage(black, 0, ""))

    def collate(
        self, examples: Sequence[ImageExample], widths: Sequence[int] | None = None
    ) -> Batch:
        """Return ``pixels`` (``(B, 3, size, size)``, float32) and ``labels`` (``(B,)``, int64)."""
        stacked = np.stack([example.record.pixels(self.size) for example in examples])
        # Planes first, while a number is still one byte.
        pixels = torch.from_numpy(stacked.transpose(0, 3, 1, 2).copy()).float()
        mean, std = (torch.tensor(c).view(-1, 1, 1) for c in (self.mean, self.std))
        return Batch(
            {
                "pixels": pixels.div_(255).sub_(mean).div_(std),
                "labels": torch.tensor([example.record.label for example in examples]),
            }
        )

    def scores(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return logits of the classes, ``(B, K)``."""
        output = model(batch.tensors["pixels"])
        logits: Tensor = output if isinstance(output, Tensor) else output.logits
        return logits
