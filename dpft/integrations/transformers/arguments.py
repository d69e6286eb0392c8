"""What privacy is asked for, and which of Trainer's own arguments cannot go with it."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from inspect import signature
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any, NamedTuple

from dpft.config.errors import ConfigError, NotInstalledError, suggestion
from dpft.privacy import Mechanism, make_clipper
from dpft.privacy.spec import ACCOUNTANTS, STYLES, default_delta

TESTED = 5
"""The major version of transformers whose Trainer this is written for."""

# Arguments of `make_clipper` that have others here.
_NOT_CLIPPING = frozenset({"model", "style", "threshold", "cohort"})

# What stays on this machine: losses may go there if they are asked for.
_LOCAL = frozenset({"tensorboard"})


@dataclass(frozen=True)
class PrivacyArguments:
    """The privacy of a `PrivateTrainer`.

    Attributes:
        epsilon: budget of the whole run, from which the noise follows.
        noise_multiplier: standard deviation of the noise over the sensitivity, in place of
            ``epsilon``.
        delta: failure probability; None: `dpft.privacy.spec.default_delta` of own data.
        threshold: clipping threshold on the norm of one record's gradient. Not
            ``TrainingArguments.max_grad_norm``, which clips the whole batch's.
        style: clipping style, see `dpft.privacy.make_clipper`; not ``none``.
        clipping: further arguments of `dpft.privacy.make_clipper`, such as ``clip_function``.
        quantile_budget: where thresholds adapt: the noisy counts' share of the budget.
        batch_size: expected records of a logical batch; None: ``per_device_train_batch_size *
            gradient_accumulation_steps``. Microbatches have ``per_device_train_batch_size``.
        accountant: that the noise is calibrated with: ``pld`` or ``rdp``.
        log_private: put the training loss into Trainer's logs, and so into ``trainer_state.json``
            and callbacks. It is computed from private records without noise.
        noise_seed: for repeatable research: batches and noise follow from it, and hide nothing from
            whoever knows it. None: a secret key, made at the first step.

    Raises:
        ConfigError: for an impossible value, or a choice that is missing.
    """

    epsilon: float | None = None
    noise_multiplier: float | None = None
    delta: float | None = None
    threshold: float = 0.1
    style: str = "bk"
    clipping: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    quantile_budget: float = 0.01
    batch_size: int | None = None
    accountant: str = "pld"
    log_private: bool = False
    noise_seed: int | None = None

    def __post_init__(self) -> None:
        if (self.epsilon is None) == (self.noise_multiplier is None):
            raise ConfigError(
                f"epsilon is {self.epsilon} and noise_multiplier is {self.noise_multiplier}; "
                "expected one of them: type PrivacyArguments(epsilon=3)"
            )
        for name in ("epsilon", "noise_multiplier", "threshold"):
            value = getattr(self, name)
            missing = value is None and name != "threshold"
            if not missing and not (_is_number(value) and 0 < value < math.inf):
                raise ConfigError(f"{name} is {value!r}; expected a finite number above 0")
        if self.delta is not None and not (_is_number(self.delta) and 0 < self.delta < 1):
            raise ConfigError(
                f"delta is {self.delta!r}; expected a number between 0 and 1, or None"
            )
        size = self.batch_size
        if size is not None and not (_is_number(size, Integral) and size > 0):
            raise ConfigError(
                f"batch_size is {size!r}; expected a whole number above 0, or None for "
                "per_device_train_batch_size * gradient_accumulation_steps"
            )
        private = [name for name in STYLES if name != "none"]
        if self.style not in private:
            raise ConfigError(
                f"style is {self.style!r}{suggestion(str(self.style), private)}; expected one of "
                f"{', '.join(private)}. To train without privacy use transformers.Trainer"
            )
        if self.accountant not in ACCOUNTANTS:
            raise ConfigError(
                f"accountant is {self.accountant!r}; expected one of {', '.join(ACCOUNTANTS)}"
            )
        known = [name for name in signature(make_clipper).parameters if name not in _NOT_CLIPPING]
        for name in self.clipping:
            if name not in known:
                raise ConfigError(
                    f"clipping has {name!r}{suggestion(name, known)}; expected some of "
                    f"{', '.join(known)}"
                )

    def mechanism(self, dataset_size: int, batch_size: int, steps: int) -> Mechanism:
        """The mechanism of a run, over one group as long as there is no clipper.

        Args:
            dataset_size: ``N``.
            batch_size: expected records of a logical batch.
            steps: of the whole run.

        Raises:
            ConfigError: for a batch that the data set cannot give, or a budget out of reach.
        """
        if not 1 <= batch_size <= dataset_size:
            raise ConfigError(
                f"the expected batch is {batch_size} of {dataset_size} training records; expected "
                f"between 1 and {dataset_size}: type PrivacyArguments(batch_size=...), or smaller "
                "per_device_train_batch_size and gradient_accumulation_steps"
            )
        delta = default_delta(dataset_size, False) if self.delta is None else self.delta
        thresholds = (float(self.threshold),)
        try:
            if self.noise_multiplier is not None:
                sigma = float(self.noise_multiplier)
                return Mechanism(dataset_size, batch_size, steps, sigma, thresholds, delta)
            assert self.epsilon is not None
            return Mechanism.calibrate(
                dataset_size=dataset_size,
                batch_size=batch_size,
                steps=steps,
                thresholds=thresholds,
                delta=delta,
                target_epsilon=self.epsilon,
                accountant=self.accountant,
            )
        except ValueError as error:
            raise ConfigError(str(error)) from error


def expected_batch(privacy: PrivacyArguments, args: Any) -> int:
    """Records of a logical batch on average.

    Raises:
        ConfigError: if it is given twice, and differently.
    """
    product = args.per_device_train_batch_size * args.gradient_accumulation_steps
    if privacy.batch_size is None:
        return int(product)
    if args.gradient_accumulation_steps > 1 and product != privacy.batch_size:
        raise ConfigError(
            f"PrivacyArguments.batch_size is {privacy.batch_size}, and per_device_train_batch_size "
            f"* gradient_accumulation_steps is {product}; expected one of them: leave out "
            "batch_size, or gradient_accumulation_steps (a batch is cut into microbatches of "
            "per_device_train_batch_size whatever its size)"
        )
    return privacy.batch_size


def _is_number(value: object, kind: type = Real) -> bool:
    """Whether it is one; a text, as YAML reads 1e-5, is none."""
    return isinstance(value, kind) and not isinstance(value, bool)


class Refusal(NamedTuple):
    """An argument that cannot go with privacy.

    Attributes:
        name: of the argument.
        allowed: its only values.
        why: what it would do.
    """

    name: str
    allowed: tuple[Any, ...]
    why: str


_COUPLES = "a record's gradient would depend on the others of its batch"
_OUR_LOSS = "the loss is formed here, one number for each record; give per_example_loss="
_OWN_LOOP = "several processes: use dpft train with torchrun, or one process"
_STAYS_HALF = "evaluate() leaves the model in half precision, to be trained or saved so"
_ROUNDED = "records would be rounded by the shapes of their microbatch, and so by one another"

REFUSALS = (
    Refusal("max_grad_norm", (0, 0.0), "it clips the batch; records have threshold="),
    Refusal("packing", (False,), "a row would hold parts of several records"),
    Refusal("padding_free", (False,), "the records of a batch would become one row"),
    Refusal("neftune_noise_alpha", (None, 0), f"its noise scales with the padding: {_COUPLES}"),
    Refusal("label_smoothing_factor", (0, 0.0), _OUR_LOSS),
    Refusal("loss_type", ("nll", None), _OUR_LOSS),
    Refusal("train_sampling_strategy", ("random",), "Poisson samples are drawn here"),
    Refusal("group_by_length", (False,), "Poisson samples are drawn here"),
    Refusal("dataloader_drop_last", (False,), "batches vary in size; none is dropped"),
    Refusal("ignore_data_skip", (False,), "a step that is resumed has its own batch"),
    Refusal("auto_find_batch_size", (False,), "the microbatch is part of what a replay repeats"),
    Refusal("fp16", (False,), _ROUNDED),
    Refusal("bf16", (False, None), _ROUNDED),
    Refusal("bf16_full_eval", (False,), _STAYS_HALF),
    Refusal("fp16_full_eval", (False,), _STAYS_HALF),
    Refusal("torch_compile", (False,), "hooks would not see the layers"),
    Refusal("use_liger_kernel", (False,), "it replaces layers and losses"),
    Refusal("activation_offloading", (False,), "its hooks are bypassed here"),
    Refusal("deepspeed", (None,), _OWN_LOOP),
    Refusal("fsdp", (None, "", [], False), _OWN_LOOP),
    Refusal("parallelism_config", (None,), _OWN_LOOP),
    Refusal(
        "include_num_input_tokens_seen",
        ("no", False),
        "it counts tokens of private batches without noise",
    ),
    Refusal("debug", ([], "", ()), "it prints activations of private records, and stops by them"),
    Refusal("skip_memory_metrics", (True,), "memory follows from the records of private batches"),
    Refusal("enable_jit_checkpoint", (False,), "its checkpoints could not be told from torn ones"),
    Refusal("push_to_hub", (False,), "output_dir holds private/; upload the saved model itself"),
)
"""What is looked at where the arguments have it: TRL's among them."""


