"""TRL's `SFTTrainer`, made private by the mixin: a stand-in for its interface, and TRL itself.

Tests of TRL itself are skipped where it is not installed. The stand-in has what the mixin looks at:
the arguments, and a trainer that packs its data set and flattens its batches by them.
"""

import importlib.util
from dataclasses import dataclass, fields

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Trainer, TrainingArguments

from dpft.config.errors import ConfigError, DataError
from dpft.integrations.transformers import PrivacyArguments, PrivacyMixin
from tests.integrations.test_trainer import (
    ARGUMENTS,
    PRIVACY,
    Texts,
    collate,
    llama,
    trainer_of,
    weights,
)

if installed := importlib.util.find_spec("trl") is not None:
    import trl

needs_trl = pytest.mark.skipif(not installed, reason="pip install 'dpft[trl]'")
# TRL 1.16 sets arguments of Trainer under names that transformers 5 has changed.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")

SETTINGS = {**ARGUMENTS, "max_steps": 3, "bf16": False}


@dataclass
class Arguments(TrainingArguments):
    """What `trl.SFTConfig` adds that mixes records."""

    packing: bool = False
    padding_free: bool = False


class Supervised(Trainer):
    """What `trl.SFTTrainer` does with them."""

    prepared = 0

    def __init__(self, model, args, train_dataset, **kwargs):
        type(self).prepared += 1
        if args.packing:
            packed = [token for row in train_dataset for token in row["input_ids"]]
            train_dataset = [{"input_ids": packed[i : i + 8]} for i in range(0, len(packed), 8)]
        super().__init__(
            model, args, flat if args.padding_free else collate, train_dataset, **kwargs
        )


def flat(records):
    tokens = torch.tensor([[token for record in records for token in record["input_ids"]]])
    return {"input_ids": tokens, "labels": tokens.clone()}


class PrivateSupervised(PrivacyMixin, Supervised):
    pass


def supervised(folder, privacy=PRIVACY, **more):
    args = Arguments(str(folder), **{**SETTINGS, **more})
    return PrivateSupervised(llama(), args, Texts(), privacy=privacy)


MIXING = ("packing", "padding_free")


@pytest.mark.parametrize("name", MIXING)
def test_what_mixes_records_is_refused_before_the_data_set_is_prepared(tmp_path, name):
    before = PrivateSupervised.prepared
    with pytest.raises(ConfigError, match=rf"{name}=True.* Type {name}=False"):
        supervised(tmp_path, **{name: True})
    assert PrivateSupervised.prepared == before


def test_a_collator_that_flattens_is_refused_whatever_the_arguments_say(tmp_path):
    trainer = supervised(tmp_path)
    trainer.data_collator = flat
    with pytest.raises(DataError, match="mix records"):
        trainer.train()
    assert trainer.privacy.steps_spent == 0


def test_a_trainer_that_mixes_nothing_is_trained(tmp_path):
    ours = trainer_of(tmp_path / "ours", max_steps=3)
    ours.train()
    theirs = supervised(tmp_path / "theirs")
    theirs.train()
    expected, got = weights(ours.model), weights(theirs.model)
    assert all(torch.equal(got[name], parameter) for name, parameter in expected.items())


# TRL itself.


def tokenizer():
    words = ["<pad>", "<s>", "</s>", *(f"w{i}" for i in range(3, 23))]
    made = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="</s>")


def sft(folder, privacy=PRIVACY, **more):
    from datasets import Dataset

    class PrivateSFTTrainer(PrivacyMixin, trl.SFTTrainer):
        pass

    rows = [{"text": " ".join(f"w{i}" for i in row)} for row in Texts().rows]
    return PrivateSFTTrainer(
        model=llama(),
        args=trl.SFTConfig(str(folder), **{**SETTINGS, "shuffle_dataset": False, **more}),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer(),
        privacy=privacy,
    )


class Ended(Texts):
    """As TRL prepares them: with an end."""

    def __getitem__(self, i):
        return {"input_ids": [*self.rows[i], 2]}


@needs_trl
def test_it_takes_the_steps_of_private_trainer(tmp_path):
    ours = trainer_of(tmp_path / "ours", data=Ended(), max_steps=3)
    ours.train()
    theirs = sft(tmp_path / "theirs")
    output = theirs.train()
    assert theirs.privacy.steps_spent == 3
    assert "epsilon" in output.metrics
    assert not {"loss", "train_loss", "entropy"} & output.metrics.keys()
    expected, got = weights(ours.model), weights(theirs.model)
    for name, parameter in expected.items():
        torch.testing.assert_close(got[name], parameter, rtol=0, atol=1e-6)


@needs_trl
def test_packing_is_refused_before_records_are_packed(tmp_path):
    with pytest.raises(ConfigError, match=r"packing=True.*\n.*padding_free=True"):
        sft(tmp_path, PrivacyArguments(epsilon=1), packing=True, padding_free=True)


@needs_trl
def test_texts_that_are_trained_on_are_not_scored(tmp_path):
    """TRL prepares a data set that is passed to `evaluate` anew."""
    trainer = sft(tmp_path)
    texts = [{"text": " ".join(f"w{i}" for i in row)} for row in Texts().rows]
    with pytest.raises(ConfigError, match="most records of the data set to be scored"):
        trainer.evaluate(trainer.train_dataset.from_list(texts[::-1]))


@needs_trl
def test_the_stand_in_has_the_arguments_of_trl():
    defaults = {field.name: field.default for field in fields(trl.SFTConfig)}
    assert {name: defaults.get(name) for name in MIXING} == dict.fromkeys(MIXING, False)
