"""TRL's `SFTTrainer`, made private by the mixin; skipped where TRL is not installed."""

import importlib.util

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dpft.config.errors import ConfigError
from dpft.integrations.transformers import PrivacyArguments, PrivacyMixin
from tests.integrations.test_trainer import (
    ARGUMENTS,
    PRIVACY,
    Texts,
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
