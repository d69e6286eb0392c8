"""What is decided, checked and said before a run trains."""

import json
import shutil

import pytest
import torch

from dpft import runs
from dpft.cli.results import decode
from dpft.config.errors import ConfigError, ModelError
from dpft.config.schema import Model
from dpft.models.load import load_model
from dpft.models.needs import Needs
from dpft.models.save import save_model
from dpft.parallel.cohort import TrainingCohort
from dpft.privacy import accounting, keys
from dpft.runs.folders import run_path
from dpft.runs.ledger import key_from_seed
from dpft.tasks.objectives.classifier import Classifier
from dpft.training.devices import device_of, rounds_like
from dpft.training.run import run_experiment
from tests.small_runs import ready, settings

USERS = [
    *("task=language_modeling", "task.source=files", "task.limit_train=null"),
    *("task.unit=user", "task.user_column=user", "task.records_per_user=1"),
    *("model=random-gpt2", "optim.batch_size=2"),
]


def test_noise_is_calibrated_once_for_a_run(tmp_path, monkeypatch):
    """Before a model is loaded; its groups share what was found."""
    asked, calibrate = [], accounting.calibrate_noise

    def counted(**given):
        asked.append(given)
        return calibrate(**given)

    monkeypatch.setattr(accounting, "calibrate_noise", counted)
    budget = ("privacy.noise_multiplier=null", "eps=3", "clip=per_layer")
    with ready(settings(tmp_path, *budget)) as (prepared, _, _):
        mechanism = prepared.parts.mechanism
    assert len(asked) == 1
    assert len(mechanism.thresholds) > 1
    assert 2.9 < mechanism.epsilons()["pld"] <= 3


@pytest.mark.parametrize("unlike", [True, False])
def test_the_ledger_tells_of_every_rank_if_one_rounds_otherwise(tmp_path, monkeypatch, unlike):
    """Or another device in its place would release a second sum under the same noise."""

    def all_gather(_, value):
        return [value, {**value, "gpu": "another"} if unlike else value]

    monkeypatch.setattr(TrainingCohort, "all_gather", all_gather)
    with ready(settings(tmp_path)) as (prepared, *_):
        compute = prepared.header["compute"]
    own = rounds_like(torch.device("cpu"))
    assert compute.items() >= own.items()
    assert compute.get("others") == ([{**own, "gpu": "another"}] if unlike else None)


def test_records_that_see_each_other_are_refused_before_the_first_step(tmp_path, monkeypatch):
    """No clipping bounds what one record adds to the losses of the others."""
    own = Classifier.losses

    def centred(objective, model, batch):
        losses = own(objective, model, batch)
        return losses - 0.5 * losses.mean()

    monkeypatch.setattr(Classifier, "losses", centred)
    run = settings(tmp_path)
    with pytest.raises(ModelError, match="depends on what else is in its batch"), ready(run):
        pass
    assert not (run_path(run) / "ledger.jsonl").exists()
    with ready(settings(tmp_path, "clip=none", "name=plain")):  # nothing to protect
        pass


def test_a_private_run_draws_from_the_secret_key_of_its_folder(tmp_path):
    run = settings(tmp_path)
    with ready(run) as (prepared, directory, _):
        stored = bytes.fromhex(directory.noise_key_file.read_text())
        assert prepared.header["key"] == runs.key_fingerprint(stored)
        assert prepared.key not in (stored, keys.public_key(run.seed))
    with ready(run) as (again, _, _):
        assert again.key == prepared.key
    with ready(settings(tmp_path, "name=other")) as (other, _, _):
        assert other.key != prepared.key
        # Of the same records: a fingerprint needs the key.
        assert other.header["data"] != prepared.header["data"]
        assert other.header["model"] != prepared.header["model"]


@pytest.mark.parametrize(("seed", "equal"), [("null", False), ("7", True)])
def test_runs_of_other_settings_draw_otherwise_from_one_stored_key(tmp_path, seed, equal):
    """An explicit seed is public, and its draws are to be repeated under other settings too."""
    found = []
    for name, rate in (("one", "0.1"), ("other", "0.2")):
        run = settings(tmp_path, f"privacy.noise_seed={seed}", f"name={name}", f"optim.lr={rate}")
        with runs.RunDirectory.open(run_path(run), run.identity(), "") as directory:
            directory.noise_key_file.write_text("ab" * 32)
        with ready(run) as (prepared, _, _):
            found.append(prepared)
    one, other = found
    assert one.header == other.header
    assert (one.key == other.key) is equal
    assert (one.key == key_from_seed(7)) is equal


def drawn(run):
    """Which of its records stands for each user in ten steps."""
    with ready(run) as (prepared, _, _):
        users = range(len(prepared.units))
        batches = [prepared.units.batch([user], step).batch for step in range(10) for user in users]
        return [torch.cat([t.flatten() for t in batch.tensors.values()]) for batch in batches]


