"""Users of one to nine records, and the loop that clips each user's gradient by autograd alone."""

from collections.abc import Sequence

import torch

from dpft.privacy import make_clipper
from dpft.tasks.objectives.generation import CausalExample, collate, token_nll
from dpft.tasks.units import Users
from tests.privacy.reference import clear, clip_as, record_gradients, same_grads

KEY = b"key"
MOST = 4
STYLES = {
    "bk": {},
    "ghost": {},
    "materialised": {},
    "lee_kifer": {},
    "per_layer": {},
    "per_layer materialised": {"plan": "materialised"},
    "block_wise": {"plan": "bk"},
    "per_param": {},
}
ONE_EACH = ["bk", "ghost", "materialised", "lee_kifer", "per_layer"]  # of every plan

# Records of each user: fewer than MOST, as many, more.
COUNTS = {"ann": 1, "bob": 3, "cy": 4, "dee": 9, "eve": 2}
OWNERS = [name for number in range(9) for name, count in COUNTS.items() if number < count]


class Texts:
    """A causal model's mean loss over a text's target; left-padded batches."""

    def __init__(self, scales=None):
        self.scales = scales or {}

    def collate(self, examples):
        return collate(examples)

    def losses(self, model, batch):
        targets = batch.tensors["targets"]
        losses = token_nll(model, batch).sum(1) / (targets != -100).sum(1)
        factors = torch.ones_like(losses)
        for token, scale in self.scales.items():
            factors[(targets == token).any(1)] = scale
        return losses * factors


def texts(count, longest=12):
    return [
        CausalExample(
            tuple(2 + (5 * i + 3 * j) % 9 for j in range(1 + i % (longest - 5))),
            tuple(2 + (7 * i + j * j) % 11 for j in range(1 + i % 4)),
        )
        for i in range(count)
    ]


def text_users():
    """The five users of `COUNTS`, of whom at most `MOST` texts are taken a step."""
    return Users(Texts(), texts(len(OWNERS)), OWNERS, MOST, KEY)


def user_loss(model, data, user, step):
    """The mean over the user's records, each sent through the model by itself, without padding."""
    losses = [
        data._objective.losses(model, data._objective.collate([example]))[0]
        for example in data._chosen(user, step)
    ]
    return torch.stack(losses).mean()


def gradients_of(model, data, step, who):
    found = record_gradients(model, lambda i: user_loss(model, data, who[i], step), len(who))
    clear(model)
    return found


def median_norm(gradients):
    """Return the median norm: a threshold just above it clips some users and not others."""
    norms = [torch.cat([g.flatten() for g in one.values()]).norm() for one in gradients]
    return torch.stack(norms).median().item()


def clipper_of(model, style, threshold):
    return make_clipper(model, style.split()[0], threshold=threshold, **STYLES[style])


def same_as_the_loop(model, data, clipper, gradients, pieces: Sequence[Sequence[int]]):
    """Clip all users of step 1 in these microbatches; compare with the loop over users.

    ``gradients`` are of every user in step 1, and the threshold lies between the users' norms.
    Returns the loop's clipped sum of each parameter.
    """
    norms, total = clip_as(clipper, gradients)
    shortened = 0
    for piece in pieces:
        batch = data.batch(piece, 1)
        clipper.backward(data.losses(model, batch), rows=batch.rows_per_unit)
        torch.testing.assert_close(clipper.norms, norms[piece], rtol=1e-10, atol=1e-10)
        shortened += int((clipper.factors < 1).sum())
    same_grads(model, total, 1e-10)
    assert 0 < shortened < norms.numel()
    return total
