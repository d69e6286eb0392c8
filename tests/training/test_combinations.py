"""Tasks, models, adaptations and clipping styles go together, or say why they do not.

What is combined are the shipped configs themselves: a new one is taken in without a change here.
Each combination that is not refused runs two private steps on generated data, with a small random
model of each family. Two tests cover what the four choices have to do with each other: task x model
x adaptation, with a style that changes from one to the next, and model kind x adaptation x style,
with one task of each kind, which the former therefore leaves out. Of thousands of combinations
every third or sixth is tried, dealt so that every two of the choices meet; in mixed precision an
eighth, so that each style does. DPFT_LONG=1 tries all.
"""

import copy
import itertools
import os
from functools import lru_cache

import pytest
import torch
import yaml

from dpft.config.compose import compose
from dpft.config.errors import DpftError
from dpft.config.folder import conf_dir
from dpft.config.schema import parse
from dpft.privacy.shapes import FixedShapes
from dpft.tasks import load_task
from dpft.tasks.objectives.encoding import encoded
from dpft.tasks.objectives.independence import check_independence
from dpft.tasks.objectives.mixed import Mixed
from dpft.tasks.units import Records, Users
from dpft.training import assembly
from dpft.training.loop import train
from dpft.training.mechanisms import make_mechanism
from dpft.training.optim import make_optimizer

RECORDS, STEPS = 6, 2


def choices(group, prefix=""):
    return sorted(file.stem for file in (conf_dir() / group).glob(f"{prefix}*.yaml"))


def dealt(options, turn, share):
    """Every `share`th of the options, from another one each turn; all with DPFT_LONG."""
    return options if "DPFT_LONG" in os.environ else options[-turn % share :: share]


CLIPS = choices("clip")
ADAPTS = choices("adapt")
MODELS = choices("model", "random-")
GLUE = ("sst2", "qnli", "qqp", "mnli")
# Tasks, and the second objective of those that have two.
TASKS = [(name, None) for name in choices("task")] + [(name, "infill") for name in GLUE]

KINDS = {
    "causal": ("random-gpt2", "random-llama", "random-openai-gpt"),
    "classifier": ("random-bert", "random-roberta"),
    "masked": ("random-bert", "random-roberta"),
    "image": ("random-vit", "random-wrn"),
}
TRAINED = [(kind, model) for kind, models in KINDS.items() for model in models]
# Models with encoder and decoder take every task that has a source. A Bart also fills blanks.
PAIRED = ("random-t5", "random-bart")
TYPICAL = {
    "causal": ("e2e", None),
    "classifier": ("sst2", None),
    "masked": ("sst2", "infill"),
    "image": ("cifar10", None),
}

# Tasks with models: all but what the other test combines with every style.
PAIRS = [
    (task, model)
    for task, model in itertools.product(TASKS, MODELS)
    if not any(task == TYPICAL[kind] and model in KINDS[kind] for kind in KINDS)
]

# Why a model kind, model and adaptation do not go together.
NOT_ADAPTED = {
    ("classifier", "*", "prefix"): "prefix",
    ("masked", "*", "prefix"): "prefix",
    ("image", "*", "prefix"): "prefix",
    ("image", "random-wrn", "lora"): "lora",
    ("image", "random-wrn", "rgp"): "rgp",
    ("image", "random-wrn", "top2"): "top2",
    ("image", "random-wrn", "attention"): "attention",
    ("causal", "random-openai-gpt", "prefix"): "prefix",
    ("causal", "*", "linear"): "tied",
    ("causal", "random-llama", "bias"): "bias",
    ("paired", "*", "prefix"): "adapt=prefix",
    ("paired", "*", "linear"): "adapt=linear",
    ("paired", "random-t5", "bias"): "adapt=bias",
}


@lru_cache
def shipped(group, name):
    return yaml.safe_load((conf_dir() / group / f"{name}.yaml").read_text())


@lru_cache
def adaptation(name):
    return compose([f"adapt={name}", "threads=1"])


