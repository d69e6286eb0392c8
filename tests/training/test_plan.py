"""What a run would take is what its shapes and a data sheet say."""

import json
import re
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import flop_registry
from transformers import Qwen2Config, Qwen3Config
from typer.testing import CliRunner

from dpft.cli.app import app
from dpft.config.compose import compose
from dpft.config.errors import ConfigError, ModelError
from dpft.config.parallel import Parallel
from dpft.config.schema import parse
from dpft.models.adapt import adapt
from dpft.models.hub import PACKAGES
from dpft.models.load import find, load_model
from dpft.parallel import metering
from dpft.parallel.metering import Operation
from dpft.parallel.pretended import PretendedAnswers
from dpft.parallel.simulate import Cost
from dpft.tasks import load_task
from dpft.training.devices import Device, device, names
from dpft.training.plan import largest, length_of, microbatches_of, peak_of, plan, time_of
from dpft.training.planned_step import StepShape, shape_of, training_of

DEVICE = Device(
    title="a device", memory=1e9, rates={"bfloat16": 100.0, "float32": 10.0, "float64": 5.0},
    bandwidth=50.0, overhead=2.0, link=4.0, network=1.0, per_node=8,
)  # fmt: skip
SHAPE = StepShape(Parallel(), 8, batch=2, length=4, microbatches=2)
COST = Cost(
    parameters=1, trained=1, noise=10, held=0, peaks={}, checked=None,
    sent={"all-gather": 16, "all-reduce": 24},
    work={
        "forward": {Operation("bfloat16", 1000, 100): 1, Operation("bfloat16", 100, 500): 1},
        "backward": {Operation("float32", 100, 100): 2, Operation("", 0, 5): 3},
        "reduction": {Operation("", 0, 150): 1},
        "optimizer": {Operation("", 0, 200): 1},
    },
)  # fmt: skip


def run_of(*words):
    return parse(compose(["model=random-gpt2", *words]))


def test_an_operation_takes_what_takes_longest():
    found = time_of(COST, SHAPE, DEVICE)
    # By products, by bytes; by products twice, and three times as the shortest.
    assert found.microbatch == (10 + 10 + 2 * 10 + 3 * 2) / 2
    assert found.noise == 10 * (37 * 2 / 5 + 164 * 4 / 10 + 8 / 50)
    assert found.optimizer == 3 + 4
    assert found.sending == 40 / 4
    assert found.seconds == 2 * 23 + found.noise + 7 + 10
    assert time_of(COST, replace(SHAPE, ranks=9), DEVICE).sending == 40
    assert time_of(COST, SHAPE, DEVICE, 6).seconds == 6 * 23 + found.noise + 7 + 10


def test_shards_are_sent_for_every_microbatch():
    assert time_of(COST, replace(SHAPE, parallel=Parallel("fsdp")), DEVICE, 6).sending == 30


@pytest.mark.parametrize(
    ("schedule", "idle"), [("1f1b", 3 / 8), ("interleaved", 3 / 16), ("zbv", 0)]
)
def test_a_pipeline_waits_at_both_ends(schedule, idle):
    shape = StepShape(Parallel("pipeline", schedule=schedule), 4, 2, 4, microbatches=8)
    assert time_of(COST, shape, DEVICE).idle == idle


def test_a_data_sheet_without_a_precision_says_so():
    with pytest.raises(ConfigError, match="no rate of float32"):
        time_of(COST, SHAPE, replace(DEVICE, rates={"bfloat16": 1.0}))


def test_every_data_sheet_is_whole():
    assert {"h100-sxm", "h100-pcie", "a100-80gb", "l40s", "rtx-4090"} <= set(names())
    for name in names():
        found = device(name)
        assert found.memory > 2e10
        assert found.rates["bfloat16"] > found.rates["float32"] > found.rates["float64"] > 1e11
        assert found.network < found.link < found.bandwidth


def test_an_unknown_device_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="h100-sxm"):
        device("h100")
    file = tmp_path / "mine.yaml"
    file.write_text("title: mine\n")
    with pytest.raises(ConfigError, match="is no data sheet"):
        device(str(file))


