"""A run that goes on: elsewhere, with fresh noise; after damage, or a lack of memory."""

import shutil
from pathlib import Path

import pytest
import torch

from dpft import runs
from dpft.config.errors import TrainingError
from dpft.privacy import keys
from dpft.runs.environment import explained
from dpft.tasks.objectives.classifier import Classifier
from dpft.training.run import run_experiment
from dpft.training.trained import loaded_run
from tests.small_runs import Killed, settings

SIX = ("optim.steps=6", "checkpoint_every=2", "privacy.noise_multiplier=1")


@pytest.fixture(autouse=True)
def _threads(monkeypatch):
    """The ledger has their number; so many would only wait for each other here."""
    given = [1]
    monkeypatch.setattr(torch, "set_num_threads", lambda number: given.append(number))
    monkeypatch.setattr(torch, "get_num_threads", lambda: given[-1])


def go(folder, *words):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dpft.training.run._decode_stage", lambda *_: None)
        return run_experiment(settings(folder, *SIX, *words))


def ledger_of(folder):
    return runs.read_ledger(folder / "small/ledger.jsonl")


def killed(releases, monkeypatch, folder, *words):
    """A run that dies when the ledger has so many lines and the weights have not moved."""
    spend = runs.Ledger.spend

    def dying(self, step, **entry):
        spend(self, step, **entry)
        if self.steps_spent == releases:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(runs.Ledger, "spend", dying)
        with pytest.raises(Killed):
            go(folder, *words)


@pytest.fixture
def stopped(tmp_path, monkeypatch):
    """Five of six steps are released, and the last checkpoint is of the fourth."""
    killed(5, monkeypatch, tmp_path)
    return tmp_path


def test_the_repeated_step_counts_twice_wherever_the_guarantee_is_stated(stopped, capsys):
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.pld import PLDAccountant

    record = go(stopped, "threads=2").record
    said = " ".join(capsys.readouterr().err.split())
    ledger = ledger_of(stopped)
    assert [entry["step"] for entry in ledger.entries] == [0, 1, 2, 3, 4, 4, 5]
    assert ledger.entries[5]["compute"]["threads"] == 2
    privacy, mechanism = record["privacy"], record["mechanism"]
    assert privacy["steps_taken"] == ledger.steps_spent == 7
    assert (mechanism["steps"], mechanism["repeated"], record["training"]["steps"]) == (6, 1, 6)
    assert ledger.epsilon == pytest.approx(privacy["epsilon"]["rdp"], rel=1e-12)
    step = PoissonSampledDpEvent(0.5, GaussianDpEvent(1.0))
    found = PLDAccountant().compose(step, 7).get_epsilon(privacy["delta"])
    assert privacy["stated"] == pytest.approx(found, rel=1e-3)
    assert "continuing with threads: 1 -> 2 repeats 1 released steps: epsilon" in said
    assert f"becomes {privacy['stated']:.3f}"[:-2] in said
    assert "1 of the 7 noisy steps" in (stopped / "small/model/README.md").read_text()


@pytest.mark.parametrize(
    ("words", "finish", "why"),
    [
        (("privacy.noise_multiplier=null", "eps=3"), False, "The budget of the run is epsilon 3"),
        (("audit.gradients=2",), False, "canaries' scores are of all steps"),
        ((), True, "record.json exists, so the run took all"),
    ],
)
def test_what_may_not_count_again_is_refused_before_anything_is_spent(
    tmp_path, monkeypatch, words, finish, why
):
    if finish:
        go(tmp_path)
        (tmp_path / "small/DONE").unlink()
        shutil.rmtree(tmp_path / "small/checkpoints/step-00000006")
    else:
        killed(5, monkeypatch, tmp_path, *words)
    before = (tmp_path / "small/ledger.jsonl").read_bytes()
    with pytest.raises(runs.RunError, match=rf"(?s)threads: 1 -> 2.*would become .*{why}"):
        go(tmp_path, *words, "threads=2")
    assert (tmp_path / "small/ledger.jsonl").read_bytes() == before
    go(tmp_path, *words)
    assert ledger_of(tmp_path).steps_spent == 6


