"""Models in which records see each other are refused before the first step."""

from functools import partial
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, LlamaConfig

from dpft.config.errors import ModelError
from dpft.privacy import make_clipper
from dpft.privacy.clipping import clipper as clippers
from dpft.privacy.sampling import FixedShapes
from dpft.tasks.objectives.generation import CausalExample, collate, token_nll
from dpft.tasks.objectives.independence import WritesError, _sums_differ, check_independence
from dpft.tasks.objectives.objective import Batch
from dpft.tasks.units import Records, Users

EXAMPLES = [CausalExample(tuple(range(3, 3 + n)), (5, 6, 7)) for n in (2, 5, 40)]


def refused(message, data, model, *more, error=ModelError):
    with pytest.raises(error, match=message):
        check_independence(data, model, *more)


COUPLED = "depends on what else is in its batch"


class Plain:
    """Losses of a causal model, without a tokenizer."""

    def collate(self, examples):
        return collate(examples)

    def losses(self, model, batch):
        return token_nll(model, batch).mean(1)


def test_positions_that_follow_the_longest_record_are_refused():
    """Dynamic rotary scaling changes for everybody once one record is long."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=60, hidden_size=16, intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=16, initializer_range=0.5,
        rope_parameters={"rope_theta": 10000.0, "rope_type": "dynamic", "factor": 4.0},
    )  # fmt: skip
    refused(COUPLED, Records(Plain(), EXAMPLES), AutoModelForCausalLM.from_config(config))
    model = AutoModelForCausalLM.from_config(config).train()
    check_independence(Records(Plain(), EXAMPLES[:2]), model)
    assert model.training


class Rows:
    def collate(self, examples):
        return Batch({"x": torch.stack([torch.full((4,), float(e.length)) for e in examples])})

    def losses(self, model, batch):
        return model(batch.tensors["x"])


DATA = Records(Rows(), EXAMPLES)


class Keeping(nn.Module):
    """Keeps a little of what it reads, in training."""

    def __init__(self, keep):
        super().__init__()
        self.body, self.keep = nn.Linear(4, 1), keep
        self.register_buffer("seen", torch.full((4,), 1e5))

    def forward(self, x):
        with torch.no_grad():
            self.keep(self, x)
        return self.body(x)[:, 0]


@pytest.mark.parametrize(
    ("keep", "named"),
    [
        (lambda model, x: model.seen[0].add_(1), "seen"),
        (lambda model, x: model.seen.lerp_(x.mean(), 1e-6), "seen"),
        (lambda model, x: model.body.weight[0, 0].mul_(1 + 1e-6), "body.weight"),
    ],
    ids=["counts", "average", "weight"],
)
def test_what_a_forward_writes_is_found_however_little(keep, named):
    """Counts of 1e5 move by a hundred-thousandth, which is less than rounding between batches."""
    said = f"writes to .*{named}.*without noise"
    refused(said, DATA, Keeping(keep).train(), error=WritesError)
    check_independence(DATA, Keeping(lambda model, x: None).train())


class Centred(nn.Module):
    """Takes the batch's mean away, without a gradient, below a head that hardly shows it."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 1)
        nn.init.normal_(self.head.weight, std=1e-6)

    def forward(self, x):
        h = self.body(x)
        return nn.functional.softplus(self.head(torch.tanh(h - h.mean(0).detach())))[:, 0]


@pytest.mark.parametrize(
    ("style", "coupled"), [("bk", True), ("per_layer_adaptive", True), ("ghost", False)]
)
def test_what_a_new_head_hides_from_the_losses_shows_in_clipped_sums(style, coupled, monkeypatch):
    torch.manual_seed(0)
    model = Centred()
    if not coupled:
        monkeypatch.setattr(torch.Tensor, "mean", lambda h, dim: torch.zeros(h.shape[1:]))
    check_independence(DATA, model)
    clipper = make_clipper(model, style, threshold=1.0)
    if coupled:
        refused("gradients differ", DATA, model, clipper)
    else:
        check_independence(DATA, model, clipper)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert model.training
    assert not clipper.unfinished


