"""What an objective needs of a model; apart from the models, so that to say it loads none."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Needs:
    """The kind of model that a task's objective works with.

    Attributes:
        kind: ``causal`` (writes text), ``classifier`` (of text), ``masked`` (fills in words) or
            ``image`` (classifier of images).
        classes: names of the classes of a classifier.
        source: whether a text is written for another one, so that a model with an encoder for the
            source and a decoder would do as well as a causal one.
    """

    kind: str
    classes: tuple[str, ...] = ()
    source: bool = False
