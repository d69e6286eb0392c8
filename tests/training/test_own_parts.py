"""Parts of other packages: found by entry points, held to what clipping rests on, and recorded.

The package is that of docs/how-to/extend.md, installed as pip would: its module beside metadata.
"""

import re
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from dpft import runs
from dpft.cli.app import app
from dpft.config.clip import Clip
from dpft.config.errors import ConfigError
from dpft.privacy import make_clipper
from dpft.privacy.clipping.groups import OwnGroup
from dpft.privacy.clipping.rules import DirectUse, Rule, UnsupportedLayerError
from dpft.report.card import model_card
from dpft.training.mechanisms import attach_clipper
from dpft.training.run import run_experiment
from tests.small_runs import settings

PACKAGE = Path(__file__).parents[2] / "docs/how-to/extend"
PAGE = PACKAGE.with_suffix(".md")


GIVEN = ("task=sst2", "eps=null", "privacy.noise_multiplier=1")


def install(site, project, *modules):
    for module in modules:
        copy = shutil.copytree if module.is_dir() else shutil.copy
        copy(module, site / module.name)
    info = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir()
    info.joinpath("METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {place}" for name, place in entries.items())]
    info.joinpath("entry_points.txt").write_text("\n".join(lines) + "\n")


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder of packages that is empty yet."""
    place = tmp_path / "site"
    place.mkdir()
    monkeypatch.syspath_prepend(str(place))
    before = set(sys.modules)
    yield place
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(place)):
            del sys.modules[name]


@pytest.fixture
def example(site):
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    install(site, project, PACKAGE / "dpft_example")
    return site


def told(*words):
    result = CliRunner().invoke(app, list(words))
    return result, " ".join(result.output.split())


def test_the_page_shows_the_files_of_the_package():
    blocks = re.findall(r"^`(\S+)`:\n\n```\w+\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    files = {str(f.relative_to(PACKAGE)): f.read_text() for f in PACKAGE.rglob("*.*")}
    shown = {name for name in files if not name.endswith(("__init__.py", ".pyc"))}
    assert {name for name, _ in blocks} == shown
    assert all(files[name] == text for name, text in blocks)


def test_parts_are_listed_with_their_package_and_imported_only_when_asked_for(example):
    listed = told("ls")[1]
    assert "reviews Is a film review one of more than three stars? (dpft-example 1.0)" in listed
    assert "smooth clip function, clip.clip_function=NAME (dpft-example 1.0)" in listed
    assert "dpft_example.scale.Scale layer rule" in listed
    assert not any(name.startswith("dpft_example") for name in sys.modules)
    assert told("ls", "plugins")[0].exit_code == 0
    assert "dpft_example.scale" in sys.modules


def test_a_run_of_all_parts_names_them_in_record_card_and_ledger(example, tmp_path):
    words = ("task=reviews", "task.metrics=[distinct]", "clip=embeddings_apart", "optim.steps=1")
    run = settings(tmp_path / "runs", *words)
    outcome = run_experiment(run)
    record = outcome.record
    named = {part["name"]: (part["kind"], part["package"]) for part in record["plugins"]}
    assert named == {
        "reviews": ("task", "dpft-example"),
        "distinct": ("metric", "dpft-example"),
        "smooth": ("clip function", "dpft-example"),
        "embeddings_apart": ("clipping style", "dpft-example"),
    }
    assert set(record["scores"]["test"]["metrics"]) == {"accuracy", "distinct_words"}
    assert "distinct:words" in record["scores"]["test"]["signature"]
    assert record["config"]["clip"]["style"] == "embeddings_apart"
    # A tenth of C squared, and the rest; together C.
    assert record["mechanism"]["thresholds"] == pytest.approx([0.1 * 0.1**0.5, 0.1 * 0.9**0.5])
    assert "The clip function smooth is not dpft's: dpft-example 1.0" in model_card(record)
    assert "references" not in record["scores"]["test"]  # nobody said that the data are published
    # Other code would repeat a step's noise on another sum.
    ledger = runs.read_ledger(outcome.path / "ledger.jsonl")
    plugins = ledger.header["compute"]["plugins"]
    assert set(plugins) == {
        "task reviews",
        "clip function smooth",
        "clipping style embeddings_apart",
    }
    changed = plugins | {"clip function smooth": "dpft-example 1.1 0"}
    compute = ledger.header["compute"] | {"plugins": changed}
    with runs.Ledger(
        outcome.path / "ledger.jsonl", ledger.header | {"compute": compute}
    ) as reopened:
        assert reopened.go_on(0).position == reopened.steps_spent == 1  # no replay of its step


class Tokens(nn.Module):
    def __init__(self):
        super().__init__()
        from dpft_example.scale import Scale

        self.table, self.scale, self.head = nn.Embedding(7, 4), Scale(4), nn.Linear(4, 2)

    def forward(self, ids):
        return self.head(self.scale(self.table(ids)).tanh())


def test_own_rule_function_and_groups_give_the_sum_of_an_autograd_loop(example):
    torch.manual_seed(0)
    model, ids = Tokens().double(), torch.randint(7, (5, 3))
    clip = Clip(plan="bk", groups="embeddings_apart", threshold=0.3, clip_function="smooth")
    clipper = attach_clipper(clip, model)
    clipper.backward(model(ids).square().mean((1, 2)))
    got = {name: p.grad.clone() for name, p in model.named_parameters()}
    clipper.close()
    expected = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    names = list(expected)
    for one in ids:
        loss = model(one[None]).square().mean()
        grads = dict(zip(names, torch.autograd.grad(loss, list(model.parameters())), strict=True))
        for group, share in ((names[:1], 0.1), (names[1:], 0.9)):
            C = 0.3 * share**0.5
            norm = torch.cat([grads[name].flatten() for name in group]).norm()
            for name in group:
                expected[name] += grads[name] * C / (norm**2 + C**2) ** 0.5
    assert all((got[name] - expected[name]).abs().max() < 1e-10 for name in names)
    assert clipper.sensitivity == pytest.approx(0.3)


class OwnUse(DirectUse):
    """Whose norm could be anything."""


WRONG_RULES = {
    "another gradient than autograd": lambda x: DirectUse(2 * x),
    "another gradient by itself": lambda x: DirectUse(x.flip(0)),
    "gives record": lambda x: DirectUse(x.sum(0, keepdim=True).expand_as(x) / len(x)),
    "gives a OwnUse": OwnUse,
}


@pytest.mark.parametrize("said", WRONG_RULES)
def test_a_wrong_rule_is_refused(said, example):
    class Twisted(Rule):
        def uses(self, module, a, g):
            return {"scale": WRONG_RULES[said]((a * g).sum(1))}

    torch.manual_seed(0)
    model = Tokens()
    rules = {"dpft_example.scale.Scale": Twisted()}
    clipper = make_clipper(model, "bk", threshold=0.1, rules=rules)
    with pytest.raises(UnsupportedLayerError, match=f"scale.scale.*{said}"):
        clipper.backward(model(torch.randint(7, (5, 3))).square().mean((1, 2)))


WRONG_FUNCTIONS = {
    "too large": (lambda n, C: torch.ones_like(n), "is not bounded"),
    "infinite": (lambda n, C: C / n, "is not bounded"),
    "negative": (lambda n, C: -C / (n + C), "is not bounded"),
    "branching": (lambda n, C: n if n > C else C, "without branches"),
}


@pytest.mark.parametrize("wrong", WRONG_FUNCTIONS)
def test_a_clip_function_that_bounds_nothing_is_refused(wrong):
    function, said = WRONG_FUNCTIONS[wrong]
    with pytest.raises(ValueError, match=said):
        make_clipper(nn.Linear(2, 1), threshold=1.0, clip_function=function)


def test_a_clip_function_is_held_to_its_bound_between_the_points_of_the_grid():
    def spiked(norms, threshold):
        inside = (norms / threshold - 1.23456).abs() < 1e-4
        return torch.where(inside, 50.0, threshold / (norms + threshold))

    model = nn.Linear(1, 1, bias=False).double()
    clipper = make_clipper(model, threshold=1.0, clip_function=spiked)
    clipper.backward((model(torch.ones(1, 1).double()) * 1.23456)[:, 0])
    assert clipper.norms.item() == pytest.approx(1.23456)
    assert (clipper.norms * clipper.factors).item() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        (lambda model, names: [OwnGroup("a", names[:1])], "partition"),
        (lambda model, names: [OwnGroup("a", names), OwnGroup("b", names[:1])], "partition"),
        (lambda model, names: [OwnGroup("a", names), OwnGroup("b", ())], "a parameter at least"),
        (lambda model, names: [OwnGroup(n[:0], (n,)) for n in names], "a name of its own"),
        (lambda model, names: [OwnGroup(n, (n,), -1) for n in names], "share -1"),
    ],
)
def test_own_groups_that_are_no_partition_are_refused(groups, said):
    with pytest.raises(ValueError, match=said):
        make_clipper(nn.Linear(2, 1), "per_layer", threshold=1.0, groups=groups)


def test_a_package_that_cannot_be_imported_is_named_when_it_is_asked_for(site, tmp_path):
    (tmp_path / "broken.py").write_text("import nothing_of_the_kind\n")
    kinds = ("tasks", "metrics", "clip_functions", "styles")
    parts = {f"dpft.{kind}": {"broken": "broken:thing"} for kind in kinds}
    project = {"name": "broken-parts", "version": "3", "entry-points": parts}
    install(site, project, tmp_path / "broken.py")
    named = "of broken-parts 3 cannot be imported (broken:thing: ModuleNotFoundError: No module"
    for words in ("task.name=broken", "+task.metrics=[broken]", "clip.groups=broken"):
        extra = ["clip.plan=fused"] if "groups" in words else []
        result, said = told("validate", "model=random-bert", *GIVEN, *words.split(), *extra)
        assert result.exit_code == 2, said
        assert named in said, said
    result, said = told("validate", *GIVEN, "clip.clip_function=broken", "model=random-bert")
    assert result.exit_code == 2
    assert f"dpft: clip function broken {named}" in said
    assert (
        told("validate", *GIVEN, "model=random-bert")[0].exit_code == 0
    )  # who does not ask hears nothing
    result, said = told("ls", "plugins")
    assert result.exit_code == 2
    assert said.count(named) == len(kinds)


def test_a_part_of_two_packages_is_refused(example):
    again = {"dpft.clip_functions": {"smooth": "dpft_example.smooth:smooth"}}
    install(example, {"name": "other", "version": "2", "entry-points": again})
    with pytest.raises(ConfigError, match="in several packages: dpft-example, other"):
        attach_clipper(Clip(style="bk", threshold=1.0, clip_function="smooth"), nn.Linear(2, 1))
