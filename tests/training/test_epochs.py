"""A run that goes on elsewhere: with leave, under fresh noise, and every release accounted for."""

import shutil
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from dpft import runs
from dpft.config.compose import compose
from dpft.config.schema import parse
from dpft.privacy import keys
from dpft.training.epochs import in_epoch
from dpft.training.run import run_experiment
from tests.small_runs import WORDS, ready, settings

SIX = ("optim.steps=6", "checkpoint_every=2", "privacy.noise_multiplier=1")


class Killed(BaseException):
    """Nothing may catch it."""


@pytest.fixture(autouse=True)
def _threads(monkeypatch):
    """Their number is what the ledger is told; as many would only wait for each other here."""
    told = [1]
    monkeypatch.setattr(torch, "set_num_threads", lambda number: told.append(number))
    monkeypatch.setattr(torch, "get_num_threads", lambda: told[-1])
    monkeypatch.setattr("dpft.training.run._decode_stage", lambda *_: None)


def go(folder, *words):
    return run_experiment(settings(folder, *SIX, *words))


def ledger_of(folder):
    return runs.read_ledger(folder / "small/ledger.jsonl")


@contextmanager
def killed_after(releases, monkeypatch):
    """SIGKILL, as it were, when the ledger has so many lines and the weights have not moved."""
    spend = runs.Ledger.spend

    def dying(self, step, **entry):
        spend(self, step, **entry)
        if self.steps_spent == releases:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(runs.Ledger, "spend", dying)
        with pytest.raises(Killed):
            yield


@pytest.fixture
def stopped(tmp_path, monkeypatch):
    """Five of six steps are released, and the last checkpoint is of the fourth."""
    with killed_after(5, monkeypatch):
        go(tmp_path)
    return tmp_path


def test_without_leave_nothing_is_repeated_elsewhere(stopped):
    before = (stopped / "small/ledger.jsonl").read_bytes()
    with pytest.raises(runs.LedgerMismatchError) as told:
        go(stopped, "threads=2")
    said = str(told.value)
    assert "counts 5 releases, 1 of them behind the checkpoint that the run goes on from" in said
    assert "threads: 1 -> 2" in said
    assert "type replay=charge" in said
    before_eps, after_eps = said.partition("epsilon ")[2].partition(";")[0].split(" becomes ")
    assert float(before_eps) < float(after_eps)
    assert (stopped / "small/ledger.jsonl").read_bytes() == before
    # What was refused has changed nothing: the same command as before goes on.
    go(stopped)
    assert ledger_of(stopped).steps_spent == 6


def test_with_leave_the_repeated_step_counts_twice(stopped, capsys):
    record = go(stopped, "threads=2", "replay=charge").record
    said = " ".join(capsys.readouterr().err.split())
    ledger = ledger_of(stopped)
    assert [(e.get("epoch", 0), e["step"]) for e in ledger.entries] == [
        *((0, step) for step in range(5)),
        *((1, 4), (1, 5)),
    ]
    (epoch,) = ledger.further
    assert (epoch.start, epoch.repeated, epoch.compute["threads"]) == (4, 1, 2)
    assert ledger.header["compute"]["threads"] == 1
    privacy, mechanism = record["privacy"], record["mechanism"]
    assert privacy["steps_taken"] == ledger.steps_spent == 7
    assert (mechanism["steps"], mechanism["repeated"], record["training"]["steps"]) == (6, 1, 6)
    spent = [entry["epsilon_rdp"] for entry in ledger.entries]
    assert spent == sorted(set(spent))
    assert spent[-1] == pytest.approx(privacy["epsilon"]["rdp"], rel=1e-12)
    assert f"repeats 1 released steps: epsilon {_planned():.3f}"[:-1] in said
    assert f"becomes {privacy['stated']:.3f}"[:-2] in said
    assert any("1 of the 7 noisy steps repeat earlier ones" in c for c in privacy["caveats"])
    card = (stopped / "small/model/README.md").read_text()
    assert "1 of the 7 noisy steps" in card


def _planned():
    from dpft.training.mechanisms import make_mechanism

    return make_mechanism(parse(compose([*WORDS, *SIX])), 12).epsilons()["pld"]


def test_epsilon_is_what_another_accountant_makes_of_the_ledgers_lines(stopped):
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.pld import PLDAccountant

    record = go(stopped, "threads=2", "replay=charge").record
    step = PoissonSampledDpEvent(0.5, GaussianDpEvent(1.0))
    accountant = PLDAccountant().compose(step, len(ledger_of(stopped).entries))
    found = accountant.get_epsilon(record["privacy"]["delta"])
    assert record["privacy"]["stated"] == pytest.approx(found, rel=1e-3)


