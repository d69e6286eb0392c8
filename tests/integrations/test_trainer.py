"""`PrivateTrainer`: what Trainer's loop makes of dpft's batches, gradients and accounts."""

import copy
import json
import logging
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from pydantic import ValidationError
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    RobertaConfig,
    RobertaForMaskedLM,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    ViTConfig,
    ViTForImageClassification,
)
from transformers.data.data_collator import default_data_collator

from dpft import runs
from dpft.config.errors import ConfigError, DataError, ModelError
from dpft.integrations.transformers import PrivacyArguments, PrivacyMixin, PrivateTrainer
from dpft.integrations.transformers.arguments import REFUSALS, TAKEN, refused
from dpft.integrations.transformers.losses import (
    CollatedAlone,
    FixedRows,
    examples_of,
    loss_of,
)
from dpft.privacy import Mechanism, keys, make_clipper
from dpft.privacy.noise import Slice, noisy_means_
from dpft.privacy.sampling import PoissonSampler
from dpft.runs.identity import opened, sealed
from dpft.runs.ledger import key_from_seed
from dpft.runs.lineage import read_lineage
from dpft.tasks.objectives.evaluation import Mixed
from dpft.tasks.units import Records
from dpft.training.devices import rounds_like
from dpft.training.executors import add_clipped
from tests.privacy.reference import clip_records, record_gradients

VOCAB = 23
TINY = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1}
BERT = {**TINY, "num_attention_heads": 2, "vocab_size": VOCAB, "max_position_embeddings": 16}
GPT2 = {"n_layer": 1, "n_embd": 8, "n_head": 2, "n_positions": 16, "vocab_size": VOCAB}
T5 = {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2, "vocab_size": VOCAB}
PRIVACY = PrivacyArguments(noise_multiplier=1.0, delta=1e-3, threshold=0.5, noise_seed=7)


class Texts(torch.utils.data.Dataset):
    """Twenty-four texts of three to eight tokens."""

    def __init__(self, changed=()):
        g = torch.Generator().manual_seed(5)
        lengths = torch.randint(3, 9, (24,), generator=g).tolist()
        self.rows = [torch.randint(3, VOCAB, (n,), generator=g).tolist() for n in lengths]
        for i in changed:
            self.rows[i][0] = 3 + (self.rows[i][0] - 2) % 20

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return {"input_ids": self.rows[i]}


def collate(records):
    rows = [torch.tensor(r["input_ids"]) for r in records]
    padded = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    mask = nn.utils.rnn.pad_sequence([torch.ones_like(r) for r in rows], batch_first=True)
    labels = padded.masked_fill(mask == 0, -100)
    return {"input_ids": padded, "attention_mask": mask, "labels": labels}


def llama(dtype=torch.float32):
    torch.manual_seed(1)
    return LlamaForCausalLM(LlamaConfig(**BERT, num_key_value_heads=2)).to(dtype)


def gpt2(**more):
    torch.manual_seed(1)
    return GPT2LMHeadModel(GPT2Config(**GPT2, bos_token_id=1, eos_token_id=2, **more))


ARGUMENTS = {
    "per_device_train_batch_size": 3,
    "gradient_accumulation_steps": 2,
    "max_grad_norm": 0,
    "learning_rate": 1e-2,
    "use_cpu": True,
    "disable_tqdm": True,
    "logging_strategy": "no",
    "save_strategy": "no",
    "report_to": "none",
}


def trainer_of(
    folder, model=None, data=None, kind=PrivateTrainer, privacy=PRIVACY, collator=collate, **more
):
    own = {name: more.pop(name) for name in [*more] if not hasattr(TrainingArguments, name)}
    settings = {**ARGUMENTS, "num_train_epochs": 1.5, **more}
    return kind(
        model=llama() if model is None else model,
        args=TrainingArguments(str(folder), **settings),
        train_dataset=Texts() if data is None else data,
        data_collator=collator,
        privacy=privacy,
        **own,
    )


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def same_bits(trainer, expected):
    return all(torch.equal(expected[name], p) for name, p in weights(trainer.model).items())


class KilledError(Exception):
    pass


class StopAt(TrainerCallback):
    """A kill between the line in the ledger and the weights."""

    def __init__(self, step):
        self.step = step

    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            raise KilledError


class OtherRate(TrainerCallback):
    def on_step_begin(self, args, state, control, optimizer, **kwargs):
        optimizer.param_groups[0]["lr"] = 0.3


def killed(folder, model, step=5, **more):
    trainer = trainer_of(folder, model, **more, callbacks=[StopAt(step)])
    with pytest.raises(KilledError):
        trainer.train()
    return trainer


