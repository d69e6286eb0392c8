"""What a run would take is what its shapes and a data sheet say."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from typer.testing import CliRunner

from dpft.cli.app import app
from dpft.config.compose import compose
from dpft.config.errors import ConfigError, ModelError
from dpft.config.schema import parse
from dpft.models.adapt import adapt
from dpft.models.families import STANDINS
from dpft.models.load import load_model
from dpft.plan import estimate
from dpft.plan.estimate import (
    Device,
    StepShape,
    StepTime,
    device,
    fitted,
    largest,
    length_of,
    names,
    plan,
    shape_of,
    time_of,
    training_of,
)
from dpft.plan.simulate import Cost, Operation
from dpft.tasks import load_task

DEVICE = Device(
    title="a device", memory=1e9, rates={"bfloat16": 100.0, "float32": 10.0, "float64": 5.0},
    bandwidth=50.0, overhead=2.0,
)  # fmt: skip
COST = Cost(
    parameters=1, trained=1, held=0, peaks={}, checked=None,
    work={
        "forward": {Operation("bfloat16", 1000, 100): 1, Operation("bfloat16", 100, 500): 1},
        "backward": {Operation("float32", 100, 100): 2, Operation("", 0, 5): 3},
        "optimizer": {Operation("", 0, 200): 1},
    },
)  # fmt: skip


def run_of(*words):
    return parse(compose(["model=random-gpt2", *words]))


def test_an_operation_takes_what_takes_longest():
    found = time_of(COST, DEVICE, 6, compiled=False)
    # By products, by bytes; by products twice, and three times as the shortest.
    assert found.microbatch == 10 + 10 + 2 * 10 + 3 * 2
    assert found.optimizer == 4
    assert found.seconds == 6 * 46 + 4
    assert found.host == (2 + 5) * 48e-6


def test_every_data_sheet_is_whole():
    assert {"h100-sxm", "h100-pcie", "a100-80gb", "l40s", "rtx-4090"} <= set(names())
    for name in names():
        found = device(name)
        assert found.memory > 2e10
        assert found.rates["bfloat16"] > found.rates["float32"] > found.rates["float64"] > 1e11


def test_a_device_without_a_data_sheet_is_an_error(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("title: mine\n")
    for name in ("h100", str(file)):
        with pytest.raises(ConfigError):
            device(name)


def test_steps_are_those_of_the_settings():
    assert length_of(run_of("optim.batch_size=1000", "optim.epochs=3")) == (3 * 42, 1000)
    assert length_of(run_of("task=language_modeling", "optim.epochs=3")) is None


def test_the_largest_microbatch_is_found_by_few_questions():
    asked = []

    def peak(batch):
        asked.append(batch)
        return 100 + 7 * batch + batch // 10

    for room, expected in ((50, 0), (107, 1), (1000, 126), (10**6, 500)):
        asked.clear()
        assert largest(peak, room, 500) == expected
        assert len(asked) <= 8


def test_what_cannot_be_planned_is_an_error():
    with pytest.raises(ConfigError, match="--length 1024 or less"):
        plan(run_of(), StepShape(1, 1025), DEVICE)
    with pytest.raises(ConfigError, match="each is 17; leave --length out"):
        plan(run_of("task=cifar10", "model=random-vit"), StepShape(1, 8), DEVICE)
    with pytest.raises(ConfigError, match="adapt is rgp"):
        plan(run_of("adapt=rgp"), StepShape(1, 8), DEVICE)
    with pytest.raises(ModelError, match="is no text encoder, which this task needs"):
        training_of(run_of("task=sst2"), StepShape(1, 8))


TASKS = {"bert": "sst2", "roberta": "sst2", "vit": "cifar10", "wrn": "cifar10"}


@pytest.mark.parametrize(("number", "family"), [*enumerate(STANDINS)])
def test_auto_and_the_time_are_found_for_every_architecture(number, family, monkeypatch):
    """Llama has fewer heads of keys than of queries."""
    gpu = SimpleNamespace(total_memory=2**32)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    task, style = TASKS.get(family, "e2e"), ("bk", "per_layer")[number % 2]
    words = [f"task={task}", f"model=random-{family}", f"clip={style}", "precision=bfloat16"]
    words += ["optim.batch_size=6", *(["task.max_length=12"] if task != "cifar10" else [])]
    run = run_of(*words)
    shape = shape_of(run, 1)
    assert fitted(run, torch.device("cuda")).optim.tokens == (6 + 1) * shape.length
    if family in ("llama", "roberta", "t5", "vit"):
        cost, time, _ = plan(run, shape, DEVICE)
        assert time.seconds > 0
        assert cost.peak > cost.held


def test_auto_is_what_fits_the_whole_gpu(monkeypatch):
    cuda, gpu = torch.device("cuda"), SimpleNamespace(total_memory=2**33)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: gpu)
    words = ("task=e2e", "task.source=sample", "task.max_length=100", "optim.batch_size=600")
    run = run_of("model=random-llama", *words)
    # Which is not simulated.
    prefix = run_of("model=random-llama", *words, "adapt=prefix")
    assert fitted(prefix, cuda).optim.tokens == 4096
    monkeypatch.setattr(estimate, "training_of", lambda run, shape: shape)
    taken = lambda shape, **options: SimpleNamespace(peak=2**20 * shape.batch)  # noqa: E731
    monkeypatch.setattr(estimate, "simulated", taken)
    assert fitted(run, cuda).optim.tokens == (600 + 1) * 100  # with a padding example
    gpu.total_memory = 20 * 2**20
    assert fitted(replace(run, compile=False), cuda).optim.tokens == (18 + 1) * 100
    assert fitted(run, cuda).optim.tokens == (9 + 1) * 100  # half is for CUDA graphs
    typed = run_of("model=random-llama", *words, "optim.microbatch_tokens=77")
    assert fitted(typed, cuda).optim.tokens == 77
    assert fitted(run, torch.device("cpu")).optim.tokens == 4096


@pytest.mark.parametrize(
    "words",
    [
        "task=e2e model=tiny model.tied=false model.checkpointing=true adapt=lora",
        "task=sst2 model=random-bert +model.pooling=mean adapt=bias",
        "task=sst2 task.mode=infill model=random-roberta adapt=top2 adapt.blocks=1",
        "task=e2e model=random-t5 adapt=full",
        "task=cifar10 model=random-vit adapt=lora",
        "task=cifar10 model=random-wrn adapt=full",
    ],
)
def test_what_is_planned_is_what_is_trained(words):
    run = run_of(*words.split())
    needs = load_task(run.task).needs
    trained = adapt(load_model(run.model, needs, 0), run.adapt, needs, 0).model
    training = training_of(run, shape_of(run, 1))
    for _ in range(2):  # a plan builds its model several times
        with torch.device("meta"):
            planned = training.build()
        assert shapes(planned) == shapes(trained)


def shapes(model):
    modules = model.named_modules()
    checkpointed = [name for name, m in modules if getattr(m, "gradient_checkpointing", False)]
    return {name: (p.shape, p.requires_grad) for name, p in model.named_parameters()}, checkpointed


def dpft_plan(*words):
    typed = ["model=random-llama", "optim.batch_size=4", "optim.microbatch_tokens=32"]
    result = CliRunner().invoke(app, ["plan", *typed, *words, "--length", "16"])
    assert result.exit_code == 0, result.output
    return result.output


def value_of(row, output):
    return float(re.search(rf"^ +{row} +([\d.,]+) +$", output, re.MULTILINE)[1].replace(",", ""))


def test_the_command_prints_memory_and_time_and_whether_it_fits(tmp_path):
    small, shipped = tmp_path / "small.yaml", Path(estimate.__file__).parent / "devices"
    sheet = yaml.safe_load((shipped / "rtx-4090.yaml").read_text())
    small.write_text(yaml.safe_dump({**sheet, "memory_gib": 0.001}))
    output = dpft_plan("adapt=lora", "--on", str(small))
    assert re.search(r"fits in 0\.001 GiB +no", output)
    assert value_of(r"hours of [\d,]+ steps", output) > 0
    private, plain = dpft_plan("--largest"), dpft_plan("--largest", "clip=none")
    spent = "ms of microbatch"
    assert value_of(spent, private) > value_of(spent, plain) > 0
    assert "of the memory: 4 records" in private  # as many as a step has


def test_a_step_waits_for_the_host_where_that_is_slower():
    time = StepTime(microbatch=2.0, optimizer=1.0, microbatches=3, host=5.0)
    assert time.seconds == 3 * 5 + 1
    assert replace(time, host=1.0).seconds == 3 * 2 + 1
