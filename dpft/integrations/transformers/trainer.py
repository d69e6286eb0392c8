"""`PrivateTrainer`: Trainer's loop, with the batch, the gradient and the accounts of dpft.

Trainer keeps its loop, its optimizer and schedule, its checkpoints, its evaluation and callbacks.
One of its steps is one logical batch: `get_train_dataloader` gives Poisson samples, and
`training_step` leaves the noisy mean of clipped gradients in ``.grad``, with a line in the ledger,
before Trainer moves the weights.
"""

import copy
import math
import time
from collections.abc import Iterable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback

from dpft.config.errors import ConfigError, DataError, ModelError
from dpft.integrations.transformers import arguments as checks
from dpft.integrations.transformers.arguments import PrivacyArguments
from dpft.integrations.transformers.losses import (
    Collated,
    CollatedAlone,
    FixedRows,
    Logical,
    LogicalBatches,
    Loss,
    Steps,
    Survey,
    check_records,
    examples_of,
    loss_of,
    survey,
)
from dpft.integrations.transformers.spending import (
    Spending,
    decisive,
    lineage_of,
    manifest_of,
)
from dpft.privacy import Clipper, LostRecordError, keys, make_clipper
from dpft.privacy.checks import Untouched, random_state_kept, written
from dpft.privacy.noise import GaussianNoise
from dpft.privacy.sampling import BLANK
from dpft.runs import lineage
from dpft.runs.atomic import write_atomic
from dpft.tasks.objectives.evaluation import Mixed, check_supported
from dpft.tasks.objectives.objective import Losses
from dpft.tasks.units import Records
from dpft.tasks.views import blocks
from dpft.training.executors import add_clipped, forget
from dpft.training.mechanisms import check_repeated
from dpft.training.statistics import StepStatistics, check_weights

# Computed from private records without noise; and what Trainer would have to count of them.
_NOISELESS = ("loss", "train_loss", "total_flos")