class Trained(nn.Module):
    """Does something else with a batch in training than in evaluation."""

    def __init__(self, what):
        super().__init__()
        self.body, self.head, self.what = nn.Linear(4, 4), nn.Linear(4, 1), what
        self.drop_path = DropPath()

    def forward(self, x):
        h = self.body(x)
        if self.training:
            h = self.what(h)
        return self.head(torch.tanh(self.drop_path(h)))[:, 0]


class DropPath(nn.Module):
    """Drops the branch of some rows, as in transformers' vision models."""

    def forward(self, h):
        return h * (torch.rand(len(h), 1) < 0.5) if self.training else h


def test_records_that_are_mixed_in_training_alone_are_found():
    model = Trained(lambda h: h - h.mean(0))
    refused(COUPLED, DATA, model)
    model.eval()
    refused(COUPLED, DATA, model, make_clipper(model, "bk", threshold=1.0))
    assert not any(module.training for module in model.modules())


def test_a_rate_at_which_layers_are_dropped_is_refused_though_none_was():
    model = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))
    model.config = SimpleNamespace(encoder_layerdrop=0.0)
    check_independence(DATA, model)
    model.config.encoder_layerdrop = 1e-9
    refused("encoder_layerdrop=1e-09", DATA, model)


@pytest.mark.parametrize(
    ("place", "style", "waits"),
    [(0, "bk", False), (1, "ghost", True), (2, "bk", True), (2, "ghost", False)],
)
def test_a_record_that_is_not_finite_is_no_coupling_and_hides_none(
    place, style, waits, monkeypatch
):
    monkeypatch.setattr(clippers, "waits", lambda device: waits)

    class Spoilt(Rows):
        def collate(self, examples):
            bad = torch.tensor([e.length == EXAMPLES[place].length for e in examples])
            x = super().collate(examples).tensors["x"]
            return Batch({"x": x.masked_fill(bad[:, None], torch.nan)})

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1), nn.Flatten(0))
    data = Records(Spoilt(), EXAMPLES)
    check_independence(data, model, make_clipper(model, style, threshold=1.0))
    model = Trained(lambda h: h - h[-1:].detach() * (len(h) > 1)).train()
    refused(COUPLED, data, model)


class Rounding:
    """Clipped sums of which each is a little off, as a GPU's are; and sums of a batch further."""

    def __init__(self, size, coupling):
        self.size, self.coupling, self.calls = size, coupling, 0

    def sums(self, batches):
        self.calls += 1
        return {"w": torch.tensor([self.coupling * (len(batches) == 1), self.size * self.calls])}

    def distances(self, one, other):
        return [float((one["w"] - other["w"]).norm())]

    def forget(self):
        pass


@pytest.mark.parametrize(
    ("device", "size", "coupling", "differ"),
    [
        ("cpu", 1e-3, 0.0, True),
        ("cuda", 1e-3, 0.0, False),
        ("cuda", 1e-3, 0.02, True),
        ("cuda", 0.1, 0.0, True),
    ],
)
def test_rounding_of_a_devices_backward_is_no_coupling(device, size, coupling, differ):
    parameter = SimpleNamespace(device=torch.device(device))
    clipper = SimpleNamespace(parameters={"w": parameter}, thresholds=[1.0])
    found = _sums_differ(Rounding(size, coupling), None, [None, None], clipper, 3e-5)
    assert found == differ


@pytest.mark.parametrize(
    "what",
    [
        nn.Dropout(0.5),
        lambda h: torch.dropout(h, 0.5, train=True),
        lambda h: nn.functional.scaled_dot_product_attention(h, h, h, None, 0.5),
    ],
    ids=["module", "torch", "attention"],
)
def test_dropout_is_not_mistaken_for_a_coupling(what):
    rows = lambda h: what(h.unsqueeze(1)).squeeze(1)  # noqa: E731 - attention within a record
    model = Trained(rows).train()
    before = torch.random.get_rng_state()
    check_independence(DATA, model, make_clipper(model, "bk", threshold=1.0))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(module.training for module in model.modules())


