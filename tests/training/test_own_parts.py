"""Parts that a user writes: by import path, held to what clipping rests on, and recorded."""

import sys

import pytest
import torch
from torch import nn

from dpft import runs
from dpft.config.schema import Clip
from dpft.privacy import make_clipper
from dpft.privacy.clipping.groups import OwnGroup
from dpft.report.card import model_card
from dpft.training.run import run_experiment
from dpft.training.setup import attach_clipper
from tests.small_runs import settings

MINE = """
from dataclasses import dataclass

import torch
from torch import nn

from dpft.privacy.clipping.groups import OwnGroup
from dpft.privacy.clipping.rules import DirectUse, Rule
from dpft.tasks.classification import SST2


@dataclass(frozen=True)
class Reviews(SST2):
    name = "reviews"
    lower = ("distinct_words",)

    def score(self, predictions):
        return {**super().score(predictions), "distinct_words": 1.0}

    def signature(self):
        return f"{super().signature()}; distinct:words"


def smooth(norms, threshold):
    return threshold / (norms.square() + threshold**2).sqrt()


def apart(model, names):
    first, *others = names
    return [OwnGroup("first", (first,), 0.1), OwnGroup("others", tuple(others), 0.9)]


class Scale(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * self.scale


class ScaleRule(Rule):
    def uses(self, module, a, g):
        return {"scale": DirectUse((a * g).sum(1))}
"""


@pytest.fixture(autouse=True)
def mine(tmp_path, monkeypatch):
    (tmp_path / "site").mkdir()
    (tmp_path / "site/mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    yield
    sys.modules.pop("mine", None)


def test_a_run_of_all_parts_names_them_in_record_card_and_ledger(tmp_path):
    words = ("task=sst2", "clip=per_layer", "clip.groups=mine:apart")
    words += ("clip.clip_function=mine:smooth", "task.name=mine:Reviews", "optim.steps=1")
    outcome = run_experiment(settings(tmp_path / "runs", *words))
    record = outcome.record
    named = {part["name"]: (part["kind"], part["package"]) for part in record["plugins"]}
    assert named == {
        "mine:Reviews": ("task", "mine"),
        "mine:smooth": ("clip function", "mine"),
        "mine:apart": ("clipping style", "mine"),
    }
    scores = record["scores"]["dev"]
    assert set(scores["metrics"]) == {"accuracy", "distinct_words"}
    assert scores["signature"].endswith("; distinct:words")
    assert scores["lower"] == ["distinct_words"]
    # A tenth of C squared, and the rest; together C.
    assert record["mechanism"]["thresholds"] == pytest.approx([0.1 * 0.1**0.5, 0.1 * 0.9**0.5])
    assert "The clip function mine:smooth comes from another package: mine" in model_card(record)
    # Other code would repeat a step's noise on another sum.
    ledger = runs.read_ledger(outcome.path / "ledger.jsonl")
    plugins = ledger.header["compute"]["plugins"]
    assert set(plugins) == {f"{kind} {name}" for name, (kind, _) in named.items()}
    changed = plugins | {"clip function mine:smooth": "mine 1.1 0"}
    header = ledger.header | {"compute": ledger.header["compute"] | {"plugins": changed}}
    with runs.Ledger(outcome.path / "ledger.jsonl", header) as reopened:
        assert reopened.go_on(0).position == reopened.steps_spent == 1  # no replay of its step


def test_own_rule_function_and_groups_give_the_sum_of_an_autograd_loop():
    from mine import Scale

    torch.manual_seed(0)
    ids = torch.randint(7, (5, 3))
    model = nn.Sequential(nn.Embedding(7, 4), Scale(4), nn.Tanh(), nn.Linear(4, 2)).double()
    clip = Clip("bk", "mine:apart", threshold=0.3, clip_function="mine:smooth")
    clipper = attach_clipper(clip, model)
    clipper.backward(model(ids).square().mean((1, 2)))
    got = {name: p.grad.clone() for name, p in model.named_parameters()}
    clipper.close()
    expected = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    names = list(expected)
    for one in ids:
        grads = torch.autograd.grad(model(one[None]).square().mean(), list(model.parameters()))
        grads = dict(zip(names, grads, strict=True))
        for group, share in ((names[:1], 0.1), (names[1:], 0.9)):
            C = 0.3 * share**0.5
            norm = torch.cat([grads[name].flatten() for name in group]).norm()
            for name in group:
                expected[name] += grads[name] * C / (norm**2 + C**2) ** 0.5
    assert all((got[name] - expected[name]).abs().max() < 1e-10 for name in names)
    assert clipper.sensitivity == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda n, C: torch.ones_like(n), "is not bounded"),
        (lambda n, C: C / n, "is not bounded"),  # at norm zero
        (lambda n, C: -C / (n + C), "is not bounded"),
        (lambda n, C: n if n > C else C, "without branches"),
    ],
)
def test_a_clip_function_that_bounds_nothing_is_refused(function, said):
    with pytest.raises(ValueError, match=said):
        make_clipper(nn.Linear(2, 1), threshold=1.0, clip_function=function)


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        (lambda model, names: [OwnGroup("a", names[:1])], "partition"),
        (lambda model, names: [OwnGroup("a", names), OwnGroup("b", names[:1])], "partition"),
        (lambda model, names: [OwnGroup("a", names), OwnGroup("b", ())], "without parameters"),
        (lambda model, names: [OwnGroup(n[:0], (n,)) for n in names], "a different name"),
        (lambda model, names: [OwnGroup(n, (n,), -1) for n in names], "share -1"),
    ],
)
def test_own_groups_that_are_no_partition_are_refused(groups, said):
    with pytest.raises(ValueError, match=said):
        make_clipper(nn.Linear(2, 1), "per_layer", threshold=1.0, groups=groups)
