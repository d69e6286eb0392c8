"""Evaluation while a run trains changes nothing, and is never of training records."""

import json
import math

import pytest
import torch
import torch.nn.functional as F

from dpft import runs
from dpft.config.compose import compose
from dpft.config.errors import ConfigError, SplitError
from dpft.config.schema import parse
from dpft.runs.folders import run_path
from dpft.tasks import load_task
from dpft.training.held_out import Evaluations, held_out_records
from tests.small_runs import Killed, ready, settings, trained
from tests.training.test_loop import weights

SEEDED = ("privacy.noise_seed=1", "model.dropout=0.2", "task.limit_eval=40")
STEPS = 4


def same_weights(*runs):
    """Whether all steps of these runs end at the same bits."""
    one, two = (weights(trained(run).parts.loaded.model) for run in runs)
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def same_ledgers(*runs):
    one, two = ((run_path(run) / "ledger.jsonl").read_bytes() for run in runs)
    return one == two


@pytest.mark.parametrize("clip", ["bk", "none"])
def test_weights_and_ledger_are_the_same_bits_with_and_without_it(tmp_path, clip):
    plain, watched = (
        settings(tmp_path, *SEEDED, f"clip={clip}", f"name={name}", *words)
        for name, words in (("plain", ()), ("watched", ("evaluate.every=1",)))
    )
    assert plain.identity() == watched.identity()
    assert same_weights(plain, watched)
    assert clip == "none" or same_ledgers(plain, watched)


def test_figures_are_means_over_single_records(tmp_path):
    run = settings(tmp_path, *SEEDED, "evaluate.every=1", "evaluate.max_records=9")
    with ready(run) as (prepared, _, _):
        model, objective = prepared.parts.loaded.model, prepared.objective
        held_out = Evaluations(prepared, start=0)
        with held_out, prepared.parts.clipper.paused():
            found = held_out.figures(model)
        assert model.training
        losses, right = [], []
        model.eval()
        whole = prepared.task.records("dev")[:40]
        assert [record in whole for record in prepared.held_out] == [True] * 9
        for record in prepared.held_out:  # one at a time
            batch = objective.collate([objective.encode(record)]).tensors
            labels = batch.pop("labels")
            with torch.no_grad():
                logits = model(**batch).logits.double()
            losses.append(float(F.cross_entropy(logits, labels)))
            right.append(int(logits.argmax(1)) == record.label)
    assert found["loss"] == pytest.approx(sum(losses) / 9, rel=1e-6)
    assert found["accuracy"] == sum(right) / 9
    assert len(set(losses)) == 9


def test_each_evaluation_is_logged_once_however_often_the_run_is_stopped(tmp_path, monkeypatch):
    words = (*SEEDED, "evaluate.every=1", f"optim.steps={STEPS}", "checkpoint_every=1")
    whole, stopped = (settings(tmp_path, *words, f"name={name}") for name in ("whole", "stopped"))
    figures = Evaluations.figures
    not_finite = {"more": math.nan}
    monkeypatch.setattr(Evaluations, "figures", lambda *given: figures(*given) | not_finite)
    for place, name, at in (
        (runs.checkpoint, "save", 1),
        *((Evaluations, "ask", step) for step in (2, STEPS)),
    ):
        own = getattr(place, name)

        def dying(first, step, *rest, own=own, at=at):
            if step == at:
                raise Killed
            return own(first, step, *rest)

        with monkeypatch.context() as patch:
            patch.setattr(place, name, dying)
            with pytest.raises(Killed):
                trained(stopped)
    assert same_weights(whole, stopped)
    log = (run_path(stopped) / "private/evaluations.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in log]
    assert [entry["step"] for entry in entries] == [*range(STEPS + 1)]
    assert {entry["more"] for entry in entries} == {"nan"}
    assert same_ledgers(whole, stopped)


def test_records_that_cannot_be_evaluated_on_are_refused(tmp_path):
    file, other = (tmp_path / name for name in ("mine.jsonl", "theirs.jsonl"))
    for path, target in ((file, "b"), (other, "c")):
        path.write_text(f'{{"source": "a", "target": "{target}"}}\n' * 5)
    words = ["task=text2text", f"task.train_file={file}", "evaluate.every=1"]

    def records(*more):
        run = parse(compose([*words, *more]))
        return held_out_records(run.evaluate, load_task(run.task))

    assert len(records(f"task.dev_file={other}", "evaluate.max_records=3")) == 3
    assert len(records(f"task.dev_file={other}", "task.limit_eval=2")) == 2
    copy = tmp_path / "copy.jsonl"
    copy.write_bytes(file.read_bytes())
    saved = tmp_path / "saved.csv"  # the same records in another form
    saved.write_text("\ufeffsource,target\r\na,b\r\na,b\r\na,c\r\n", encoding="utf-8")
    for again in (saved, copy):
        with pytest.raises(ConfigError, match=r"most records of .* are trained on, word for word"):
            records(f"task.dev_file={again}")
    saved.write_text("source,target\na,b\na,c\n")  # no more than half of them
    assert len(records(f"task.dev_file={saved}")) == 2
    for made in (other, copy):
        with pytest.raises(ConfigError, match=r"are trained on"):
            records(f"task.synthetic={made}", f"task.dev_file={made}")
    file.write_text("".join(f'{{"source": "a", "target": "{target}"}}\n' for target in "cb"))
    with pytest.raises(ConfigError, match="word for word"):  # the real ones that it stands for
        records(f"task.synthetic={other}", f"task.dev_file={saved}")
    file.unlink()  # they are no longer there
    assert len(records(f"task.synthetic={other}", f"task.dev_file={saved}")) == 2
    with pytest.raises(SplitError):
        records()