def test_no_key_is_used_for_two_releases(tmp_path, monkeypatch):
    """Batches, noise, noisy counts and masks; and a repeated step has its checkpoint's state."""
    derive, lives = keys.derive, [set(), set(), set()]

    def noted(key, *labels):
        derived = derive(key, *labels)
        if labels[0] in PURPOSES:
            lives[torch.get_num_threads() - 1].add((labels, derived))
        return derived

    monkeypatch.setattr(keys, "derive", noted)
    adaptive = "clip=per_layer_adaptive"
    killed(5, monkeypatch, tmp_path, adaptive)
    killed(7, monkeypatch, tmp_path, adaptive, "threads=2")
    go(tmp_path, adaptive, "threads=3")
    first, second, _ = (e for e in ledger_of(tmp_path).entries if e["step"] == 4)
    assert ledger_of(tmp_path).steps_spent == 6 + 3
    assert first["update"] != second["update"]
    assert first.get("thresholds") == second.get("thresholds")
    labels = [{labels for labels, _ in life} for life in lives]
    assert {label for label, *_ in labels[0]} == PURPOSES
    assert labels[0] & labels[1]
    used = [key for life in lives for _, key in life]
    assert len(used) == len(set(used))


PURPOSES = {"noise", "sampling", "dropout", "quantiles"}


def test_killed_again_it_goes_on_bit_for_bit(stopped, monkeypatch):
    other = stopped / "other"
    shutil.copytree(stopped / "small", other / "small")
    go(stopped, "threads=2")
    for releases in (6, 7):  # at the first step there, and at the last
        killed(releases, monkeypatch, other, "threads=2")
    go(other, "threads=2")
    for name in ("ledger.jsonl", "model/model.safetensors"):
        assert (stopped / "small" / name).read_bytes() == (other / "small" / name).read_bytes()


WEIGHTS, LEDGER = "model/model.safetensors", "ledger.jsonl"


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_experiment(settings(tmp_path_factory.mktemp("original"))).path


@pytest.mark.parametrize("name", [WEIGHTS, "record.json", LEDGER])
def test_a_damaged_file_is_named_and_made_again_once_the_marker_is_removed(
    original, tmp_path, name
):
    path, run = shutil.copytree(original, tmp_path / "small"), settings(tmp_path)
    (path / name).write_bytes((path / name).read_bytes()[:-7])
    for use in (lambda: run_experiment(run), lambda: loaded_run(path).loaded):
        with pytest.raises(runs.RunError, match=rf"{name} .*|record"):
            use()
    assert (path / "DONE").exists()
    (path / "DONE").unlink()
    if name == LEDGER:  # nothing can make it again
        with pytest.raises(runs.LedgerError):
            run_experiment(run)
        return
    again = run_experiment(run)
    assert not again.already_done
    for file in (WEIGHTS, LEDGER):
        assert (path / file).read_bytes() == (original / file).read_bytes()
    old = runs.read_record(original)
    for section in ("privacy", "mechanism", "scores"):
        assert again.record[section] == old[section], section
    assert run_experiment(run).already_done


CPU = RuntimeError(
    "[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory"
)
ERRORS = (CPU, MemoryError(), torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate"))


@pytest.mark.parametrize("error", ERRORS)
def test_every_lack_of_memory_is_explained_in_one_line(error):
    said = r"memory in a step \(.+\); expected .*: buy some$"
    with pytest.raises(TrainingError, match=said) as caught, explained("a step", "buy some"):
        raise error
    assert "\n" not in str(caught.value)
    with pytest.raises(KeyError), explained("a step", "buy some"):
        raise KeyError("x")


def test_without_memory_the_run_ends_and_the_same_command_continues_it(tmp_path, monkeypatch):
    whole, ledger = Classifier.losses, tmp_path / "small/ledger.jsonl"

    def short(self, model, batch):
        if ledger.exists() and runs.read_ledger(ledger).steps_spent >= 2:
            raise CPU
        return whole(self, model, batch)

    words = ("optim.microbatch_tokens=512", "checkpoint_every=100")
    with monkeypatch.context() as patch:
        patch.setattr(Classifier, "losses", short)
        with pytest.raises(TrainingError) as caught:
            go(tmp_path, *words)
    advice = ("A smaller optim.microbatch_tokens", "model.checkpointing=true")
    for word in ("optim.microbatch_tokens=512", "the same command again", *advice):
        assert word in str(caught.value)
    before = ledger.read_bytes()
    assert runs.read_ledger(ledger).steps_spent == 2
    assert go(tmp_path, *words).record["training"]["steps"] == 6
    assert ledger.read_bytes().startswith(before)
