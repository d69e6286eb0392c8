"""Whole runs: trained, decoded, scored, recorded; killed and continued; refused."""

import hashlib
import json
import shutil
import signal
from types import SimpleNamespace

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from dpft import runs
from dpft.cli.train import execute, resumed
from dpft.config.compose import compose
from dpft.config.errors import ConfigError, DivergedError
from dpft.config.flags import Flag, has, sentences
from dpft.config.schema import Model, parse
from dpft.models.load import BUNDLED, load_model
from dpft.models.needs import Needs
from dpft.models.save import save_model
from dpft.privacy import accounting
from dpft.privacy.noise import Released
from dpft.runs.atomic import sha256_file
from dpft.training.run import run_experiment
from dpft.training.session import ledger_entry
from tests.processes import command, dpft
from tests.small_runs import ready, settings, trained

SMALL = [
    *("task.source=sample", "task.limit_train=64", "task.limit_eval=2", "optim.batch_size=16"),
    *("optim.steps=4", "decode=greedy", "decode.max_new_tokens=5", "checkpoint_every=1"),
    "threads=1",
]


def config(tmp_path, *overrides):
    return compose([*SMALL, f"runs_dir={tmp_path}", *overrides])


@pytest.fixture(scope="module")
def finished(tmp_path_factory, quick_scores):
    """One run that no test changes: `copied` is for tests that do."""
    folder = tmp_path_factory.mktemp("finished")
    return run_experiment(parse(config(folder, "name=one", "privacy.noise_seed=1")))


@pytest.fixture
def copied(finished, tmp_path):
    """The finished run, in a folder of the test's own."""
    shutil.copytree(finished.path, tmp_path / "one")
    return finished.record


def test_a_run_records_everything(finished):
    record, path = finished.record, finished.path
    mechanism = record["mechanism"]
    again = accounting.epsilon_pld(
        sampling_rate=16 / 64,
        noise_multiplier=mechanism["noise_multiplier"],
        steps=4,
        delta=1 / 128,
    )
    assert record["privacy"]["epsilon"]["pld"] == pytest.approx(again)
    assert again <= 3
    assert record["privacy"]["steps_taken"] == 4
    assert record["dataset"]["counts"] == {"train": 64}
    assert record["model"]["weights_sha256"] == sha256_file(BUNDLED / "tiny/model.safetensors")
    assert sentences(record["flags"]) == [
        "bundled tiny model",
        "generated sample data",
        "first 64 training records only",
        "first 2 evaluation instances only",
    ]
    assert record["scores"]["test"]["examples"] == 2
    assert record["environment"]
    ledger = runs.read_ledger(path / "ledger.jsonl")
    assert ledger.steps_spent == 4
    assert ledger.header["mechanism"] == mechanism
    assert ledger.entries[-1]["epsilon_rdp"] == pytest.approx(record["privacy"]["epsilon"]["rdp"])
    lines = (path / "generations/test.jsonl").read_text().splitlines()
    keys = {"source", "prediction", "references", "finished", "cut"}
    assert [set(json.loads(line)) for line in lines] == [keys] * 2
    assert record["scores"]["test"]["unfinished"] == 2  # after five tokens
    assert record["scores"]["test"]["cut_prompts"] == 0
    assert parse(yaml.safe_load((path / "config.yaml").read_text())).seed == 0


def test_a_finished_run_is_not_run_again_unless_forced(copied, tmp_path, capsys):
    again = run_experiment(parse(config(tmp_path, "name=one", "privacy.noise_seed=1")))
    assert again.already_done
    assert again.record == copied
    execute(config(tmp_path, "name=one", "privacy.noise_seed=1"))
    assert "already run" in capsys.readouterr().err
    forced = run_experiment(
        parse(config(tmp_path, "name=one", "privacy.noise_seed=1", "force=true"))
    )
    assert not forced.already_done
    said = "".join(capsys.readouterr().err.split())  # a path may be wrapped anywhere
    assert "one.old-1now:ifanything" in said
    assert (tmp_path / "one.old-1/DONE").exists()


