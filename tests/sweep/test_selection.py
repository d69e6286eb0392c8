"""Private selection: the draw is fixed, secret and fair; the price is the theorem's."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import typer

from dpft.commands import select, sweep
from dpft.compose import compose
from dpft.config import parse
from dpft.errors import ConfigError
from dpft.privacy import accounting
from dpft.privacy.accounting import Trials
from dpft.runs import config_hash
from dpft.sweep.points import make_plan
from dpft.sweep.selection import Candidate, Selection, draw, price
from dpft.sweep.words import read_list, read_words

SMALL = [
    "task=sst2",
    "model=random-bert",
    "task.source=sample",
    "task.limit_train=48",
    "task.limit_eval=8",
    "optim.batch_size=12",
    "optim.steps=2",
    "eps=2",
    "threads=1",
]


@pytest.fixture
def candidates():
    words = [("optim.lr=1e-3",), ("optim.lr=2e-3", "seed=3", "runs_dir=elsewhere")]
    return [Candidate(w, parse(compose(w))) for w in words]


def test_the_draw_is_made_once(tmp_path, candidates):
    selection = Selection(tmp_path / "one")
    trials = Trials(4.0)
    selection.describe(candidates, trials, "BLEU", lowest=False)
    first = draw(selection.key(), candidates, trials)

    assert draw(Selection(tmp_path / "one").key(), candidates, trials) == first
    assert (selection.private / "selection_key").stat().st_mode & 0o077 == 0
    assert Selection(tmp_path / "two").key() != selection.key()


def test_each_trial_draws_a_candidate_and_a_seed_of_its_own(candidates):
    lines = [line for n in range(60) for line in draw(bytes([n]) * 32, candidates, Trials(5.0))]
    rates = [line[0] for line in lines]
    seeds = [word for line in lines for word in line if word.startswith("seed=")]

    assert 0.35 < rates.count("optim.lr=1e-3") / len(rates) < 0.65
    assert len(seeds) == len(lines) == len(set(seeds))
    assert "seed=3" not in seeds
    assert not any("runs_dir" in word for line in lines for word in line)


def test_the_price_is_of_the_worst_candidate():
    cheap = SimpleNamespace(sampling_rate=0.02, total_noise_multiplier=2.0, steps=100, delta=1e-5)
    dear = SimpleNamespace(sampling_rate=0.02, total_noise_multiplier=0.8, steps=400, delta=1e-5)
    run = accounting.run_curve(sampling_rate=0.02, noise_multiplier=0.8, steps=400)
    each, total, delta = price([cheap, dear], Trials(10.0))

    assert delta == 1e-5
    assert each == pytest.approx(run.epsilon(1, 1e-5))
    assert total == pytest.approx(Trials(10.0).cost(run).epsilon(1, 1e-5))
    assert total > each


def test_another_selection_in_the_same_folder_is_refused(tmp_path, candidates):
    selection = Selection(tmp_path / "one")
    selection.describe(candidates, Trials(4.0), "BLEU", lowest=False)
    selection.describe(candidates, Trials(4.0), "BLEU", lowest=False)
    with pytest.raises(ConfigError, match="must not change"):
        selection.describe(candidates, Trials(9.0), "BLEU", lowest=False)


def test_a_lost_key_is_not_drawn_anew(tmp_path):
    selection = Selection(tmp_path / "one")
    selection.key()
    selection.trials.mkdir()
    (selection.private / "selection_key").unlink()
    with pytest.raises(ConfigError, match="draw again"):
        selection.key()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["clip=none,bk"], "expected private runs"),
        (["sampling=shuffle"], "expected private runs"),
        (["name=mine"], "--name"),
    ],
)
def test_what_cannot_be_selected_is_refused(tmp_path, words, message):
    with pytest.raises(ConfigError, match=message):
        select.main(
            [*SMALL, f"runs_dir={tmp_path}", *words], metric="accuracy", mean=2.0, shape=1.0
        )


def test_impossible_distributions_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="--trials"):
        select.main([*SMALL, f"runs_dir={tmp_path}"], metric="accuracy", mean=0.2, shape=1.0)


def test_candidates_and_trials_find_configs_of_ones_own(tmp_path, monkeypatch):
    own = tmp_path / "mine" / "experiment"
    own.mkdir(parents=True)
    (own / "own.yaml").write_text("# @package _global_\noptim:\n  lr: 0.25\n")
    trials = []

    def stand_in(arguments, *, file, **others):
        trials.extend(make_plan(read_words(arguments), read_list(file)).runs)
        raise typer.Exit(1)

    monkeypatch.setattr(Trials, "draw", lambda self, key: 2)
    monkeypatch.setattr(sweep, "main", stand_in)
    words = [*SMALL, "+experiment=own", f"runs_dir={tmp_path}", "--config-dir", str(own.parent)]
    with pytest.raises(typer.Exit):
        select.main(words, metric="accuracy", mean=2.0, shape=1.0, name="one")
    described = json.loads((tmp_path / "selections/one/selection.json").read_text())

    assert described["hashes"] == [
        config_hash(parse(compose([*SMALL, "optim.lr=0.25"])).identity())
    ]
    assert [run.optim.lr for run in trials] == [0.25, 0.25]


def test_the_best_trial_is_released_with_the_price_of_all(tmp_path, monkeypatch):
    monkeypatch.setattr(Trials, "draw", lambda self, key: 2)
    words = [*SMALL, "optim.lr=1e-3,1e-4", f"runs_dir={tmp_path}"]
    try:
        select.main(words, metric="accuracy", mean=2.0, shape=1.0, name="one")
    except typer.Exit:
        pytest.fail((tmp_path / "selections/one/private/trials/sweeps/trials/log.txt").read_text())
    folder = tmp_path / "selections" / "one"
    chosen = json.loads((folder / "chosen/record.json").read_text())
    trials = [json.loads(file.read_text()) for file in (folder / "private").rglob("record.json")]
    best = max(trial["scores"]["dev"]["metrics"]["accuracy"] for trial in trials)

    assert len(trials) == 2
    assert len(list(tmp_path.rglob("record.json"))) == 3  # none lies outside private/
    assert chosen["scores"]["dev"]["metrics"]["accuracy"] == best
    assert chosen["privacy"]["epsilon"]["rdp"] > trials[0]["privacy"]["epsilon"]["rdp"]
    assert chosen["privacy"]["epsilon"]["prv"] is None
    card = (folder / "chosen/model/README.md").read_text()
    assert "choice of the best of a random number of runs included" in card
    assert "ledger.jsonl" not in {path.name for path in (folder / "chosen").rglob("*")}