@pytest.mark.parametrize("words", [(), ("clip=per_layer_adaptive",)], ids=["fixed", "adaptive"])
def test_no_key_is_used_for_two_releases(tmp_path, monkeypatch, words):
    """Batches, noise, noisy counts and masks: what one epoch draws from no other one does."""
    derive, drawn = keys.derive, []
    monkeypatch.setattr(
        keys,
        "derive",
        lambda key, *labels: drawn.append((labels, derive(key, *labels))) or drawn[-1][1],
    )
    lives = []
    for replay in ((), ("threads=2", "replay=charge"), ("threads=3", "replay=charge")):
        drawn.clear()
        if len(lives) < 2:
            with killed_after(5 if not lives else 7, monkeypatch):
                go(tmp_path, *words, *replay)
        else:
            go(tmp_path, *words, *replay)
        lives.append({(labels, key) for labels, key in drawn if labels[0] in PURPOSES})
    assert ledger_of(tmp_path).steps_spent == 6 + 3
    labels = [{labels for labels, _ in life} for life in lives]
    assert {label for label, *_ in labels[0]} == PURPOSES - (set() if words else {"quantiles"})
    assert labels[0] & labels[1]
    used = [{key for _, key in life} for life in lives]
    assert not used[0] & used[1]
    assert not used[1] & used[2]
    assert not used[0] & used[2]


PURPOSES = {"noise", "sampling", "dropout", "quantiles"}


def test_the_repeated_step_begins_where_the_checkpoint_was(tmp_path, monkeypatch):
    """With the thresholds of the checkpoint; and it releases something else."""
    words = ("clip=per_layer_adaptive",)
    with killed_after(5, monkeypatch):
        go(tmp_path, *words)
    go(tmp_path, *words, "threads=2", "replay=charge")
    by = {(e.get("epoch", 0), e["step"]): e for e in ledger_of(tmp_path).entries}
    assert by[0, 4]["thresholds"] == by[1, 4]["thresholds"]
    assert by[0, 4]["update"] != by[1, 4]["update"]


def test_killed_again_it_goes_on_bit_for_bit_and_needs_no_further_leave(stopped, monkeypatch):
    other = stopped / "other"
    shutil.copytree(stopped / "small", other / "small")
    go(stopped, "threads=2", "replay=charge")
    for releases in (6, 6, 7):  # at the epoch's first step, in its replay, at the last
        with killed_after(releases, monkeypatch):
            go(other, "threads=2", *(("replay=charge",) if releases == 6 else ()))
    go(other, "threads=2")
    for name in ("ledger.jsonl", "model/model.safetensors"):
        assert (stopped / "small" / name).read_bytes() == (other / "small" / name).read_bytes()


def test_a_kill_behind_the_line_of_the_epoch_costs_no_second_leave(tmp_path, monkeypatch):
    """Nor do logs of the first epoch, which came further, tell of a lost line."""
    with killed_after(4, monkeypatch):
        go(tmp_path)
    begin = runs.Ledger.begin_epoch

    def dying(self, *arguments, **entry):
        begin(self, *arguments, **entry)
        raise Killed

    monkeypatch.setattr(runs.Ledger, "begin_epoch", dying)
    with pytest.raises(Killed):
        go(tmp_path, "threads=2", "replay=charge")
    monkeypatch.setattr(runs.Ledger, "begin_epoch", begin)
    assert ledger_of(tmp_path).steps_spent == 4
    record = go(tmp_path, "threads=2").record
    assert record["privacy"]["steps_taken"] == ledger_of(tmp_path).steps_spent == 6 + 2


def test_leave_is_given_for_one_command_alone(stopped, monkeypatch):
    with killed_after(6, monkeypatch):
        go(stopped, "threads=2", "replay=charge")
    assert "replay: exact" in (stopped / "small/config.yaml").read_text()
    with pytest.raises(runs.LedgerMismatchError, match="threads: 2 -> 3"):
        go(stopped, "threads=3")


def test_where_the_checkpoint_holds_all_steps_nothing_is_charged(tmp_path, monkeypatch, capsys):
    save = runs.checkpoint.save

    def dying(run, step, *rest):
        save(run, step, *rest)
        if step == 4:
            raise Killed

    monkeypatch.setattr(runs.checkpoint, "save", dying)
    with pytest.raises(Killed):
        go(tmp_path)
    monkeypatch.setattr(runs.checkpoint, "save", save)
    record = go(tmp_path, "threads=2").record
    assert "repeats no released step" in " ".join(capsys.readouterr().err.split())
    ledger = ledger_of(tmp_path)
    assert (ledger.steps_spent, ledger.repeated, len(ledger.further)) == (6, 0, 1)
    assert "repeated" not in record["mechanism"]
    assert record["privacy"]["stated"] == pytest.approx(_planned())


def test_a_run_without_a_checkpoint_repeats_all(stopped):
    shutil.rmtree(stopped / "small/checkpoints")
    with pytest.raises(runs.LedgerMismatchError, match="5 of them behind the checkpoint"):
        go(stopped, "threads=2")
    record = go(stopped, "threads=2", "replay=charge").record
    assert record["privacy"]["steps_taken"] == ledger_of(stopped).steps_spent == 11


