"""Right values of what bug reports of other projects found, named by the number of each report."""

import shlex
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dpft.cli.results import check_grouped
from dpft.config.compose import compose
from dpft.config.errors import ConfigError, DataError
from dpft.config.schema import Model
from dpft.models.load import load_model
from dpft.models.needs import Needs
from dpft.privacy import Mechanism, Quantiles, UnsupportedLayerError, accounting, make_clipper
from dpft.tasks.metrics import coco, scorers
from dpft.tasks.objectives.objective import Prediction
from dpft.tasks.table_files import read_table
from tests.privacy.reference import equals_loop

VOCAB = 23
X = torch.randn(4, 5, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
IDS = torch.randint(3, VOCAB, (4, 6), generator=torch.Generator().manual_seed(1))


def gpt2(tied=None):
    return load_model(Model("gpt2", "random:gpt2", tied=tied), Needs("causal"), seed=0).model


def texts_of(model):
    logits = model(input_ids=IDS).logits[:, :-1]
    return F.cross_entropy(logits.mT, IDS[:, 1:], reduction="none").mean(1)


class Attention(nn.MultiheadAttention):
    """As a part of a model that has the records first."""

    def forward(self, x):
        y = x if self.batch_first else x.transpose(0, 1)
        masks = {"key_padding_mask": torch.arange(5).expand(len(x), 5) > 2}
        out, _ = super().forward(y, y, y, **masks, attn_mask=torch.ones(5, 5).triu(1).bool())
        return out if self.batch_first else out.transpose(0, 1)


class Recurrent(nn.GRU):
    def forward(self, x):
        return super().forward(x)[0]


def tied_table():
    model = nn.Sequential(nn.Embedding(VOCAB, 10, padding_idx=-1), nn.Linear(10, VOCAB))
    model[1].weight = model[0].weight
    return model


attention = partial(Attention, 10, 2, add_bias_kv=True)
EXACT = {
    "1: positions that all records look up": (gpt2, IDS),
    "4: two layers of GRU": (partial(Recurrent, 10, 8, 2, batch_first=True), X),
    "5: attention, the batch first": (partial(attention, batch_first=True), X),
    "5: attention, the batch second": (attention, X),
    "12: an input that needs no gradient": (partial(nn.LayerNorm, 10), X),
    "15: padding_idx=-1 of a tied table": (tied_table, IDS.where(IDS > 8, VOCAB - 1)),
}


@pytest.mark.parametrize("report", EXACT)
@pytest.mark.parametrize("style", ["bk", "per_layer"])
def test_a_model_is_clipped_exactly(report, style):
    torch.manual_seed(0)
    build, inputs = EXACT[report]
    model = build().double()

    def losses(rows):
        out = model(inputs[rows])
        return getattr(out, "logits", out).pow(3).sum((1, 2))

    equals_loop(model, losses, 4, style)


def tied_late(model):
    model.lm_head.weight = model.transformer.wte.weight
    return texts_of(model)


REFUSED = {
    "3: a state without a row for each record": (
        partial(nn.GRU, 10, 4, batch_first=True),
        lambda m: m(X.float())[0].sum((1, 2)),
        r"\(1, 4, 4\) that 4 records share.*Put the module into one",
    ),
    "F5: attention alone, the batch second": (
        partial(nn.MultiheadAttention, 10, 2),
        lambda m: m(*[X.float().transpose(0, 1)] * 3)[0].sum((0, 2)),
        "first input has 5 rows.*have the records first",
    ),
    "9: tied after make_clipper": (
        partial(gpt2, tied=False),
        tied_late,
        "'lm_head.weight' is used 0 times",
    ),
}


@pytest.mark.parametrize("report", REFUSED)
def test_what_is_not_clipped_is_refused_by_its_cause(report):
    build, losses, message = REFUSED[report]
    model = build()
    clipper = make_clipper(model, "bk", threshold=1.0)
    with pytest.raises(UnsupportedLayerError, match=message):
        clipper.backward(losses(model))


@pytest.mark.parametrize("style", ["bk", "ghost", "materialised", "lee_kifer", "per_param"])
def test_6_a_bias_has_the_norm_of_its_summed_gradient(style):
    """Elsewhere the root of the summed squares, 7.07 of both."""
    layer = nn.Linear(2, 2).double()
    layer.weight.requires_grad_(False)
    g = torch.tensor([[[3, 4], [-3, -4]], [[3, 4], [3, 4]]])
    clipper = make_clipper(layer, style, threshold=1.0)
    clipper.backward((layer(torch.randn(2, 2, 2, dtype=torch.float64)) * g).sum((1, 2)))
    assert clipper.norms[:, 0].tolist() == pytest.approx([0, 10], abs=1e-12)


# Rate, noise, steps, delta; epsilon by PLD and Renyi DP. Others are in tests/privacy.
EPSILONS = {
    "30: exact, by Balle and Wang": ((1.0, 2.0, 10, 1e-6), 8.306225, 8.846860),
    "32: beyond PRV": ((0.125, 0.8, 1000, 1e-6), 56.726079, 60.300602),
    "33: a delta below all rounding": ((0.00033, 4.0, 10_000, 1.13e-18), None, 0.145652),
}


@pytest.mark.parametrize("report", EPSILONS)
def test_epsilons(report):
    (rate, noise, steps, delta), *expected = EPSILONS[report]
    event = {"sampling_rate": rate, "noise_multiplier": noise, "steps": steps, "delta": delta}
    found = [accounting.epsilon_pld(**event), accounting.epsilon_rdp(**event)]
    assert found == [e and pytest.approx(e, rel=1e-5) for e in expected]


def test_28_counts_take_their_part_of_the_noise():
    flat = Mechanism(1000, 100, 10, 1.0, (1.0,), 1e-5)
    adaptive = flat.over((1.0,), quantiles=Quantiles(0.5), count_noise=5.0)
    assert adaptive.noise_multiplier == pytest.approx(1.005038, abs=1e-6)
    assert adaptive.epsilons()["pld"] == pytest.approx(flat.epsilons()["pld"], rel=1e-9)


LONG = "word " * 40_000
FILES = {
    "41: pandas' words for nothing": ("a.csv", "t\nnull\nNA\nnan\n", ["null", "NA", "nan"]),
    "43: a cell of 200,000 characters": ("a.csv", f"t\n{LONG}\nx\n", [LONG, "x"]),
    "48: a byte order mark in a text": ("a.csv", "t\n\ufeffb\n", ["\ufeffb"]),
    "48: carriage returns alone": ("a.csv", "t\ra\r", r"type tr '\\r' '\\n'"),
    "48: a key twice": ("a.jsonl", '{"t": "a", "t": "b"}', "line 1: key 't' is there twice"),
    "48: a key twice in a list": ("a.json", '[{"t": 1, "t": 2}]', "key 't' is there twice"),
}


@pytest.mark.parametrize("report", FILES)
def test_a_file_is_read_as_it_is_or_refused(tmp_path, report):
    name, text, expected = FILES[report]
    (tmp_path / name).write_bytes(text.encode())
    if isinstance(expected, list):
        assert [row.text("t", "") for row in read_table(tmp_path / name)] == expected
        return
    with pytest.raises(DataError, match=expected):
        [row.text("t", "") for row in read_table(tmp_path / name)]


def test_49_what_is_advised_for_a_list_is_read():
    with pytest.raises(ConfigError, match=r"""'task.classes=\["\(a\)","x"\]'""") as refused:
        compose(["task=classification", "task.classes=[(a), x]"])
    advised = shlex.split(str(refused.value).rpartition(": ")[2])
    assert compose(["task=classification", *advised])["task"]["classes"] == ["(a)", "x"]


def test_50_one_line_for_each_reference_is_refused():
    lines = [Prediction("", "same", (f"reference {i}",)) for i in range(8)]
    with pytest.raises(DataError, match="7 of 8 repeat the prediction"):
        check_grouped("e2e", lines, "file")
    check_grouped("samsum", lines, "file")
    check_grouped("e2e", [Prediction("", "same", ("a", "b"))] * 8, "file")


THAT = "that the military"
GUIDE = f"It is a guide to action which ensures {THAT} always obeys the commands of the party"
OTHER = f"It is a guide to action that ensures {THAT} will forever heed Party commands"
BAKED, EATEN = "Amanda baked cookies.", "Jerry will eat them."
CAT, SITS = "the cat was sat on the mat", "the cat sat on the mat"
SCORES = {
    "51: METEOR; NLTK has 0.7398": (coco.meteor, GUIDE, OTHER, 0.447361),
    "51: ROUGE-L": (coco.rouge_l, CAT, SITS, 0.936061),
    "51: CIDEr": (coco.cider, CAT, SITS, 0),
    "52: ROUGE-L; rougeLsum is 100": (
        lambda *texts: scorers.rouge(*texts)["ROUGE_L"],
        f"{EATEN}\n{BAKED}",
        f"{BAKED}\n{EATEN}",
        57.142857,
    ),
}


@pytest.mark.parametrize(
    "report", [pytest.param(n, marks=[pytest.mark.slow] * ("METEOR" in n)) for n in SCORES]
)
def test_scores(report):
    score, prediction, reference, expected = SCORES[report]
    assert score([prediction], [[reference]]) == pytest.approx(expected, abs=1e-6)