def settings(task, model, adapt, clip):
    """The composed config, without composing it thousands of times."""
    raw = copy.deepcopy(adaptation(adapt))
    name, mode = task
    raw["task"] = {**shipped("task", name), "source": "sample"}
    if mode is not None:
        raw["task"]["mode"] = mode
    raw["model"] = {**shipped("model", model), "init": raw["model"]["init"]}
    raw["clip"] = shipped("clip", clip)
    raw["eps"] = raw["privacy"]["epsilon"] = None
    raw["privacy"].update(noise_multiplier=1.0, epsilon=None, delta=1e-3)
    raw["optim"].update(batch_size=4, steps=STEPS, lr=1e-3)
    return raw


@lru_cache
def some_records(name, mode):
    task = load_task(
        {**shipped("task", name), "source": "sample", **({"mode": mode} if mode else {})}
    )
    owners = task.owners()
    return task, task.records("train")[:RECORDS], None if owners is None else owners[:RECORDS]


@lru_cache
def original(model, needs, seed):
    return experiment_load(model, needs, seed)


experiment_load = assembly.load_model


# Of which task, model and adaptation it is known that losses do not depend on the batch: that is so
# with every style, whose hooks are off meanwhile.
independent = set()


@pytest.fixture(autouse=True)
def models_are_built_once(monkeypatch):
    def built(*arguments, weights, absent=frozenset()):
        assert weights  # one process reads its own
        return copy.deepcopy(original(*arguments))

    monkeypatch.setattr(assembly, "load_model", built)


def attempt(task, model, adapt, clip, half=False):
    """Two steps; the reason why not, or None."""
    raw = settings(task, model, adapt, clip)
    try:
        run = parse(raw)
        made, records, owners = some_records(*task)
        units = len(records) if owners is None else len(set(owners))
        parts = assembly.assemble(run, made, make_mechanism(run, units), torch.device("cpu"))
        objective = made.objective(parts.loaded)
    except DpftError as error:
        return str(error)
    examples = encoded(objective, records, lambda count: None)
    if (task, model, adapt) not in independent:
        with parts.clipper.paused():
            check_independence(Records(objective, examples), parts.loaded.model)
        independent.add((task, model, adapt))
    trained, shapes = objective, None
    if half:
        trained, shapes = Mixed(objective), FixedShapes(32)  # of three units, blanks included
    data = Records(trained, examples, shapes)
    if owners is not None:
        data = Users(trained, examples, owners, made.records_per_user, b"key", shapes)
    if half and (task, model, "half") not in independent:
        check_independence(data, parts.loaded.model, parts.clipper, run.optim.microbatch_tokens)
        independent.add((task, model, "half"))
    reparametrisation = parts.loaded.reparametrisation
    moved = parts.clipper.parameters if reparametrisation is None else reparametrisation.moved()
    before = {name: p.detach().clone() for name, p in moved.items()}
    steps = []
    train(
        model=parts.loaded.model,
        data=data,
        clipper=parts.clipper,
        mechanism=parts.mechanism,
        optimizer=make_optimizer(run.optim, iter(moved.values())),
        settings=run.optim,
        key=b"a key",
        reparametrisation=reparametrisation,
        after_step=lambda step, statistics: steps.append(statistics),
    )
    parts.clipper.close()
    assert len(steps) == STEPS
    assert sum(s.records for s in steps) > 0
    assert sum(s.dropped for s in steps) == 0
    for name, p in moved.items():
        assert bool(torch.isfinite(p).all()), name
        # With noise every trained parameter moves, whatever its gradient.
        assert run.clip.style == "none" or not torch.equal(p, before[name]), name
    return None


def kind_of(task):
    return some_records(*task)[0].needs.kind


def also(task):
    """Models of no kind of their own that the task accepts."""
    needs = some_records(*task)[0].needs
    if needs.source:
        return PAIRED
    return ("random-bart",) if needs.kind == "masked" else ()


