"""Tasks, models, adaptations and clipping styles go together.

What is combined are the shipped configs themselves: a new one is taken in without a change here.
Each combination runs a private step on generated data, with a small random model of each family.
They are covering pairs: every task meets every model that it takes and every adaptation, with one
style; one task of each kind every style. Mixed precision meets every model, style and adaptation.
"""

import copy
from functools import lru_cache

import pytest
import torch

from dpft.config.compose import compose
from dpft.config.errors import DpftError
from dpft.config.folder import conf_dir
from dpft.config.schema import parse
from dpft.privacy.sampling import FixedShapes
from dpft.tasks import load_task
from dpft.tasks.objectives.evaluation import Mixed
from dpft.tasks.objectives.independence import check_independence
from dpft.tasks.objectives.objective import encoded
from dpft.tasks.units import Records, Users
from dpft.training import setup
from dpft.training.loop import train
from dpft.training.mechanisms import make_mechanism
from dpft.training.setup import make_optimizer
from tests.covering import covering

RECORDS = 6
SMALL = ("privacy.noise_multiplier=1", "eps=null", "privacy.delta=1e-3", "threads=1")
SMALL += ("optim.batch_size=4", "optim.steps=1", "optim.lr=1e-3")


def choices(group, prefix=""):
    return sorted(file.stem for file in (conf_dir() / group).glob(f"{prefix}*.yaml"))


CLIPS = choices("clip")
MODELS = choices("model", "random-")
# Tasks, and the second objective of those that have two.
TASKS = [(name, None) for name in choices("task")]
TASKS += [(name, "infill") for name in ("sst2", "qnli", "qqp", "mnli")]

KINDS = {
    "causal": ("random-gpt2", "random-llama", "random-openai-gpt"),
    **dict.fromkeys(("classifier", "masked"), ("random-bert", "random-roberta")),
    "image": ("random-vit", "random-wrn"),
}
# A task of each kind, which meets every style.
TYPICAL = (("e2e", None), ("sst2", None), ("sst2", "infill"), ("cifar10", None))

SHARES = 24  # of the combinations, a test each

# Kinds of models, models of them and adaptations that do not go together.
NOT_ADAPTED = {
    *((kind, "*", "prefix") for kind in ("classifier", "masked", "image", "paired")),
    *((kind, "*", "linear") for kind in ("causal", "paired")),  # their heads are tied
    *(("image", "random-wrn", adapt) for adapt in ("lora", "rgp", "top2", "attention")),
    *(("causal", "random-openai-gpt", "prefix"), ("causal", "random-llama", "bias")),
    ("paired", "random-t5", "bias"),
}


def settings(name, mode, *words):
    task = [f"task={name}", "task.source=sample", *([f"task.mode={mode}"] if mode else [])]
    return parse(compose([*task, *SMALL, *words]))


@lru_cache
def some_records(name, mode):
    task = load_task(settings(name, mode).task)
    owners = task.owners()
    return task, task.records("train")[:RECORDS], None if owners is None else owners[:RECORDS]


load_once = lru_cache(setup.load_model)
# Of which task, model and adaptation it is known that losses do not depend on the batch: that is so
# with every style, whose hooks are off meanwhile.
independent = set()


@pytest.fixture(autouse=True)
def models_are_built_once(monkeypatch):
    def built(*given, **more):
        return copy.deepcopy(load_once(*given, **more))

    monkeypatch.setattr(setup, "load_model", built)


def attempt(task, model, adapt, clip, half=False):
    """A step; the reason why not, or None."""
    try:
        run = settings(*task, f"model={model}", f"adapt={adapt}", f"clip={clip}")
        made, records, owners = some_records(*task)
        units = len(records) if owners is None else len(set(owners))
        parts = setup.assemble(run, made, make_mechanism(run, units), torch.device("cpu"))
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
        check_independence(data, parts.loaded.model, parts.clipper, run.optim.tokens)
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
    (step,) = steps
    assert step.records > 0
    assert step.summary()["dropped"] == 0
    for name, p in moved.items():
        assert bool(torch.isfinite(p).all()), name
        # With noise every trained parameter moves, whatever its gradient.
        assert run.clip.style == "none" or not torch.equal(p, before[name]), name
    return None


def family(task, model):
    """The row of `NOT_ADAPTED` for a model on a task; None where the task does not take it."""
    needs = some_records(*task)[0].needs
    # Models with encoder and decoder take every task that has a source. A Bart also fills blanks.
    if model == "random-t5" and needs.source:
        return "paired"
    if model == "random-bart" and (needs.source or needs.kind == "masked"):
        return "paired"
    return needs.kind if model in KINDS[needs.kind] else None


# Styles whose groups depend on what is trained: some adaptations leave too little to group.
GROUPED = ("block_wise", "uniform", "two_group", "per_device", "per_device_adaptive", "custom")


@lru_cache
def combinations():
    """Of task, model, adaptation, style and whether layers are in half precision."""
    taken = {(task, model): family(task, model) for task in TASKS for model in MODELS}

    def excluded(task, model, adapt, clip, half):
        kind = taken[task, model]
        return (
            kind is None
            or {(kind, model, adapt), (kind, "*", adapt)} & NOT_ADAPTED
            or (task not in TYPICAL and clip != CLIPS[TASKS.index(task) % len(CLIPS)])
            or (half and (task not in TYPICAL or (adapt != "full" and clip != "bk")))
        )

    return covering(TASKS, MODELS, choices("adapt"), CLIPS, (False, True), excluded=excluded)


@pytest.mark.parametrize("share", range(SHARES))
def test_all_that_fits_together_is_trained(share):
    for task, model, adapt, clip, half in combinations()[share::SHARES]:
        reason = attempt(task, model, adapt, clip, half)
        if reason is not None:
            assert clip in GROUPED, reason
            assert any(word in reason for word in ("block", "group", "count=")), reason
