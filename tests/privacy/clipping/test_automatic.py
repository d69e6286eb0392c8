"""Modules without a rule are computed again: exact in float64, or refused with the reason."""

import itertools
from contextlib import nullcontext

import peft
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from dpft.privacy import UnsupportedLayerError, make_clipper
from dpft.privacy.anymodule import recomputation
from dpft.privacy.token_losses import token_losses
from tests.privacy import pairs, reference
from tests.privacy.architectures import ARCHITECTURES, build, clip_and_compare, in_double, shake
from tests.privacy.small_models import Parts

D = 4


def drawn(*shape):
    return nn.Parameter(torch.randn(shape))


class Scale(Parts):
    """Two outputs of one parameter, of which one is used in the other; a flag; two inputs."""

    def forward(self, x, *, mask, twice=False):
        first = x * self.scale * mask
        return {"first": first, "second": (first + self.scale * self.shift).tanh(), "mask": mask}


class Outputs(Parts):
    def forward(self, x):
        mask = torch.ones(1, x.shape[1], 1).to(x)
        out = self.scale(self.layer(x), mask=mask, twice=True)
        return self.layer(out["first"]) + out["second"] * out["mask"]


class Positions(Parts):
    """The records share a lookup of (T,), a table that is read from its layer, and a bias."""

    def forward(self, x):
        n = x.shape[1]
        shared = self.norm(self.table.weight)[:n]
        return x.cumsum(1) * self.positions(torch.arange(n)) + shared + self.bias


class Deciding(Parts):
    """Control flow that depends on the data, which `torch.func.vmap` refuses."""

    def forward(self, x):
        rows = [row * self.weight if row.sum().item() > 0 else row * self.rare for row in x]
        return torch.stack(rows)


class CheckpointedInside(Parts):
    """A layer, a lookup that the records share and two parameters in what is run again."""

    def forward(self, x):
        return checkpoint(self.inner, x, use_reentrant=False)

    def inner(self, x):
        positions = self.positions(torch.arange(x.shape[1])[None])
        return torch.tanh((self.layer(x) + positions) * self.scale + self.shift)


class Squared(Parts):
    def forward(self, x):
        return x @ self.weight.square()


class Tied(Parts):
    """One matrix for a layer with a rule, a module without, and a use behind the layer's back."""

    def forward(self, x):
        return self.other(self.layer(x).tanh()) @ self.layer.weight


def tied():
    layer = nn.Linear(D, D)
    return Tied(layer=layer, other=Squared(weight=layer.weight))


class Turned(nn.Module):
    def forward(self, x):
        return x.mT


class Scores(Parts):
    """Scores of eight places, whose rows go through a separate layer."""

    def forward(self, x):
        return x @ self.places(self.table).t()


class OneRow(Parts):
    """A parameter of shape (1, ...), which all records share."""

    def forward(self, x):
        return self.use(x, self.row)


MODULES = {
    "several outputs": lambda: Outputs(
        layer=nn.Linear(D, D), scale=Scale(scale=drawn(D), shift=drawn())
    ),
    "shared by the records": lambda: Positions(
        positions=nn.Embedding(9, D), table=nn.Embedding(9, D), norm=nn.LayerNorm(D), bias=drawn(D)
    ),
    "control flow": lambda: Deciding(weight=drawn(D), rare=drawn(D)),
    "tied": tied,
    "checkpointed inside": lambda: CheckpointedInside(
        **{"layer": nn.Linear(D, D), "positions": nn.Embedding(9, D)},
        **{"scale": drawn(D), "shift": drawn(1, 1, D)},
    ),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(D, D)),
    "transposed convolution": lambda: nn.Sequential(
        Turned(), nn.ConvTranspose1d(D, 3, 2, stride=2), Turned()
    ),
    "a table with as many rows as there are records": lambda: Scores(
        places=nn.Linear(D, D), table=nn.Buffer(torch.randn(8, D))
    ),
    "as many records as positions": lambda: OneRow(use=lambda x, row: x * row, row=drawn(1, D)),
    "added to the input in place": lambda: OneRow(
        use=lambda x, row: x.add_(row).tanh(), row=drawn(1, 1, D)
    ),
}


