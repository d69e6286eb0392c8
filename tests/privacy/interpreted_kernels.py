"""The kernels of norms give the right numbers: a file of tests that `test_kernels` runs.

In a process of its own, in which Triton interprets kernels from its first import on.
"""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from dpft.privacy import kernels, make_clipper, precision
from dpft.privacy.clipping.rules import uses
from dpft.privacy.program import Program
from tests.privacy.small_models import build

HALF, FULL = torch.bfloat16, torch.float32


def same(found, expected, tolerance=2e-6):
    scale = expected.abs().max()
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize(
    "dtypes", [(HALF, HALF), (torch.float32, torch.float32), (HALF, torch.float32)]
)
@pytest.mark.parametrize(
    ("records", "length", "d", "p"),
    [(2, 1, 3, 5), (1, 65, 40, 33), (2, 17, 64, 97), (0, 4, 3, 3), (1, 0, 3, 3)],
)
def test_sums_equal_loops_in_float64(dtypes, records, length, d, p):
    drawn = torch.Generator().manual_seed(records + length)
    a = torch.randn(records, length, d, generator=drawn).to(dtypes[0])
    g = torch.randn(records, p, length, generator=drawn).to(dtypes[1]).mT  # of other strides
    weights = torch.rand(records, length, generator=drawn)
    value, bound, scale, w_squares, g_squares = kernels.gram_sums(a, g, weights)
    expected = torch.zeros(2, records, dtype=torch.float64)
    for i in range(records):
        gradient = torch.zeros(p, d, dtype=torch.float64)
        for t in range(length):
            gradient += g[i, t].double()[:, None] * a[i, t].double()
            for s in range(length):
                inner = (g[i, s].double() @ g[i, t].double()).abs()
                expected[1, i] += inner * weights[i, s] * weights[i, t]
        expected[0, i] = gradient.square().sum()
    lengths, weights = g.double().norm(dim=2), weights.double()
    others = (lengths * weights).sum(1).square(), weights.square().sum(1), lengths.square().sum(1)
    for found, right in zip((scale, w_squares, g_squares), others, strict=True):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), right, rtol=2e-6, atol=0)
    if records:
        same(value, expected[0])
        same(bound, expected[1])


def test_products_too_small_for_float32_are_within_the_allowance(monkeypatch):
    use = uses.MatrixUse(
        torch.full((1, 3, 5), 2.0**-76).to(HALF), torch.full((1, 3, 4), 2.0**60).to(HALF)
    )
    exact = (use.g.double().mT @ use.a.double()).square().sum()
    assert float(exact) > 1e-8
    monkeypatch.setattr(uses, "norm_kernels", lambda *factors: kernels)
    assert float(use.squared_norm().value) >= float(exact) * (1 - 1e-6)


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize(("bad", "value"), [(torch.inf, torch.inf), (torch.nan, torch.nan)])
def test_what_is_not_finite_stays_in_its_record(bad, value):
    a, g = torch.ones(2, 3, 4, dtype=HALF), torch.ones(2, 3, 5, dtype=HALF)
    g[0, 1, 2] = bad
    found = torch.stack([*kernels.gram_sums(a, g, torch.ones(2, 3))])
    torch.testing.assert_close(found[0], torch.tensor([value, 180.0]), equal_nan=True)
    assert found[:, 1].isfinite().all()
    assert not found[[2, 4], 0].isfinite().any()


def tied(records=2, positions=5, table=37, d=6):
    """The uses of a table as head and as input, in the types that they have under autocast."""
    drawn = torch.Generator().manual_seed(0)
    a = torch.randn(records, positions, d, generator=drawn).to(HALF)
    g = torch.randn(records, positions, table, generator=drawn).to(HALF)
    ids = torch.randint(table, (records, positions + 1), generator=drawn)
    ids[:, 1] = ids[:, 3]
    return uses.MatrixUse(a, g), uses.EmbeddingUse(
        ids, torch.randn(records, positions + 1, d, generator=drawn), table
    )


