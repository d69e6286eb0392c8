"""Make a clipper of a style, or of a plan, groups and thresholds: with handlers and observers."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from dpft.privacy import registered_rules
from dpft.privacy.anymodule.frames import AnyModule
from dpft.privacy.clipping import groups as partitions
from dpft.privacy.clipping.clipper import Clipper
from dpft.privacy.clipping.groups import CLIP_FUNCTIONS, ClipFunction
from dpft.privacy.clipping.rules import LayerRules, Rule, UnsupportedLayerError
from dpft.privacy.policies import Cohort, QuantileThresholds, ThresholdPolicy
from dpft.privacy.quantiles import Quantiles
from dpft.privacy.spec import PLANS, STYLES, TWO_BACKWARDS, Partition
from dpft.privacy.verification.checker import Checker, Guard

UNIFORM_COUNT = 2  # as in conf/clip/uniform.yaml

# A function from elsewhere is tried at these thresholds, and at norms from far below each to far
# above, many of them close to it.
_THRESHOLDS = (1e-3, 1.0, 30.0)
_NORMS = torch.cat(
    [torch.zeros(1), torch.logspace(-8, 8, 129), torch.linspace(0.5, 2.0, 121), torch.ones(1)]
)


def make_clipper(
    model: nn.Module,
    style: str = "bk",
    *,
    threshold: float | None = None,
    thresholds: Sequence[float] | None = None,
    groups: Partition | str | partitions.GroupRule | None = None,
    plan: str | None = None,
    clip_function: str | ClipFunction = "abadi",
    adaptive: Quantiles | None = None,
    rules: Mapping[str, Rule] | None = None,
    cohort: Cohort | None = None,
) -> Clipper:
    """Attach a clipper to ``model``.

    Args:
        model: any module; its parameters with ``requires_grad`` are trained, the others ignored.
            Freeze and tie before calling this.
        style: a name of `dpft.privacy.spec.STYLES`; the arguments below override its parts.
        threshold: clipping threshold ``C`` on the L2 norm of one record's whole gradient: each of
            ``K`` groups is clipped to ``C/sqrt(K)``. Where thresholds adapt: every group's first
            estimate. Needed unless ``style="none"`` or ``thresholds`` is given.
        thresholds: one threshold per group instead.
        groups: a `Partition`, the name of one that needs no setting, or of ``uniform``, or a rule,
            which gives `dpft.privacy.clipping.groups.OwnGroup` for the model and its parameters'
            names.
        plan: how sums are formed, one of `PLANS`.
        clip_function: ``abadi``, ``automatic``, or a function of your own, which is held to its
            bound (`own_function`).
        adaptive: how thresholds follow quantiles; styles named adaptive have a default.
        rules: rules for further layer types, by qualified class name; they come before
            those that there are.
        cohort: the processes that train this model together; None: this one alone.

    Raises:
        ValueError: for an unknown or impossible choice, or a threshold that is missing or out of
            range.
        UnsupportedLayerError: for what cannot be clipped exactly, or divides batches by itself.
    """
    if style not in STYLES:
        raise ValueError(f"clipping style is {style!r}; expected one of {', '.join(STYLES)}")
    named = STYLES[style]
    plan = named.plan if plan is None else plan
    if plan not in PLANS:
        raise ValueError(f"plan is {plan!r}; expected one of {', '.join(PLANS)}")
    if callable(clip_function):
        name = getattr(clip_function, "__qualname__", str(clip_function))
        function = own_function(clip_function, name)
    elif clip_function in CLIP_FUNCTIONS:
        function = CLIP_FUNCTIONS[clip_function]
    else:
        raise ValueError(
            f"clip function is {clip_function!r}; expected one of {', '.join(CLIP_FUNCTIONS)}, or "
            "a function"
        )
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not parameters:
        raise ValueError("the model has no trainable parameter; expected at least one")
    if plan == "none":
        if cohort is not None:
            check_single_process(model, cohort)
        return Clipper(model, plan, (), function, LayerRules(), cohort=cohort)
    check_single_process(model, cohort)
    _refuse(model, parameters)
    if threshold is None and thresholds is None:
        raise ValueError(f"style {style!r} needs a threshold, for instance threshold=0.1")
    shares: tuple[float, ...] = ()
    if callable(groups):
        parts, shares = partitions.own_partition(model, parameters, groups)
    else:
        if not isinstance(groups, Partition):
            groups = groups or named.groups
            groups = Partition(groups, UNIFORM_COUNT if groups == "uniform" else None)
        parts = partitions.partition(model, parameters, groups)
    if plan in TWO_BACKWARDS and len(parts) > 1:
        raise ValueError(
            f"plan {plan!r} reweights the losses, by one factor per record, and cannot clip "
            f"{len(parts)} groups; expected one group, or plan='fused', 'bk' or 'materialised'"
        )
    if adaptive is None and named.adaptive:
        adaptive = Quantiles()
    if len(set(shares)) > 1 and (adaptive is not None or thresholds is not None):
        raise ValueError(
            "the groups have shares of one threshold; expected threshold=0.1, which they share, "
            "and neither thresholds for each nor thresholds that adapt"
        )
    if adaptive is not None and thresholds is None:
        thresholds, threshold = [float(threshold or 0.0)] * len(parts), None
    elif shares and threshold is not None:
        thresholds, threshold = [threshold * share for share in shares], None
    assigned = partitions.assign(parts, threshold, thresholds)
    known = LayerRules(rules, registered_rules())
    first = [group.threshold for group in assigned]
    policy = QuantileThresholds(first, adaptive) if adaptive else ThresholdPolicy(first)
    about = (assigned, function, known, policy, cohort)
    return Clipper(model, plan, *about, handler=AnyModule, observers=(Guard, Checker))


def check_single_process(model: nn.Module | None = None, cohort: Cohort | None = None) -> None:
    """Refuse a model that is wrapped for several devices, and processes that are no cohort."""
    wrappers = (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)
    for name, module in () if model is None else model.named_modules():
        if isinstance(module, wrappers):
            raise UnsupportedLayerError(
                f"{name or 'the model'} is a {type(module).__name__}, which divides batches or "
                "averages gradients by itself; expected the bare module: dpft divides batches and "
                "adds up sums"
            )
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return
    if model is not None and (cohort is None or not cohort.sharded):
        from torch.distributed.tensor import DTensor  # takes long to import, and few need it

        for name, parameter in model.named_parameters():
            if parameter.requires_grad and isinstance(parameter, DTensor):
                raise UnsupportedLayerError(
                    f"parameter {name!r} is sharded over several processes; expected "
                    "make_clipper(..., cohort=dpft.parallel.sharded.Shards()), which adds up sums "
                    "of parts, or a model that is not sharded"
                )
    size = distributed.get_world_size()
    if size > 1 and cohort is None:
        raise UnsupportedLayerError(
            f"this process is one of {size} (torch.distributed); expected a single one, or a "
            "cohort given to make_clipper: each would clip its own share and release it under the "
            "same noise as the others"
        )


def _refuse(model: nn.Module, parameters: Mapping[str, nn.Parameter]) -> None:
    """Refuse parts that torch.compile has compiled, and parameters in half precision."""
    for name, module in model.named_modules():
        forward = vars(module).get("forward")
        if (
            isinstance(getattr(module, "_orig_mod", None), nn.Module)
            or module._compiled_call_impl is not None
            or hasattr(forward, "_torchdynamo_orig_callable")
        ):
            raise UnsupportedLayerError(
                f"{name or 'the model'} ({type(module).__name__}) was compiled by torch.compile, "
                "where no hook of a layer runs; expected the module itself (what torch.compile was "
                "given: compiled._orig_mod)"
            )
    low = [f"{n} ({p.dtype})" for n, p in parameters.items() if p.dtype.itemsize < 4]
    if low:
        raise UnsupportedLayerError(
            f"trainable parameters in half precision: {', '.join(low)}; expected float32 or "
            "float64, since norms and sums would be rounded by more than they may be"
        )


def own_function(function: ClipFunction, name: str) -> ClipFunction:
    """Return a clip function from elsewhere, held to its bound, once it was tried on a grid.

    Guarantee: a record's factor times its norm is at most the threshold, at every norm: where the
    function itself gives more, which the grid cannot rule out between its points, the factor is
    that of the bound. A factor follows from one norm alone, since the function is mapped over the
    records (`torch.func.vmap`) and never sees two.

    Raises:
        ValueError: if a factor is negative, not finite, or more than ``C/n`` anywhere on the grid;
            if the function cannot be mapped.
    """

    def mapped(norms: Tensor, threshold: float) -> Tensor:
        return torch.func.vmap(lambda norm: function(norm, threshold))(norms.clone())

    def bounded(norms: Tensor, threshold: float) -> Tensor:
        if not norms.numel():
            return norms.clone()
        # Of a threshold that is a float64 number on the device, as in programs, it makes float64.
        factors = mapped(norms, threshold).to(norms.dtype)
        return factors.nan_to_num(0.0).clamp(min=0.0).minimum(threshold / norms)

    if isinstance(torch.empty(0), FakeTensor):  # of a plan: it has shapes and no numbers
        return bounded
    expected = (
        "expected factors from 0 to threshold / norm, which follow from one norm and the threshold "
        "by tensor operations without branches on values"
    )
    for threshold in _THRESHOLDS:
        norms = _NORMS * threshold
        try:
            factors = mapped(norms, threshold)
            fine = (factors >= 0) & factors.isfinite() & (factors * norms <= threshold * 1.00001)
        except Exception as error:  # whatever another's function raises
            first = str(error).strip().partition("\n")[0]
            raise ValueError(
                f"clip function {name!r} failed for a norm: {type(error).__name__}: {first}; "
                f"{expected}"
            ) from error
        if factors.shape != norms.shape or not bool(fine.all()):
            raise ValueError(
                f"clip function {name!r} is not bounded, or gives no factor for each norm, at the "
                f"threshold {threshold:g}; {expected}"
            )
    return bounded
