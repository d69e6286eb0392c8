"""Mixed precision: what is rounded, what is not, and what a run makes of it."""

import pytest
import torch
from omegaconf import OmegaConf
from torch import nn

from dpft.config.compose import compose
from dpft.config.errors import ModelError
from dpft.config.schema import parse
from dpft.privacy.shapes import FixedShapes
from dpft.runs import RunDirectory
from dpft.tasks import load_task
from dpft.tasks.objectives.base import Batch
from dpft.tasks.objectives.mixed import Mixed
from dpft.training import setup as preparation
from dpft.training.mechanisms import read_data
from dpft.training.progress import Progress
from dpft.training.run import run_experiment

SMALL = [
    *("task.source=sample", "task.limit_train=48", "task.limit_eval=2", "optim.batch_size=16"),
    *("optim.steps=4", "decode=greedy", "decode.max_new_tokens=3", "threads=1"),
    *("clip=bk", "privacy.noise_seed=1", "checkpoint_every=1"),
]


class Squares:
    """Losses of a linear layer; remembers in which type it multiplied."""

    def losses(self, model, batch):
        out = model(batch.tensors["x"])
        self.dtype = out.dtype
        return out.square().sum(1)


def test_products_are_rounded_and_nothing_else():
    torch.manual_seed(0)
    model, batch = nn.Linear(64, 3), Batch({"x": torch.randn(5, 64)})
    inner = Squares()
    losses = Mixed(inner).losses(model, batch)
    assert inner.dtype == torch.bfloat16
    assert losses.dtype == torch.float32
    assert not torch.equal(losses, inner.losses(model, batch))
    torch.testing.assert_close(losses, inner.losses(model, batch), rtol=0.05, atol=0.05)
    assert model.weight.dtype == torch.float32


def settings(folder, name, *more):
    return parse(compose([*SMALL, f"runs_dir={folder}", f"name={name}", *more]))


@pytest.mark.parametrize(("precision", "backward"), [("bfloat16", False), ("float32", True)])
def test_attention_that_makes_no_numbers_of_padding_is_refused(
    tmp_path, monkeypatch, precision, backward
):
    """Kernels of some GPUs do so: every padded record would be left out, alone and among others."""
    genuine = nn.functional.scaled_dot_product_attention

    def broken(query, key, value, attn_mask=None, **more):
        out = genuine(query, key, value, attn_mask=attn_mask, **more)
        if attn_mask is None:
            return out
        seen = attn_mask if attn_mask.dtype == torch.bool else attn_mask > -1e30
        unseen = ~seen.any(-1, keepdim=True)
        if not backward:
            return out.masked_fill(unseen, float("nan"))
        if query.requires_grad:
            query.register_hook(lambda g: g.masked_fill(unseen, float("nan")))
        return out

    monkeypatch.setattr(nn.functional, "scaled_dot_product_attention", broken)
    settings = [*SMALL, f"precision={precision}", "eps=3", f"runs_dir={tmp_path}", "name=run"]
    what = "gradient" if backward else "loss"
    with pytest.raises(ModelError, match=f"no finite {what}.*attention makes none of padding"):
        run_experiment(parse(compose(settings)))
    assert not (tmp_path / "run").exists()


def prepared(tmp_path, monkeypatch, *more):
    """Return what a run would train with, and what was checked for independence."""
    checked = []
    monkeypatch.setattr(
        preparation, "check_independence", lambda *arguments: checked.append(arguments)
    )
    run = settings(tmp_path, "run", *more)
    text = OmegaConf.to_yaml(OmegaConf.create(run.raw))
    with RunDirectory.open(tmp_path / "run", run.identity(), text) as directory:
        data = read_data(run, load_task(run.task), Progress())
        found = preparation.prepare(run, data, directory, Progress())
    found.parts.clipper.close()
    return found, checked


def test_a_private_run_in_half_precision_trains_and_checks_in_fixed_shapes(tmp_path, monkeypatch):
    found, [(units, model, clipper, budget, _)] = prepared(
        tmp_path, monkeypatch, "precision=bfloat16", "optim.microbatch_tokens=1024"
    )
    assert units is found.units
    assert units.shapes == FixedShapes(16)
    assert (model, clipper) == (found.parts.loaded.model, found.parts.clipper)
    assert budget == 1024
    for piece in units.microbatches(range(48), budget):
        batch = units.batch(piece, 0).batch.tensors
        assert batch["input_ids"].shape == (len(piece), batch["input_ids"].shape[1])
        assert batch["input_ids"].shape[1] + 1 in (16, 24, 32, 48, 64, 96, 100)
        assert len(piece) == 2
        losses = units.losses(model, units.batch(piece, 0))
        assert losses.isfinite().all()
    assert found.header["compute"]["shapes"] == "fixed"
