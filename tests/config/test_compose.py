"""A config is what Hydra would compose, though choices are composed once."""

import json
import shlex

import hydra
import pytest

from dpft.cli.inputs import typed
from dpft.config import folder
from dpft.config.compose import compose, initialised, resolved
from dpft.config.errors import ConfigError

BY_GROUP = [[f"{typed(g)}{name}" for name in folder.choices(g)] for g in folder.groups()]
# Each choice at least once, with one of every other group; not what an extra installs.
TOGETHER = [
    tuple(words[i % len(words)] for words in BY_GROUP if not words[0].startswith("+"))
    for i in range(max(map(len, BY_GROUP)))
]


@pytest.mark.parametrize(
    "words",
    [
        *TOGETHER,
        ("+experiment=demo", "eps=1"),
        ("+hparams_search=li2022-table6-lora",),
        ("task=mnli", "model=roberta-base", "adapt=full", "eps=8", "optim.rate_like=sst2"),
        ("task=samsum", "model.tied=false", "optim.betas=[0.9,0.98]", "task.data_dir='a b'"),
        ("adapt=scratch", "task=sst2", "clip=none", "optim=sgd", "seed=4"),
        ("clip=per_layer_adaptive", "clip.threshold=0.05", "task=cifar10", "model=wrn16-4"),
        ("task=e2e", "task=sst2", "eps=1", "eps=2"),
        ("clip=uniform", "++clip.count=3"),
        ("clip=custom", 'clip.patterns=[["a"],["b"]]', "name='3'"),
        ("optim.lr=1e-3", "decode.split=dev", "privacy.delta=1e-5", "eps=null"),
        ("++task.label_words={a:b}", "~audit", "model.path=???"),
    ],
)
def test_composing_fast_is_composing(words):
    with initialised():
        slow = resolved(hydra.compose("config", list(words)), words)
    fast = compose(words)
    assert json.dumps(fast) == json.dumps(slow)  # in the same order, as config.yaml shows it
    assert compose(words) == fast  # from what was composed before


def test_a_config_may_be_changed():
    for _ in range(2):
        config = compose(["task=sst2"])
        assert (config["task"]["name"], config["optim"]["betas"]) == ("sst2", [0.9, 0.999])
        config["task"]["name"] = "other"
        config["optim"]["betas"].append(1)


@pytest.mark.parametrize("file", ["Übung.csv", "eq=1.csv", "a&b #1!.csv"])
@pytest.mark.parametrize("classes", [["größer", "kleiner"], ["C++", "C#"]])
def test_accents_and_signs_need_no_quotes(file, classes):
    typed = (f"task.train_file={file}", f"task.classes=[{', '.join(classes)}]")
    composed = compose(["task=classification", *typed])["task"]
    assert (composed["train_file"], composed["classes"]) == (file, classes)


@pytest.mark.parametrize("value", ["demo (1)", "it's", 'a"b(', "a[1].csv", "{x"])
def test_what_is_advised_for_a_text_of_any_signs_works(value):
    with pytest.raises(ConfigError, match=r"quotation marks") as refused:
        compose([f"name={value}"])
    advised = str(refused.value).partition("each of them: ")[2]
    assert compose(shlex.split(advised))["name"] == value
