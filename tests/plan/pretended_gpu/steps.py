"""Steps on tensors that lie on a GPU and hold no numbers: run as a module, in its own process.

In a process of its own, begun with the device that does nothing in ``LD_PRELOAD``: torch takes this
machine for one with a GPU there.
"""

import contextlib
import logging

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from transformers import AutoConfig, AutoModelForCausalLM

from dpft.config.compose import compose
from dpft.config.schema import parse
from dpft.plan.estimate import shape_of, training_of
from dpft.plan.simulate import Meter, PretendedAnswers, steps
from dpft.privacy.precision import as_on_gpu
from dpft.privacy.sampling import BLANK, FixedShapes
from dpft.tasks.objectives.evaluation import Mixed
from dpft.tasks.objectives.generation import CausalExample, collate
from dpft.tasks.units import Records, Users
from dpft.training.executors import add_clipped
from dpft.training.setup import attach_clipper
from dpft.training.statistics import StepStatistics, check_gradients, check_weights
from tests.privacy import users

SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 64}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
EXAMPLES = [
    CausalExample(tuple(range(2, 2 + n)), tuple(range(5, 5 + m))) for n, m in ((4, 8), (6, 10))
]


class Texts(users.Texts):
    """In fixed shapes."""

    def collate(self, examples, widths=None):
        return collate(examples, widths)

    def widths(self, example, coarse=False):
        return self.widest()

    def widest(self):
        return 24, 16

    def blank(self):
        return CausalExample((1,), (1,))


class OwnGenerators(TorchFunctionMode):
    """Random numbers of one device's generator are refused to another, as kernels do."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        named = kwargs or {}
        generator, device = named.get("generator"), named.get("device")
        if isinstance(generator, torch.Generator) and device is not None:
            assert torch.device(device).type == generator.device.type, function
        return function(*args, **named)


def train(clip, precision, family, users=False):
    """Two steps; every gradient lies where its parameter does."""
    run = parse(compose([f"clip={clip}", "model=random-gpt2"]))
    with FakeTensorMode(), PretendedAnswers(), as_on_gpu():
        with torch.device("cuda"):
            config = AutoConfig.for_model(family, **SIZES)
            model = AutoModelForCausalLM.from_config(config).train()
        device = next(model.parameters()).device
        assert device.type == "cuda"
        half = precision != "float32"
        objective, shapes = (Mixed(Texts()), FixedShapes(8)) if half else (Texts(), None)
        clipper = attach_clipper(run.clip, model)
        units = Records(objective, EXAMPLES, shapes)
        if users:
            units = Users(objective, EXAMPLES, "ab", 1, b"key", shapes)
        optimizer, statistics = torch.optim.Adam(clipper.parameters.values()), StepStatistics()
        for step in range(2):
            optimizer.zero_grad()
            for micro in units.microbatches(range(len(EXAMPLES)), 96 if half else 64):
                batch = units.batch(micro, step).to(device)
                real = len(micro) - micro.count(BLANK)
                add_clipped(units, model, clipper, batch, real, statistics)
            clipper.collect()
            assert {p.grad.device for p in clipper.parameters.values()} == {device}
            check_gradients(clipper, step, None)
            optimizer.step()
            check_weights(optimizer, step, None)
            clipper.policy.release(len(EXAMPLES))
        statistics.summary()
        clipper.close()


def simulated_step(*words):
    """A step as `dpft.plan.simulate` runs it, under a default device."""
    run = parse(compose(["model=random-gpt2", *words]))
    shape = shape_of(run, 2)
    with FakeTensorMode() as fake, PretendedAnswers(), as_on_gpu(), OwnGenerators():
        training = training_of(run, shape)
        with torch.device("cuda"), Meter(fake) as meter:
            steps(training, meter, training.build(), counts=False)


def main():
    logging.disable(logging.WARNING)
    # What torch without CUDA looks for, and cannot be pretended.
    torch.cuda.amp.common.amp_definitely_not_available = lambda: False
    torch.cuda.is_bf16_supported = lambda *args, **kwargs: True
    torch.random.fork_rng = lambda *args, **kwargs: contextlib.nullcontext()
    torch.cuda.get_rng_state = lambda device: torch.empty(0)
    for clip in ("bk", "ghost", "per_layer_adaptive", "none"):
        for precision in ("float32", "bfloat16"):
            train(clip, precision, "gpt2")
            print("trained", clip, precision, flush=True)
    train("bk", "float32", "llama", users=True)
    simulated_step()
    simulated_step("clip=per_layer")
    simulated_step("model=random-llama")
    for task, family in (("e2e", "t5"), ("sst2", "roberta"), ("cifar10", "vit")):
        simulated_step(f"task={task}", f"model=random-{family}")
    print("all done")


if __name__ == "__main__":
    main()
