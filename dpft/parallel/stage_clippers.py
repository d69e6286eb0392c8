"""The clippers of a pipeline's stages, as one that knows the groups of the whole model.

Noise is scaled by the thresholds of all groups, and the counts that move them are released
together. So every process knows all groups and thresholds, clips its own, and adds up the counts.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

import torch
from torch import Tensor, nn

from dpft.config.errors import ConfigError
from dpft.parallel.stages import Cut
from dpft.privacy.clipping.clipper import Clipper
from dpft.privacy.clipping.groups import Group
from dpft.privacy.cohort import Cohort
from dpft.privacy.policies import PartOfPolicy
from dpft.privacy.spec import TWO_BACKWARDS


class StageClippers:
    """Stands for the model's clipper where the model lies on several processes.

    Args:
        whole: made on the whole model, with all groups; closed.
        parts: of the stages that this process holds, by number.
        cut: of the model.
        cohort: all processes of the run.
        copies: those that hold the same stages and another share of each batch, if any.

    Attributes:
        clippers: of each stage here.
        flat: whether one group spans the stages, so that norms have to be added up over them.
        parameters: of the stages here, by the whole model's names.
        sizes: of the whole model's trained parameters.
        own_groups: numbers of the groups whose norms this process sees, stage by stage.
        groups, policy: of the whole model, as of `Clipper`.

    Guarantee: every trained parameter of the model is in one stage and in one group, and one record
    changes the sums of all stages together by at most `dpft.privacy.spec.sensitivity`.

    Raises:
        ConfigError: for what cannot be clipped stage by stage.
    """

    def __init__(
        self,
        whole: Clipper,
        parts: Mapping[int, nn.Module],
        cut: Cut,
        cohort: Cohort,
        copies: Cohort | None = None,
    ) -> None:
        self.groups = whole.groups
        self.policy = whole.policy
        self.cohort = cohort
        self.sizes = MappingProxyType(dict(whole.sizes))
        self.flat = len(self.groups) == 1
        self._copies = copies
        self._running = False
        if whole.plan in TWO_BACKWARDS or not whole.private:
            raise ConfigError(
                f"plan {whole.plan!r} in a pipeline; expected bk, fused or materialised, which "
                "take one backward: type clip=per_device_adaptive, or clip=bk for the same sums"
            )
        owners = [{cut.stage_of[name] for name in group.parameters} for group in self.groups]
        for group, stages in zip(self.groups, owners, strict=True):
            if len(stages) > 1 and not self.flat:
                raise ConfigError(
                    f"clipping group {group.name!r} lies on the stages {sorted(stages)} of the "
                    "pipeline, so that its norm would have to travel; expected groups within a "
                    "stage: type clip=per_device (or per_layer, block_wise), or clip=bk for one "
                    "group with norms added up over the stages"
                )
        own_groups: dict[int, None] = {}
        self.clippers: dict[int, Clipper] = {}
        for stage, part in sorted(parts.items()):
            own = tuple(k for k, stages in enumerate(owners) if stage in stages)
            groups = [_within(self.groups[k], cut, stage) for k in own]
            # With one group all stages see the same norms.
            policy = PartOfPolicy(whole.policy, own, counts=not self.flat or stage == 0)
            self.clippers[stage] = whole.for_part(part, groups, policy)
            own_groups |= dict.fromkeys(own)
        self.own_groups = tuple(own_groups)
        held = {n: p for clipper in self.clippers.values() for n, p in clipper.parameters.items()}
        self.parameters = MappingProxyType({n: held[n] for n in self.sizes if n in held})

    @property
    def private(self) -> bool:
        return True

    @property
    def thresholds(self) -> tuple[float, ...]:
        """The norms to which the whole model's groups are clipped now."""
        return self.policy.thresholds

    @property
    def unfinished(self) -> bool:
        """Return whether a logical batch broke off: ``.grad`` may hold a part of it."""
        return self._running or any(clipper.unfinished for clipper in self.clippers.values())

    @contextmanager
    def running(self) -> Iterator[None]:
        """Mark the batch as `unfinished` if a part of it breaks off; refuse to go on behind one."""
        if self.unfinished:
            raise RuntimeError(
                "the last pass through the pipeline broke off and may have left sums in .grad; "
                "expected a fresh start: set .grad to None, call reset(), and begin the logical "
                "batch again"
            )
        self._running = True
        yield
        self._running = False

    def reset(self) -> None:
        """Reset the clippers; as of `Clipper`, on every process."""
        for clipper in self.clippers.values():
            clipper.reset()
        self.policy.reset()
        self._running = False

    def collect(self) -> None:
        """Add up counts over the stages, and sums over the ranks that hold the same parameters."""
        for parameter in self.parameters.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        if self._copies is not None:
            self._copies.add_up([p.grad for p in self.parameters.values() if p.grad is not None])
        self.policy.collect(self.cohort, next(iter(self.parameters.values())).device)

    def own_slice(self, grad: Tensor) -> tuple[Tensor, int]:
        """Return all of it: a stage holds whole parameters."""
        return grad.view(-1), 0

    def whole(self, grad: Tensor) -> Tensor:
        """Return it: a stage holds whole parameters."""
        return grad

    def check_rows(self, rows: int) -> None:
        """Check, as of `Clipper`, that a record may have so many rows."""
        for clipper in self.clippers.values():
            clipper.check_rows(rows)

    def close(self) -> None:
        """Remove all hooks."""
        for clipper in self.clippers.values():
            clipper.close()


def _within(group: Group, cut: Cut, stage: int) -> Group:
    """Return the part of a group that lies in a stage; its threshold is the group's."""
    names = tuple(name for name in group.parameters if cut.stage_of[name] == stage)
    return Group(group.name, names, group.threshold)