def test_a_run_does_not_go_on_from_another_base(tmp_path):
    """With LoRA the frozen weights are in no checkpoint: they are read again."""
    base = tmp_path / "base"
    save_model(load_model(Model("tiny", "bundled:tiny"), Needs("causal"), seed=0), base)
    words = ["model=custom", f"model.path={base}", "adapt=lora", "privacy.noise_seed=1"]
    run = parse(config(tmp_path, "name=one", "optim.steps=1", *words))
    trained(run)
    tensors = load_file(base / "model.safetensors")
    tensors["transformer.h.0.mlp.c_fc.weight"] *= 1.05
    save_file(tensors, base / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(runs.LedgerMismatchError, match=r"\n  model: "):
        trained(run)


def test_weights_say_what_they_were_trained_on_from_the_first_moment(
    tmp_path, quick_scores, monkeypatch
):
    """Or a run that trains them further would not say that the two costs add up."""

    def killed(loaded, *folders):
        save_model(loaded, *folders)
        raise KeyboardInterrupt

    monkeypatch.setattr("dpft.training.run.save_model", killed)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(parse(config(tmp_path, "name=one")))
    base = Model("base", str(tmp_path / "one/model"))
    flags = load_model(base, Needs("causal"), seed=0).flags
    assert has(flags, Flag.TRAINED_BEFORE)


def test_a_run_that_fails_before_its_first_step_leaves_no_folder(tmp_path, monkeypatch):
    def fail(*_):
        raise ValueError("an unexpected error")

    monkeypatch.setattr("dpft.training.run.load_task", fail)
    with pytest.raises(ValueError, match="an unexpected error"):
        run_experiment(parse(config(tmp_path, "name=failed")))
    assert not (tmp_path / "failed").exists()


def test_a_model_that_computes_no_number_any_more_ends_the_run(tmp_path):
    """Its weights are finite, and every record would be left out of every later step."""
    with pytest.raises(DivergedError, match=r"after step 1 the model has no finite.*optim\.lr"):
        run_experiment(parse(config(tmp_path, "name=wild", "optim.lr=1e12")))
    assert runs.read_ledger(tmp_path / "wild/ledger.jsonl").steps_spent == 1
    assert not list((tmp_path / "wild").glob("checkpoints/*"))


def test_a_run_of_no_steps_has_a_keyed_hash_of_its_records(tmp_path):
    """Nothing is released: who knows all records but one must not find the last."""
    found = []
    for name in ("one", "two"):
        with ready(settings(tmp_path, "optim.steps=0", f"name={name}")) as (prepared, _, _):
            found.append(prepared.header["data"])
    assert found[0] != found[1]


def training(folder, *overrides):
    # Text to text, which is scored without Java: that would take most of the time.
    given = ["task=text2text", *SMALL, "task.limit_eval=1", "optim.steps=8", "privacy.noise_seed=1"]
    return command(["train", *given, f"runs_dir={folder}", *overrides], folder)


@pytest.mark.slow
def test_killed_and_continued_equals_unbroken(tmp_path):
    """kill -9 at different steps; then the same command, and once resume=RUN."""
    with training(tmp_path, "name=whole", "clip=per_layer_adaptive") as whole:
        done = whole.finish()
        assert done.returncode == 0, done.stderr
    ledger = tmp_path / "broken/ledger.jsonl"
    for stop_at in (2, 5):
        with training(tmp_path, "name=broken", "clip=per_layer_adaptive") as process:
            process.wait_for(
                lambda at=stop_at: ledger.exists() and len(ledger.read_bytes().splitlines()) > at
            )
            process.kill()
            assert process.status == -signal.SIGKILL
    assert not (tmp_path / "broken/DONE").exists()
    done = dpft("train", f"resume={tmp_path / 'broken'}", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "continuing" in done.stderr
    for name in ("model/model.safetensors", "ledger.jsonl", "generations/test.jsonl"):
        left, right = tmp_path / "whole" / name, tmp_path / "broken" / name
        assert left.read_bytes() == right.read_bytes(), name
    steps = [
        json.loads(line)["step"]
        for line in (tmp_path / "broken/private/metrics.jsonl").read_text().splitlines()
    ]
    assert steps == list(range(8))


def test_resume_refuses_settings_that_it_would_ignore(finished):
    with pytest.raises(ConfigError, match=r"got eps next to resume="):
        resumed({"resume": str(finished.path)}, ["resume=x", "eps=8"])
    with pytest.raises(ConfigError, match=r"holds no config\.yaml"):
        resumed({"resume": str(finished.path / "model")}, ["resume=x"])
    # Records of norms, and where and how it runs, may change.
    asked = {"resume": str(finished.path), "record_norms": 2, "sweep": {}}
    assert resumed(asked, ["resume=x", "record_norms=2"])["record_norms"] == 2


def test_a_digest_covers_gradients_and_counts():
    weights = torch.nn.Parameter(torch.zeros(3))
    weights.grad = torch.ones(3)
    mechanism = SimpleNamespace(rdp_after=float)
    clipper = SimpleNamespace(parameters={"w": weights})

    def digest(*released):
        return ledger_entry(mechanism, clipper, 0, Released(*released))["update"]

    # SHA-256 of three float32 ones: what ledgers of fixed thresholds hold.
    assert digest() == hashlib.sha256(weights.grad.numpy().tobytes()).hexdigest()[:16]
    counted = digest((0.5, 0.25), (1.0, 1.0))
    assert counted not in (digest(), digest((0.5, 0.26), (1.0, 1.0)))


USERS = ["task=language_modeling", "task.unit=user", "task.user_column=user"]
USERS += ["task.limit_train=null"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["adapt=prefix", "task.max_length=250"], "positions for 246 tokens"),
        (USERS, r"wte \(Embedding\) cannot be clipped with 8 rows for each record"),
    ],
    ids=["no room behind the prefix", "rows of a user"],
)
def test_what_no_step_could_do_is_an_error_before_any_record_is_encoded(
    tmp_path, monkeypatch, overrides, message
):
    def encoded(*arguments):
        raise AssertionError("too late")

    monkeypatch.setattr("dpft.training.setup.encoded", encoded)
    monkeypatch.setattr(
        "dpft.privacy.clipping.rules.layers.EmbeddingRule.sums_over_positions", False
    )
    with pytest.raises(ConfigError, match=message):
        run_experiment(
            parse(config(tmp_path, "name=bad", "privacy.noise_multiplier=1", *overrides))
        )
    assert not (tmp_path / "bad").exists()
