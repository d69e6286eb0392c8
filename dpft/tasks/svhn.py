"""SVHN (Netzer et al. 2011): cropped house-number digits of 32 by 32 pixels."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpft.config.errors import DataError
from dpft.tasks.images import Images, Rows, hub_images, labelled
from dpft.tasks.samples.images import write_svhn
from dpft.tasks.sources import Dataset, Form, Hub


def read_mat(path: Path) -> Rows:
    """Images ``X`` ``(32, 32, 3, N)`` and classes ``y`` ``(N, 1)`` of an official MATLAB file.

    The digit 0 is class 10 there; here every digit is its own class.

    Raises:
        DataError: if the file is missing, not of that form, or unpacks to far more than it has.
    """
    from scipy.io import loadmat

    expected = "expected X of shape (32, 32, 3, N) in uint8 and y of shape (N, 1) from 1 to 10"
    try:
        content = loadmat(path, variable_names=("X", "y"))
    # A parser of a binary format: broken files raise almost anything.
    except Exception as error:
        raise DataError(f"cannot read {path} as a MATLAB file: {error}; {expected}") from error
    images, classes = content.get("X"), content.get("y")
    if images is None or classes is None:
        raise DataError(f"{path} has no {'X' if images is None else 'y'}; {expected}")
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[:3] != (32, 32, 3):
        raise DataError(f"{path}: got X of shape {images.shape} in {images.dtype}; {expected}")
    if classes.shape != (images.shape[3], 1):
        raise DataError(
            f"{path}: got y of shape {classes.shape} for {images.shape[3]} images; {expected}"
        )
    labels = classes[:, 0]
    for number in np.flatnonzero((labels < 1) | (labels > 10)):
        raise DataError(f"{path}: y of image {number} is {labels[number]}; {expected}")
    pixels = np.ascontiguousarray(images.transpose(3, 0, 1, 2))
    return labelled(pixels, (labels.astype(int) % 10).tolist(), path.name)


@dataclass(frozen=True)
class SVHN(Images):
    """House-number digits; see ``conf/task/svhn.yaml``."""

    name = "svhn"
    classes = tuple("0123456789")
    dataset = Dataset(
        forms=(Form({"train": "train_32x32.mat", "test": "test_32x32.mat"}, read_mat),),
        hub=Hub(
            "ufldl-stanford/svhn",
            {"train": "train", "test": "test"},
            hub_images("image", "label", decode=True),
            config="cropped_digits",
        ),
        write_sample=write_svhn,
    )
