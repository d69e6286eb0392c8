"""A model with its clipper and its noise, on this rank, and the whole of it in the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch

from dpft.config.errors import ConfigError, RankError
from dpft.config.schema import Run
from dpft.models.adapt import adapt
from dpft.models.load import LoadedModel, load_model
from dpft.parallel.cohort import Pipelines, SingleProcess, TrainingCohort
from dpft.privacy import Clipper, Mechanism
from dpft.privacy.shapes import FixedShapes
from dpft.privacy.spec import Partition
from dpft.privacy.untouched import Untouched
from dpft.tasks.base import Task
from dpft.training.mechanisms import attach_clipper, over_groups

if TYPE_CHECKING:
    from dpft.parallel.pipelined_sums import PipelinedSums


@dataclass(frozen=True)
class TrainingParts:
    """A model ready to be trained, what clips its gradients, and what is guaranteed.

    Attributes:
        loaded: the model.
        digest: of its weights and tokenizer as they were loaded, see `LoadedModel.digest`.
        clipper: attached to it.
        mechanism: what is guaranteed.
        pipeline: what forms sums where ranks hold stages of the model; None: the clipper by itself.
    """

    loaded: LoadedModel
    digest: bytes
    clipper: Clipper
    mechanism: Mechanism
    pipeline: PipelinedSums | None = None

    def moved(self) -> Mapping[str, torch.nn.Parameter]:
        """What a checkpoint holds, by name: also what other ranks of a pipeline move."""
        if self.loaded.reparametrisation is not None:
            return self.loaded.reparametrisation.moved()
        if self.pipeline is None:
            return self.clipper.parameters
        named = self.loaded.model.named_parameters()
        return {name: parameter for name, parameter in named if parameter.requires_grad}

    def untouched(self) -> Untouched:
        """What nobody trains, as it is now."""
        model = self.loaded.model
        trained = [p for p in model.parameters() if p.requires_grad]
        return Untouched(model, {id(p) for p in (*trained, *self.moved().values())})


def assemble(
    run: Run,
    task: Task,
    mechanism: Mechanism,
    device: torch.device,
    cohort: TrainingCohort | None = None,
) -> TrainingParts:
    """Load and adapt the model, attach the clipper, and spread the noise over its groups.

    Args:
        run: the settings.
        task: says what kind of model it needs.
        mechanism: of the run, over no groups yet.
        device: where the model goes.
        cohort: the processes that train it together; None: this one.

    Raises:
        DpftError: if these settings do not go together.
    """
    cohort = cohort or SingleProcess()
    if isinstance(cohort, Pipelines):
        return _in_stages(run, task, mechanism, device, cohort)
    loaded = _load(run, task, cohort)
    # Copies are compared, since each has read its own; parts are of what the first has read.
    begun = loaded.digest() if cohort.rank == 0 or not cohort.sharded else b""
    begun = cohort.from_first(begun) if cohort.sharded else begun
    # Divided before it goes to the device, where the whole may have no room.
    cohort.place(loaded.model.train())
    model = loaded.model.to(device)  # type: ignore[arg-type]
    several = cohort if cohort.size > 1 else None
    clipper = attach_clipper(run.clip, model, several)
    return TrainingParts(loaded, begun, clipper, over_groups(mechanism, run.clip, clipper))


def _in_stages(
    run: Run, task: Task, mechanism: Mechanism, device: torch.device, cohort: Pipelines
) -> TrainingParts:
    """As `assemble`, where each rank holds some stages of the model, and reads no others."""
    from dpft.parallel.pipelined_sums import held_here, pipelined, stages

    how = Partition("per_device", stages(cohort.schedule, cohort.length))
    if run.clip.groups == "per_device":
        how = run.clip.partition
    empty = load_model(run.model, task.needs, run.seed, weights=False)
    named = list(empty.model.named_parameters(remove_duplicate=False))
    try:
        held = held_here(adapt(empty, run.adapt, task.needs, run.seed).model, how, cohort)
        absent = frozenset(name for name, parameter in named if id(parameter) not in held)
        del empty, named
        loaded = _load(run, task, cohort, absent)
        whole = attach_clipper(run.clip, loaded.model.train(), cohort)
        mechanism = over_groups(mechanism, run.clip, whole)
        clippers, sums = pipelined(loaded.model, whole, how, cohort, device)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    begun = loaded.digest(_agreed(cohort.gather(loaded.tensor_digests())))
    # It has what noise, session and loop ask of a clipper, and no backward of its own.
    return TrainingParts(loaded, begun, cast(Clipper, clippers), mechanism, sums)


def _agreed(of_ranks: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Digests of all tensors, of which some are on several ranks.

    Raises:
        RankError: if ranks have read different ones.
    """
    merged: dict[str, str] = {}
    for rank, digests in enumerate(of_ranks):
        for name, digest in digests.items():
            if merged.setdefault(name, digest) != digest:
                raise RankError(
                    f"rank {rank} has read another {name} than a rank before it; expected the same "
                    "model everywhere: compare the files of model.path"
                )
    return merged


@torch.no_grad()
def whole_again(run: Run, task: Task, parts: TrainingParts, cohort: TrainingCohort) -> LoadedModel:
    """The model in one piece on every rank, once training is over, to be saved and asked.

    One parameter at a time, so that a rank holds no more than its share and the whole model.

    Args:
        run: the settings.
        task: says what kind of model it needs.
        parts: what was trained.
        cohort: the ranks.
    """
    if not cohort.divided:
        return parts.loaded
    first, trained = cohort.rank == 0, dict(parts.moved())
    device = next(iter(parts.clipper.parameters.values())).device
    loaded = _load(run, task, cohort)
    loaded.model.to(device).train()  # type: ignore[arg-type]
    for name, parameter in loaded.model.named_parameters():
        if name in trained:
            whole = cohort.whole(trained.pop(name).detach(), name)
            if cohort.sharded:  # every rank has put it together
                parameter.copy_(whole)
            else:
                cohort.spread(parameter, whole if first else None)
        elif cohort.sharded:  # else each rank has read its own
            cohort.spread(parameter, parameter if first else None)
    assert not trained, f"the model has no place for {list(trained)}"
    for buffer in loaded.model.buffers():
        cohort.spread(buffer, buffer if first else None)
    return loaded


def _load(
    run: Run, task: Task, cohort: TrainingCohort, absent: AbstractSet[str] = frozenset()
) -> LoadedModel:
    """The adapted model; where it is sharded, weights are read by the first rank alone."""
    weights = cohort.rank == 0 or not cohort.sharded
    loaded = load_model(run.model, task.needs, run.seed, weights=weights, absent=absent)
    return adapt(loaded, run.adapt, task.needs, run.seed)


def fixed_shapes(run: Run, parts: TrainingParts) -> FixedShapes | None:
    """What cuts microbatches where they may not depend on who is drawn.

    Where batches have one size, where rounding would otherwise make records depend on each other,
    and where each shape is compiled.
    """
    mechanism = parts.mechanism
    if mechanism.max_batch is not None:
        return FixedShapes(mechanism.batch_size, mechanism.max_batch)
    exact = all(p.dtype.itemsize >= 4 for p in parts.loaded.model.parameters())
    free = run.precision == "float32" and exact and run.parallel.name != "pipeline"
    free = free and not run.compile
    if not mechanism.private or free:
        return None
    return FixedShapes(mechanism.batch_size)