TABLE = torch.randn(3, 4)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (lambda h: h * torch.randn(len(h), 4), "no random numbers but dropout"),
        (lambda h: h * (torch.rand(1, 1) < 0.5), r"losses differ.*model\.dropout=0"),
        # Frozen, as DeBERTa's relative positions with LoRA: no check of gradients sees it.
        (
            lambda h: nn.functional.dropout(h, 0.1) + nn.functional.dropout(TABLE, 0.1).sum(0),
            "dropout of what all rows share",
        ),
    ],
    ids=["noise", "stochastic depth", "a table"],
)
def test_random_numbers_that_rows_share_or_that_are_no_dropout_are_named(what, message):
    refused(message, DATA, Trained(what).train(), None, 64)


class Places(nn.Module):
    """Experts with places for a number of tokens, which the first of a batch take."""

    def __init__(self, places):
        super().__init__()
        self.places = places
        self.embed, self.experts, self.head = nn.Embedding(60, 8), nn.Linear(8, 8), nn.Linear(8, 60)
        for layer in (self.embed, self.experts, self.head):
            nn.init.normal_(layer.weight)

    def forward(self, input_ids, **others):
        x = self.embed(input_ids)
        taken = torch.arange(input_ids.numel()).view_as(input_ids)[..., None] < self.places
        return SimpleNamespace(logits=self.head(torch.tanh(x + self.experts(x) * taken)))


class Wide(Plain):
    def collate(self, examples, widths=None):
        return collate(examples)

    def widths(self, example, coarse=False):
        return (16,)

    def blank(self):
        return CausalExample((3,), (5,))


@pytest.mark.parametrize(("users", "shapes"), [(False, None), (True, FixedShapes(64))])
def test_places_that_a_full_microbatch_runs_out_of_are_found(shapes, users):
    """Transformers' NLLB-MoE does so: three records find room, and most microbatches do not."""
    examples = [CausalExample(tuple(range(3, 3 + n)), (5, 6, 7)) for n in [9] * 30]
    data = Records(Wide(), examples, shapes)
    if users:
        data = Users(Wide(), examples, [str(n % 15) for n in range(30)], 2, b"key", shapes)
    torch.manual_seed(0)
    few, many = Places(40 * (1 + users)).train(), Places(1000).train()
    check_independence(data, many, make_clipper(many, "bk", threshold=1.0), 400)
    refused("losses differ in a full microbatch", data, few, None, 400)
    check_independence(data, few, None, 1)


MEMORY = []


class Remembering(Rows):
    """Keeps what it was given."""

    shared: ClassVar = []

    def __init__(self, keep):
        self.keep, self.own, self.mean, self.table = keep, [], torch.zeros(4), {}

    def losses(self, model, batch):
        x = batch.tensors["x"]
        self.keep(self, x)
        return model(x)[:, 0]


KEPT = {
    "attribute": lambda self, x: self.own.append(x),
    "class": lambda self, x: Remembering.shared.append(x),
    "global": lambda self, x: MEMORY.append(x),
    "closure": (lambda memory: lambda self, x: memory.append(x))([]),
    "partial": partial(lambda kept, self, x: kept.append(x), []),
    "average": lambda self, x: setattr(self, "mean", 0.9 * self.mean + 0.1 * x.mean(0)),
}
HARMLESS = {
    "nothing": lambda self, x: None,
    "last": lambda self, x: setattr(self, "last", x),
    "cache": lambda self, x: self.table.update({tuple(x.shape): torch.ones(x.shape)}),
}


@pytest.mark.parametrize("kind", [*KEPT, "hook", "module"])
def test_a_memory_of_earlier_batches_is_refused_before_it_is_used(kind):
    model, seen = nn.Sequential(nn.Linear(4, 1)), []
    if kind == "hook":
        model.register_forward_hook(lambda module, args, out: seen.append(out.detach()))
    if kind == "module":
        model.seen = seen
        model[0].register_forward_hook(lambda module, args, out: model.seen.append(1.0))
    data = Records(Remembering(KEPT.get(kind, HARMLESS["nothing"])), EXAMPLES)
    refused("leaves something of its batch", data, model, error=WritesError)


@pytest.mark.parametrize("kind", HARMLESS)
def test_what_is_overwritten_or_cached_is_no_memory(kind):
    model = nn.Sequential(nn.Linear(4, 1))
    clipper = make_clipper(model, "bk", threshold=1.0)
    check_independence(Records(Remembering(HARMLESS[kind]), EXAMPLES), model, clipper)
