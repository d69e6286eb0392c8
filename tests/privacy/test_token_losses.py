"""Losses of tokens that hold the logits once: the same losses, gradients, norms and sums."""

import pytest
import torch
import torch.nn.functional as F

from dpft.privacy import token_losses
from dpft.privacy.token_losses import token_losses as losses_of
from tests.privacy.small_models import VOCAB


@pytest.fixture(autouse=True)
def pieces(monkeypatch):
    """Cut the logits into pieces of few tokens, as those of a real vocabulary are."""
    monkeypatch.setattr(token_losses, "_PIECE", 3 * VOCAB)
    monkeypatch.setattr(token_losses, "_SHARE", 64)


def plain(logits, targets):
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(
        targets
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kept", [5, 9])  # the last positions of each record, or all
def test_losses_and_gradients_are_those_of_cross_entropy_to_the_last_bit(dtype, kept):
    torch.manual_seed(0)
    x = (3 * torch.randn(4, 9, VOCAB)).to(dtype).requires_grad_()
    targets = torch.randint(VOCAB, (4, kept))
    targets[1, :2] = targets[3] = token_losses.IGNORED
    weights = torch.rand(4, kept)
    found = []
    for function in (plain, losses_of):
        losses = function((2 * x)[:, -kept:], targets)
        found.append([losses])
        for keep in (True, False):
            found[-1] += torch.autograd.grad((losses * weights).sum(), x, retain_graph=keep)
    assert all(map(torch.equal, *found))


SHARED = {
    "weights": lambda w: w,
    "a view of weights": lambda w: w.view(1, 3, VOCAB).transpose(0, 1),
    "one for several": lambda w: (2 * w[:1]).expand(3, 1, VOCAB),
    "records of one": lambda w: (2 * w.squeeze(1)).expand(2, 3, VOCAB),
}


@pytest.mark.parametrize("how", SHARED)
def test_what_is_not_the_logits_alone_is_not_written_to(how):
    w = torch.randn(3, 1, VOCAB, requires_grad=True)
    before = w.detach().clone()
    logits = SHARED[how](w)
    targets = torch.randint(VOCAB, logits.shape[:2])
    found = torch.autograd.grad(losses_of(logits, targets).sum(), w)[0]
    whole = F.cross_entropy(SHARED[how](w).transpose(1, 2), targets, reduction="sum")
    torch.testing.assert_close(found, torch.autograd.grad(whole, w)[0])
    assert torch.equal(w, before)