def expected(kind, model, adapt):
    """Why the adaptation is refused, whatever the clipping; None if it is not."""
    return NOT_ADAPTED.get((kind, model, adapt)) or NOT_ADAPTED.get((kind, "*", adapt))


# Styles whose groups depend on what is trained: some adaptations leave too little to group.
GROUPED = ("block_wise", "uniform", "two_group", "per_device", "per_device_adaptive", "custom")


def judge(reason, kind, model, adapt, clip):
    """Fail unless the outcome is what the tables here say."""
    why = expected(kind, model, adapt)
    if why is not None:
        assert reason is not None, f"{adapt} on {model} is no longer refused"
        assert why in reason.lower()
    elif clip in GROUPED:
        assert reason is None or any(word in reason for word in ("block", "group", "count=")), (
            reason
        )
    else:
        assert reason is None, reason


def test_every_two_choices_meet():
    """What is dealt leaves out no pair of adaptation and style, nor either with a model."""
    met = {
        (model, adapt, clip)
        for turn, (_, model) in enumerate(TRAINED)
        for adapt in ADAPTS
        for clip in dealt(CLIPS, turn + ADAPTS.index(adapt), 6)
    }
    assert {(adapt, clip) for _, adapt, clip in met} == set(itertools.product(ADAPTS, CLIPS))
    models = {model for _, model in TRAINED}
    assert {(model, clip) for model, _, clip in met} == set(itertools.product(models, CLIPS))


@pytest.mark.parametrize(
    ("task", "model"), PAIRS, ids=["-".join(filter(None, (*task, model))) for task, model in PAIRS]
)
def test_tasks_models_and_adaptations(task, model):
    kind = kind_of(task)
    if model in also(task):
        turn = itertools.cycle(CLIPS)
        adapts = ADAPTS if task == TYPICAL["causal"] else ("full", "lora")
        for adapt, clip in zip(adapts, turn, strict=False):
            judge(attempt(task, model, adapt, clip), "paired", model, adapt, clip)
        return
    if model not in KINDS[kind]:
        reason = attempt(task, model, "full", "bk")
        assert reason is not None
        assert f"model {model}" in reason
        assert "this task needs" in reason
        return
    turn = itertools.cycle(CLIPS[TASKS.index(task) :] + CLIPS[: TASKS.index(task)])
    met = dealt(list(zip(ADAPTS, turn, strict=False)), PAIRS.index((task, model)), 3)
    for adapt, clip in met:
        judge(attempt(task, model, adapt, clip), kind, model, adapt, clip)


@pytest.mark.parametrize("adapt", ADAPTS)
@pytest.mark.parametrize(("kind", "model"), TRAINED)
def test_adaptations_and_styles(kind, model, adapt):
    refused = expected(kind, model, adapt) is not None
    clips = dealt(CLIPS, TRAINED.index((kind, model)) + ADAPTS.index(adapt), 6)
    reasons = {clip: attempt(TYPICAL[kind], model, adapt, clip) for clip in clips}
    for clip, reason in reasons.items():
        judge(reason, kind, model, adapt, clip)
    assert all((reasons[clip] is not None) == refused for clip in set(clips).difference(GROUPED))


@pytest.mark.parametrize(("kind", "model"), TRAINED)
def test_styles_in_mixed_precision(kind, model):
    """With the checks against autograd on: what a layer rounds must not pass for a wrong rule."""
    turn = TRAINED.index((kind, model))
    for clip in dealt(CLIPS, turn, 8):
        judge(attempt(TYPICAL[kind], model, "full", clip, half=True), kind, model, "full", clip)
    for adapt in dealt(ADAPTS, turn, 6):
        judge(attempt(TYPICAL[kind], model, adapt, "bk", half=True), kind, model, adapt, "bk")


@pytest.mark.parametrize("model", PAIRED)
def test_encoder_and_decoder_in_mixed_precision(model):
    """The widths of source and target each follow from the record alone."""
    assert attempt(TYPICAL["causal"], model, "full", "bk", half=True) is None