def test_noise_of_a_gpu_takes_its_instructions_and_its_bytes():
    gpu = device("h100-sxm")
    noise = time_of(replace(COST, noise=10**8), SHAPE, gpu).noise
    assert noise > 10**8 * 8 / gpu.bandwidth
    slow = replace(gpu, rates={**gpu.rates, "float64": gpu.rate("float64") / 10})
    slower = time_of(replace(COST, noise=10**8), SHAPE, slow).noise
    assert slower - noise == pytest.approx(10**8 * 37 * 18 / gpu.rate("float64"))


def test_a_step_has_as_many_microbatches_as_its_records_need():
    assert microbatches_of(SHAPE, 100) == 7  # 13 records a rank, two at a time
    staged = StepShape(Parallel("pipeline", length=4), 8, batch=2, length=4, microbatches=16)
    assert microbatches_of(staged, 100) == 32  # 50 records a pipeline, in rounds of 16


def test_steps_are_those_of_the_settings():
    length = length_of(run_of("optim.batch_size=1000", "optim.epochs=3"))
    assert length is not None
    assert (length.steps, length.records) == (3 * 42, 1000)
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


def test_what_cannot_be_planned_is_refused_by_name():
    with pytest.raises(ConfigError, match="--length 1024 or less"):
        plan(run_of(), StepShape(Parallel(), 1, 1, 1025), DEVICE)
    with pytest.raises(ConfigError, match="each is 17; leave --length out"):
        plan(run_of("task=cifar10", "model=random-vit"), StepShape(Parallel(), 1, 1, 8), DEVICE)
    with pytest.raises(ConfigError, match="adapt is rgp"):
        plan(run_of("adapt=rgp"), StepShape(Parallel(), 1, 1, 8), DEVICE)
    run = run_of("parallel=fsdp", "parallel.shards=2")
    with pytest.raises(ConfigError, match="a number that divides them"):
        plan(run, shape_of(run, 3, 1, 8), DEVICE)
    with pytest.raises(ConfigError, match="--ranks 2"):
        plan(run_of("parallel=pipeline"), StepShape(Parallel("pipeline"), 1, 1, 8), DEVICE)
    with pytest.raises(ModelError, match="sizes and no weights"):
        find(parse(compose(["model=gpt3-175b"])).model)


@pytest.mark.parametrize(
    ("words", "length", "parameters"),
    [
        # Published: 125, 60 and 86 million (Liu et al. 2019, Raffel et al. 2020, Dosovitskiy et
        # al. 2021).
        (("task=sst2", "task.mode=infill", "model=roberta-base"), 256, 124_697_433),
        (("task=e2e", "model=t5-small"), 100, 60_506_624),
        (("task=cifar10", "model=vit-base"), 197, 85_806_346),
    ],
)
def test_every_kind_of_task_has_a_step(words, length, parameters):
    run = run_of(*words)
    shape = shape_of(run, 1, 1)
    assert shape.length == length
    training = training_of(run, shape)
    with FakeTensorMode(), PretendedAnswers():
        model, batch = training.build(), training.batch()
        assert sum(p.numel() for p in model.parameters()) == parameters
        assert training.losses(model, batch).shape == (1,)


ARCHITECTURES = {
    "gpt2": "model=random-gpt2",
    "openai-gpt": "model=random-openai-gpt",
    "llama": "model=random-llama",
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "t5": "task=e2e model=random-t5",
    "bart": "task=e2e model=random-bart",
    "bert": "task=sst2 model=random-bert",
    "roberta": "task=sst2 model=random-roberta",
    "vit": "task=cifar10 model=random-vit",
    "wrn": "task=cifar10 model=random-wrn",
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_has_a_time_and_a_microbatch(name, tmp_path):
    """Those with fewer heads of keys than of queries too, in any version of torch."""
    words = ARCHITECTURES[name]
    if not isinstance(words, str):
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 99, **heads}
        config = words(intermediate_size=64, **sizes)
        config.save_pretrained(tmp_path)
        words = f"model=custom model.path={tmp_path}"
    run = run_of(*words.split(), "optim.microbatch_tokens=auto")
    shape = shape_of(run, 1, length=None if "cifar10" in words else 8)
    cost, time, _ = plan(run, shape, DEVICE, check=False)
    assert time.seconds > 0
    assert peak_of(run, shape)(1) > cost.held