def model_of(name):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(D, D), MODULES[name]()).double()


def loss(model, x):
    y = model(x)
    return (y.sin() * torch.arange(1.0, y[0].numel() + 1).view(y.shape[1:])).mean((1, 2))


def equals_loop(model, batches, style, before=lambda number: None):
    clipper = make_clipper(model, style, threshold=0.5)
    for number, x in enumerate(batches):
        before(number)
        expected = reference.loop_of(
            model, clipper, lambda i, x=x: loss(model, x[i : i + 1])[0], len(x)
        )
        reference.compare(model, clipper, loss(model, x), expected)
    clipper.close()


def batches(*shapes):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(*shape, D, generator=generator).double() for shape in shapes]


STYLES = ("ghost", "materialised", "lee_kifer", "per_layer", "bk")
PAIRS = [*zip(MODULES, itertools.cycle(STYLES))]


@pytest.mark.parametrize(("name", "style"), PAIRS)
def test_any_module_equals_the_autograd_loop(name, style):
    """Later batches have other shapes; as many records as positions, and a single one."""
    shapes = [(5, 3), (8, 3), (4, 4), (4, 2), (1, 2), (8, 2), (3, 5)]
    if style in ("ghost", "per_layer"):  # the first batch has nothing to compare
        shapes = [(1, 2), *shapes]
    equals_loop(model_of(name), batches(*shapes), style)


class Recalling(Parts):
    """Attends to what each record brings, or to a table of three rows that all share."""

    def forward(self, x):
        return self.attend(x, x.detach().sin() if self.brings else self.table)


class Recall(Parts):
    def forward(self, x, memory):
        return x + ((x * self.scale) @ memory.mT).softmax(-1) @ memory


@pytest.mark.parametrize("style", ["bk", "ghost", "per_param"])
@pytest.mark.parametrize("size", [1, 3])
def test_a_table_where_the_records_rows_were_before_is_not_shared_out(size, style):
    recalling = Recalling(attend=Recall(scale=drawn(D)), table=nn.Buffer(torch.randn(3, D)))
    model = nn.Sequential(nn.Linear(D, D), recalling).double()
    brings = (True, True, False, False, True)
    equals_loop(
        model, batches((size, 4)) * 5, style, lambda n: setattr(model[1], "brings", brings[n])
    )


def test_a_wrong_gradient_is_found_by_the_check_against_autograd(monkeypatch):
    right = recomputation.ModuleCall.gradients
    monkeypatch.setattr(
        recomputation.ModuleCall,
        "gradients",
        lambda *given: {name: 1.1 * h for name, h in right(*given).items()},
    )
    model = model_of("several outputs")
    clipper = make_clipper(model, "bk", threshold=1.0)
    with pytest.raises(UnsupportedLayerError, match="another gradient than autograd"):
        clipper.backward(loss(model, *batches((4, 3))))


class Coupled(Parts):
    """Each of these cannot be computed again for one record."""

    def forward(self, x):
        if self.how == "dropout":
            x = F.dropout(x, 0.5, self.training)
        elif self.how == "mean":
            x = x - x.mean(0, keepdim=True)
        else:
            self.seen += x.detach().sum((0, 1))
        return x * self.scale


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("dropout", r"1\.scale.*Coupled\) draws random numbers"),
        ("mean", r"1\.scale.*Coupled\) gives another output for a record alone"),
        ("state", r"1\.scale.*Coupled\) changes its input or a buffer in place"),
    ],
)
def test_what_cannot_be_computed_again_is_refused_by_name(how, reason):
    torch.manual_seed(0)
    coupled = Coupled(how=how, scale=drawn(D), seen=nn.Buffer(torch.zeros(D)))
    model = nn.Sequential(nn.Linear(D, D), coupled).double()
    clipper = make_clipper(model, "bk", threshold=1.0)
    with pytest.raises(UnsupportedLayerError, match=reason):
        clipper.backward(loss(model, *batches((4, 3))))


