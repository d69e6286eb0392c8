"""Evaluation while a run trains: it changes nothing, and what is kept is what was the best."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from dpft import runs
from dpft.config.compose import compose
from dpft.config.errors import ConfigError, DataError, SplitError
from dpft.config.schema import parse
from dpft.parallel.cohort import SingleProcess
from dpft.runs.folders import run_path
from dpft.tasks import load_task
from dpft.training.held_out import Evaluations, HeldOut, check_scored, held_out_records
from dpft.training.session import Session
from tests.small_runs import ready, settings

SEEDED = ("privacy.noise_seed=1", "model.dropout=0.2", "task.limit_eval=40")
STEPS = 4
SCRIPT = {0: 0.9, 1: 0.3, 2: math.nan, 3: 0.3, 4: 0.6}  # the best: step 1


def weights_of(run):
    """Those that would be saved, all steps taken."""
    with ready(run) as (prepared, directory, progress):
        with Session(run, prepared, directory, progress) as session:
            session.train()
            model = session.whole_model().model
        return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("clip", ["bk", "none"])
def test_weights_and_ledger_are_the_same_bits_with_and_without_it(tmp_path, clip):
    plain, watched = (
        settings(tmp_path, *SEEDED, f"clip={clip}", f"name={name}", *words)
        for name, words in (("plain", ()), ("watched", ("evaluate.every=1",)))
    )
    assert plain.identity() == watched.identity()
    assert same(weights_of(plain), weights_of(watched))
    if clip == "bk":
        ledgers = [(run_path(run) / "ledger.jsonl").read_bytes() for run in (plain, watched)]
        assert ledgers[0] == ledgers[1]


def test_figures_are_means_over_single_records(tmp_path):
    run = settings(tmp_path, *SEEDED, "evaluate.every=1", "task.limit_eval=9")
    with ready(run) as (prepared, _, _):
        held, model = prepared.held_out, prepared.parts.loaded.model
        with prepared.parts.clipper.paused():
            found = held.figures(model, SingleProcess())
        assert model.training
        losses, right = [], []
        model.eval()
        assert held.records == prepared.task.records("dev")[:9]
        for record in held.records:  # one at a time
            batch = held.objective.collate([held.objective.encode(record)]).tensors
            labels = batch.pop("labels")
            with torch.no_grad():
                logits = model(**batch).logits.double()
            losses.append(float(F.cross_entropy(logits, labels)))
            right.append(int(logits.argmax(1)) == record.label)
    assert found["loss"] == pytest.approx(sum(losses) / 9, rel=1e-6)
    assert found["accuracy"] == sum(right) / 9
    assert len(set(losses)) == 9


@pytest.mark.parametrize(
    ("metric", "before", "figures", "chosen"),
    [
        ("loss", 0.1, (0.5, 0.3, 0.3), 2),
        ("accuracy", 0.9, (0.5, 0.7, 0.7), 2),
        ("loss", 0.1, (math.nan, math.inf, 0.5), 3),
        ("accuracy", 0.9, (math.nan, math.nan, math.nan), None),
    ],
)
def test_the_best_is_the_first_of_the_best_figures_behind_a_step(metric, before, figures, chosen):
    """The lowest loss or the highest accuracy, and not what the model had before it was trained."""
    held_out = SimpleNamespace(
        public=True,
        settings=SimpleNamespace(best=metric, where="dev", steps_between=lambda epoch: 1),
        figures=lambda *_: {"loss": 1.0, metric: asked.pop(0)},
    )
    mechanism = SimpleNamespace(steps=3, noise_multiplier=1.0, dataset_size=9, batch_size=3)
    evaluations = Evaluations(
        *(held_out, mechanism, None),
        start=0,
        best=None,
        cohort=SingleProcess(),
        progress=SimpleNamespace(evaluated=lambda *_: None),
        tracked=False,
    )
    asked = [before, *figures]
    for step in range(4):
        evaluations.ask(step, None)
    assert evaluations.best == chosen


class KilledError(Exception):
    """In place of a kill."""


@pytest.fixture
def scripted(monkeypatch):
    """Losses by step, and at each step what else is to happen."""
    happens = {}
    genuine_ask, genuine = Evaluations.ask, HeldOut.figures
    at = []

    def ask(evaluations, step, model):
        at[:] = [step]
        return genuine_ask(evaluations, step, model)

    def figures(held, model, cohort):
        happens.pop(("evaluated", at[0]), lambda: None)()
        return {**genuine(held, model, cohort), "loss": SCRIPT[at[0]]}

    save = runs.checkpoint.save

    def saved(directory, step, *rest):
        happens.pop(("saved", step), lambda: None)()
        save(directory, step, *rest)

    monkeypatch.setattr(Evaluations, "ask", ask)
    monkeypatch.setattr(HeldOut, "figures", figures)
    monkeypatch.setattr(runs.checkpoint, "save", saved)
    return happens


def fail():
    raise KilledError


def test_the_best_weights_are_kept_however_often_the_run_is_stopped(tmp_path, scripted):
    """They are those that a run ends with which takes no more steps, bit for bit."""
    best = ("evaluate.every=1", "evaluate.best=loss", f"optim.steps={STEPS}", "checkpoint_every=1")
    short = weights_of(settings(tmp_path, *SEEDED, "optim.steps=1", "name=short"))
    whole = settings(tmp_path, *SEEDED, *best, "name=whole")
    assert same(weights_of(whole), short)
    folders = sorted(path.name for path in (run_path(whole) / "checkpoints").iterdir())
    assert folders == [f"step-{step:08d}" for step in (1, 3, 4)]
    log = (run_path(whole) / "private/evaluations.jsonl").read_bytes()
    assert [json.loads(line)["step"] for line in log.splitlines()] == list(SCRIPT)
    assert json.loads(log.splitlines()[2])["loss"] == "nan"

    stopped = settings(tmp_path, *SEEDED, *best, "name=stopped")
    moments = [
        ("saved", 1),  # the best is in the log, and not yet on the disk
        ("evaluated", 1),
        ("evaluated", 4),
    ]
    for moment in moments:
        scripted[moment] = fail
        with pytest.raises(KilledError):
            weights_of(stopped)
        assert not scripted
    assert same(weights_of(stopped), short)
    for name in ("private/evaluations.jsonl", "ledger.jsonl"):
        assert (run_path(stopped) / name).read_bytes() == (run_path(whole) / name).read_bytes()

    manifest = run_path(whole) / "checkpoints/step-00000001/manifest.json"
    content = manifest.read_text()
    manifest.unlink()
    with pytest.raises(runs.CheckpointError, match="step-00000001, the best one by evaluation"):
        weights_of(whole)
    manifest.write_text(content)
    (run_path(whole) / "private/evaluations.jsonl").write_bytes(log.splitlines(True)[0])
    with pytest.raises(runs.RunError, match="has no line of step 1, which was the best"):
        weights_of(whole)


def test_records_that_cannot_be_evaluated_on_are_refused(tmp_path):
    file, other = (tmp_path / name for name in ("mine.jsonl", "theirs.jsonl"))
    for path, target in ((file, "b"), (other, "c")):
        path.write_text(f'{{"source": "a", "target": "{target}"}}\n' * 5)
    words = ["task=text2text", f"task.train_file={file}", "evaluate.every=1"]

    def records(*more):
        run = parse(compose([*words, *more]))
        return held_out_records(run.evaluate, load_task(run.task))

    assert len(records(f"evaluate.file={other}")) == 5
    assert len(records(f"task.dev_file={other}", "task.limit_eval=2")) == 2
    (tmp_path / "copy.jsonl").write_bytes(file.read_bytes())
    saved = tmp_path / "saved.csv"  # the same records in another form
    saved.write_text("\ufeffsource,target\r\na,b\r\na,b\r\na,c\r\n", encoding="utf-8")
    for again in (f"evaluate.file={saved}", f"task.dev_file={saved}", f"evaluate.file={file}"):
        with pytest.raises(ConfigError, match=r"most records of .* are trained on, word for word"):
            records(again)
    saved.write_text("source,target\na,b\na,c\n")  # no more than half of them
    assert len(records(f"evaluate.file={saved}")) == 2
    for made in (f"task.synthetic={other}", f"task.synthetic={tmp_path / 'copy.jsonl'}"):
        with pytest.raises(ConfigError, match=r"evaluate\.file=.* are trained on"):
            records(made, f"evaluate.file={made.partition('=')[2]}")
    saved.write_text("source,target\na,b\na,c\n")
    file.write_text("".join(f'{{"source": "a", "target": "{target}"}}\n' for target in "cb"))
    with pytest.raises(ConfigError, match="word for word"):  # the real ones that it stands for
        records(f"task.synthetic={other}", f"evaluate.file={saved}")
    file.unlink()  # they are no longer there
    assert len(records(f"task.synthetic={other}", f"evaluate.file={saved}")) == 2
    with pytest.raises(SplitError, match=r"or type evaluate\.file=FILE"):
        records()
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(DataError, match="has no rows"):
        records(f"evaluate.file={tmp_path / 'empty.jsonl'}")
    published = tmp_path / "trainset.csv"
    published.write_text("mr,ref\nname[A],A is good.\n")
    for name in ("devset", "testset_w_refs"):
        (tmp_path / f"{name}.csv").write_text("mr,ref\nname[B],B is good.\n")
    words = ["task=e2e", f"task.data_dir={tmp_path}", "evaluate.every=1"]
    with pytest.raises(ConfigError, match="word for word"):
        records(f"evaluate.file={published}")
    by_accuracy = parse(compose([*words, "evaluate.best=accuracy"])).evaluate
    with pytest.raises(ConfigError, match="whose answers are no classes"):
        HeldOut(by_accuracy, None, (), False, 1)


def test_slices_of_a_split_of_the_hub_that_is_trained_on_are_not_scored():
    settings = {"hub": "me/texts", "train_split": "train[:80%]", "test_split": "train[60%:]"}
    task = load_task({"name": "text2text", **settings})
    with pytest.raises(ConfigError, match=r"task\.test_split=.*hub's split train, which"):
        check_scored(task, "test", [])
