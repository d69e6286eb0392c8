"""The clipper: sums of clipped per-example gradients, at nearly the cost of ordinary training.

Forward hooks keep each layer's input ``a`` and listen at its output's place in the autograd graph
(`capture`). A backward towards the first layers yields every output gradient ``g`` without forming
one weight gradient, while the parameters keep ``requires_grad=True``: optimizers, checkpoints and
adapters see an ordinary model. From ``(a, g)`` the layer rules compute per-example norms, and a
plan forms the sums (`plans`). All plans leave the same sums in ``.grad``, to float accuracy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dpft.privacy.clipping.batch import ClippingBatch, LostRecordError, weighted
from dpft.privacy.clipping.calls import Call, Captured, Sites, Structure, find_structure
from dpft.privacy.clipping.capture import Capture, Handler
from dpft.privacy.clipping.groups import ClipFunction, Group
from dpft.privacy.clipping.plans import PRIVATE_PLANS
from dpft.privacy.clipping.rules import LayerRules, UnsupportedLayerError
from dpft.privacy.policies import Cohort, ThresholdPolicy
from dpft.privacy.precision import full_precision, on_device, waits
from dpft.privacy.spec import TWO_BACKWARDS


class Sums(NamedTuple):
    """The result of `Clipper.sums`.

    Attributes:
        losses: ``(B,)``, zero for padding.
        norms: ``(B, K)``.
        factors: ``(B, K)``.
        finite: whether all losses and norms are finite, a bool on the device.
        sums: the clipped sum of each trained parameter, in order.
    """

    losses: Tensor
    norms: Tensor
    factors: Tensor
    finite: Tensor
    sums: Sequence[Tensor]


class Observer:
    """Sees each batch of a clipper before one of its sums is formed, and may refuse it.

    A subclass has the methods that it needs. What it refuses is an `UnsupportedLayerError`.

    Attributes:
        broken: whether something was added to ``.grad`` that must not be there.
    """

    broken = False

    def __init__(self, clipper: Clipper) -> None:
        pass

    def watching(self) -> AbstractContextManager[None]:
        """Return the context of a batch's backward."""
        return nullcontext()

    def before_autograd_writes(self) -> None:
        """Note that the rest of the backward adds the sums to ``.grad``."""

    def before_sums(
        self, losses: Tensor, structure: Structure, rows: int, weights: Tensor | None
    ) -> None:
        """See a batch, as of `Clipper.backward`. Its graph is kept until the plan has run."""

    def to_check(self, size: int, weights: Tensor | None) -> Tensor | None:
        """Return indices of records of the next batch that are to go through `check`."""
        return None

    def check(
        self, losses: Tensor, structure: Structure, rows: int, weights: Tensor | None
    ) -> None:
        """See some records of the next batch, ahead of it."""

    def reset(self) -> None:
        """Forget all batches."""

    def close(self) -> None:
        """Remove all hooks."""


