"""The kind of model that an objective needs, in a module that loads no model."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Needs:
    """The kind of model that a task's objective works with."""

    # ``causal`` (writes text), ``classifier`` (of text), ``masked`` (fills in words) or ``image``.
    kind: str
    classes: tuple[str, ...] = ()  # names of the classes of a classifier
    # Whether a text is written for another one, so that a model with encoder and decoder fits too.
    source: bool = False