def test_memory_is_found_where_an_operation_has_no_formula(monkeypatch):
    """PyTorch's of one version refuses heads of keys that are fewer than those of queries."""

    def refuses(*arguments, **named):
        raise AssertionError

    monkeypatch.setattr(metering, "flop_registry", dict.fromkeys(flop_registry, refuses))
    run = run_of("model=random-llama")
    assert peak_of(run, shape_of(run, 1, 1, 8))(1) > 0


SETTINGS = [
    f"{model} {adaptation}"
    for model in (
        "task=e2e model=tiny",
        "task=e2e model=tiny model.tied=false model.checkpointing=true",
        "task=e2e model=random-t5",
        "task=sst2 model=random-roberta",
        "task=sst2 model=random-bert +model.pooling=mean",
        "task=sst2 task.mode=infill model=random-roberta model.tied=false",
        "task=cifar10 model=random-vit",
    )
    for adaptation in ("adapt=full", "adapt=lora", "adapt=bias", "adapt=top2 adapt.blocks=1")
    if ("bias" not in adaptation or "t5" not in model)
    and ("top2" not in adaptation or "pooling" not in model)
]


@pytest.mark.parametrize(
    "words",
    [
        *SETTINGS,
        "task=cifar10 model=random-wrn adapt=full",
        "task=sst2 model=minilm model.pooling=mean adapt=full",
        "task=sst2 model=minilm model.pooling=mean adapt=linear",
    ],
)
def test_what_is_planned_is_what_is_trained(words):
    if "minilm" in words and find_spec(PACKAGES["minilm"].module) is None:
        pytest.skip("the package of MiniLM is not installed")
    run = run_of(*words.split())
    needs = load_task(run.task).needs
    trained = adapt(load_model(run.model, needs, 0), run.adapt, needs, 0).model
    training = training_of(run, shape_of(run, 1, 1))
    for _ in range(2):  # a plan builds its model several times
        with torch.device("meta"):
            planned = training.build()
        assert shapes(planned) == shapes(trained)
        assert checkpointed(planned) == checkpointed(trained)


def shapes(model):
    return {name: (p.shape, p.requires_grad) for name, p in model.named_parameters()}


def checkpointed(model):
    modules = model.named_modules()
    return [name for name, m in modules if getattr(m, "gradient_checkpointing", False)]


def test_a_model_of_another_kind_is_refused_as_in_training():
    with pytest.raises(ModelError, match="is no text encoder, which this task needs"):
        training_of(run_of("task=sst2"), StepShape(Parallel(), 1, 1, 8))


def dpft_plan(*words):
    return CliRunner().invoke(app, ["plan", "model=random-llama", *words, "--length", "16"])


def test_the_command_prints_memory_and_time_and_whether_it_fits():
    result = dpft_plan("adapt=lora", "parallel=fsdp", "--ranks", "2", "--memory", "0.001")
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.output.splitlines()]
    assert ["fits", "in", "0.001", "GiB", "no"] in lines
    assert any(line[:2] == ["hours", "of"] for line in lines)
    assert re.search(r"^  s of a step of [\d,]+ microbatch(es)? ", result.output, re.MULTILINE)
    words = ("--batch", "2", "--largest", "--json")
    private, plain = (
        json.loads(dpft_plan(*settings, "optim.batch_size=4", *words).output)
        for settings in ((), ("clip=none",))
    )
    assert private["shape"]["batch"] == 2
    assert private["cost"]["trained"] == plain["cost"]["parameters"]
    assert private["time"]["seconds"] > plain["time"]["seconds"] > 0
    assert private["cost"]["noise"] > plain["cost"]["noise"] == 0
    assert private["largest"] == 4  # as many as a step has
