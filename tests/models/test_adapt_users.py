"""Users as units with adapted models: a user's records are clipped as one, adapters and all."""

import pytest

from tests.models.adapted import adapted
from tests.models.test_adapt_clip import moved_from_start
from tests.privacy.reference import clear
from tests.privacy.users import (
    ONE_EACH,
    clipper_of,
    gradients_of,
    median_norm,
    same_as_the_loop,
    text_users,
)


@pytest.mark.parametrize("name", ["lora", "prefix", "rgp"])
def test_norms_and_sums_equal_an_autograd_loop_over_users(name):
    """Users of one to nine records, in several microbatches, whatever the clipping style."""
    case, loaded = adapted("gpt2", name)
    model, data = case.model, text_users()
    moved_from_start(case, loaded)
    gradients = gradients_of(model, data, 1, range(len(data)))
    pieces = data.microbatches(range(len(data)), 110)
    assert len(pieces) > 1
    for style in ONE_EACH:
        clear(model)
        clipper = clipper_of(model, style, threshold=median_norm(gradients) + 1e-3)
        total = same_as_the_loop(model, data, clipper, gradients, pieces)
        assert all(total[n].abs().sum() > 0 for n in clipper.parameters)
        assert not [f["parameter"] for f in clipper.explain() if f["form"] == "unused"]
        clipper.close()
