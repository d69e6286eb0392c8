"""The clipping algorithms by themselves: no checks, no modules without rules, no late imports."""

import re
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from dpft.privacy import clipping
from dpft.privacy.clipping import CLIP_FUNCTIONS, Clipper, Observer
from dpft.privacy.clipping.groups import Group
from dpft.privacy.clipping.rules import LayerRules, UnsupportedLayerError
from tests.privacy.reference import clip_as, record_gradients, same_grads

C = 0.5
FILES = list(Path(clipping.__file__).parent.rglob("*.py"))


def bare_clipper(model, observers=()):
    names = tuple(name for name, p in model.named_parameters() if p.requires_grad)
    groups = [Group("all", names, C)]
    return Clipper(
        model, "ghost", groups, CLIP_FUNCTIONS["abadi"], LayerRules(), observers=observers
    )


def two_layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def test_no_file_imports_by_a_name_that_no_contract_sees():
    late = re.compile(r"import_module|__import__|importlib|sys\.modules")
    assert [path.name for path in FILES if late.search(path.read_text(encoding="utf-8"))] == []


def test_ghost_equals_the_autograd_loop_and_runs_through_ten_files_at_most():
    model, x = two_layers(), torch.randn(6, 7, 4).double()

    def losses():
        return model(x).square().sum((1, 2))

    records = record_gradients(model, lambda i: losses()[i], 6)
    ran = set()
    sys.setprofile(lambda frame, event, argument: ran.add(frame.f_code.co_filename))
    try:
        clipper = bare_clipper(model)
        clipper.backward(losses())
    finally:
        sys.setprofile(None)
    norms, total = clip_as(clipper, records)
    torch.testing.assert_close(clipper.norms, norms)
    same_grads(model, total, 1e-10)
    assert 5 < len(ran.intersection(map(str, FILES))) <= 10


def test_without_a_handler_a_parameter_without_a_rule_is_refused():
    model = nn.Sequential(nn.Linear(4, 4), nn.Bilinear(4, 4, 1))
    with pytest.raises(UnsupportedLayerError, match=r"1\.weight \(Bilinear\)"):
        bare_clipper(model)


def test_what_an_observer_refuses_was_not_summed():
    seen = []

    class Refuses(Observer):
        def before_sums(self, losses, structure, rows, real):
            seen.append([call.site.name for call in structure.reached])
            raise UnsupportedLayerError("refused")

    model = two_layers()
    clipper = bare_clipper(model, observers=[Refuses])
    with pytest.raises(UnsupportedLayerError, match="refused"):
        clipper.backward(model(torch.randn(2, 4).double()).sum(1))
    assert seen == [["0", "2"]]
    assert all(p.grad is None for p in model.parameters())