def take_steps(model, data, batch=6, steps=6, sigma=1.0, threshold=0.5):
    """Move a causal model's weights in place as `trainer_of` does: one backward a record, and SGD.

    Returns:
        The mechanism, and how many records each step drew.
    """
    key = key_from_seed(PRIVACY.noise_seed)
    mechanism = Mechanism(len(data), batch, steps, sigma, (threshold,), PRIVACY.delta)
    sampler = PoissonSampler(mechanism, key)

    def loss(i):  # of one record alone
        ids = torch.tensor([data[i]["input_ids"]])
        logits = model(input_ids=ids).logits[0, :-1]
        return nn.functional.cross_entropy(logits, ids[0, 1:])

    sizes = []
    for step in range(steps):
        drawn = sampler.batch(step)
        sizes.append(len(drawn))
        records = record_gradients(model, lambda j, drawn=drawn: loss(drawn[j]), len(drawn))
        _, sums = clip_records(records, [[*records[0]]], lambda k, n: min(1.0, threshold / n))
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                flat = sums[name].reshape(-1).contiguous()
                own = keys.derive(key, "noise", step, name)
                noisy_means_([Slice(flat, own, sigma * threshold)], batch)
                parameter.data.sub_(ARGUMENTS["learning_rate"] * flat.view_as(parameter))
    return mechanism, sizes


def _last_block(model):
    model.requires_grad_(False)
    model.model.layers[-1].requires_grad_(True)
    return model


