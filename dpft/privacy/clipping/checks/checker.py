"""What must be shown of a batch before one of its sums is formed, and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from dpft.privacy.clipping.calls import Call, Captured
from dpft.privacy.clipping.capture import Capture
from dpft.privacy.clipping.checks.guard import Guard
from dpft.privacy.clipping.checks.order import check_order
from dpft.privacy.clipping.checks.schedule import Schedule
from dpft.privacy.clipping.checks.structure import Structure, verify_uses
from dpft.privacy.clipping.checks.verify import Verified, check_rules, records_to_check
from dpft.privacy.clipping.groups import Group
from dpft.privacy.clipping.rules import UnsupportedLayerError
from dpft.privacy.cohort import Cohort


class Checker:
    """Refuses batches of which the layers' rules do not hold.

    The structure of every batch's graph is looked at. Norms and sums by the rules are compared with
    autograd in batches that the schedule names, and that records are kept apart wherever something
    permutes rows.

    Args:
        capture: of the model's layer calls.
        guard: of its parameters.
        parameters: the trainable ones by name.
        groups: of these.
        cohort: the processes whose sums are added up; None: this one alone.

    Attributes:
        schedule: when rules are compared.
    """

    def __init__(
        self,
        capture: Capture,
        guard: Guard,
        parameters: Mapping[str, nn.Parameter],
        groups: Sequence[Group],
        cohort: Cohort | None,
    ) -> None:
        self._capture = capture
        self._guard = guard
        self._parameters = parameters
        self._groups = groups
        # Where parameters are sharded the ranks go through a backward together, or not at all.
        self._together = cohort if cohort is not None and cohort.sharded else None
        self.reset()

    def reset(self) -> None:
        """Forget what was checked: the next batch is again."""
        self.schedule = Schedule()
        self._soon = True

    def may_be_due(self, rows: int) -> bool:
        """Whether the next batch may be one to check, as `Schedule.may_be_due`."""
        return self.schedule.may_be_due(rows, self._capture.hooks())

    def records(self, size: int, real: Tensor | None) -> Tensor | None:
        """Which of the next batch's records are to go through `ahead`, see `Clipper.to_check`."""
        if self._capture.compiled:  # each shape has functions of its own: the batch's are checked
            return None
        return records_to_check(size, real) if self._soon and size else None

    def ahead(self, losses: Tensor, captured: Captured, rows: int, real: Tensor | None) -> None:
        """Compare the rules with autograd on some records, ahead of their batch.

        See `Clipper.check`.
        """
        structure, leaves = self._structure(losses, captured)
        verified = self._compared(losses, structure, leaves, rows, real, retain_graph=False)
        self.schedule.check_ahead(losses, structure.reached, rows, verified)

    def verified(
        self, losses: Tensor, captured: Captured, rows: int, real: Tensor | None
    ) -> Structure:
        """The structure of the losses' graph, once it and the rules were checked.

        Args:
            losses: ``(B,)``.
            captured: of their forward.
            rows: see `Clipper.backward`.
            real: the same.

        Raises:
            UnsupportedLayerError: as `Clipper.backward`.
        """
        structure, leaves = self._structure(losses, captured)
        reached = structure.reached
        due = self.schedule.due(losses, reached, rows, self._capture.hooks())
        ahead = self.schedule.ahead(losses, reached, rows)
        permuting = bool(structure.row_permuting_nodes)
        unproven = due and ahead is None
        soon = self.schedule.soon
        # Ranks that go through a backward together also form the same sums in it.
        due, permuting, unproven, soon = self._agreed([due, permuting, unproven, soon], reached)
        if due and any(call.constant for call in reached):
            raise UnsupportedLayerError(
                "a batch that must be checked ran in compiled blocks of whose parameters autograd "
                "has no gradients: it has other layer calls, or other rows for a record, than "
                "batches before it; expected a model that calls the same layers in every batch: "
                "leave out compile"
            )
        if unproven:
            ahead = self._compared(losses, structure, leaves, rows, real, retain_graph=True)
        if due or permuting:
            turn = self.schedule.batches
            check_order(self._capture, losses, structure, leaves, rows, turn)
        if due:
            if ahead is not None:  # None where the check was due on another rank
                self.schedule.checked(*ahead)
                soon = self.schedule.soon
            (soon,) = self._agreed([soon], reached)
        self._soon = soon
        return structure

    def _structure(
        self, losses: Tensor, captured: Captured
    ) -> tuple[Structure, Mapping[str, Tensor]]:
        """The structure of the losses' graph, and what stood for the parameters in it."""
        self._guard.check_hooks()
        if frozen := [n for n, p in self._parameters.items() if not p.requires_grad]:
            raise UnsupportedLayerError(
                f"parameters were frozen after make_clipper: {', '.join(frozen[:4])}; expected "
                "what is trained to stay so, for all of it gets noise: clipper.close(), and a new "
                "clipper and mechanism for the model as it is now"
            )
        leaves: dict[str, Tensor] = dict(self._parameters)
        for call in captured.calls:
            leaves |= call.leaves
        structure = verify_uses(
            losses, captured.calls, leaves, captured.hidden, self._capture.reasons
        )
        if not structure.reached:
            raise UnsupportedLayerError(
                "the losses do not depend on any trainable layer that was called; expected losses "
                "of this forward, neither detached nor constant"
            )
        return structure, leaves

    def _compared(
        self,
        losses: Tensor,
        structure: Structure,
        leaves: Mapping[str, Tensor],
        rows: int,
        real: Tensor | None,
        *,
        retain_graph: bool,
    ) -> Verified:
        """What comparing the rules with autograd on these records has shown."""
        return check_rules(
            self._capture,
            losses,
            structure,
            leaves,
            self._groups,
            rows,
            real,
            turn=self.schedule.batches,
            retain_graph=retain_graph,
        )

    def _agreed(self, flags: Sequence[bool], calls: Sequence[Call]) -> Sequence[bool]:
        """Which of the flags any of the ranks has raised that go through a backward together."""
        if self._together is None:
            return flags
        return self._together.agree(flags, " ".join(call.site.name for call in calls))
