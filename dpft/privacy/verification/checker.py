"""The observers of a batch: what is checked before one of its sums is formed, and when it is due.

Norms and sums by the layers' rules are compared with autograd on a kind's first batch, then ever
more rarely: what a model does may depend on its data and change with its weights. That records are
kept apart is checked then, and in every batch in which something may permute rows. Nothing but the
clipper adds to ``.grad`` in its backward: `Guard` sees to it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from dpft.privacy.clipping.calls import Call, Structure
from dpft.privacy.clipping.clipper import Clipper, Observer
from dpft.privacy.clipping.rules import UnsupportedLayerError
from dpft.privacy.verification.layout import row_permuting_nodes
from dpft.privacy.verification.rules import (
    Verified,
    check_order,
    check_rules,
    records_to_check,
)

# A kind that was found right is checked again after so many batches, and four times as many.
_AGAIN = 64

# The sequence of layer calls, which of them are roots, and whether several records were in the
# batch, with several rows each: only then can they be confused.
Kind = tuple[tuple[tuple[str, bool], ...], bool, bool]


@dataclass
class _Seen:
    batches: int = 0
    next_check: int = 1


class Schedule:
    """Counts batches by kind, and in ``batches`` all of them; says which are checked."""

    def __init__(self) -> None:
        self.batches = 0
        self._seen: dict[Kind, _Seen] = {}
        self._now = _Seen()
        self._hooks: tuple[int, ...] = ()

    @property
    def soon(self) -> bool:
        """True if the next batch is one to check, if it is of the last one's kind."""
        return self._now.batches + 1 >= self._now.next_check

    def due(self, losses: Tensor, kind: Kind, hooks: tuple[int, ...] = ()) -> bool:
        """Count a batch; return whether it is one to check.

        Where no loss is finite there is nothing to compare, and the next batch is checked: always,
        if need be, since which records are finite may not end a run. Where the model got or lost
        hooks since the last batch, every kind is checked again.
        """
        if hooks != self._hooks:
            self._hooks = hooks
            self._seen.clear()
        self._now = seen = self._seen.setdefault(kind, _Seen())
        seen.batches += 1
        self.batches += 1
        return seen.batches >= seen.next_check and bool(torch.isfinite(losses).any())

    def checked(self, all_conclusive: bool, all_finite: bool) -> None:
        """Set when to check again: soon, as long as small gradients leave something unproven.

        Some always do: attention's softmax takes no notice of a bias of the keys. Where a gradient
        was not finite, the next batches are checked, and later ones ever more rarely.
        """
        n = self._now.batches
        if all_finite or n - self._now.next_check >= _AGAIN:
            proven = all_conclusive and all_finite
            self._now.next_check = max(_AGAIN, 4 * n) if proven else 2 * n


class Checker(Observer):
    """Refuses batches for which the layers' rules do not hold; `Schedule` says when to compare."""

    def __init__(self, clipper: Clipper) -> None:
        self._capture = clipper.capture
        self._groups = clipper.groups
        # Where parameters are sharded the ranks go through a backward together, or not at all.
        self._together = clipper.cohort if clipper.sharded else None
        self.reset()

    def reset(self) -> None:
        """Forget what was checked: the next batch is again."""
        self.schedule = Schedule()
        self._soon = True
        self._ahead: tuple[Kind, Verified] | None = None

    def to_check(self, size: int, weights: Tensor | None) -> Tensor | None:
        return records_to_check(size, weights) if self._soon and size else None

    def check(
        self, losses: Tensor, structure: Structure, rows: int, weights: Tensor | None
    ) -> None:
        """Compare the rules with autograd on some records, ahead of their batch."""
        verified = self._compared(losses, structure, rows, weights, retain_graph=False)
        self._ahead = _kind(losses, structure.reached, rows), verified

    def before_sums(
        self, losses: Tensor, structure: Structure, rows: int, weights: Tensor | None
    ) -> None:
        """Check that records are kept apart, and that the rules hold, as far as that is due."""
        reached, schedule = structure.reached, self.schedule
        kind = _kind(losses, reached, rows)
        due = schedule.due(losses, kind, _hooks(self._capture.model))
        ahead, self._ahead = self._ahead, None
        verified = ahead[1] if ahead is not None and ahead[0] == kind else None
        moving = row_permuting_nodes(losses, structure.outputs())
        # Ranks that go through a backward together also form the same sums in it.
        flags = [due, bool(moving), due and verified is None, schedule.soon]
        due, permuting, unproven, self._soon = self._agreed(flags, reached)
        if unproven:
            verified = self._compared(losses, structure, rows, weights, retain_graph=True)
        if due or permuting:
            check_order(self._capture, losses, structure, rows, schedule.batches, moving)
        if due:
            if verified is not None:  # None where the check was due on another rank
                schedule.checked(*verified)
            (self._soon,) = self._agreed([schedule.soon if verified else self._soon], reached)

    def _compared(
        self,
        losses: Tensor,
        structure: Structure,
        rows: int,
        weights: Tensor | None,
        *,
        retain_graph: bool,
    ) -> Verified:
        about = (self._capture, losses, structure, self._groups, rows, weights)
        return check_rules(*about, turn=self.schedule.batches, retain_graph=retain_graph)

    def _agreed(self, flags: Sequence[bool], calls: Sequence[Call]) -> Sequence[bool]:
        """Return for each flag, whether it is set on any rank that goes through a backward too."""
        if self._together is None:
            return flags
        return self._together.agree(flags, " ".join(call.site.name for call in calls))


