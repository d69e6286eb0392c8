"""The kind of model that an objective needs, in a module that loads no model."""

from dataclasses import dataclass

from dpft.config.errors import ModelError
from dpft.config.folder import choices, settings_of, summary
from dpft.config.schema import Model

# What the first line of a file of conf/model says of a model that fits.
_DOES = {
    "causal": "writes text",
    "classifier": "classifies text",
    "masked": "fills blanks",
    "image": "classifies images",
}


@dataclass(frozen=True)
class Needs:
    """The kind of model that a task's objective works with."""

    # ``causal`` (writes text), ``classifier`` (of text), ``masked`` (fills in words) or ``image``.
    kind: str
    classes: tuple[str, ...] = ()  # names of the classes of a classifier
    # Whether a text is written for another one, so that a model with encoder and decoder fits too.
    source: bool = False


def check_choice(model: Model, needs: Needs) -> None:
    """Raise a ModelError for one of dpft's models that cannot do what a task needs."""
    if model.path != settings_of("model", model.name).get("path") or _fits(model.name, needs):
        return
    fitting = [one for one in choices("model") if _fits(one, needs) and "random-" not in one]
    raise ModelError(
        f"model={model.name} does not do what this task needs: {summary('model', model.name)} "
        f"Expected one of model={', '.join(fitting)}"
    )


def _fits(name: str, needs: Needs) -> bool:
    """Return whether a choice of dpft's does what a task needs, as its first line says."""
    does = summary("model", name)
    without_source = needs.kind == "causal" and not needs.source
    return _DOES[needs.kind] in does and not (without_source and "for a source" in does)
