"""How a model of images wants them: size, normalisation and patches."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dpft.config.errors import ModelError


@dataclass(frozen=True)
class ImageInput:
    """The images of a model; its mean and deviation are no statistics of the training images.

    Attributes:
        size: pixels a side.
        mean: subtracted from each channel of values between 0 and 1.
        std: divides each channel after that.
        patch: pixels a side that one position of the model stands for.
    """

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    patch: int


def image_input(config: Any, preprocessor: Mapping[str, Any], name: str) -> ImageInput:
    """Read ``config`` and ``preprocessor_config.json``; what neither says is 0.5, as of ViT.

    Mean and deviation are noted in ``config``, so that a saved model keeps them.

    Raises:
        ModelError: if there is no size, or images are not square.
    """
    channels = getattr(config, "num_channels", 3)
    plain = preprocessor.get("do_normalize", True) is False
    found = {}
    for key, without in (("image_mean", 0.0), ("image_std", 1.0)):
        value = getattr(config, key, None)
        if value is None:
            value = without if plain else preprocessor.get(key, 0.5)
        numbers = tuple(value) if isinstance(value, Iterable) else (value,) * channels
        found[key] = tuple(float(number) for number in numbers)
        setattr(config, key, list(found[key]))
    size = _side(getattr(config, "image_size", None), name)
    patch = getattr(config, "patch_size", None)
    return ImageInput(
        size, found["image_mean"], found["image_std"], size if patch is None else _side(patch, name)
    )


def _side(value: Any, name: str) -> int:
    sides = set(value) if isinstance(value, Iterable) else {value}
    if len(sides) != 1 or not isinstance(side := sides.pop(), int):
        raise ModelError(
            f"the config of {name} gives {value!r} as a size of images or patches; expected one "
            "number, for squares: type model.path=FOLDER of another model of images"
        )
    return side
