"""What several tests of tasks share."""

import pytest

from dpft.config.schema import Model
from dpft.models.load import load_model
from dpft.models.needs import Needs


@pytest.fixture(scope="module")
def tiny():
    """The bundled model with its tokenizer; each module of tests has one of its own."""
    return load_model(Model("tiny", "bundled:tiny"), Needs("causal"), seed=0)