def test_the_records_of_a_user_are_drawn_by_the_secret_key(tmp_path):
    """The settings, all of them public, are the same."""
    lines = [{"user": user, "text": f"{user} is {n}"} for user in ("ann", "bob") for n in range(5)]
    (tmp_path / "posts.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    words = [*USERS, f"task.train_file={tmp_path / 'posts.jsonl'}"]
    (tmp_path / "test.jsonl").write_text('{"user": "eve", "text": "words"}\n')
    words.append(f"task.test_file={tmp_path / 'test.jsonl'}")
    one = drawn(settings(tmp_path, *words))
    again = drawn(settings(tmp_path, *words))  # the same folder, hence the same key
    other = drawn(settings(tmp_path, *words, "name=other"))
    assert [torch.equal(x, y) for x, y in zip(one, again, strict=True)] == [True] * len(one)
    assert not all(torch.equal(x, y) for x, y in zip(one, other, strict=True))


@pytest.mark.parametrize(("split", "linked"), [("dev", False), ("test", True)])
def test_records_that_are_trained_on_are_not_scored_without_noise(tmp_path, split, linked):
    """Neither for the scores nor for evaluations, under the name of another split of a folder."""
    data = tmp_path / "data"
    data.mkdir()
    for name in ("train", "dev", "test"):
        lines = [f'{{"user": "{n}", "text": "{name} {n}"}}\n' for n in range(10)]
        (data / f"{name}.jsonl").write_text("".join(lines))
    same = data / f"{split}.jsonl"
    words = [*USERS, f"task.data_dir={data}", "decode.split=test", "evaluate.every=1"]
    with ready(settings(tmp_path, *words, "name=other")):
        pass
    same.unlink()
    if linked:
        same.symlink_to("train.jsonl")
    else:
        shutil.copy(data / "train.jsonl", same)
    refused = pytest.raises(
        ConfigError, match=rf"of the {split} split are trained on.* type task\.{split}_share=0\.1"
    )
    with refused, ready(settings(tmp_path, *words)):
        pass


def test_nor_are_they_when_a_finished_run_is_decoded_again(tmp_path):
    file, other = tmp_path / "posts.jsonl", tmp_path / "other.jsonl"
    file.write_text("".join(f'{{"user": "{n}", "text": "text {n}"}}\n' for n in range(10)))
    other.write_text('{"text": "words"}\n')
    words = [f"task.train_file={file}", f"task.dev_file={file}", f"task.test_file={other}"]
    run = settings(tmp_path, *USERS, *words, "decode.split=test")
    run_experiment(run)
    with pytest.raises(ConfigError, match=r"of the dev split are trained on.*no noise covers"):
        decode(run_path(run), ["decode.split=dev"])
    assert [one.name for one in (run_path(run) / "generations").iterdir()] == ["test.jsonl"]


LONG = "one word more than fits, " * 20


@pytest.mark.parametrize("texts", [["short"] * 8, ["short"] * 7 + [LONG]])
def test_the_tokenizer_that_is_saved_tells_nothing_of_the_records(tmp_path, texts):
    """A record that had to be cut once left the limit in the saved file."""
    rows = [{"text": text, "label": "ab"[place % 2]} for place, text in enumerate(texts)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "test.jsonl").write_text('{"text": "other", "label": "b"}\n')
    words = ["task=classification", f"task.data_dir={tmp_path}", "task.classes=[a,b]"]
    words += ["task.limit_train=null", "task.source=files", "task.max_length=16"]
    with ready(settings(tmp_path, *words)) as (prepared, _, _):
        save_model(prepared.parts.loaded, tmp_path / "model")
    fresh = load_model(Model("random-bert", "random:bert"), Needs("classifier", ("a", "b")), 0)
    fresh.tokenizer.save_pretrained(tmp_path / "fresh")
    for file in (tmp_path / "fresh").iterdir():
        assert (tmp_path / "model" / file.name).read_bytes() == file.read_bytes()


def test_an_objective_that_changes_the_tokenizer_is_refused_before_the_first_step(
    tmp_path, monkeypatch
):
    own = Classifier.encode_all

    def greedy(objective, records):
        objective.tokenizer.add_tokens([record.texts[0] for record in records])
        return own(objective, records)

    monkeypatch.setattr(Classifier, "encode_all", greedy)
    refused = pytest.raises(ModelError, match="encoding the records changed the tokenizer")
    with refused, ready(settings(tmp_path)):
        pass


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_of("auto") == device_of("cpu") == torch.device("cpu")
    with pytest.raises(ConfigError, match="there is no GPU here; type device=cpu"):
        device_of("cuda")
