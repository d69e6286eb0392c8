"""Users as units with adapted models: a user's records are clipped as one, adapters and all."""

import pytest
import torch

from dpft.units import Users
from tests.models.adapted import adapted
from tests.models.test_adapt_clip import moved_from_start
from tests.privacy.reference import clear
from tests.privacy.test_users import (
    KEY,
    MOST,
    ONE_EACH,
    OWNERS,
    Texts,
    clipped,
    clipper_of,
    gradients_of,
    same_sums,
    texts,
)


@pytest.mark.parametrize("name", ["lora", "prefix", "rgp"])
def test_norms_and_sums_equal_an_autograd_loop_over_users(name):
    """Users of one to nine records, in several microbatches, whatever the clipping style."""
    case, loaded = adapted("gpt2", name)
    model = case.model
    moved_from_start(case, loaded)
    data = Users(Texts(), texts(len(OWNERS)), OWNERS, MOST, KEY)
    gradients = gradients_of(model, data, 1, range(len(data)))
    joint = [torch.cat([g.flatten() for g in one.values()]).norm() for one in gradients]
    pieces = data.microbatches(range(len(data)), 110)
    assert len(pieces) > 1
    for style in ONE_EACH:
        clear(model)
        clipper = clipper_of(model, style, threshold=torch.stack(joint).median().item() + 1e-3)
        norms, total = clipped(gradients, clipper)
        shortened = 0
        for piece in pieces:
            batch = data.batch(piece, 1)
            clipper.backward(data.losses(model, batch), rows=batch.rows_per_unit)
            torch.testing.assert_close(clipper.norms, norms[piece], rtol=1e-10, atol=1e-10)
            shortened += int((clipper.factors < 1).sum())
        same_sums(model, total)
        assert 0 < shortened < norms.numel()
        assert all(total[n].abs().sum() > 0 for n in clipper.parameters)
        assert not [f["parameter"] for f in clipper.explain() if f["form"] == "unused"]
        clipper.close()