@pytest.mark.parametrize("which", [slice(0, 1), slice(1, 2), slice(0, 2)])
@pytest.mark.parametrize("size", [(2, 5), (1, 64)])
def test_norm_scale_and_allowance_are_those_of_torchs_products(monkeypatch, which, size):
    own = tied(*size)[which]
    expected = uses.joint_squared_norm(own)
    monkeypatch.setattr(uses, "norm_kernels", lambda *factors: kernels)
    found = uses.joint_squared_norm(own)
    for one, other in zip(found, expected, strict=True):
        if other is None:
            assert one is None
        else:
            torch.testing.assert_close(one, other, rtol=1e-5, atol=0)
    exact = uses.joint_per_example(own).double().square().sum((1, 2))
    torch.testing.assert_close(found.value.double(), exact, rtol=1e-5, atol=0)


def test_the_allowance_bounds_what_rounding_adds(monkeypatch):
    """Where the sum of the rounded is longer than the gradient, it is within norm and allowance."""
    monkeypatch.setattr(uses, "norm_kernels", lambda *factors: kernels)
    use, _ = tied(records=4)
    norm = use.squared_norm()
    for factor in (0.3, 0.77, 0.999):
        weights = torch.full((4,), factor)
        rounded = uses.scaled_halves(use.a, weights).double()
        added = (use.g.double().mT @ rounded).square().sum((1, 2)).sqrt()
        assert (added <= factor * norm.allowing().double().sqrt()).all()


@pytest.mark.parametrize(("style", "launches"), [("bk", 6), ("per_layer", 11)])
def test_a_program_has_the_kernel_in_it(monkeypatch, style, launches):
    """Where tensors are held anyway, one launch is for all layers of one shape, of two blocks."""
    case = build("gpt2")
    case.model.float()

    def losses(tensors):
        with torch.autocast("cpu", HALF):
            return case.losses(case.model, dict(zip(case.data, tensors, strict=True))).float()

    clipper = make_clipper(case.model, style, threshold=0.7)
    clipper.backward(losses([*case.data.values()]))
    monkeypatch.setattr(uses, "norm_kernels", lambda *factors: kernels)
    program = Program(clipper, losses, [*case.data.values()], None, 1, "graph")
    calls = []
    options = kernels._options
    monkeypatch.setattr(kernels, "_options", lambda *x: calls.append(x) or options(*x))
    found = program([*case.data.values()], None)
    assert len(calls) == launches
    torch.testing.assert_close(found.norms, clipper.norms, rtol=1e-4, atol=0)
    for total, parameter in zip(found.sums, clipper.parameters.values(), strict=True):
        torch.testing.assert_close(total, parameter.grad, rtol=1e-2, atol=1e-4)


def test_they_are_traced_on_a_gpu_that_is_not_here():
    with FakeTensorMode():
        a, z = (torch.empty(2, 70, d, dtype=HALF, device="cuda") for d in (8, 33))
        ids = torch.ones(2, 9, dtype=torch.long, device="cuda")
        e = torch.empty(2, 9, 8, device="cuda")

        def norms(a, z, ids, e):
            sums = kernels.gram_sums(a, z), kernels.gram_sums(ids, e)
            return *sums[0], *sums[1]

        graph = make_fx(norms)(a, z, ids, e)
        made = graph(a, z, ids, e)
    assert [tuple(x.shape) for x in made] == [(2,)] * 10
    assert {(x.device.type, x.dtype) for x in made} == {("cuda", torch.float32)}
    calls = [str(node.target) for node in graph.graph.nodes if "dpft" in str(node.target)]
    assert calls == ["dpft.gram_sums.default"] * 2


def test_they_are_used_where_they_gave_the_right_numbers(monkeypatch):
    on_gpu, use = torch.device("cuda"), precision._norm_kernels.__wrapped__
    assert use(torch.device("cpu")) is None
    monkeypatch.setattr(precision, "_multiplies_halves", lambda device: True)
    monkeypatch.setattr(kernels, "check", lambda device, check=kernels.check: check("cpu"))
    with FakeTensorMode():  # as in a trace
        assert use(on_gpu) is kernels
    monkeypatch.setattr(kernels, "gram_sums", lambda a, g, w=None: [g[:, 0, 0].float()] * 5)
    with pytest.warns(UserWarning, match="kernel failed on cuda: ArithmeticError: got"):
        assert use(on_gpu) is None