def _kind(losses: Tensor, calls: Sequence[Call], rows: int) -> Kind:
    return tuple((call.site.name, call.root) for call in calls), len(losses) > 1, rows > 1


def _hooks(model: nn.Module) -> tuple[int, ...]:
    """Return which hooks the modules have: other ones may change what the layers compute."""
    return tuple(
        key
        for module in model.modules()
        for hooks in (
            module._forward_pre_hooks,
            module._forward_hooks,
            module._backward_pre_hooks,
            module._backward_hooks,
        )
        for key in hooks
    )


class Guard(Observer):
    """Hooks on the parameters that refuse gradients which autograd adds by itself.

    A `torch.autograd.Function` may run layers in its own backward, as reversible blocks do. What
    comes of it is added to ``.grad`` unclipped, and no captured call shows it.
    ``broken`` is true once one was refused, which is in ``.grad`` by then.
    """

    def __init__(self, clipper: Clipper) -> None:
        self._on = False
        self._parameters = clipper.parameters
        self._handles = [
            parameter.register_post_accumulate_grad_hook(partial(self._refuse, name))
            for name, parameter in clipper.parameters.items()
        ]

    def check_hooks(self) -> None:
        """Refuse hooks of others on the parameters' gradients, by the parameter's name.

        Sums that autograd forms would go through them, after the norms were taken; the other plans
        write to ``.grad`` by themselves and would pass them by.
        """
        for name, parameter in self._parameters.items():
            after = (getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values()
            if parameter._backward_hooks or not all(map(_is_a_guards, after)):
                raise UnsupportedLayerError(
                    f"parameter {name!r} has a hook on its gradient (register_hook or "
                    "register_post_accumulate_grad_hook), which would change sums after they were "
                    "clipped, or never run; expected none on trained parameters: remove it "
                    "(handle.remove()), or change losses before clipping and .grad after the noise"
                )

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Refuse within this context, until autograd is to write."""
        self.check_hooks()
        self._on = True
        try:
            yield
        finally:
            self._on = False

    def before_autograd_writes(self) -> None:
        self._on = False

    def reset(self) -> None:
        self.broken = False

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _refuse(self, name: str, parameter: Tensor) -> None:
        if self._on:
            self.broken = True
            raise UnsupportedLayerError(
                f"a gradient of parameter {name!r} was added to .grad, unclipped, by a backward "
                "inside the backward: some function of the model runs layers again by itself "
                "(reversible blocks, reentrant checkpoints); expected layers that run once. "
                "Checkpoint with use_reentrant=False"
            )


def _is_a_guards(hook: object) -> bool:
    """Return whether a hook is that of a guard, of this clipper or another one."""
    return isinstance(hook, partial) and getattr(hook.func, "__func__", None) is Guard._refuse
