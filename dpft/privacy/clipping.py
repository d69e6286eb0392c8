"""The clipper: sums of clipped per-example gradients, at nearly the cost of ordinary training.

Forward hooks keep each layer's input ``a`` and listen at its output's place in the autograd graph
(`capture`). A backward towards the first layers yields every output gradient ``g`` without forming
one weight gradient, while the parameters keep ``requires_grad=True``: optimizers, checkpoints and
adapters see an ordinary model. From ``(a, g)`` the layer rules compute per-example norms, and a
plan forms the sums (`passes`). All plans leave the same sums in ``.grad``, to float accuracy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from dpft.privacy import groups as partitions
from dpft.privacy.capture import Call, Capture
from dpft.privacy.groups import Group
from dpft.privacy.layers import Rule, UnsupportedLayerError, Use
from dpft.privacy.passes import TWO_BACKWARDS, Pass
from dpft.privacy.quantiles import Quantiles
from dpft.privacy.sites import find_sites
from dpft.privacy.verify import check_batch, verify_sums, verify_uses


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


class Clipper:
    """Leaves the sum of clipped per-example gradients in ``.grad``.

    Built by `dpft.privacy.make_clipper`.

    Attributes:
        plan: how sums are formed, one of `dpft.privacy.passes.PLANS`.
        parameters: the trainable parameters by name; a tied parameter appears once.
        groups: the clipping groups with the thresholds they start from; empty for ``none``.
        adaptive: how thresholds follow quantiles of the norms; None where they are fixed.
        estimates: the quantile estimates ``C_k``; the thresholds themselves where those are fixed.
        thresholds: the norms to which groups are clipped now, ``(K,)`` floats.
        norms: per-example gradient norms of the last `backward`, shape ``(B, K)``.
        factors: the clip factors applied by the last `backward`, shape ``(B, K)``. A record whose
            gradient in a group is not finite has factor 0: it contributes nothing there.
        below: for adaptive thresholds, ``sum_i (1[n_ik <= C_k] - 1/2)`` over the records since the
            last `move`, ``(K,)`` in float64: one record changes each entry by at most 1/2.

    Guarantee: adding or removing one record changes the sum by at most `sensitivity` in L2 norm,
    provided that ``losses[i]`` depends on record ``i`` alone.
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
        # By sequence of layer calls: whether a backward must ask for every call (`verify_uses`).
        self._verified: dict[tuple[tuple[str, bool], ...], bool] = {}
        self._forms: dict[str, str] = {}
        sites = {} if plan == "none" else find_sites(model, self.parameters, rules)
        self._capture = Capture(model, sites)
        self.move([group.threshold for group in self.groups])

    @property
    def private(self) -> bool:
        return bool(self.groups)

    @property
    def sensitivity(self) -> float:
        """L2 sensitivity of what `backward` leaves in ``.grad``, infinite for ``none``."""
        return partitions.sensitivity(self.thresholds) if self.private else float("inf")

    @property
    def batches_verified(self) -> int:
        """How many sequences of layer calls have been checked against autograd."""
        return len(self._verified)

    def move(self, estimates: Sequence[float]) -> None:
        """Set the estimates, and with them the thresholds, from the next `backward` on."""
        self.estimates = tuple(estimates)
        self.thresholds = (
            self.estimates if self.adaptive is None else self.adaptive.rescaled(self.estimates)
        )
        self.below = torch.zeros(len(self.groups), dtype=torch.float64)

    def backward(self, losses: Tensor) -> None:
        """Add ``sum_i clip(g_i)`` to each parameter's ``.grad``.

        Args:
            losses: one loss per record, shape ``(B,)``; nothing may be summed or averaged across
                records. May be empty: then nothing is added.

        Raises:
            ValueError: if ``losses`` is not one-dimensional.
            UnsupportedLayerError: if a layer's batch cannot be told apart by record, or if a
                parameter is used in a way that was not captured.
        """
        if losses.dim() != 1:
            raise ValueError(
                f"losses have shape {tuple(losses.shape)}; expected one loss per record, shape "
                "(B,): use reduction='none' and reduce within each record only"
            )
        calls = self._capture.take()
        self.norms = losses.new_empty(len(losses), len(self.groups))
        self.factors = self.norms.clone()
        if len(losses) and not self.private:
            losses.sum().backward()
        elif len(losses):
            if not calls:
                raise UnsupportedLayerError(
                    "no layer's forward was captured for these losses; expected the model to be "
                    "called once per backward, with gradients enabled, after make_clipper"
                )
            self._clip(losses, calls)
        for parameter in self.parameters.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)

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

    def _clip(self, losses: Tensor, calls: Sequence[Call]) -> None:
        signature = tuple((call.site.name, call.root) for call in calls)
        everywhere = self._verified.get(signature)
        batch = Pass(self.plan, self.groups, self.parameters, losses, calls, self._factors_of)
        two = self.plan in TWO_BACKWARDS
        if everywhere is None:
            for call, g in self._verify(losses, calls, signature):
                batch.arrived(call, g)
        else:
            self._capture.backward(
                losses, calls, batch.arrived, everywhere=everywhere, retain_graph=two
            )
        batch.finish()
        self.norms, self.factors = batch.norms, batch.factors
        self._forms = batch.forms
        if self.adaptive is not None:
            usable = self.factors > 0
            small = self.norms <= self.norms.new_tensor(self.estimates)
            self.below = self.below.to(losses.device) + (
                (small & usable).sum(0, dtype=torch.float64)
                - 0.5 * usable.sum(0, dtype=torch.float64)
            )
        if two:
            self._second_backward(losses, calls)
            for call in calls:
                call.release()

    def _verify(
        self, losses: Tensor, calls: Sequence[Call], signature: tuple[tuple[str, bool], ...]
    ) -> list[tuple[Call, Tensor]]:
        """The first backward of a new sequence of layer calls: nothing is clipped before it."""
        heard: list[tuple[Call, Tensor]] = []

        def listen(call: Call, g: Tensor) -> None:
            call.hold()
            heard.append((call, g))

        self._capture.backward(losses, calls, listen, everywhere=True, retain_graph=True)
        other_leaves = verify_uses(losses, [call for call, _ in heard], self.parameters)
        if not bool(torch.isfinite(losses).all()):
            return heard  # there is nothing to compare; the next batch will be checked
        uses: dict[str, list[Use]] = {}
        with torch.no_grad():
            for call, g in heard:
                check_batch(call, len(losses), g)
                found = call.site.rule.uses(call.site.module, call.input(), g)
                for local, use in found.items():
                    uses.setdefault(call.site.names[local], []).append(use)
        with self._capture.silent_backward():
            verify_sums(losses, uses, self.parameters)
        self._verified[signature] = other_leaves
        return heard

    def _second_backward(self, losses: Tensor, calls: Sequence[Call]) -> None:
        """Of the losses reweighted by the factors (Li et al. 2022, section 4)."""
        factors = self.factors[:, 0].detach()
        dropped = factors == 0
        if not bool(dropped.any()):
            with self._capture.silent_backward():
                (losses * factors).sum().backward(inputs=list(self.parameters.values()))
            return
        # Zero times infinity is not zero: the sums are formed from a and g without that record.
        batch = Pass("bk", self.groups, self.parameters, losses, calls, lambda k, norms: factors)
        self._capture.backward(losses, calls, batch.arrived, everywhere=True)
        batch.finish()

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