def test_an_epochs_own_checkpoint_that_is_gone_is_charged_too(stopped, monkeypatch):
    """Nothing changed, but the steps behind an earlier one were computed elsewhere."""
    with killed_after(7, monkeypatch):
        go(stopped, "threads=2", "replay=charge")
    checkpoints = stopped / "small/checkpoints"
    (newest,) = checkpoints.glob("step-*4")
    shutil.rmtree(newest)
    with pytest.raises(runs.LedgerMismatchError, match="checkpoint: 4 -> 2"):
        go(stopped, "threads=2")
    record = go(stopped, "threads=2", "replay=charge").record
    ledger = ledger_of(stopped)
    assert [epoch.repeated for epoch in ledger.further] == [1, 4]
    assert record["privacy"]["steps_taken"] == ledger.steps_spent == 6 + 5


def test_a_damaged_checkpoint_that_comes_back_is_not_taken(stopped, monkeypatch):
    """Behind it lies the first epoch's history, and steps that the new one has not released."""
    newest = stopped / "small/checkpoints/step-00000004"
    aside = stopped / "aside"
    newest.rename(aside)
    newest.mkdir()
    with killed_after(6, monkeypatch):
        go(stopped, "threads=2", "replay=charge")
    assert not newest.exists()
    record = go(stopped, "threads=2").record
    assert record["privacy"]["steps_taken"] == ledger_of(stopped).steps_spent == 6 + 3


def test_a_lost_line_of_an_epoch_is_found(stopped, monkeypatch):
    with killed_after(7, monkeypatch):
        go(stopped, "threads=2", "replay=charge")
    file = stopped / "small/ledger.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-2]))
    with pytest.raises(runs.LedgerMismatchError, match=r"holds 4 steps, but .* tells of 5"):
        go(stopped, "threads=2")


def test_a_finished_run_is_not_touched(tmp_path):
    go(tmp_path)
    before = {p: p.read_bytes() for p in (tmp_path / "small").rglob("*") if p.is_file()}
    assert go(tmp_path, "threads=2", "replay=charge").already_done
    assert {p: p.read_bytes() for p in (tmp_path / "small").rglob("*") if p.is_file()} == before


def test_what_a_finished_run_lost_is_made_again_but_no_step_repeated(tmp_path):
    """From its last checkpoint on any device; from no other."""
    path = go(tmp_path).path
    ledger = (path / "ledger.jsonl").read_bytes()
    weights = (path / "model/model.safetensors").read_bytes()
    (path / "model/model.safetensors").unlink()
    go(tmp_path, "threads=2", "replay=charge")
    assert (path / "model/model.safetensors").read_bytes() == weights
    assert (path / "ledger.jsonl").read_bytes() == ledger
    (path / "model/model.safetensors").unlink()
    shutil.rmtree(path / "checkpoints/step-00000006")
    with pytest.raises(runs.RunError, match="all steps were taken"):
        go(tmp_path, "threads=2", "replay=charge")
    assert (path / "ledger.jsonl").read_bytes() == ledger


def test_an_audited_run_goes_on_where_it_was(tmp_path, monkeypatch):
    words = ("audit.gradients=2",)
    with killed_after(5, monkeypatch):
        go(tmp_path, *words)
    before = (tmp_path / "small/ledger.jsonl").read_bytes()
    with pytest.raises(runs.LedgerMismatchError, match=r"(?s)audited run .*threads: 1 -> 2"):
        go(tmp_path, *words, "threads=2", "replay=charge")
    assert (tmp_path / "small/ledger.jsonl").read_bytes() == before


def test_a_run_without_privacy_goes_on_anywhere(tmp_path):
    record = go(tmp_path, "clip=none").record
    assert go(tmp_path, "clip=none", "threads=2").already_done
    assert record["mechanism"] is None


def test_more_releases_than_are_accounted_for_end_the_run(stopped, monkeypatch):
    """Whatever mistake leads there."""
    monkeypatch.setattr("dpft.training.session.in_epoch", lambda prepared, further: prepared)
    with pytest.raises(runs.LedgerError, match="counts 7 releases, of which 6 are accounted for"):
        go(stopped, "threads=2", "replay=charge")


def test_whatever_units_choose_at_random_they_choose_anew(tmp_path):
    with ready(settings(tmp_path)) as (prepared, _, _):
        chosen = []
        units = SimpleNamespace(under=lambda key: chosen.append(key) or "anew")
        further = [runs.Epoch(1, {"threads": 2}, 4, 1)]
        found = in_epoch(replace(prepared, units=units), further)
        assert (found.units, chosen) == ("anew", [found.key])
        assert found.key == keys.of_epoch(prepared.key, [further[0].statement]) != prepared.key
        assert in_epoch(prepared, []) is prepared
        # What says whose run it is stays that of the run's own key.
        assert (found.data, found.model) == (prepared.data, prepared.model)


def test_force_starts_over_as_ever(stopped):
    record = go(stopped, "threads=2", "force=true").record
    assert record["privacy"]["steps_taken"] == ledger_of(stopped).steps_spent == 6
    assert len(list(stopped.glob("small.old-*"))) == 1