def _adapted(model):
    own = {"r": 2, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM"}
    config = LoraConfig(**own, modules_to_save=["lm_head"], use_rslora=True)
    made = get_peft_model(model, config).double()
    for name, parameter in made.named_parameters():
        if "lora_B" in name:  # else its first gradient is all that there is
            nn.init.normal_(parameter, std=0.1)
    return made


PARTS = {
    "everything": lambda model: model,
    "the last block": _last_block,
    "LoRA and a head": _adapted,
}


@pytest.mark.parametrize("part", PARTS)
def test_what_is_trained_moves_as_by_brute_force_with_the_same_draws_and_nothing_else(
    tmp_path, part
):
    torch.manual_seed(2)
    model, data = PARTS[part](llama(torch.float64)), Texts()
    other, before = copy.deepcopy(model), weights(model)
    trainer = trainer_of(tmp_path, model, data, optim="sgd", lr_scheduler_type="constant")
    trainer.train()
    mechanism, sizes = take_steps(other, data)
    assert trainer.privacy.mechanism.epsilons()["rdp"] == mechanism.epsilons()["rdp"]
    assert len(set(sizes)) > 2  # Poisson, over microbatches
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert {n for n, p in weights(model).items() if not torch.equal(p, before[n])} == trained
    for name, parameter in other.named_parameters():
        torch.testing.assert_close(weights(model)[name], parameter.data, rtol=0, atol=1e-10)


HEADS = {
    "masked": lambda: RobertaForMaskedLM(RobertaConfig(**BERT, pad_token_id=0)),
    "tokens": lambda: BertForTokenClassification(BertConfig(**BERT, num_labels=3)),
    "classes": lambda: BertForSequenceClassification(BertConfig(**BERT, num_labels=3)),
    "several": lambda: BertForSequenceClassification(
        BertConfig(**BERT, num_labels=3, problem_type="multi_label_classification")
    ),
    "number": lambda: BertForSequenceClassification(BertConfig(**BERT, num_labels=1)),
    "causal": gpt2,
    "encoder-decoder": lambda: T5ForConditionalGeneration(T5Config(**T5, decoder_start_token_id=0)),
}


@pytest.mark.parametrize("head", HEADS)
def test_a_records_loss_is_what_the_model_says_of_it_alone(head):
    model = HEADS[head]().eval()
    batch = collate([Texts()[i] for i in range(4)])
    ids, labels = batch["input_ids"], batch.pop("labels")
    targets = {
        "tokens": {"labels": labels.where(labels < 0, labels % 3)},
        "classes": {"labels": torch.tensor([0, 2, 1, 0])},
        "several": {"labels": (ids[:, :3] % 2).float()},
        "number": {"labels": torch.tensor([0.5, -1.0, 2.0, 0.0])},
    }
    batch |= targets.get(head, {"labels": labels})
    filled = {"input_ids": 0, "attention_mask": 0, "labels": -100}
    with torch.no_grad():
        ours = loss_of(model)(model, batch)
        if batch["labels"].shape == ids.shape:  # report 7 of `tests/test_public_reports.py`
            wider = {n: nn.functional.pad(x, (0, 6), value=filled[n]) for n, x in batch.items()}
            torch.testing.assert_close(loss_of(model)(model, wider), ours, rtol=0, atol=1e-6)
        for i in range(4):
            alone = model(**{name: x[i : i + 1] for name, x in batch.items()}).loss
            torch.testing.assert_close(ours[i], alone)


def lora_on_bfloat16():
    config = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    torch.manual_seed(2)
    model = get_peft_model(llama(torch.bfloat16), config)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return model


@pytest.mark.parametrize("model", [llama, lora_on_bfloat16])
def test_in_bfloat16_shapes_follow_from_each_record_alone(tmp_path, monkeypatch, model):
    shapes = set()

    def noted(units, model, clipper, batch, *rest):
        shapes.add(tuple(batch.batch.tensors["input_ids"].shape))
        add_clipped(units, model, clipper, batch, *rest)

    monkeypatch.setattr("dpft.integrations.transformers.trainer.add_clipped", noted)
    data = [{"input_ids": ids * (1 + 3 * (n % 2))} for n, ids in enumerate(Texts().rows)]
    made = model()
    made.config.max_position_embeddings = 64
    trainer = trainer_of(tmp_path, made, data, bf16=True, max_steps=3)
    trainer.train()
    assert shapes == {(2, 16), (2, 24), (2, 32)}  # a record and padding
    header = json.loads((tmp_path / "ledger.jsonl").read_text().splitlines()[0])
    assert '"bf16": true' in json.dumps(header)
    assert trainer.privacy.steps_spent == 3


def test_in_bfloat16_a_record_adds_the_same_bits_next_to_any_other():
    model, rows = llama(), [{"input_ids": ids} for ids in Texts().rows]
    objective = Mixed(CollatedAlone(collate, loss_of(model), model.config))
    clipper = make_clipper(model, threshold=0.1)
    sums = []
    for others in ((), (1,), (2, 3, 5)):
        examples = examples_of([rows[0], *(rows[i] for i in others)])
        units = Records(objective, examples, FixedRows(64, rows=4))
        place = [one.record for one in examples].index(rows[0])
        (piece,) = units.microbatches(range(len(units)), 0)
        batch = units.batch(piece, 0)
        assert len(batch) == 5
        clipper.backward(objective.losses(model, batch.batch), weights=batch.weights)
        sums.append(clipper.norms[place].clone())
        assert batch.weights.sum() == len(examples)
        model.zero_grad()
    assert len({float(x) for x in sums}) == 1


def test_a_run_in_bfloat16_is_that_in_float32_but_for_rounding(tmp_path):
    privacy, reached = replace(PRIVACY, noise_multiplier=0.1), {}
    for name in ("float32", "bfloat16"):
        more = {"optim": "sgd", "learning_rate": 1.0, "bf16": name == "bfloat16", "max_steps": 4}
        trainer = trainer_of(tmp_path / name, privacy=privacy, **more)
        trainer.train()
        reached[name] = torch.cat([x.flatten() for x in weights(trainer.model).values()])
    begun = torch.cat([x.flatten() for x in weights(llama()).values()])
    moved = (reached["float32"] - begun).norm()
    assert 0 < (reached["bfloat16"] - reached["float32"]).norm() < 0.02 * moved
    with pytest.raises(ConfigError, match="left autocast in the model's forward"):
        trainer_of(tmp_path / "again", trainer.model).train()


# --- resuming -------------------------------------------------------------------------------------


def _classes(records):
    batch = collate(records)
    return batch | {"labels": torch.tensor([r["input_ids"][0] % 3 for r in records])}


def _of_classes(model, inputs):
    logits = model(inputs["input_ids"], inputs["attention_mask"]).logits
    return nn.functional.cross_entropy(logits, inputs["labels"], reduction="none")


OWN_LOSS = {"collator": _classes, "per_example_loss": _of_classes}
EVERY_SECOND = {"save_strategy": "steps", "save_steps": 2}


def test_a_trainer_that_was_interrupted_goes_on_in_the_same_process(tmp_path):
    """Saving and evaluating note things in the model's configuration: its class, its problem."""
    held = Texts(changed=range(24))
    settings = {"max_steps": 4, **EVERY_SECOND, "eval_dataset": held, **OWN_LOSS}
    trainer = killed(tmp_path, HEADS["classes"](), 3, **settings)
    trainer.evaluate()
    trainer.pop_callback(StopAt)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.privacy.steps_spent == 4


SAVED = {**EVERY_SECOND, "activation_checkpointing": True}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """Six steps of a GPT-2 with dropout, its blocks computed again; checkpoints at every second."""
    folder = tmp_path_factory.mktemp("unbroken")
    trainer = trainer_of(folder, gpt2(), **SAVED)
    trainer.train()
    return folder, weights(trainer.model)


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """The same, killed in its last step."""
    folder = tmp_path_factory.mktemp("broken")
    trainer = killed(folder, gpt2(), **SAVED)
    assert trainer.privacy.steps_spent == 6  # in the ledger before the weights moved
    assert trainer.privacy.epsilon == trainer.privacy.mechanism.epsilon_after(6)
    return folder


def again(broken, tmp_path, change=lambda folder: None, **more):
    """A copy of the killed run that something happened to, ready to go on."""
    folder = tmp_path / "run"
    shutil.copytree(broken, folder)
    change(folder)
    return trainer_of(folder, more.pop("model", None) or gpt2(), **SAVED, **more)


@pytest.mark.parametrize("resume", [True, None])
def test_a_killed_run_goes_on_to_the_same_bits(unbroken, broken, tmp_path, resume):
    folder, expected = unbroken
    trainer = again(broken, tmp_path)
    trainer.train(resume_from_checkpoint=resume)  # None: all from the first step, as replays
    assert same_bits(trainer, expected)
    assert trainer.privacy.ledger.read_bytes() == (folder / "ledger.jsonl").read_bytes()
    assert trainer.privacy.steps_spent == 6


def vit():
    torch.manual_seed(1)
    config = ViTConfig(**TINY, image_size=4, patch_size=2, num_attention_heads=2)
    return ViTForImageClassification(config)


def _lora():
    torch.manual_seed(3)
    config = LoraConfig(r=2, target_modules=["c_attn"], lora_dropout=0.1, fan_in_fan_out=True)
    return get_peft_model(gpt2(), config)


def test_an_adapter_that_was_killed_goes_on_to_the_same_bits_and_ends_once(tmp_path):
    whole = trainer_of(tmp_path / "whole", _lora(), **SAVED)
    whole.train()
    killed(tmp_path / "run", _lora(), 3, **SAVED)
    for _ in range(2):  # the second time nothing is left to do
        trainer = trainer_of(tmp_path / "run", _lora(), **SAVED)
        trainer.train(resume_from_checkpoint=True)
        assert same_bits(trainer, weights(whole.model))
        assert trainer.privacy.ledger.read_bytes() == whole.privacy.ledger.read_bytes()


PIXELS = torch.rand(24, 3, 4, 4, generator=torch.Generator().manual_seed(0))
IMAGES = {
    "data": [{"pixel_values": image, "labels": i % 2} for i, image in enumerate(PIXELS)],
    **{"collator": default_data_collator, **EVERY_SECOND},
}


def test_a_model_that_trainer_does_not_load_whole_is_refused(tmp_path, monkeypatch):
    """It is saved under other names than it has. As on a GPU, where there is no digest: the same
    noise would go out on sums at other weights."""
    monkeypatch.setattr(
        "dpft.integrations.transformers.spending.ledger_entry",
        lambda mechanism, clipper, step, released: {"epsilon_rdp": mechanism.rdp_after(step + 1)},
    )
    whole = trainer_of(tmp_path / "whole", vit(), **IMAGES)
    whole.train()
    killed(tmp_path / "run", vit(), **IMAGES)
    folder = tmp_path / "run" / "checkpoint-4"
    trainer = trainer_of(tmp_path / "run", vit(), **IMAGES)
    with pytest.raises(runs.CheckpointError, match=r"not load all of .*checkpoint-4.*\.from_pretr"):
        trainer.train(resume_from_checkpoint=True)
    loaded = ViTForImageClassification.from_pretrained(folder)
    trainer = trainer_of(tmp_path / "run", loaded, **IMAGES)
    assert trainer.privacy.lineage == ()
    trainer.train(resume_from_checkpoint=True)
    assert same_bits(trainer, weights(whole.model))
    assert trainer.privacy.steps_spent == 6


def test_thresholds_that_adapt_go_on_where_the_checkpoint_had_them(tmp_path):
    """Group by group, with counts that the planned noise pays for."""
    privacy = replace(PRIVACY, style="per_layer_adaptive", threshold=0.05)
    whole = trainer_of(tmp_path / "whole", gpt2(), **SAVED, privacy=privacy)
    whole.train()
    killed(tmp_path / "killed", gpt2(), **SAVED, privacy=privacy)
    resumed = trainer_of(tmp_path / "killed", gpt2(), **SAVED, privacy=privacy)
    resumed.train(resume_from_checkpoint=True)
    assert same_bits(resumed, weights(whole.model))
    assert whole.privacy.ledger.read_bytes() == resumed.privacy.ledger.read_bytes()
    entries = runs.read_ledger(whole.privacy.ledger).entries
    assert len({tuple(entry["thresholds"]) for entry in entries}) == resumed.privacy.steps_spent
    mechanism = resumed.privacy.mechanism
    assert mechanism.total_noise_multiplier == pytest.approx(1)
    assert mechanism.noise_multiplier > 1
    assert sum(mechanism.dimensions) == sum(p.numel() for p in whole.model.parameters())
    # Who only asks has one group yet: a step costs what it does, whatever its groups are.
    assert trainer_of(tmp_path / "whole", gpt2(), privacy=privacy).privacy.steps_spent == 6


def _without_last_lines(folder):
    for file, kept in (("ledger.jsonl", 2), ("private/metrics.jsonl", 1)):
        lines = (folder / file).read_text().splitlines(keepends=True)
        (folder / file).write_text("".join(lines[:kept]))


def _weights_alone(folder):
    manifest = folder / "checkpoint-4" / "dpft.json"
    held = opened(json.loads(manifest.read_text()))
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        (folder / "checkpoint-4" / name).unlink()
        del held["files"][name]
    manifest.write_text(json.dumps(sealed(held)))


WRONG = {
    "lost ledger": ({"change": lambda folder: (folder / "ledger.jsonl").unlink()}, "ledger"),
    "lost lines": ({"change": _without_last_lines}, "lost lines"),
    "other data": ({"data": Texts(changed=[3])}, "data"),
    "other rate": ({"learning_rate": 1e-3}, "learning_rate"),
    "other microbatches": (
        {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3},
        "per_device_train_batch_size",
    ),
    "other clipping": ({"privacy": replace(PRIVACY, style="ghost")}, "style"),
    "other schedule": ({"callbacks": [OtherRate()]}, "learning_rates"),
    "no optimizer": ({"change": _weights_alone}, r"optimizer\.pt.*save_only_model"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_would_be_another_release_is_refused(broken, tmp_path, what):
    settings, named = WRONG[what]
    trainer = again(broken, tmp_path, **settings)
    with pytest.raises(runs.RunError, match=named) as error:
        trainer.train(resume_from_checkpoint=True)
    assert "force=true" not in str(error.value)


def test_on_other_devices_no_step_is_taken(broken, tmp_path, monkeypatch):
    compute = rounds_like(torch.device("cpu")) | {"threads": 99}
    monkeypatch.setattr("dpft.integrations.transformers.spending.rounds_like", lambda _: compute)
    trainer = again(broken, tmp_path)
    before = trainer.privacy.ledger.read_bytes()
    with pytest.raises(runs.LedgerMismatchError, match=r"steps of another machine .*\n.* -> 99"):
        trainer.train(resume_from_checkpoint=True)
    assert trainer.privacy.ledger.read_bytes() == before


def _cut(file):
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


DAMAGED = {
    "dpft.json": _cut,
    "model.safetensors": _cut,
    "optimizer.pt": Path.unlink,
    "scheduler.pt": lambda file: file.write_bytes(b"x"),
    "trainer_state.json": _cut,
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_checkpoint_is_named_and_the_one_before_taken(
    unbroken, broken, tmp_path, caplog, name
):
    trainer = again(broken, tmp_path, lambda f: DAMAGED[name](f / "checkpoint-4" / name))
    newest = tmp_path / "run" / "checkpoint-4"
    with pytest.raises(runs.CheckpointError, match=rf"checkpoint-4 .*{re.escape(name)}"):
        trainer.train(resume_from_checkpoint=str(newest))
    assert trainer.privacy.newest_checkpoint() == str(newest.with_name("checkpoint-2"))
    assert re.search(rf"Passed over: .*checkpoint-4 .*{re.escape(name)}", caplog.text)
    if name == "dpft.json":  # which the ledger is compared with, too
        trainer.train(resume_from_checkpoint=True)
        assert same_bits(trainer, unbroken[1])
        assert trainer.privacy.steps_spent == 6


@pytest.mark.parametrize(
    ("named", "more"),
    [
        ("noise", {"privacy": replace(PRIVACY, noise_multiplier=2.0)}),
        ("dataset_size", {"data": [Texts()[i] for i in range(23)]}),
        ("steps", {"max_steps": 2}),  # epsilon is that of all planned steps
    ],
)
def test_an_epsilon_is_not_computed_by_another_mechanism_than_was_spent(unbroken, named, more):
    folder, _ = unbroken
    same = trainer_of(folder, gpt2(), **SAVED)
    assert same.privacy.epsilon == same.privacy.mechanism.epsilon_after(6)
    other = trainer_of(folder, gpt2(), **SAVED, **more)
    with pytest.raises(runs.LedgerMismatchError, match=named):
        other.privacy.card()


def test_a_checkpoint_and_a_model_in_memory_say_that_they_were_trained_before(unbroken, tmp_path):
    folder, _ = unbroken
    (before,) = read_lineage(folder / "checkpoint-4" / "dpft.json")
    assert "PrivateTrainer" in before["data"]
    first = trainer_of(tmp_path / "first", max_steps=1)
    assert first.privacy.lineage == ()
    first.train()
    same_run = trainer_of(tmp_path / "first", first.model, max_steps=1)
    assert same_run.privacy.lineage == ()
    second = trainer_of(tmp_path / "second", first.model, max_steps=1)
    second.train()
    assert "the base model was trained before" in second.privacy.card()
    assert len(second.privacy.flags()) == 2


def test_masks_come_from_the_key_and_what_is_saved_tells_nothing_of_it(tmp_path, monkeypatch):
    """Whoever knew a step's masks would know in which row a record was. A checkpoint holds the
    state of the public seed, however many masks were drawn."""
    seeds, seeded, states = [], torch.manual_seed, []
    monkeypatch.setattr(torch, "manual_seed", lambda seed: seeds.append(seed) or seeded(seed))
    for noise_seed in (7, 8):
        folder, privacy = tmp_path / f"{noise_seed}", replace(PRIVACY, noise_seed=noise_seed)
        trainer_of(folder, gpt2(), **SAVED, max_steps=2, privacy=privacy).train()
        key = key_from_seed(noise_seed)
        masks = [keys.seed(key, "dropout", step) for step in range(2)]
        assert [seed for seed in seeds if seed in masks] == masks
        saved = torch.load(folder / "checkpoint-2" / "rng_state.pth", weights_only=False)
        states.append(saved["cpu"])
    assert torch.equal(*states)


def test_logs_have_epsilon_and_no_losses(tmp_path):
    trainer = trainer_of(tmp_path, max_steps=2, logging_strategy="steps", logging_steps=1)
    assert trainer.privacy.epsilon == 0
    with pytest.raises(ConfigError, match=r"trainer\.train"):
        trainer.get_train_dataloader()
    output = trainer.train()
    spent = trainer.privacy.epsilon
    assert spent == trainer.privacy.mechanism.epsilons()["pld"]
    logged = trainer.state.log_history
    shown = [logs["epsilon"] for logs in logged]
    assert shown == pytest.approx([shown[0], spent, spent], abs=1e-4)
    assert 0 < shown[0] < spent
    assert shown[-1] >= spent
    assert not {"loss", "train_loss", "total_flos"} & set().union(*logged, output.metrics)
    assert math.isnan(output.training_loss)
    shown = (tmp_path / "private" / "metrics.jsonl").read_text().splitlines()
    private = [json.loads(line) for line in shown]
    assert [line["step"] for line in private] == [0, 1]
    assert all(math.isfinite(line["loss"]) for line in private)

    card = trainer.privacy.card()
    assert "Anyone who knows the seed" in card  # can take the noise away
    assert "| Records of a batch, on average | 6 (`train_batch_size` is a microbatch's) |" in card
    with pytest.raises(ConfigError, match="private/"):
        trainer.push_to_hub()


# --- what is refused -----------------------------------------------------------------------------

_VALUES = {
    "max_grad_norm": 1.0,
    "neftune_noise_alpha": 5,
    "label_smoothing_factor": 0.1,
    "loss_type": "dft",
    "train_sampling_strategy": "group_by_length",
    "deepspeed": {"zero": 2},
    "fsdp": "full_shard",
    "parallelism_config": object(),
    "include_num_input_tokens_seen": "all",
    "debug": ["underflow_overflow"],
    "skip_memory_metrics": False,
}


@pytest.mark.parametrize("name", [name for name, *_ in REFUSALS])
def test_arguments_that_break_the_guarantee_are_named(name):
    given = SimpleNamespace(optim="sgd", **{name: _VALUES.get(name, True)})
    (line,) = refused(given)
    assert line.startswith(name)
    assert f"Type {name}=" in line


def test_all_faults_are_listed_at_once(tmp_path, monkeypatch):
    given = SimpleNamespace(optim="lomo", fp16=True)
    assert len(refused(given)) == 2
    with pytest.raises(ConfigError, match="max_grad_norm"):
        trainer_of(tmp_path, max_grad_norm=1.0)
    with pytest.raises(ConfigError, match=r"batch_size is 6 for 4 .*type batch_size="):
        trainer_of(tmp_path, data=[{"input_ids": [3, 4]}] * 4)
    for variable, values, _ in TAKEN:
        with monkeypatch.context() as patch:
            patch.setenv(variable, values[0].upper())
            (line,) = refused(SimpleNamespace(optim="sgd"))
        assert variable in line


@pytest.mark.parametrize(
    ("name", "value"), [("epsilon", "3"), ("delta", "1e-5"), ("style", "none")]
)
def test_a_value_that_is_none_is_named(name, value):
    """PyYAML reads 1e-5 as a text, and a value on a command line is one."""
    with pytest.raises((ConfigError, ValidationError), match=name):
        PrivacyArguments(**{"epsilon": 1, name: value})


@pytest.mark.parametrize(
    ("trained_as", "scored_as"), [(list, Dataset.from_list), (Dataset.from_list, list)]
)
def test_training_records_are_not_scored_in_whatever_form(tmp_path, trained_as, scored_as):
    rows = [Texts()[i] for i in range(24)]
    copy = scored_as([{"id": i, **row} for i, row in enumerate(rows[9:3:-1])])
    trainer = trainer_of(tmp_path, data=trained_as(rows), eval_dataset={"some": copy})
    for scored in (
        trainer.train,
        trainer.evaluate,
        lambda: trainer.evaluate(copy),
        lambda: trainer.evaluate(trainer.train_dataset),
        lambda: trainer.predict(copy),
    ):
        with pytest.raises(ConfigError, match="most records of the data set to be scored"):
            scored()
    assert trainer.privacy.steps_spent == 0
    assert trainer.state.log_history == []


def test_all_of_a_data_set_is_looked_at(tmp_path):
    """One of 700 records is longer than the others, and moves their positions."""
    rows = [{"input_ids": [3, 4, 5, 3 + i % 20]} for i in range(700)]
    rows[345] = {"input_ids": [3] * 9}

    def left(records):
        batch = {name: x.flip(1) for name, x in collate(records).items()}
        return batch | {
            "position_ids": torch.arange(batch["labels"].shape[1]).expand(len(records), -1)
        }

    trainer = trainer_of(tmp_path, gpt2(), data=rows)
    trainer.data_collator = left
    with pytest.raises(ModelError, match="the other records of its batch"):
        trainer.train()
    trainer = trainer_of(tmp_path, data=rows)
    trainer.train_dataset = rows[:600]
    with pytest.raises(ConfigError, match="calibrated for 700 records"):
        trainer.train()
    trainer = trainer_of(tmp_path, data=rows)
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ConfigError, match="autocast"):
        trainer.train()
    assert trainer.privacy.steps_spent == 0


class Beneath(PrivateTrainer):
    def training_step(self, *args, **kwargs):
        raise AssertionError


class OwnSampler(Trainer):
    def _get_train_sampler(self, *args, **kwargs):
        raise AssertionError


class PrivateOwnSampler(PrivacyMixin, OwnSampler):
    pass


@pytest.mark.parametrize("kind", [Beneath, PrivateOwnSampler])
def test_methods_that_would_go_round_the_mixin_are_refused(tmp_path, kind):
    with pytest.raises(ConfigError, match=kind.__name__):
        trainer_of(tmp_path, kind=kind)


def _untargeted(records):
    batch = collate(records)
    return batch | {"labels": torch.full_like(batch["labels"], -100)}


def _first_alone(records):
    batch = collate(records)
    batch["labels"][:, 1:] = -100
    return batch


def _flat(records):
    ids = torch.cat([torch.tensor(r["input_ids"]) for r in records])[None]
    return {"input_ids": ids, "labels": ids.clone()}


def _masked(records):
    batch = collate(records)
    hidden = torch.rand(batch["input_ids"].shape) < 0.5
    return batch | {"input_ids": batch["input_ids"].masked_fill(hidden, 3)}


def _nested(records):
    batch = collate(records)
    return {"labels": batch.pop("labels"), "of": batch}


def _batch_mean(model, inputs):
    losses = loss_of(model)(model, inputs)
    return losses / losses.numel()


def _longest_silent(records):
    batch = collate(records)
    batch["labels"][[len(r["input_ids"]) == 8 for r in records]] = -100
    return batch


class DoubledForCausalLM(LlamaForCausalLM):
    def forward(self, input_ids, **kwargs):
        output = super().forward(input_ids, **kwargs)
        output.loss = None if output.loss is None else 2 * output.loss
        return output


COUPLED = {
    "another loss": (
        {"model": lambda: DoubledForCausalLM(llama().config), "collator": _longest_silent},
        ModelError,
        "is not the one",
    ),
    "flattened": ({"collator": _flat}, DataError, "mix records"),
    "no targets": ({"collator": _untargeted}, DataError, "every label of train_dataset is -100"),
    "no targets of an own loss": (
        {"collator": _untargeted, "per_example_loss": lambda model, x: loss_of(model)(model, x)},
        DataError,
        "every label of train_dataset is -100",
    ),
    "first tokens alone": ({"collator": _first_alone}, DataError, "every label of train_dataset"),
    "nested": ({"collator": _nested}, DataError, "nested batch"),
    "one loss": (
        {"per_example_loss": lambda model, inputs: model(**inputs).loss},
        ConfigError,
        r"returned \(\) for 1 records; expected shape \(B,\)",
    ),
    "random": ({"collator": _masked}, DataError, "random"),
    "batch mean": ({"per_example_loss": _batch_mean}, ModelError, "the other records of its batch"),
    "half": ({"model": lambda: llama(torch.bfloat16)}, ConfigError, "dtype=torch.float32"),
}


@pytest.mark.parametrize("what", COUPLED)
def test_what_couples_records_is_refused_before_anything_is_spent(tmp_path, what):
    settings, error, named = COUPLED[what]
    model = settings.get("model", llama)()
    trainer = trainer_of(tmp_path, **settings | {"model": model})
    with pytest.raises(error, match=named):
        trainer.train()
    assert trainer.privacy.steps_spent == 0


@pytest.mark.filterwarnings("ignore:.pin_memory. argument is set:UserWarning")  # Trainer's default
def test_the_example_of_the_page_runs(tmp_path, monkeypatch, capsys):
    page = Path(__file__).parents[2] / "docs" / "how-to" / "trainer.md"
    example = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)[0]
    for long, short in (("2200", "230"), ("2000", "200"), ("num_train_epochs=4", "max_steps=1")):
        assert long in example
        example = example.replace(long, short)
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "trainer.md", "exec"), {"__name__": "example"})
    assert "\nepsilon 3.00 at delta 1e-05" in capsys.readouterr().out
    card = (tmp_path / "reports" / "README.md").read_text()
    assert "(3, 1e-05)-differential privacy" in card