# What trackers take beside the logs where a variable of the environment has one of these values.
_UPLOADED = "it uploads output_dir, which holds private/ with the key of the noise"
_ON = ("1", "on", "yes", "true")
TAKEN = {
    "comet_ml": ("COMET_LOG_ASSETS", _ON, _UPLOADED),
    "dagshub": ("HF_DAGSHUB_LOG_ARTIFACTS", _ON, _UPLOADED),
    "dvclive": ("HF_DVCLIVE_LOG_MODEL", ("all",), _UPLOADED),
    "wandb": ("WANDB_WATCH", ("gradients", "all"), "it logs gradients, which may lack noise"),
}


def refused(args: Any, privacy: PrivacyArguments, callbacks: Sequence[Any] = ()) -> list[str]:
    """What of Trainer's arguments cannot go with privacy, a line each.

    Args:
        args: ``TrainingArguments``, or TRL's ``SFTConfig``.
        privacy: what is asked for.
        callbacks: of the Trainer: a tracker may be among them without being in ``report_to``.
    """
    lines = []
    for name, allowed, why in REFUSALS:
        value = getattr(args, name, allowed[0])
        if value not in allowed:
            lines.append(f"{name}={value!r}: {why}. Type {name}={allowed[0]!r}")
    optimizer = str(getattr(args.optim, "value", args.optim))
    if "lomo" in optimizer or "layerwise" in optimizer:
        lines.append(
            f"optim={optimizer!r}: it moves weights within the backward, before there is noise. "
            "Type optim='adamw_torch'"
        )
    trackers = {*args.report_to, *_reporting(callbacks)}
    elsewhere = sorted(trackers - _LOCAL)
    if privacy.log_private and elsewhere:
        lines.append(
            f"report_to={elsewhere!r} with log_private=True: losses of private records would leave "
            "this machine. Type report_to='none' or 'tensorboard', or leave out log_private"
        )
    for tracker, (variable, values, why) in TAKEN.items():
        value = os.environ.get(variable, "")
        if tracker in trackers and value.lower() in values:
            lines.append(f"{variable}={value} with {tracker}: {why}. Type unset {variable}")
    if any(getattr(callback, "_log_model", None) == "all" for callback in callbacks):  # of dvclive
        lines.append(f"a callback with log_model='all': {_UPLOADED}. Leave it out")
    return lines


def _reporting(callbacks: Sequence[Any]) -> set[str]:
    """The trackers among some callbacks, by the names that ``report_to`` has for them."""
    if not callbacks:
        return set()
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK as KINDS

    return {name for name, kind in KINDS.items() if any(isinstance(x, kind) for x in callbacks)}


def check_version() -> None:
    """Refuse a transformers whose Trainer nobody has looked at.

    Raises:
        NotInstalledError: naming the version that is there.
    """
    import transformers

    if int(transformers.__version__.split(".")[0]) != TESTED:
        raise NotInstalledError(
            f"transformers is {transformers.__version__}; expected version {TESTED}: "
            "PrivateTrainer replaces parts of Trainer, which other versions may call otherwise. "
            f"Type pip install 'transformers>={TESTED},<{TESTED + 1}'"
        )
