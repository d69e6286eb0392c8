"""The clipper: sums of clipped per-example gradients, at nearly the cost of ordinary training.

Forward hooks keep each layer's input ``a`` and listen at its output's place in the autograd graph
(`capture`). A backward towards the first layers yields every output gradient ``g`` without forming
one weight gradient, while the parameters keep ``requires_grad=True``: optimizers, checkpoints and
adapters see an ordinary model. From ``(a, g)`` the layer rules compute per-example norms, and a
plan forms the sums (`passes`). All plans leave the same sums in ``.grad``, to float accuracy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from dpft.privacy.clipping import groups as partitions
from dpft.privacy.clipping.capture import Call, Capture, Gate
from dpft.privacy.clipping.checks.guard import Guard
from dpft.privacy.clipping.checks.order import check_order
from dpft.privacy.clipping.checks.reweighted import Reweighted
from dpft.privacy.clipping.checks.schedule import Schedule
from dpft.privacy.clipping.checks.verify import RuleSums, Structure, dominates, verify_uses
from dpft.privacy.clipping.groups import Group
from dpft.privacy.clipping.plans.passes import TWO_BACKWARDS, Pass, uses_of
from dpft.privacy.clipping.rules import Rule, UnsupportedLayerError
from dpft.privacy.clipping.sites import check_joins, find_sites
from dpft.privacy.precision import full_precision
from dpft.privacy.quantiles import Quantiles


def abadi(norms: Tensor, threshold: float) -> Tensor:
    """``min(1, C/n)`` (Abadi et al. 2016): gradients shorter than ``C`` pass unchanged."""
    return (threshold / norms).clamp(max=1.0)


def automatic(norms: Tensor, threshold: float) -> Tensor:
    """``C/(n + 0.01)`` (Bu et al. 2023, eq. 4, whose ``C`` is 1): no gradient exceeds ``C``."""
    return threshold / (norms + 0.01)


ClipFunction = Callable[[Tensor, float], Tensor]
CLIP_FUNCTIONS: Mapping[str, ClipFunction] = MappingProxyType(
    {"abadi": abadi, "automatic": automatic}
)


# Records of a batch that the rules are checked on, from its first to its last.
_CHECKED = 4


class Clipper:
    """Leaves the sum of clipped per-example gradients in ``.grad``.

    Built by `dpft.privacy.make_clipper`.

    Attributes:
        plan: how sums are formed, one of `dpft.privacy.clipping.plans.passes.PLANS`.
        parameters: the trainable parameters by name; a tied parameter appears once.
        groups: the clipping groups with the thresholds they start from; empty for ``none``.
        adaptive: how thresholds follow quantiles of the norms; None where they are fixed.
        estimates: the quantile estimates ``C_k``; the thresholds themselves where those are fixed.
        thresholds: the norms to which groups are clipped now, ``(K,)`` floats.
        norms: per-example gradient norms of the last `backward`, ``(B, K)``; blanks have none.
        factors: the clip factors applied by the last `backward`, shape ``(B, K)``. A record whose
            gradient in a group is not finite has factor 0: it contributes nothing there.
        below: for adaptive thresholds, ``sum_i (1[n_ik <= C_k] - 1/2)`` over the records since the
            last `move`, ``(K,)`` in float64: one record changes each entry by at most 1/2.

    Guarantee: adding or removing one record changes the sum by at most `sensitivity` in L2 norm,
    provided that ``losses[i]`` depends on record ``i`` alone. In float32 rounding adds to that less
    than 1e-5 of the threshold for each record of the batch. Where anything is in half precision it
    adds up to half a percent for each, unless the shapes that a record is computed in depend on
    that record alone: see `dpft.privacy.shapes`, which says how, and ``real`` of `backward`.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: str,
        parameters: Mapping[str, nn.Parameter],
        groups: Sequence[Group],
        clip_function: ClipFunction,
        rules: Mapping[str, Rule],
        adaptive: Quantiles | None = None,
    ) -> None:
        self.plan = plan
        self.parameters = MappingProxyType(dict(parameters))
        self.groups = tuple(groups)
        self.adaptive = adaptive
        self.norms = torch.empty(0, len(self.groups))
        self.factors = torch.empty(0, len(self.groups))
        self._clip_function = clip_function
        self._schedule = Schedule()
        self._unfinished = False
        self._forms: dict[str, str] = {}
        sites = {} if plan == "none" else find_sites(model, self.parameters, rules)
        self._capture = Capture(model, sites)
        self._guard = Guard(self.parameters if self.private else {})
        self._set([group.threshold for group in self.groups])

    @property
    def private(self) -> bool:
        return bool(self.groups)

    @property
    def sensitivity(self) -> float:
        """L2 sensitivity of what `backward` leaves in ``.grad``, infinite for ``none``."""
        return partitions.sensitivity(self.thresholds) if self.private else float("inf")

    @property
    def unfinished(self) -> bool:
        """Whether the last `backward` broke off: ``.grad`` may hold part of a batch."""
        return self._unfinished or self._guard.struck

    def reset(self) -> None:
        """Forget forwards without a backward, counts, and a `backward` that broke off.

        Which batches were checked against autograd is forgotten too: the next one is again.
        What `backward` has added to ``.grad`` stays there: set it to None as well.
        """
        self._capture.take()
        self._unfinished = self._guard.struck = False
        self._schedule = Schedule()
        self._set(self.estimates)

    def move(self, estimates: Sequence[float]) -> None:
        """Set the estimates, and with them the thresholds, from the next `backward` on.

        Raises:
            ValueError: if thresholds are fixed: noise is scaled to them. If one is out of range.
        """
        if self.adaptive is None:
            raise ValueError(
                "the thresholds of this clipper are fixed; expected an adaptive style, such as "
                "per_layer_adaptive, for thresholds that move"
            )
        self._set(estimates)

    def _set(self, estimates: Sequence[float]) -> None:
        thresholds = (
            tuple(estimates) if self.adaptive is None else self.adaptive.rescaled(estimates)
        )
        for group, threshold in zip(self.groups, thresholds, strict=True):
            partitions.check_threshold(f"group {group.name!r}", threshold)
        self.estimates, self.thresholds = tuple(estimates), thresholds
        self.below = torch.zeros(len(self.groups), dtype=torch.float64)

    def backward(self, losses: Tensor, rows: int = 1, real: Tensor | None = None) -> None:
        """Add ``sum_i clip(g_i)`` to each parameter's ``.grad``.

        Args:
            losses: one loss per record, shape ``(B,)``; nothing may be summed or averaged across
                records. May be empty: then nothing is added.
            rows: rows of the model's batch that belong to one record, next to each other: the
                model saw ``B * rows``. More than one where a unit of privacy has several texts.
            real: which losses are of records, ``(B,)`` in bool. The others fill a microbatch up to
                a fixed size: they add nothing, and have no norm. None: all are.

        Raises:
            ValueError: if ``losses`` is not one-dimensional, or ``real`` of another shape.
            UnsupportedLayerError: if a layer's batch cannot be told apart by record, or if a
                parameter is used in a way that was not captured.
            RuntimeError: if the `backward` before broke off (see `reset`).
        """
        if self.unfinished:
            raise RuntimeError(
                "the last backward broke off and may have added part of its batch to .grad; "
                "expected a fresh start: set .grad to None (optimizer.zero_grad()), call "
                "clipper.reset(), and begin the logical batch again"
            )
        if losses.dim() != 1:
            raise ValueError(
                f"losses have shape {tuple(losses.shape)}; expected one loss per record, shape "
                "(B,): use reduction='none' and reduce within each record only"
            )
        if real is not None and real.shape != losses.shape:
            raise ValueError(
                f"real has shape {tuple(real.shape)} for losses of shape {tuple(losses.shape)}; "
                "expected the same"
            )
        calls, hidden = self._capture.take()
        self.norms = losses.new_empty(len(losses), len(self.groups))
        self.factors = self.norms.clone()
        some = len(losses) > 0
        if real is not None:
            some = bool(real.any())
            real = real.to(losses.device)
            # A gradient that is zero at the loss is zero, exactly, in all rows of a blank.
            losses = torch.where(real, losses, losses.new_zeros(()))
        if some and not self.private:
            losses.sum().backward()
        elif some:
            if not calls:
                raise UnsupportedLayerError(
                    "no layer's forward was captured for these losses; expected the model to be "
                    "called once per backward, with gradients enabled, after make_clipper"
                )
            with torch.autocast(losses.device.type, enabled=False):  # the caller's, if any
                self._clip(losses, calls, hidden, rows, real)
        if real is not None:
            self.norms, self.factors = self.norms[real], self.factors[real]
        if self.adaptive is not None:
            self._count()
        for parameter in self.parameters.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

    def check_rows(self, rows: int) -> None:
        """Refuse now what `backward` would refuse of ``rows`` rows for each record.

        Raises:
            UnsupportedLayerError: naming a trained layer that cannot join several rows.
        """
        for site in self._capture.sites.values():
            check_joins(site, rows)

    def explain(self) -> list[dict[str, Any]]:
        """How the norms of each parameter were computed in the last `backward`."""
        return [
            {
                "parameter": name,
                "group": group.name,
                "shape": tuple(self.parameters[name].shape),
                "form": self._forms.get(name, "unused"),
            }
            for group in self.groups
            for name in group.parameters
        ]

    def _count(self) -> None:
        """Add the last norms to `below`."""
        usable = self.factors > 0
        small = self.norms <= self.norms.new_tensor(self.estimates)
        self.below = self.below.to(self.norms.device) + (
            (small & usable).sum(0, dtype=torch.float64) - 0.5 * usable.sum(0, dtype=torch.float64)
        )

    def _clip(
        self,
        losses: Tensor,
        calls: Sequence[Call],
        hidden: Collection[str],
        rows: int,
        real: Tensor | None,
    ) -> None:
        self._guard.check_hooks()
        structure = verify_uses(losses, calls, self.parameters, hidden)
        if not structure.reached:
            raise UnsupportedLayerError(
                "the losses do not depend on any trainable layer that was called; expected losses "
                "of this forward, neither detached nor constant"
            )
        two = self.plan in TWO_BACKWARDS
        # Where autograd forms the sums, it must do so in the precision of the norms.
        with self._guard.on(), full_precision() if two else nullcontext():
            self._check(losses, structure, rows, real)
            if structure.moving:
                check_order(self._capture, losses, structure, rows, self._schedule.batches)
            self._unfinished = True
            self._clip_reached(losses, structure, two, rows)
            self._unfinished = False

    def _clip_reached(self, losses: Tensor, structure: Structure, two: bool, rows: int) -> None:
        """What `_clip` does once all has been checked that can be checked before."""
        calls, everywhere = structure.reached, structure.everywhere
        gate: Gate | None = None
        heard = 0
        reweighted = Reweighted()
        batch = Pass(self.plan, self.groups, self.parameters, losses, calls, self._factors_of, rows)

        def listen(call: Call, g: Tensor) -> None:
            nonlocal heard
            heard += 1
            if two and not (gate is not None and call is calls[-1]):
                reweighted.first(call, g)
            batch.arrived(call, g)

        if two and calls and dominates(calls[-1], losses, calls[:-1]):
            gate = self._capture.open_gate(losses, calls[-1])
        self._capture.backward(
            losses, calls, listen, everywhere=everywhere, retain_graph=two, gate=gate
        )
        if heard != len(calls):
            raise UnsupportedLayerError(
                f"{len(calls)} layer calls lie on the way to the losses, but a backward met "
                f"{heard} of them; expected all: does a layer give several outputs of which the "
                "first is unused?"
            )
        self.norms, self.factors = batch.finish()
        self._forms = batch.forms
        if two:
            del batch
            self._second_backward(
                losses, calls, gate, everywhere, rows, None if structure.halved else reweighted
            )

    def _check(self, losses: Tensor, structure: Structure, rows: int, real: Tensor | None) -> None:
        """Check the rules on some records of the batch, if it is its turn; nothing is clipped yet.

        It is repeated ever more rarely: what a model does may depend on its data and change with
        its weights. Of the layers' inputs and output gradients only the rows of those records are
        kept, or their sum where that is less, so that a batch that is checked takes hardly more
        memory than any other.
        """
        calls, halved = structure.reached, structure.halved
        if not self._schedule.due(losses, calls, rows, self._capture.hooks()):
            return
        finite = losses.detach().isfinite()
        usable = (finite if real is None else finite & real).nonzero().flatten()
        last = len(usable) - 1
        chosen = sorted({round(last * part / (_CHECKED - 1)) for part in range(_CHECKED)})
        index = usable[torch.tensor(chosen, device=losses.device)]
        sums = RuleSums(losses[index], self.parameters, [g.parameters for g in self.groups])
        before = self._written()

        @torch.no_grad()
        def listen(call: Call, g: Tensor) -> None:
            call.hold()
            a = call.input()
            size = (g.numel() + (0 if a is None else a.numel())) * len(index) // len(losses)
            for name, use in uses_of(call, g, len(losses), rows):
                sums.add(name, use.rows(index.to(g.device)), size, halved)
            call.let_go()

        self._capture.backward(
            losses, calls, listen, everywhere=structure.everywhere, retain_graph=True
        )
        with self._capture.silent_backward(), full_precision():
            eps = torch.finfo(losses.dtype).eps  # where nothing is halved, the losses are not
            verified = sums.verify(*((3e-2, 3e-4) if halved else (1e-3, 100 * eps)))
        for name, state in self._written().items():
            if state != before[name]:
                raise UnsupportedLayerError(
                    f".grad of parameter {name!r} was written to by a backward that was asked for "
                    "no gradient: some function of the model does so itself (fused accumulation "
                    "of gradients); expected gradients that autograd alone accumulates"
                )
        self._schedule.checked(*verified)

    def _written(self) -> dict[str, tuple[int, int] | None]:
        """Of each ``.grad``, which tensor it is and how often it was changed."""
        grads = {name: parameter.grad for name, parameter in self.parameters.items()}
        return {n: None if g is None else (id(g), g._version) for n, g in grads.items()}

    def _second_backward(
        self,
        losses: Tensor,
        calls: Sequence[Call],
        gate: Gate | None,
        everywhere: bool,
        rows: int,
        reweighted: Reweighted | None,
    ) -> None:
        """Of the losses reweighted by the factors (Li et al. 2022, section 4).

        Args:
            losses: per-example losses, ``(B,)``.
            calls: of the forward.
            gate: where the first backward started, if not at the losses: what lies above need not
                be computed again (it is freed by now), only the rows of ``g`` be reweighted.
            everywhere: of `Structure`.
            rows: of the model's batch for each loss.
            reweighted: the output gradients of the first backward; None if anything on their way
                is in half precision.
        """
        factors = self.factors[:, 0].detach()
        if reweighted is None or bool((factors == 0).any()):
            # Autograd would round the whole batch's sum to half precision, and one record could
            # move it by more than its threshold; and zero times infinity is not zero. The sums are
            # formed from a and g.
            again = Pass(
                "bk", self.groups, self.parameters, losses, calls, lambda k, n: factors, rows
            )
            self._capture.backward(losses, calls, again.arrived, everywhere=everywhere, gate=gate)
            again.finish()
            return
        for call in calls:  # so that the backward frees activations as it goes
            call.release()
        parameters = list(self.parameters.values())
        reweighted.by(factors.repeat_interleave(rows))
        self._guard.lift()  # from here on autograd writes the sums
        with self._capture.listening(reweighted.second):
            if gate is None:
                (losses * factors).sum().backward(inputs=parameters)
            else:
                scales = factors.to(gate.g.dtype).repeat_interleave(rows)
                scales = scales.view(-1, *[1] * (gate.g.dim() - 1))
                # In place: it is the largest tensor of a language model's step, and done with.
                g = gate.g.mul_(scales) if gate.g.is_contiguous() else gate.g * scales
                torch.autograd.backward([gate.edge], [g], inputs=parameters)
        reweighted.verify()

    def _factors_of(self, k: int, norms: Tensor) -> Tensor:
        return self._clip_function(norms, self.thresholds[k])

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within this context forward passes are not captured."""
        with self._capture.paused():
            yield

    def close(self) -> None:
        """Remove all hooks from the model."""
        self._capture.close()
        self._guard.close()
