"""Private selection: the draw is fixed, secret and fair; only the best is released."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import yaml

from dpft.cli import sweep
from dpft.config.compose import compose
from dpft.config.errors import ConfigError
from dpft.config.schema import parse
from dpft.report.cost import composed
from dpft.runs import RunError, config_hash
from dpft.runs.folders import marked
from dpft.runs.ledger import chained_lines
from dpft.sweep.points import ParsedOverrides, make_plan
from dpft.sweep.selection import Selection, Trials, best, draw
from dpft.sweep.state import find
from dpft.training.trained import loaded_run
from tests.report.pages.example import config as settings_of
from tests.report.pages.example import mechanism, record

SMALL = [
    *("task=sst2", "model=random-bert", "task.source=sample", "task.limit_train=48"),
    *("task.limit_eval=8", "optim.batch_size=12", "optim.steps=2", "eps=2", "threads=1"),
]
RULE = {"metric": "accuracy", "mean": 2.0}


@pytest.fixture(scope="module")
def points():
    plan = make_plan(ParsedOverrides(("optim.lr=1e-3,2e-3", "seed=3", "++runs_dir=elsewhere")))
    return plan.points


def test_the_draw_is_made_once_from_a_secret_key(tmp_path, points):
    selection, trials = Selection(tmp_path / "one"), Trials(4.0)
    selection.describe(points, trials, "BLEU")
    selection.describe(points, trials, "BLEU")
    first = draw(selection.key(), points, trials)
    assert draw(Selection(tmp_path / "one").key(), points, trials) == first
    assert (selection.private / "selection_key").stat().st_mode & 0o077 == 0
    assert selection.private.stat().st_mode & 0o077 == 0
    assert Selection(tmp_path / "two").key() != selection.key()
    with pytest.raises(ConfigError, match="must not change"):
        selection.describe(points, Trials(9.0), "BLEU")
    (selection.private / "selection_key").unlink()
    with pytest.raises(ConfigError, match="draw again"):
        selection.key()


def test_each_trial_draws_a_candidate_and_a_seed_of_its_own(points):
    lines = [line for n in range(60) for line in draw(bytes([n]) * 32, points, Trials(5.0))]
    rates = [next(word for word in line if "lr=" in word) for line in lines]
    seeds = [word for line in lines for word in line if word.startswith("seed=")]
    assert 0.35 < rates.count(rates[0]) / len(rates) < 0.65
    assert len(seeds) == len(lines) == len(set(seeds))
    assert "seed=3" not in seeds
    assert not any("runs_dir" in word for line in lines for word in line)


@pytest.mark.parametrize("left", ["private/trials", "chosen"])
def test_what_is_lost_of_a_selection_is_not_made_anew(tmp_path, points, left):
    selection = Selection(tmp_path / "one")
    selection.key()  # a kill before the description leaves the key alone
    selection.describe(points, Trials(4.0), "BLEU")
    (selection.path / left).mkdir()
    selection.description.unlink()
    with pytest.raises(ConfigError, match="is gone, and with it what was drawn from"):
        selection.describe(points, Trials(9.0), "BLEU")
    assert not selection.description.exists()
    (selection.private / "selection_key").unlink()
    with pytest.raises(ConfigError, match="draw again"):
        selection.key()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["clip=none,bk"], "expected private runs"),
        (["sampling=shuffle"], "expected private runs"),
        (["name=mine"], "--name"),
        (["privacy.noise_seed=1"], "the same noise"),
        (["track=wandb"], "others may read"),
        (["task.limit_train=24,48"], "task.limit_train: 24 -> 48"),
        (["audit.gradients=0,8"], "audit.gradients: 0 -> 8"),
        (["decode.split=dev,test"], "decode.split: .dev. -> .test."),
    ],
)
def test_what_cannot_be_selected_is_refused(tmp_path, words, message):
    with pytest.raises(ConfigError, match=message):
        sweep.choose([*SMALL, f"runs_dir={tmp_path}", *words], **RULE)
    assert not (tmp_path / "selections").exists()


def write_record(path, metrics, **sections):
    scores = {"test": {"metrics": metrics, "examples": 3, "signature": "x"}}
    (path / "record.json").write_text(json.dumps(record(scores=scores, **sections)))


@pytest.fixture
def by_hand(tmp_path, monkeypatch):
    """``dpft sweep --select`` of two candidates whose trials are written instead of run."""
    swept = []

    def run(scores, sizes=(48, 48), repeated=0, **others):
        def stand_in(parsed, lines, folder):
            swept.append(folder.path)
            folder.log.write_text("")
            os.utime(folder.path.parents[3] / "selection.json", (1, 1))
            for point, score, size in zip(folder.points(), scores, sizes, strict=True):
                point.path.mkdir(parents=True)
                if score == "diverged":
                    again = {"step": 0, "compute": {"threads": 2}}
                    header = {"mechanism": {"dataset_size": size}}
                    lines = chained_lines(header, [{"step": 0}, again] if repeated else [])
                    (point.path / "ledger.jsonl").write_bytes(lines)
                    continue
                stated = mechanism(dataset_size=size, delta=1 / (2 * size), repeated=repeated)
                own = settings_of(task={"name": "e2e", "test_share": 0.1})
                write_record(point.path, {"accuracy": score}, settings=own, mechanism=stated)
                (point.path / "config.yaml").write_text("runs_dir: there\nname: null\nseed: 5\n")
                (point.path / "model").mkdir()
                (point.path / "model/weights").write_text(f"{score}")
                (point.path / "DONE").write_text(marked(point.path, point.digest))
            return 0

        monkeypatch.setattr(Trials, "draw", lambda self, key: len(scores))
        monkeypatch.setattr(sweep, "run_points", stand_in)
        monkeypatch.setattr(sweep.States, "rows", lambda self: [])
        words = [*SMALL, "optim.batch_size=6,12", f"runs_dir={tmp_path}"]
        sweep.choose(words, **{**RULE, "name": "one", **others})
        return json.loads((tmp_path / "selections/one/chosen/record.json").read_text())

    run.swept = swept
    return run


def test_the_release_says_how_it_was_chosen_and_no_more_of_the_trials(by_hand, tmp_path):
    chosen = by_hand([0.25, 0.75])
    folder = tmp_path / "selections/one"
    assert (folder / "chosen/model/weights").read_text() == "0.75"
    assert (chosen["selection"]["candidates"], chosen["selection"]["mean"]) == (2, 2.0)
    assert composed([chosen])[0] == pytest.approx(chosen["privacy"]["epsilon"]["rdp"], rel=1e-12)
    chosen_by, deciding = chosen["privacy"]["caveats"][-2:]
    assert "chosen by accuracy among 2 candidates" in chosen_by
    assert "scores of the test split decided" in deciding
    assert "held out of the private data" in deciding
    card = (folder / "chosen/model/README.md").read_text()
    assert deciding in card
    assert "Epsilon above includes the choice" in card
    # Memory and times would tell how many trials there were.
    assert chosen["training"]["peak_memory_bytes"] is None
    text = (folder / "chosen/config.yaml").read_text()
    assert yaml.safe_load(text) == {"runs_dir": str(folder), "name": "chosen", "seed": 5}
    for secret in (folder / "private", *(folder / "private").rglob("sweeps/trials/*")):
        assert secret.stat().st_mode & 0o077 == 0
    for public in (folder / "selection.json", *(folder / "chosen").rglob("*")):
        assert public.stat().st_mtime > 1


def test_a_trial_that_diverged_is_the_worst(by_hand, tmp_path):
    by_hand(["diverged", 0.0])
    assert (tmp_path / "selections/one/chosen/model/weights").read_text() == "0.0"
    with pytest.raises(ConfigError, match="no trial has a finite accuracy; nothing is released"):
        by_hand(["diverged", "diverged"], name="two")


@pytest.mark.parametrize("scores", [[0.25, 0.75], ["diverged", 0.5]])
@pytest.mark.parametrize(
    ("more", "said"),
    [({"repeated": 1}, "repeated steps"), ({"sizes": (24, 48)}, "trained on 24 and 48 records")],
)
def test_trials_that_the_price_does_not_cover_are_not_released(
    by_hand, tmp_path, scores, more, said
):
    with pytest.raises(ConfigError, match=said):
        by_hand(scores, **more)
    assert not (tmp_path / "selections/one/chosen").exists()


def test_a_release_is_on_disk_before_it_has_its_name(by_hand, tmp_path, monkeypatch):
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
    assert json.loads((tmp_path / "selections/one/chosen/record.json").read_text())["selection"]
    assert (tmp_path / "selections/one/selection.json").stat().st_mtime > 1


def test_a_selection_is_released_once(by_hand, tmp_path, capsys):
    first = by_hand([0.25, 0.75])
    capsys.readouterr()
    assert by_hand([0.9, 0.1]) == first
    assert first["privacy"]["statement"] in " ".join(capsys.readouterr().out.split())
    file = tmp_path / "selections/one/chosen/record.json"
    whole, epsilon = file.read_text(), f"{first['privacy']['stated']}"
    file.write_text(whole.replace(epsilon, f"{9 - int(epsilon[0])}{epsilon[1:]}"))
    with pytest.raises(ConfigError, match=r"record\.json is not what it was"):
        by_hand([0.9, 0.1])
    file.write_text(whole)
    shutil.rmtree(tmp_path / "selections/one/private")
    with pytest.raises(ConfigError, match="whose price adds"):
        by_hand([0.9, 0.1])
    assert len(by_hand.swept) == 1


def test_a_damaged_trial_is_not_released(by_hand, tmp_path, monkeypatch):
    """Its copy would have a marker of its own, of what it was copied as."""

    def damaged(*arguments):
        found = best(*arguments)
        (found[0] / "model/weights").write_text("0.76")
        return found

    monkeypatch.setattr("dpft.sweep.selection.best", damaged)
    with pytest.raises(RunError, match="best model/weights is not what it was"):
        by_hand([0.25, 0.75])
    assert not (tmp_path / "selections/one/chosen").exists()


def test_the_best_may_be_the_lowest(tmp_path):
    paths = [tmp_path / name for name in ("one", "two", "three")]
    for path, value in zip(paths, (7.5, 3.25, 9.0), strict=True):
        path.mkdir()
        write_record(path, {"perplexity": value})
    assert best(paths, "perplexity", True)[0] == paths[1]
    assert best(paths, "perplexity", False)[0] == paths[2]


def test_the_best_trial_is_released_with_the_price_of_all(tmp_path, monkeypatch, capsys):
    own = tmp_path / "mine" / "experiment"
    own.mkdir(parents=True)
    (own / "own.yaml").write_text("# @package _global_\noptim:\n  weight_decay: 0.25\n")
    monkeypatch.setattr(Trials, "draw", lambda self, key: 2)
    words = [*SMALL, "+experiment=own", "optim.lr=1e-3,1e-4", f"runs_dir={tmp_path}"]
    folder = tmp_path / "selections/one"
    sweep.choose([*words, "--config-dir", str(own.parent)], **RULE, name="one")
    said = capsys.readouterr()
    assert "done" not in said.out + said.err  # how many there were
    chosen = json.loads((folder / "chosen/record.json").read_text())
    trials = [json.loads(file.read_text()) for file in (folder / "private").rglob("record.json")]
    scores = [trial["scores"]["dev"]["metrics"]["accuracy"] for trial in trials]
    described = json.loads((folder / "selection.json").read_text())
    typed = [*SMALL, "optim.weight_decay=0.25", "optim.lr=1e-3"]
    assert described["hashes"][0] == config_hash(parse(compose(typed)).identity())
    assert len(trials) == 2
    assert len(list(tmp_path.rglob("record.json"))) == 3  # none lies outside private/
    assert chosen["scores"]["dev"]["metrics"]["accuracy"] == max(scores)
    assert chosen["privacy"]["epsilon"]["rdp"] > trials[0]["privacy"]["epsilon"]["rdp"]
    assert chosen["privacy"]["epsilon"]["prv"] is None
    assert chosen["privacy"]["statement"] in (folder / "chosen/model/README.md").read_text()
    assert "ledger.jsonl" not in {path.name for path in (folder / "chosen").rglob("*")}
    # It can be used as any run, and its trials are not found.
    assert loaded_run(folder / "chosen").run.name == "chosen"
    assert [target.path for target in find([tmp_path]).targets] == [folder / "chosen"]