@pytest.mark.parametrize("unused", [True, False])
def test_a_schedule_follows_the_steps_and_columns_may_be_left_over(tmp_path, unused):
    """Reports 21 and 47 of the public ones."""
    rows = [{"input_ids": ids, "note": "x" * len(ids)} for ids in Texts().rows]
    more = {"lr_scheduler_type": "linear", "warmup_steps": 2, "max_steps": 3}
    data = Dataset.from_list(rows)
    trainer = trainer_of(tmp_path, data=data, remove_unused_columns=unused, **more)
    trainer.train()
    assert trainer.lr_scheduler.last_epoch == trainer.privacy.steps_spent == 3


def _pair(records):
    batch = collate(records)
    return batch, batch.pop("labels")


@pytest.mark.parametrize(
    ("collator", "loss"),
    [
        (_nested, lambda model, x: loss_of(model)(model, {**x["of"], "labels": x["labels"]})),
        (_pair, lambda model, x: loss_of(model)(model, {**x[0], "labels": x[1]})),
    ],
)
def test_nested_batches_train_as_flat_ones(tmp_path, collator, loss):
    flat = trainer_of(tmp_path / "flat", max_steps=2)
    nested = trainer_of(tmp_path / "nested", collator=collator, per_example_loss=loss, max_steps=2)
    for trainer in (flat, nested):
        trainer.train()
    expected = weights(flat.model)
    assert all(torch.equal(expected[name], p) for name, p in weights(nested.model).items())