class PrivacyMixin:
    """Makes a Trainer private: ``class PrivateSFTTrainer(PrivacyMixin, SFTTrainer)``.

    Attributes:
        privacy: what was spent, and the mechanism behind it: see `Spending`.

    Guarantee: the weights after any step are a function of ``privacy.mechanism``'s noisy releases
    up to that step, each in the ledger before the weights moved. It covers a row of
    ``train_dataset``, provided that one row follows from one record of the data that is to be
    protected, and that the user's callbacks and optimizers read no training data.
    """

    privacy: Spending

    def __init__(
        self,
        *args: Any,
        privacy: PrivacyArguments,
        per_example_loss: Loss | None = None,
        **kwargs: Any,
    ) -> None:
        """Check the arguments, before anything is read or computed.

        Args:
            args: of the Trainer.
            privacy: budget and clipping.
            per_example_loss: of the model and the collated inputs of a microbatch: losses
                ``(B,)``, nothing summed or averaged over records. None: the loss of the model's
                head, averaged over each record's own targets.
            kwargs: of the Trainer.

        Raises:
            ConfigError: naming every argument that cannot be used with privacy.
        """
        asked = kwargs.get("args", args[1] if len(args) > 1 else None)
        if asked is not None:  # before another Trainer packs the data set
            checks.refuse(checks.refused(asked))
        base: Any = super()
        base.__init__(*args, **kwargs)
        trainer: Any = self
        checks.refuse(checks.of_trainer(trainer, PrivacyMixin))
        mechanism = privacy.mechanism(len(trainer.train_dataset), trainer.args)
        # Trainer's own counting: one logical batch a step, and an epoch of N/B steps.
        trainer.args = copy.copy(trainer.args)
        trainer.args.max_steps = mechanism.steps
        trainer.args.gradient_accumulation_steps = 1
        folder = Path(trainer.args.output_dir)
        self.privacy = Spending(privacy, mechanism, folder, lineage_of(trainer.model, folder))
        self._loss = per_example_loss
        self._clipper: Clipper | None = None
        self._noise: GaussianNoise | None = None
        self._untouched: Untouched | None = None
        self._objective: Losses | None = None
        self._shapes: FixedRows | None = None
        self._checkpoint: str | None = None
        self._surveyed: Survey | None = None
        self._apart: list[Any] = []  # data sets that were compared with the training records
        self._training = False
        # The user's optimizer, as text; Trainer makes another one later.
        own = trainer.optimizer or trainer.optimizer_cls_and_kwargs
        self._given = None if own is None else repr(own)
        trainer.add_callback(_Seals(self.privacy))

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> Any:
        """Train, or continue.

        Args:
            resume_from_checkpoint: as of Trainer; True takes the newest complete checkpoint. Steps
                in the ledger after it are repeated as they were, and are no further releases.
            trial: ignored: a search needs ``model_init``, which is an error.
            ignore_keys_for_eval: as of Trainer.

        Raises:
            RunError: if ``output_dir`` holds another run, or is in use; if Trainer did not load all
                of a checkpoint.
            ModelError, DataError, UnsupportedLayerError: if records cannot be kept apart.
        """
        trainer: Any = self
        checks.refuse(checks.of_trainer(trainer, PrivacyMixin, self.privacy.mechanism))
        if resume_from_checkpoint is True:
            resume_from_checkpoint = self.privacy.newest_checkpoint()
        elif resume_from_checkpoint:
            manifest_of(Path(resume_from_checkpoint))
        self._checkpoint = resume_from_checkpoint or None
        makes_one = trainer.optimizer is None
        self._training = True
        base: Any = super()
        try:
            output = base.train(self._checkpoint, ignore_keys_for_eval=ignore_keys_for_eval)
        finally:
            self._training = False
            if makes_one:  # its state is of steps that the next training may repeat
                trainer.optimizer = None
            if self._clipper is not None:
                self._clipper.close()
            if self._noise is not None:  # the run had started: the folder's steps are this model's
                self.privacy.mark(trainer.model)
            self._clipper = self._noise = None
            self.privacy.close()
        return output._replace(training_loss=math.nan)

    def get_train_dataloader(self) -> DataLoader[Logical]:
        """Return Poisson batches, one for each of Trainer's steps; check and begin the run.

        Trainer asks for it once a training, after a checkpoint's weights are in the model and
        before anything is computed.
        """
        if not self._training:
            raise ConfigError(
                "batches are drawn from the run's key while it trains; expected trainer.train() to "
                "ask for them. To look at records use trainer.train_dataset"
            )
        trainer: Any = self
        base: Any = super()
        plain = base.get_train_dataloader()  # has the model's columns and the collator
        model: nn.Module = trainer.model
        loss = self._loss or loss_of(model)
        objective = self._objective = Collated(plain.collate_fn, loss)
        arguments, args = self.privacy.arguments, trainer.args
        if args.bf16:
            check_supported("bfloat16", args.device)
            torch.backends.cuda.enable_cudnn_sdp(False)  # as in `dpft.training.setup.prepare`
            alone = CollatedAlone(plain.collate_fn, loss, getattr(model, "config", None))
            self._objective = Mixed(alone)
            size = self.privacy.mechanism.batch_size
            self._shapes = FixedRows(size, rows=args.per_device_train_batch_size)
        found = self._surveyed = survey(plain.dataset)
        self._apart.clear()
        several = trainer.eval_dataset
        for name in several if isinstance(several, dict) else [None] * (several is not None):
            self._check_apart(trainer.get_eval_dataloader(name).dataset)
        checks.check_precision(model, args.bf16)
        self._clipper = make_clipper(
            model, arguments.style, threshold=float(arguments.threshold), **arguments.clipping
        )
        forget(self._clipper)  # gradients of a step that broke off in this process
        model.train()
        if not min(found.lengths):
            raise DataError(
                f"record {found.lengths.index(0)} of train_dataset has no input_ids; expected at "
                "least one token in each: leave such records out"
            )
        collated = check_records(
            plain.dataset,
            found.lengths,
            objective,
            model,
            self._clipper,
            size=args.per_device_train_batch_size,
            known_loss=self._loss is None,
            trained=self._objective,
            shapes=self._shapes,
        )
        self._noise = self.privacy.begin(
            self._clipper,
            model,
            checkpoint=self._checkpoint,
            data=found.fingerprint,
            collated=collated,
            settings=decisive(trainer, self._given, loss, self._loss is not None),
        )
        self._untouched = Untouched(model, {id(p) for p in self._clipper.parameters.values()})
        mechanism = self.privacy.mechanism
        per_epoch = mechanism.dataset_size // mechanism.batch_size
        return DataLoader(
            LogicalBatches(plain.dataset, mechanism.sampler(self.privacy.key)),
            batch_sampler=Steps(per_epoch, mechanism.steps, lambda: trainer.state.global_step),
            collate_fn=itemgetter(0),
            num_workers=args.dataloader_num_workers,
        )

    def evaluation_loop(self, dataloader: DataLoader[Any], *args: Any, **kwargs: Any) -> Any:
        """Evaluate as Trainer does; raise ConfigError where most records are trained on."""
        self._check_apart(dataloader.dataset)
        base: Any = super()
        return base.evaluation_loop(dataloader, *args, **kwargs)

    def get_total_train_batch_size(self, args: Any) -> int:
        """Return the expected logical batch."""
        return self.privacy.mechanism.batch_size

    def training_step(
        self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None
    ) -> Tensor:
        """Take one noisy step: sums of clipped gradients, noise, a line in the ledger.

        Returns:
            Zero: the loss of private records goes to ``private/metrics.jsonl`` alone.

        Raises:
            LedgerError: see `Spending.spend`; the weights have not moved then.
            DivergedError: if the weights are not finite.
        """
        trainer: Any = self
        clipper, noise = self._clipper, self._noise
        step: int = trainer.state.global_step
        due = isinstance(inputs, Logical) and inputs.step == step
        if clipper is None or noise is None or not due:
            raise ConfigError(
                f"training is at step {step} and got another batch than is due; expected "
                "trainer.train() to give it: leave Trainer's state and its loader as they are, and "
                "end no epoch early"
            )
        began = time.perf_counter()
        check_weights(trainer.optimizer, step - 1)
        checks.check_trained(clipper, trainer.model, trainer.optimizer)
        model.train()
        if callable(getattr(trainer.optimizer, "train", None)):
            trainer.optimizer.train()
        # Callbacks draw from the public seed, and a step from the key alone. Frozen parts may be on
        # other devices, and draw there too.
        with random_state_kept(*model.parameters()):
            clipper.capture.take()  # of forwards outside of a step
            try:
                statistics, lost = self._clipped_sum(model, clipper, inputs), False
            except LostRecordError:
                lost = True
            if lost:  # outside of the clause, whose traceback holds memory
                forget(clipper)
                statistics = self._clipped_sum(model, clipper, inputs)  # the clipper is careful now
        statistics.released = noise.privatise_(step)
        statistics.seconds = time.perf_counter() - began
        rates = [float(group["lr"]) for group in trainer.optimizer.param_groups]
        self.privacy.spend(step, statistics, rates)
        return torch.tensor(0.0, device=trainer.args.device)

    def _clipped_sum(self, model: nn.Module, clipper: Clipper, batch: Logical) -> StepStatistics:
        """Leave the sum of the clipped gradients in ``.grad``."""
        assert self._objective is not None
        for parameter in clipper.parameters.values():
            parameter.grad = None
        # Masks belong to rows, so that known ones would break the sensitivity: from the secret key.
        torch.manual_seed(keys.seed(self.privacy.key, "dropout", batch.step))
        statistics = StepStatistics()
        args = self.args  # type: ignore[attr-defined]
        units = Records(self._objective, examples_of(batch.records), self._shapes)
        pieces: Iterable[Sequence[int]]
        if self._shapes is None:
            pieces = blocks(range(len(units)), args.per_device_train_batch_size)
        else:
            pieces = units.microbatches(range(len(units)), 0)
        for piece in pieces:
            some = units.batch(piece, batch.step).to(args.device)
            records = sum(index != BLANK for index in piece)
            add_clipped(units, model, clipper, some, records, statistics)
        return statistics

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log what the guarantee covers, and epsilon so far."""
        for name in _NOISELESS:
            logs.pop(name, None)
        if self._training and not any(name.startswith("eval_") for name in logs):
            spent = self.privacy.epsilon * 1e4  # rounded up: a bound is no smaller in the logs
            logs["epsilon"] = (math.ceil(spent) if math.isfinite(spent) else spent) / 1e4
        base: Any = super()
        base.log(logs, start_time)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save as Trainer does, and write what the weights were trained on.

        Raises:
            ModelError: if a frozen weight or buffer has changed in the training.
        """
        trainer: Any = self
        base: Any = super()
        touched = [] if self._untouched is None else self._untouched.changed()
        if touched:
            raise ModelError(written(touched, trainer.model))
        base.save_model(output_dir, _internal_call)
        if not _internal_call:  # a checkpoint has a manifest in its place
            folder = self.privacy.folder if output_dir is None else Path(output_dir)
            write_atomic(folder / lineage.FILE, lineage.written(self.privacy.flags()))

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write Trainer's card with a section on privacy."""
        base: Any = super()
        base.create_model_card(*args, **kwargs)
        file = self.privacy.folder / "README.md"
        if file.is_file():
            text = file.read_text(encoding="utf-8").rstrip()
            file.write_text(f"{text}\n\n{self.privacy.card()}", encoding="utf-8")

    def push_to_hub(self, *args: Any, **kwargs: Any) -> Any:
        """Raise ConfigError: it uploads ``output_dir``, where the key is."""
        raise ConfigError(
            "push_to_hub uploads output_dir, which holds private/ with the key of the noise; "
            "expected the trained model alone: type trainer.model.push_to_hub(NAME), and put "
            "trainer.privacy.card() into its card"
        )

    def _check_apart(self, dataset: Any) -> None:
        """Raise ConfigError for scores of training records: scores are computed without noise."""
        indexed = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
        if not indexed or any(dataset is one for one in self._apart):
            return
        trainer: Any = self
        base: Any = super()
        if self._surveyed is None:  # of the columns that the model takes, as in training
            self._surveyed = survey(base.get_test_dataloader(trainer.train_dataset).dataset)
        share = self._surveyed.repeated(dataset)
        check_repeated(share, "the data set to be scored", "pass records that are not trained on")
        self._apart.append(dataset)


class PrivateTrainer(PrivacyMixin, Trainer):
    """Hugging Face's Trainer with differential privacy; see `PrivacyMixin`."""


class _Seals(TrainerCallback):
    """Seals the checkpoints that Trainer has saved."""

    def __init__(self, spending: Spending) -> None:
        self._spending = spending

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        step = int(state.global_step)
        self._spending.seal(Path(args.output_dir) / f"checkpoint-{step}", step)