class DropPath(Parts):
    """A vision model's module that drops the branch of some rows."""

    def forward(self, x):
        if not self.training or not self.drop_prob:
            return x
        return x * (torch.rand(len(x), *[1] * (x.dim() - 1)) >= self.drop_prob)


class Branched(Parts):
    """A scale that is no layer's, with another module inside the same one."""

    def forward(self, x):
        return x + self.inner(x * self.scale)


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("branch", [nn.Dropout(1e-9), DropPath(drop_prob=1e-9)])
def test_dropout_is_refused_by_its_rate_and_not_by_a_mask(branch, on):
    """At this rate no mask drops anything, and a record alone gives what it gave among others."""
    model = nn.Sequential(nn.Linear(D, D), Branched(inner=branch, scale=drawn(D)))
    model.double().train(on)
    clipper = make_clipper(model, "bk", threshold=1.0)
    expected = pytest.raises(UnsupportedLayerError, match=f"{type(branch).__name__} at rate 1e-09")
    with expected if on else nullcontext():
        clipper.backward(loss(model, *batches((4, 3))))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures_of_transformers_equal_the_autograd_loop(name):
    clip_and_compare(build(name))


_TARGETS = ["q_proj", "v_proj"]
ADAPTERS = {
    "DoRA": lambda: peft.LoraConfig(r=2, use_dora=True, target_modules=_TARGETS),
    "LoRA on embeddings": lambda: peft.LoraConfig(r=2, target_modules=["embed_tokens"]),
    "LoRA and tokens": lambda: peft.LoraConfig(
        r=2, target_modules=_TARGETS, trainable_token_indices=[3, 5]
    ),
    "IA3": lambda: peft.IA3Config(
        target_modules=["v_proj", "down_proj"], feedforward_modules=["down_proj"]
    ),
    "OFT": lambda: peft.OFTConfig(oft_block_size=4, r=0, target_modules=_TARGETS),
}


@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters_of_peft_equal_the_autograd_loop(name):
    case = build("llama")
    case.model = peft.get_peft_model(case.model, ADAPTERS[name]()).double().train()
    shake(case.model)
    clip_and_compare(case)


@pytest.mark.parametrize("name", pairs.MODELS)
def test_every_style_is_exact_for_encoders_with_decoders(name):
    """One table serves encoder, decoder and head, scaled differently in each; tables of positions
    are read once for a batch; the decoder sees encoder outputs behind a padding mask."""
    case = pairs.build(name)
    tables = [n for n, p in case.model.named_parameters() if len(p) == pairs.VOCAB]
    assert len(tables) == (2 if name == "t5 untied" else 1)  # the shared one counts once
    with in_double():
        for style in ("ghost", "lee_kifer", "per_layer_adaptive", "block_wise", "bk"):
            clipper = reference.equals_loop(
                case.model, case.losses_of, case.batch, style, threshold=0.5
            )
            case.all_losses()
            # A rule for every layer: nothing is computed again.
            assert all(call.by_rule for call in clipper.capture.calls)
            clipper.close()


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_a_decoder_that_keeps_a_cache_is_clipped_too(name):
    """Also with dropout, whose masks only the clipper's own check can compare."""
    model, data = (
        pairs.build(name, dropout=0.1).model,
        dict(pairs.OBJECTIVE.collate(pairs.EXAMPLES).tensors),
    )
    targets = data.pop("targets")
    clipper = make_clipper(model, "bk", threshold=0.5)
    losses = token_losses(model(**data).logits, targets).sum(1)
    assert all(call.by_rule for call in clipper.capture.calls)
    clipper.backward(losses)
    clipper.close()