def test_a_batch_without_a_record_is_a_step_of_noise_alone(tmp_path):
    trainer = trainer_of(
        tmp_path, per_device_train_batch_size=1, gradient_accumulation_steps=1, max_steps=8
    )
    trainer.train()
    lines = (tmp_path / "private" / "metrics.jsonl").read_text().splitlines()
    records = [json.loads(line)["records"] for line in lines]
    assert 0 in records
    assert len(records) == trainer.privacy.steps_spent == 8


@pytest.mark.parametrize("unused", [True, False])
def test_a_loss_of_a_column_that_the_model_does_not_take_says_how_to_keep_it(tmp_path, unused):
    def loss(model, inputs):
        others = dict(inputs)
        return others.pop("weight") * loss_of(model)(model, others)

    def collator(records):
        return collate(records) | {"weight": torch.tensor([r["weight"] for r in records])}

    data = Dataset.from_list([{"input_ids": ids, "weight": 0.5} for ids in Texts().rows])
    own = {"data": data, "collator": collator, "per_example_loss": loss, "max_steps": 1}
    trainer = trainer_of(tmp_path, remove_unused_columns=unused, **own)
    if not unused:
        trainer.train()
        return
    with pytest.raises(ConfigError, match=r"'weight'.* type remove_unused_columns=False"):
        trainer.train()


@pytest.mark.parametrize("masked", [True, False])
def test_an_end_token_that_is_never_a_target_is_warned_of(tmp_path, caplog, masked):
    """Report 46 of the public ones."""

    def collator(records):
        batch = collate(records)
        ends = (batch["input_ids"] == 2) & masked
        return batch | {"labels": batch["labels"].masked_fill(ends, -100)}

    data = [{"input_ids": [*ids, 2]} for ids in Texts().rows]
    with caplog.at_level(logging.WARNING, "dpft"):
        trainer_of(tmp_path, data=data, collator=collator, max_steps=1).train()
    assert ("never a target" in caplog.text) is masked
