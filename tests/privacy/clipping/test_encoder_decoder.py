"""Models with encoder and decoder: every style equals an autograd loop, in float64 to 1e-10.

One table serves encoder, decoder and head, scaled differently in each; tables of positions are
read once for a batch; the decoder sees encoder outputs behind a padding mask.
"""

import pytest

from dpft.privacy import make_clipper
from dpft.privacy.token_losses import token_losses
from tests.privacy.architectures import in_double
from tests.privacy.pairs import EXAMPLES, MODELS, OBJECTIVE, VOCAB, build
from tests.privacy.reference import equals_loop


@pytest.mark.parametrize("name", MODELS)
def test_every_style_is_exact(name):
    case = build(name)
    tables = [n for n, p in case.model.named_parameters() if len(p) == VOCAB]
    assert len(tables) == (2 if name == "t5 untied" else 1)  # the shared one counts once
    with in_double():
        for style in ("ghost", "lee_kifer", "per_layer_adaptive", "block_wise", "bk"):
            clipper = equals_loop(case.model, case.losses_of, case.batch, style, threshold=0.5)
            case.all_losses()
            # A rule for every layer: nothing is computed again.
            assert all(call.by_rule for call in clipper.capture.calls)
            clipper.close()


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_a_decoder_that_keeps_a_cache_is_clipped_too(name):
    """Also with dropout, whose masks only the clipper's own check can compare."""
    model, data = build(name, dropout=0.1).model, dict(OBJECTIVE.collate(EXAMPLES).tensors)
    targets = data.pop("targets")
    clipper = make_clipper(model, "bk", threshold=0.5)
    losses = token_losses(model(**data).logits, targets).sum(1)
    assert all(call.by_rule for call in clipper.capture.calls)
    clipper.backward(losses)
    clipper.close()