class Clipper:
    """Leaves the sum of clipped per-example gradients in ``.grad``; built by `make_clipper`.

    Attributes:
        plan: how sums are formed, one of `dpft.privacy.spec.PLANS`.
        clip_function: returns factors ``(B,)`` for norms ``(B,)`` and a threshold.
        parameters: the trainable parameters by name; a tied parameter appears once.
        groups: the clipping groups with the thresholds they start from; empty for ``none``.
        policy: holds the thresholds, and moves them where they adapt.
        looks: whether the host looks at norms where that costs nothing; see `careful`.
        lost: whether a record was lost in this logical batch (`LostRecordError`), which is formed
            again with care. `collect` ends that: a step that is repeated later has the same course.
        cohort: the processes whose sums are added up by `collect`; None: this one alone.
        capture: the hooks on the model's layers.
        observers: what sees each batch before its sums.
        norms: per-example gradient norms of the last `backward`, ``(B, K)``, without padding. With
            what rounding to bfloat16 may add, where sums are formed in that.
        factors: the clip factors of the last `backward`, ``(B, K)``; 0 where a record's gradient in
            a group is not finite: it contributes nothing there.

    Guarantee: adding or removing one record changes the sum by at most `sensitivity` in L2 norm,
    provided that ``losses[i]`` depends on record ``i`` alone. In float32 rounding adds to that some
    1e-5 of the threshold for each record of the batch, and up to some percent for each where the
    terms of the one record's gradient cancel almost all of each other. Where anything is in half
    precision it adds up to half a percent for each, unless the shapes that a record is computed in
    depend on that record alone (`dpft.privacy.sampling`, ``weights`` of `backward`). Sums that are
    formed in bfloat16 are within the bound that `dpft.privacy.precision` proves.
    """

    def __init__(
        self,
        model: nn.Module,
        plan: str,
        groups: Sequence[Group],
        clip_function: ClipFunction,
        rules: LayerRules,
        policy: ThresholdPolicy | None = None,
        cohort: Cohort | None = None,
        handler: Callable[[Capture], Handler] = Handler,
        observers: Sequence[Callable[[Clipper], Observer]] = (),
    ) -> None:
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.plan = plan
        self.parameters: Mapping[str, nn.Parameter] = MappingProxyType(trained)
        self.groups = tuple(groups)
        self.policy = policy or ThresholdPolicy([group.threshold for group in groups])
        self.cohort = cohort
        self.sharded = cohort is not None and cohort.sharded
        self.norms = torch.empty(0, len(self.groups))
        self.factors = torch.empty(0, len(self.groups))
        self.clip_function = clip_function
        self._rules = rules
        self._handler = handler
        self._observers = observers
        self._unfinished = False
        self.lost = False
        self.looks = True
        if cohort is not None and self.sharded:
            cohort.prepare(model, self.parameters, by_autograd=plan == "none")
        clipped = {} if plan == "none" else trained
        sites = Sites(model, clipped, rules)
        self.capture = Capture(model, sites, clipped, self.sharded, handler)
        self.observers = tuple(observer(self) for observer in observers) if clipped else ()

    @property
    def private(self) -> bool:
        return bool(self.groups)

    @property
    def sensitivity(self) -> float:
        """L2 sensitivity of what `backward` leaves in ``.grad``, infinite for ``none``."""
        return self.policy.sensitivity if self.private else float("inf")

    @property
    def thresholds(self) -> tuple[float, ...]:
        """The norms to which groups are clipped now, ``(K,)``."""
        return self.policy.thresholds

    @property
    def sizes(self) -> Mapping[str, int]:
        """The number of elements of each trained parameter, by name."""
        return {name: parameter.numel() for name, parameter in self.parameters.items()}

    @property
    def unfinished(self) -> bool:
        """True if the last `backward` broke off: ``.grad`` may hold part of a batch."""
        return self._unfinished or any(o.broken for o in self.observers)

    @property
    def careful(self) -> bool:
        """True if the host reads the norms of each group before it is summed.

        On the CPU that costs nothing. Elsewhere the host would wait for the device each time: it
        reads once a `backward`, until a record was lost. Processes that share parameters
        must not part ways over what one of them has seen: they look.
        """
        device = next(iter(self.parameters.values())).device
        return self.lost or self.sharded or (self.looks and not waits(device))

    def reset(self) -> None:
        """Forget forwards without a backward, counts, checks, and a `backward` that broke off.

        What `backward` has added to ``.grad`` stays there: set it to None as well.
        """
        self.capture.take()
        self._unfinished = False
        for observer in self.observers:
            observer.reset()
        self.policy.reset()

    def for_part(
        self, part: nn.Module, groups: Sequence[Group], policy: ThresholdPolicy
    ) -> Clipper:
        """Attach a clipper of the same kind to a part of the model; close this one first."""
        like = (self.clip_function, self._rules, policy, self.cohort)
        return Clipper(part, self.plan, groups, *like, self._handler, self._observers)

    def backward(self, losses: Tensor, rows: int = 1, weights: Tensor | None = None) -> None:
        """Add ``sum_i clip(g_i)`` to each parameter's ``.grad``.

        Args:
            losses: one loss per record, ``(B,)``; nothing may be summed or averaged across records.
                May be empty: then nothing is added.
            rows: rows of the model's batch that belong to one record, next to each other: the model
                saw ``B * rows``. More than one where a unit of privacy has several texts.
            weights: what clipped gradients are multiplied by, ``(B,)``, best in the host's memory:
                in bool, or in floating point and from 0 to 1, so that the sensitivity stays. Places
                of weight zero are padding, which adds nothing and has no norm. None: all are 1.

        Raises:
            LostRecordError: where the host waits for the device to read a number, and a record that
                is to be dropped was seen too late.
            UnsupportedLayerError: if a layer's batch has no row for each record, or if a
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
        if weights is not None and weights.shape != losses.shape:
            raise ValueError(
                f"weights have shape {tuple(weights.shape)} for losses of shape "
                f"{tuple(losses.shape)}; expected the same"
            )
        if weights is not None and not bool(((weights >= 0) & (weights <= 1)).all()):
            raise ValueError(
                f"weights are from {float(weights.min()):g} to {float(weights.max()):g}; expected "
                "numbers from 0 to 1, since a larger one would raise the sensitivity"
            )
        captured = self.capture.take()
        self.norms = losses.new_empty(len(losses), len(self.groups))
        self.factors = self.norms.clone()
        # Where parameters are sharded no rank may leave out a microbatch: others wait for it.
        some = len(losses) > 0 and (weights is None or self.sharded or bool(weights.any()))
        losses = _silenced(losses, weights)
        if some and not self.private:
            weighted(losses, weights).sum().backward()
        elif some:
            if not captured.calls:
                why = list({w: 0 for of in self.capture.handler.reasons.values() for w in of})
                if (given := self.capture.batch) not in (None, len(losses) * rows):
                    why.insert(0, f"the model's first input has {given} rows")
                raise UnsupportedLayerError(
                    f"no layer's forward was captured for these {len(losses)} losses; expected "
                    + (
                        f"calls with one row for each record: {'; '.join(why)}. Put the module "
                        "into one whose tensors, given and returned, have the records first"
                        if why
                        else "the model to be called once per backward, with gradients enabled, "
                        "after make_clipper, and its layers to read what is trained (torch's "
                        "spectral_norm does not)"
                    )
                )
            # Where autograd forms the sums, it must do so in the precision of the norms.
            exact = full_precision() if self.plan in TWO_BACKWARDS else nullcontext()
            with self._watched(losses), exact:
                structure = self._seen(losses, captured, rows, weights)
                self._form_sums(ClippingBatch(self, structure, losses, rows, weights))
        if not (some and self.private):
            self._keep_used(weights)
        self._fill_grads()

    def to_check(self, size: int, weights: Tensor | None = None) -> Tensor | None:
        """Return indices of up to four of the next ``B`` records for `check`; None if none is due.

        Without that `backward` checks the rules on the batch itself, whose activations it has to
        hold meanwhile. ``weights`` is as of `backward`.
        """
        found = (observer.to_check(size, weights) for observer in self.observers)
        return next((index for index in found if index is not None), None)

    def check(self, losses: Tensor, rows: int = 1, weights: Tensor | None = None) -> None:
        """Compare the layers' rules with autograd on some records, ahead of their whole batch.

        The records that `to_check` named have a separate forward, padded as in the batch, when
        no activations are held. That the batch's records are kept apart is checked in `backward`,
        and so are the rules if the batch goes through other layer calls than these records did.
        """
        captured = self.capture.take()
        losses = _silenced(losses, weights)
        with self._watched(losses):
            structure = self._structure(losses, captured)
            for observer in self.observers:
                observer.check(losses, structure, rows, weights)

    def backward_to(
        self,
        inputs: Sequence[Tensor],
        losses: Tensor,
        captured: Captured,
        rows: int = 1,
        weights: Tensor | None = None,
    ) -> Sequence[Tensor | None]:
        """Run `backward` for a part of a model, whose forwards `Capture.take` gave.

        Returns:
            The gradients of ``inputs``, for which other parts wait.
        """
        losses = _silenced(losses, weights)
        arrived: list[tuple[Call, Tensor]] = []
        with self._watched(losses):
            structure = self._seen(losses, captured, rows, weights)
            gradients = self.capture.backward(
                losses,
                structure.reached,
                lambda call, g: arrived.append((call, g)),
                other_leaves=structure.other_leaves,
                inputs=inputs,
            )
        with torch.no_grad():
            losses = losses.detach()
            self._form_sums(ClippingBatch(self, structure, losses, rows, weights, arrived))
        return gradients

    def sums(
        self,
        losses: Tensor,
        thresholds: Sequence[Tensor],
        rows: int = 1,
        weights: Tensor | None = None,
    ) -> Sums:
        """Return what `backward` would add to ``.grad``, without a look at any number.

        This is what a program is traced from (`dpft.privacy.program`): no check compares numbers,
        and a record that is not finite makes ``finite`` false. Styles of two backwards form their
        sums by book-keeping.

        Args:
            losses: as of `backward`.
            thresholds: one number for each group, which takes the place of `thresholds`.
            rows: as of `backward`.
            weights: as of `backward`.
        """
        captured = self.capture.take()
        losses = _silenced(losses, weights)
        before = [p.grad for p in self.parameters.values()]
        for parameter in self.parameters.values():
            parameter.grad = None
        try:
            if self.private:
                plan = "bk" if self.plan in TWO_BACKWARDS else self.plan
                with self._watched(losses):
                    structure = self._structure(losses, captured)
                    batch = ClippingBatch(self, structure, losses, rows, weights, None, thresholds)
                    PRIVATE_PLANS[plan](batch)
                    norms, factors, finite = batch.outcome()
            else:
                total = weighted(losses, weights).sum()
                total.backward(inputs=[*self.parameters.values()])
                norms = factors = losses.new_empty(len(losses), 0)
                finite = losses.isfinite().all()
            self._fill_grads()
            sums = [p.grad for p in self.parameters.values() if p.grad is not None]
        finally:
            for parameter, grad in zip(self.parameters.values(), before, strict=True):
                parameter.grad = grad
        return Sums(losses, norms, factors, finite, sums)

    def add(self, sums: Sums, weights: Tensor | None = None) -> None:
        """Add a microbatch's sums to ``.grad``, as `backward` does, and take over its norms."""
        held = [p.grad for p in self.parameters.values() if p.grad is not None]
        if held:
            torch._foreach_add_(held, list(sums.sums))
        else:
            for parameter, total in zip(self.parameters.values(), sums.sums, strict=True):
                parameter.grad = total.clone()
        self.norms, self.factors = sums.norms, sums.factors
        self._keep_used(weights)

    def collect(self) -> None:
        """Add up over the ranks of the cohort what `backward` left in ``.grad`` and in the policy.

        Once a logical batch, on every rank, also where a rank's share was empty.
        """
        self.lost = False
        if self.cohort is None:
            return
        self.policy.collect(self.cohort, next(iter(self.parameters.values())).device)
        if not self.sharded:  # else the sums were added up as they were formed
            self._fill_grads()
            sums = [p.grad for p in self.parameters.values() if p.grad is not None]
            self.cohort.all_reduce(sums)

    def own_slice(self, grad: Tensor) -> tuple[Tensor, int]:
        """Return a view of what this process holds of a gradient, ``(n,)``, and its offset."""
        if self.cohort is not None and self.sharded:
            return self.cohort.own_slice(grad)
        return grad.view(-1), 0

    def whole(self, grad: Tensor) -> Tensor:
        """Put a gradient's parts together, where each rank holds one; all must ask."""
        return grad if self.cohort is None else self.cohort.whole(grad)

    @property
    def repeats(self) -> int:
        """The number of times that a batch counts which every rank goes through."""
        return self.cohort.size if self.cohort is not None and self.sharded else 1

    def check_rows(self, rows: int) -> None:
        """Raise UnsupportedLayerError for a trained layer that cannot join ``rows`` of a record."""
        for site in self.capture.sites.layers.values():
            site.check_joins(rows)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within this context forward passes are not captured."""
        with self.capture.paused():
            yield

    def close(self) -> None:
        """Remove all hooks from the model."""
        self.capture.close()
        for observer in self.observers:
            observer.close()

    @contextmanager
    def _watched(self, losses: Tensor) -> Iterator[None]:
        """Within this context a backward is watched; there is no autocast of the caller's."""
        with ExitStack() as stack:
            stack.enter_context(torch.autocast(losses.device.type, enabled=False))
            for observer in self.observers:
                stack.enter_context(observer.watching())
            yield

    def _structure(self, losses: Tensor, captured: Captured) -> Structure:
        """Return what the losses' graph says about the layer calls."""
        if frozen := [n for n, p in self.parameters.items() if not p.requires_grad]:
            raise UnsupportedLayerError(
                f"parameters were frozen after make_clipper: {', '.join(frozen[:4])}; expected "
                "what is trained to stay so, for all of it gets noise: clipper.close(), and a new "
                "clipper and mechanism for the model as it is now"
            )
        leaves: dict[str, Tensor] = dict(self.parameters)
        for call in captured.calls:
            leaves |= call.leaves
        return find_structure(losses, captured, leaves, self.capture.handler.reasons)

    def _seen(
        self, losses: Tensor, captured: Captured, rows: int, weights: Tensor | None
    ) -> Structure:
        """Return the same, once no observer has refused the batch."""
        structure = self._structure(losses, captured)
        for observer in self.observers:
            observer.before_sums(losses, structure, rows, weights)
        return structure

    def _form_sums(self, batch: ClippingBatch) -> None:
        """Add a batch's sums to ``.grad``, as the plan forms them; nothing was summed before."""
        self._unfinished = True
        try:
            PRIVATE_PLANS[self.plan](batch)
            self.norms, self.factors = batch.result()
            self._unfinished = False
            self._keep_used(batch.weights)
        except LostRecordError:
            self.lost = True
            raise

    def _keep_used(self, weights: Tensor | None) -> None:
        """Forget the norms of padding, and count the others' where thresholds adapt."""
        if weights is not None:
            kept = on_device(weights.nonzero().flatten(), self.norms.device)
            self.norms, self.factors = self.norms[kept], self.factors[kept]
        self.policy.observe(self.norms, self.factors)

    def _fill_grads(self) -> None:
        for parameter in self.parameters.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)


def _silenced(losses: Tensor, weights: Tensor | None) -> Tensor:
    """Set the losses of padding to zero: so is their gradient, exactly, in all of their rows."""
    if weights is None:
        return losses
    used = on_device(weights != 0, losses.device)
    return torch.where(used, losses, losses.new_zeros(()))
