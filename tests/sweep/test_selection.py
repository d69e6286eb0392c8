"""Private selection: the draw is fixed, secret and fair; the price is the theorem's."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
from pathlib import Path

import pytest
import typer
import yaml

from dpft.cli import select, sweep
from dpft.cli.score import score_run
from dpft.config.compose import compose
from dpft.config.errors import ConfigError
from dpft.config.schema import SERVICES, parse
from dpft.privacy import Mechanism, accounting
from dpft.privacy.accounting.selection import Trials
from dpft.report.cost import composed
from dpft.runs import RunError, RunLockedError, config_hash
from dpft.runs.finished import marked
from dpft.runs.ledger import chained_lines
from dpft.sweep.arguments import parse_arguments, read_list
from dpft.sweep.find import find
from dpft.sweep.points import make_plan
from dpft.sweep.release import _copy, _priced
from dpft.sweep.selection import Candidate, Selection, draw, price
from dpft.training.trained import loaded_run
from tests.report.pages.example import config as settings_of
from tests.report.pages.example import mechanism, record

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
    words = [("optim.lr=1e-3",), ("optim.lr=2e-3", "seed=3", "++runs_dir=elsewhere")]
    return [Candidate(w, parse(compose(w))) for w in words]


def test_the_draw_is_made_once(tmp_path, candidates):
    selection = Selection(tmp_path / "one")
    trials = Trials(4.0)
    selection.describe(candidates, trials, "BLEU", lowest=False)
    first = draw(selection.key(), candidates, trials)

    assert draw(Selection(tmp_path / "one").key(), candidates, trials) == first
    assert (selection.private / "selection_key").stat().st_mode & 0o077 == 0
    assert selection.private.stat().st_mode & 0o077 == 0
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
    cheap = Mechanism(1000, 20, 100, 2.0, (1.0,), 1e-5)
    dear = Mechanism(1000, 20, 400, 0.8, (1.0,), 1e-5)
    run = accounting.run_curve(sampling_rate=0.02, noise_multiplier=0.8, steps=400)
    each, total, delta = price([cheap, dear], Trials(10.0))

    assert delta == 1e-5
    assert each == pytest.approx(run.epsilon(1, 1e-5))
    assert total == pytest.approx(Trials(10.0).cost(run).epsilon(1, 1e-5))
    assert total > each
    cut = dataclasses.replace(dear, sampling="truncated_poisson", max_batch=30)
    assert price([cheap, cut], Trials(10.0))[1] > total


def test_the_price_holds_at_the_least_delta_of_the_candidates():
    """At a larger one it would be less than the candidate with the least delta has spent."""
    pair = [Mechanism(1000, 20, 100, 1.0, (1.0,), delta) for delta in (1e-5, 1e-7)]
    least = accounting.run_curve(**pair[0].spent, steps=100).epsilon(1, 1e-7)
    for mechanisms in (pair, pair[::-1]):
        each, _, delta = price(mechanisms, Trials(10.0))
        assert delta == 1e-7
        assert each == pytest.approx(least)


def test_another_selection_in_the_same_folder_is_refused(tmp_path, candidates):
    selection = Selection(tmp_path / "one")
    selection.describe(candidates, Trials(4.0), "BLEU", lowest=False)
    selection.describe(candidates, Trials(4.0), "BLEU", lowest=False)
    with pytest.raises(ConfigError, match="must not change"):
        selection.describe(candidates, Trials(9.0), "BLEU", lowest=False)


@pytest.mark.parametrize("left", ["private/trials", "chosen", "selection.json"])
def test_a_lost_key_is_not_drawn_anew(tmp_path, left):
    selection = Selection(tmp_path / "one")
    selection.key()
    (selection.path / left).mkdir()
    (selection.private / "selection_key").unlink()
    with pytest.raises(ConfigError, match="draw again"):
        selection.key()
    assert (selection.path / left).is_dir()


@pytest.mark.parametrize("left", ["private/trials", "chosen"])
def test_a_lost_description_is_not_replaced_by_another(tmp_path, candidates, left):
    selection = Selection(tmp_path / "one")
    selection.key()  # a kill before the description leaves the key alone
    selection.describe(candidates, Trials(4.0), "BLEU", lowest=False)
    (selection.path / left).mkdir()
    selection.description.unlink()
    with pytest.raises(ConfigError, match="is gone, and with it what was drawn from"):
        selection.describe(candidates, Trials(9.0), "BLEU", lowest=False)
    assert not selection.description.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["clip=none,bk"], "expected private runs"),
        (["sampling=shuffle"], "expected private runs"),
        (["name=mine"], "--name"),
        (["privacy.noise_seed=1"], "the same noise"),
        *((["track=" + service], "which others may read") for service in SERVICES),
        (["task.limit_train=24,48"], "task.limit_train: 24 -> 48"),
        (["task.sample_seed=0,1"], "the price rests on how many there are"),
        (["audit.gradients=0,8"], "audit.gradients: 0 -> 8"),
        (["decode.split=dev,test"], "decode.split: .dev. -> .test."),
    ],
)
def test_what_cannot_be_selected_is_refused(tmp_path, words, message):
    with pytest.raises(ConfigError, match=message):
        select.main(
            [*SMALL, f"runs_dir={tmp_path}", *words], metric="accuracy", mean=2.0, shape=1.0
        )
    assert not (tmp_path / "selections").exists()


def test_a_selection_lies_below_its_folder(tmp_path):
    with pytest.raises(ConfigError, match="--name is"):
        select.main(
            [*SMALL, f"runs_dir={tmp_path / 'a/b'}"],
            **{"metric": "accuracy", "mean": 2.0, "shape": 1.0, "name": "../../x"},
        )
    assert not list(tmp_path.iterdir())


def test_impossible_distributions_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="--trials"):
        select.main([*SMALL, f"runs_dir={tmp_path}"], metric="accuracy", mean=0.2, shape=1.0)


def test_candidates_and_trials_find_configs_of_ones_own(tmp_path, monkeypatch):
    own = tmp_path / "mine" / "experiment"
    own.mkdir(parents=True)
    (own / "own.yaml").write_text("# @package _global_\noptim:\n  lr: 0.25\n")
    trials = []

    def stand_in(arguments, *, file, **others):
        trials.extend(make_plan(parse_arguments(arguments), read_list(file)).runs)
        raise typer.Exit(1)

    monkeypatch.setattr(Trials, "draw", lambda self, key: 2)
    monkeypatch.setattr(sweep, "run_sweep", stand_in)
    words = [*SMALL, "+experiment=own", f"runs_dir={tmp_path}", "--config-dir", str(own.parent)]
    with pytest.raises(typer.Exit):
        select.main(words, metric="accuracy", mean=2.0, shape=1.0, name="one")
    described = json.loads((tmp_path / "selections/one/selection.json").read_text())

    assert described["hashes"] == [
        config_hash(parse(compose([*SMALL, "optim.lr=0.25"])).identity())
    ]
    assert [run.optim.lr for run in trials] == [0.25, 0.25]


@pytest.fixture
def by_hand(tmp_path, monkeypatch):
    """``dpft select`` of two candidates whose trials are written instead of run."""
    swept = []

    def run(scores, sizes=(48, 48), repeated=0, **others):
        def stand_in(arguments, *, file, **options):
            swept.append(options)
            os.utime(file.parents[1] / "selection.json", (1, 1))
            plan = make_plan(parse_arguments(arguments), read_list(file))
            for point, score, size in zip(plan.points, scores, sizes, strict=True):
                point.path.mkdir(parents=True)
                if score == "diverged":
                    again = {"step": 0, "compute": {"threads": 2}}
                    header = {"mechanism": {"dataset_size": size}}
                    lines = chained_lines(header, [{"step": 0}, again] if repeated else [])
                    (point.path / "ledger.jsonl").write_bytes(lines)
                    continue
                metrics = {"accuracy": score}
                trial = record(
                    settings=settings_of(task={"name": "e2e", "test_share": 0.1}),
                    mechanism=mechanism(dataset_size=size, delta=1 / (2 * size), repeated=repeated),
                    scores={"test": {"metrics": metrics, "examples": 3, "signature": "x"}},
                )
                (point.path / "record.json").write_text(json.dumps(trial))
                (point.path / "config.yaml").write_text("runs_dir: there\nname: null\nseed: 5\n")
                (point.path / "model").mkdir()
                (point.path / "model/weights").write_text(f"{score}")

        monkeypatch.setattr(Trials, "draw", lambda self, key: len(scores))
        monkeypatch.setattr(sweep, "run_sweep", stand_in)
        words = [*SMALL, "optim.batch_size=6,12", f"runs_dir={tmp_path}"]
        options = {"metric": "accuracy", "mean": 2.0, "shape": 1.0, "name": "one"} | others
        select.main(words, **options)
        return json.loads((tmp_path / "selections/one/chosen/record.json").read_text())

    run.swept = swept
    return run


def test_the_chosen_record_says_how_it_was_chosen_and_what_is_not_covered(by_hand, tmp_path):
    chosen = by_hand([0.25, 0.75])
    folder = tmp_path / "selections/one"
    assert (folder / "chosen/model/weights").read_text() == "0.75"
    described = chosen["selection"]
    assert (described["candidates"], described["mean"], described["shape"]) == (2, 2.0, 1.0)
    assert [spent["steps"] for spent in described["mechanisms"]] == [2, 2]
    assert composed([chosen])[0] == pytest.approx(chosen["privacy"]["epsilon"]["rdp"], rel=1e-12)
    chosen_by, deciding = chosen["privacy"]["caveats"][-2:]
    assert "chosen by accuracy among 2 candidates" in chosen_by
    assert "scores of the test split decided" in deciding
    assert "held out of the private data" in deciding
    card = (folder / "chosen/model/README.md").read_text()
    assert deciding in card
    assert "Epsilon above includes the choice" in card
    assert "Epsilon above is this run's alone" not in card


def test_a_trial_that_diverged_is_the_worst_and_the_price_is_the_same(by_hand, tmp_path):
    chosen = by_hand(["diverged", 0.0])
    folder = tmp_path / "selections/one"
    assert (folder / "chosen/model/weights").read_text() == "0.0"
    assert composed([chosen])[0] == pytest.approx(chosen["privacy"]["epsilon"]["rdp"], rel=1e-12)
    with pytest.raises(ConfigError, match="no trial has a finite accuracy; nothing is released"):
        by_hand(["diverged", "diverged"], name="two")


@pytest.mark.parametrize("scores", [[0.25, 0.75], ["diverged", 0.5]], ids=["best", "diverged"])
def test_a_trial_that_released_steps_twice_spent_more_than_the_price_says(by_hand, scores):
    with pytest.raises(ConfigError, match="repeated steps"):
        by_hand(scores, repeated=1)


def test_the_release_tells_neither_memory_nor_times_of_the_trials(by_hand, tmp_path):
    folder = tmp_path / "selections/one"
    assert by_hand([0.25, 0.75])["training"]["peak_memory_bytes"] is None
    assert by_hand.swept == [{"name": "trials", "secret": True}]
    text = (folder / "chosen/config.yaml").read_text()
    assert yaml.safe_load(text) == {"runs_dir": str(folder), "name": "chosen", "seed": 5}
    for secret in (folder / "private", *(folder / "private").glob("*.txt")):
        assert secret.stat().st_mode & 0o077 == 0
    assert (folder / "selection.json").stat().st_mtime > 1


def test_times_are_not_copied(tmp_path):
    (tmp_path / "trial/deep").mkdir(parents=True)
    (tmp_path / "trial/deep/weights").write_text("1")
    for path in (tmp_path / "trial", *(tmp_path / "trial").rglob("*")):
        os.utime(path, (1, 1))
    _copy(tmp_path / "trial", tmp_path / "chosen")
    assert (tmp_path / "chosen/deep/weights").read_text() == "1"
    copies = [tmp_path / "chosen", *(tmp_path / "chosen").rglob("*")]
    assert len(copies) == 3
    assert all(path.stat().st_mtime > 1 for path in copies)


def test_a_release_is_on_disk_and_tells_no_times_before_it_has_its_name(
    by_hand, tmp_path, monkeypatch
):
    synced, sync, rename = set(), os.fsync, Path.rename

    def noted(descriptor):
        synced.add(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        sync(descriptor)

    def killed(fresh, chosen):
        assert {str(path) for path in (fresh, *fresh.rglob("*"))} <= synced
        rename(fresh, chosen)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(Path, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        by_hand([0.25, 0.75])
    folder = tmp_path / "selections/one"
    assert json.loads((folder / "chosen/record.json").read_text())["selection"]
    assert (folder / "selection.json").stat().st_mtime > 1


def test_a_second_process_is_refused_until_the_release(by_hand, monkeypatch):
    """Both would write the copy that is to be released."""
    begin = Selection.describe

    def begun(selection, *arguments):
        monkeypatch.setattr(Selection, "describe", begin)
        with pytest.raises(RunLockedError, match="in use by process"):
            by_hand([0.25, 0.75])
        begin(selection, *arguments)

    monkeypatch.setattr(Selection, "describe", begun)
    assert by_hand([0.25, 0.75])["selection"]


def test_a_selection_is_released_once(by_hand, tmp_path, capsys):
    first = by_hand([0.25, 0.75])
    kept = tmp_path / "selections/one/chosen/synthetic"
    kept.mkdir()
    capsys.readouterr()
    assert by_hand([0.9, 0.1]) == first
    assert len(by_hand.swept) == 1
    assert kept.is_dir()
    assert first["privacy"]["statement"] in " ".join(capsys.readouterr().out.split())
    shutil.rmtree(tmp_path / "selections/one/private")
    with pytest.raises(ConfigError, match="whose price adds"):
        by_hand([0.9, 0.1])
    assert len(by_hand.swept) == 1
    assert kept.is_dir()


@pytest.fixture
def finished_by_hand(by_hand, monkeypatch):
    """The same, with a best trial that knows what its files were."""
    best = select._best

    def marked_best(*arguments):
        path, record, size = best(*arguments)
        (path / "DONE").write_text(marked(path, "a hash").spelled())
        return path, record, size

    monkeypatch.setattr(select, "_best", marked_best)
    return by_hand


def test_a_damaged_trial_is_not_released(finished_by_hand, tmp_path, monkeypatch):
    """Its copy would have a marker of its own, of what it was copied as."""
    best = select._best

    def damaged(*arguments):
        path, record, size = best(*arguments)
        (path / "model/weights").write_text("0.76")
        return path, record, size

    monkeypatch.setattr(select, "_best", damaged)
    with pytest.raises(RunError, match="best model/weights is not what it was"):
        finished_by_hand([0.25, 0.75])
    assert not (tmp_path / "selections/one/chosen").exists()
    assert not [*tmp_path.rglob("DONE")]  # the same command makes it again


def test_a_price_with_another_digit_is_not_repeated(finished_by_hand, tmp_path):
    chosen = finished_by_hand([0.25, 0.75])
    assert finished_by_hand([0.25, 0.75]) == chosen
    file = tmp_path / "selections/one/chosen/record.json"
    epsilon = f"{chosen['privacy']['stated']}"
    file.write_text(file.read_text().replace(epsilon, f"{9 - int(epsilon[0])}{epsilon[1:]}"))
    with pytest.raises(ConfigError, match=r"record\.json is not what it was"):
        finished_by_hand([0.25, 0.75])


def test_trials_on_other_records_are_not_released(by_hand, tmp_path):
    with pytest.raises(ConfigError, match="trained on 24 and 48 records"):
        by_hand([0.25, 0.75], sizes=(48, 24))
    assert not (tmp_path / "selections/one/chosen").exists()


def test_a_trial_that_diverged_on_other_records_is_no_trial_of_this_selection(by_hand, tmp_path):
    """Its ledger tells how many records it had; the price is for one number of them."""
    with pytest.raises(ConfigError, match="trained on 24 and 48 records"):
        by_hand(["diverged", 0.5], sizes=(24, 48))
    assert not (tmp_path / "selections/one/chosen").exists()


def test_the_best_is_the_lowest_where_that_was_asked_for(tmp_path):
    paths = [tmp_path / name for name in ("one", "two", "three")]
    for path, value in zip(paths, (7.5, 3.25, 9.0), strict=True):
        path.mkdir()
        scores = {"test": {"metrics": {"perplexity": value}, "examples": 3, "signature": "x"}}
        (path / "record.json").write_text(json.dumps(record(scores=scores)))
    for lowest, best in ((True, paths[1]), (False, paths[2])):
        assert select._best(Selection(tmp_path), paths, "perplexity", lowest)[0] == best


def test_what_trials_write_below_their_folder_is_their_owners(tmp_path, monkeypatch):
    """Also what Hydra and its jobs write there, whoever opens the folder later."""

    def stand_in(arguments, *, file, **others):
        (file.parent / "log.txt").write_text("")
        raise typer.Exit(1)

    monkeypatch.setattr(Trials, "draw", lambda self, key: 1)
    monkeypatch.setattr(sweep, "run_sweep", stand_in)
    words = [*SMALL, f"runs_dir={tmp_path}"]
    with pytest.raises(typer.Exit):
        select.main(words, metric="accuracy", mean=2.0, shape=1.0, name="one")
    assert (tmp_path / "selections/one/private/log.txt").stat().st_mode & 0o077 == 0


def test_canaries_of_an_audited_selection_are_nobodys():
    """What is said of delta is said of the real records, of which there are fewer than slots."""
    settings = settings_of(audit={"gradients": 950})
    spent = Mechanism(1900, 20, 10, 1.0, (1.0,), 1 / 1500)
    trial = record(settings=settings, mechanism=mechanism(dataset_size=1900, delta=1 / 1500))
    caveats = _priced(trial, "BLEU", False, Trials(2.0), [spent])["privacy"]["caveats"]
    assert any("delta is 0.000667 for 950 records" in caveat for caveat in caveats)


def test_no_trial_at_all_is_an_outcome_that_was_paid_for(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Trials, "draw", lambda self, key: 0)
    words = [*SMALL, f"runs_dir={tmp_path}"]
    select.main(words, metric="accuracy", mean=2.0, shape=math.inf, name="one")
    assert "another --name are a second selection, whose price adds" in capsys.readouterr().out
    shutil.rmtree(tmp_path / "selections/one/private")
    with pytest.raises(ConfigError, match="draw again"):
        select.main(words, metric="accuracy", mean=2.0, shape=math.inf, name="one")


def test_the_best_trial_is_released_with_the_price_of_all(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Trials, "draw", lambda self, key: 2)
    words = [*SMALL, "optim.lr=1e-3,1e-4", f"runs_dir={tmp_path}"]
    try:
        select.main(words, metric="accuracy", mean=2.0, shape=1.0, name="one")
    except typer.Exit:
        pytest.fail((tmp_path / "selections/one/private/trials/sweeps/trials/log.txt").read_text())
    said = capsys.readouterr()
    assert "done" not in said.out + said.err  # how many there were
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

    # It can be used as any run, under its own price.
    assert score_run(folder / "chosen")["dev"]["metrics"]["accuracy"] == best
    again = json.loads((folder / "chosen/record.json").read_text())
    assert again["selection"] == chosen["selection"]
    assert again["privacy"] == chosen["privacy"]
    assert chosen["privacy"]["statement"] in (folder / "chosen/model/README.md").read_text()
    assert loaded_run(folder / "chosen").run.name == "chosen"
    assert [target.path for target in find([tmp_path]).targets] == [folder / "chosen"]


@pytest.mark.parametrize(
    ("metric", "lowest", "advice"),
    [
        ("perplexity", False, "type --lowest"),
        ("accuracy", True, "leave --lowest out"),
        ("acuracy", False, "no score 'acuracy'; did you mean 'accuracy'"),
    ],
)
def test_an_oversight_in_the_metric_is_told_before_a_trial(by_hand, metric, lowest, advice):
    with pytest.raises(ConfigError, match=advice):
        by_hand([0.25, 0.75], metric=metric, lowest=lowest)
    assert not by_hand.swept
