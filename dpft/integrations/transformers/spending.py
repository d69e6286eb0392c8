"""The cost of one run of `PrivateTrainer`: its key, mechanism, ledger and checkpoints.

``output_dir`` holds ``ledger.jsonl``, a line a noisy step, and ``private/`` with the key and the
losses, which is not for others. Trainer writes the checkpoints; a manifest, written last into each,
shows that it is complete and what it was trained from.
"""

import hashlib
import json
import logging
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dpft import runs
from dpft.config.flags import Stored
from dpft.integrations.transformers.arguments import PrivacyArguments
from dpft.privacy import Clipper, Mechanism
from dpft.privacy.guarantee import Guarantee, guarantee
from dpft.privacy.noise import NOISE_VERSION, GaussianNoise
from dpft.report.statements import as_markdown, mechanism_rows
from dpft.runs import lineage
from dpft.runs.atomic import Closing, owners_folder, sha256_file, write_atomic
from dpft.runs.directory import PRIVATE_README, DirectoryLock
from dpft.runs.identity import differences, opened, sealed
from dpft.runs.ledger import key_from_seed, stored_key
from dpft.training.devices import rounds_like
from dpft.training.session import ledger_entry
from dpft.training.statistics import StepStatistics

_LOGGER = logging.getLogger(__name__)

MANIFEST = "dpft.json"
_COUNTS_BUDGET = 0.01  # share of the budget of the noisy counts by which thresholds adapt
UNIT = "one row of the training set, as the trainer has prepared it"
_ANOTHER_FOLDER = (
    "start anew with another output_dir (the cost of this ledger still counts if anything of that "
    "run was, or will be, shown to anyone)"
)
_SCORES = (
    "scores of `evaluate()` and `predict()` are computed without noise, and go to "
    "`trainer_state.json` and trackers: epsilon does not cover the records that are scored"
)
_LINEAGE = "_dpft_lineage"  # where a model that was trained in this process keeps its lineage
# Of `TrainingArguments`: what a step follows from besides its records and the key.
_DECISIVE = (
    *("per_device_train_batch_size", "learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs"),
    *("warmup_steps", "optim", "optim_args", "optim_target_modules", "weight_decay"),
    *("adam_beta1", "adam_beta2", "adam_epsilon", "gradient_checkpointing"),
)
# Parts of a model's configuration that no step follows from: its place, and what saving adds.
_INCIDENTAL = ("_name_or_path", "name_or_path", "transformers_version", "architectures", "dtype")


class Spending(Closing):
    """The privacy of one run of `PrivateTrainer`.

    Attributes:
        arguments: what was asked for.
        mechanism: the frozen statement that sampler, noise and epsilon come from. Before training
            over one group of parameters, then over the clipper's.
        folder: ``output_dir``.
        lineage: flags of the base model's own training (`dpft.runs.lineage`).
    """

    def __init__(
        self,
        arguments: PrivacyArguments,
        mechanism: Mechanism,
        folder: Path,
        lineage: Sequence[Stored] = (),
    ) -> None:
        self.arguments, self.lineage = arguments, tuple(lineage)
        self.mechanism = self._planned = mechanism
        self.folder = folder.absolute()
        self.ledger = self.folder / "ledger.jsonl"  # a line a step, on disk before the weights move
        self._lock: DirectoryLock | None = None
        self._ledger: runs.Ledger | None = None
        self._metrics: runs.MetricsLog | None = None
        self._manifest: dict[str, Any] = {}
        self._clipper: Clipper | None = None
        self._stored = self.key = b""

    @property
    def steps_spent(self) -> int:
        """Noisy steps in the ledger, of this process or of earlier ones in the same folder.

        Raises:
            LedgerMismatchError: if the folder's steps were spent under another mechanism.
        """
        if self._ledger is not None:
            return self._ledger.steps_spent
        if not self.ledger.exists():
            return 0
        held = runs.read_ledger(self.ledger)
        before, now = (
            {
                name: of[name]
                for name in ("dataset_size", "batch_size", "steps", "delta", "sampling")
            }
            | {"noise": of.get("total_noise_multiplier", of["noise_multiplier"])}
            for of in (held.header["mechanism"], self.mechanism.to_dict())
        )
        if math.isclose(before["noise"], now["noise"], rel_tol=1e-9):  # spread over groups
            now["noise"] = before["noise"]
        if held.entries and (listed := "\n  ".join(differences(before, now))):
            raise runs.LedgerMismatchError(
                f"{self.ledger} counts steps of another mechanism (old -> new):\n  {listed}\n"
                "Expected the same, since epsilon follows from it. Make the trainer with the old "
                "arguments, or with another output_dir"
            )
        return held.steps_spent

    @property
    def epsilon(self) -> float:
        """An upper bound, at `delta`, on the privacy loss of a model that is shown.

        While it trains, of the steps so far. Otherwise of all planned steps, once one was taken: a
        training that ends earlier does so because of its releases (scores, a loss that rises), and
        the number of steps then depends on the records.
        """
        spent = self.steps_spent
        if spent and self._ledger is None:
            spent = max(spent, self.mechanism.steps)
        return self.mechanism.epsilon_after(spent) if spent else 0.0

    @property
    def delta(self) -> float:
        """At which `epsilon` holds."""
        return self.mechanism.delta

    def guarantee(self) -> Guarantee:
        """Return the guarantee of all planned steps, once one was taken: see `epsilon`."""
        mechanism, taken = self.mechanism, self.steps_spent
        caveats = [*lineage.lineage_caveats(self.lineage), _SCORES]
        if 0 < taken < mechanism.steps:
            caveats.append(
                f"{taken:,} of {mechanism.steps:,} planned steps were taken, and epsilon is that "
                "of all: when a training ends may follow from its releases"
            )
        return guarantee(
            mechanism if taken else replace(mechanism, steps=0),
            noun="record",
            unit=UNIT,
            noise_seed=self.arguments.noise_seed,
            caveats=caveats,
        )

    def flags(self) -> list[Stored]:
        """Return the flags that are saved with the model, for a run that trains it further."""
        data = "the training set of a PrivateTrainer"
        return [*self.lineage, *lineage.trained_on(data, self.guarantee())]

    def mark(self, model: Any) -> None:
        """Store the flags in a model in memory, which another trainer may train further."""
        if self.steps_spent:
            inner = model.get_base_model() if hasattr(model, "get_base_model") else model
            setattr(inner, _LINEAGE, (self.folder, self.lineage, tuple(self.flags())))

    def card(self) -> str:
        """Return the section on privacy of a model card, as Markdown."""
        made = self.guarantee()
        clip = {"style": self.arguments.style, **self.arguments.clipping}
        batch = f"{self.mechanism.batch_size:,} (`train_batch_size` is a microbatch's)"
        rows = [
            ("Records of a batch, on average", batch),
            *mechanism_rows(self.mechanism.to_dict(), {"clip": clip}, self.arguments.noise_seed),
        ]
        listed = "\n".join(f"- {text}" for text in (*made.not_covered, *made.caveats))
        return f"## Privacy\n\n{as_markdown(made, rows)}\n\n### What is not covered\n\n{listed}\n"

    def newest_checkpoint(self) -> str | None:
        """Return the newest complete checkpoint of Trainer in the folder; warn of others."""
        found = (re.fullmatch(r"checkpoint-(\d+)", path.name) for path in self.folder.glob("*-*"))
        for step in sorted((int(match[1]) for match in found if match), reverse=True):
            path = self.folder / f"checkpoint-{step}"
            try:
                manifest_of(path)
                return str(path)
            except runs.CheckpointError as error:
                _LOGGER.warning("Passed over: %s", error)
        return None

    def begin(
        self,
        clipper: Clipper,
        model: nn.Module,
        *,
        checkpoint: str | None,
        data: str,
        collated: str,
        settings: Mapping[str, Any],
    ) -> GaussianNoise:
        """Lock the folder, read key and ledger, and return the noise of the steps.

        Raises:
            RunError: if the folder's run is not this one, or is in use; if the ledger lost lines,
                or a checkpoint is damaged.
        """
        self._clipper, seed, private = clipper, self.arguments.noise_seed, self.folder / "private"
        with _in_our_words():
            self._lock = DirectoryLock(self.folder)
            held = runs.check_ledger(self.folder, 0)
            owners_folder(private)
            write_atomic(private / "README.md", PRIVATE_README, mode=0o600)
            if seed is None:
                self._stored = stored_key(private / "noise_key", steps_spent=self.steps_spent)
            else:
                self._stored = key_from_seed(seed)
            self.mechanism = self._planned.over(
                tuple(group.threshold for group in clipper.groups),
                dimensions=tuple(
                    sum(clipper.sizes[name] for name in group.parameters)
                    for group in clipper.groups
                ),
                quantiles=clipper.policy.rule,
                quantile_budget=_COUNTS_BUDGET if clipper.policy.rule else None,
            )
            start = self._take_up(checkpoint, model)
            header = {
                "mechanism": self.mechanism.to_dict(),
                "data": runs.keyed_fingerprint(self._stored, data),
                "collated": runs.keyed_fingerprint(self._stored, f"collated:{collated}"),
                "model": self._manifest["model"],
                "key": runs.key_fingerprint(self._stored),
                "unit": UNIT,
                "noise_version": NOISE_VERSION,
                "settings": dict(settings),
                "compute": rounds_like(next(model.parameters()).device),
            }
            # A public seed hides nothing, and its draws are to be the same elsewhere.
            self.key = self._stored
            if seed is None:
                self.key = runs.run_key(self._stored, held, header)
            self._ledger = runs.Ledger(self.ledger, header)
            was, now = self._ledger.stretch, self._ledger.go_on(start)
            if now != was:
                listed = "\n  ".join(differences(was.compute, now.compute))
                raise runs.LedgerMismatchError(
                    f"{self.ledger} counts {self._ledger.steps_spent} steps of another machine "
                    f"(old -> new):\n  {listed}\nExpected the same: sums that are rounded "
                    "otherwise under the same noise would be further releases. Undo the change, "
                    f"or {runs.START_OVER}"
                )
            self._metrics = runs.MetricsLog(private / "metrics.jsonl", start)
        return self.mechanism.noise(self.key, clipper)

    def spend(self, step: int, statistics: StepStatistics, rates: Sequence[float]) -> None:
        """Write a released step to the ledger, before the weights move; its losses to ``private/``.

        ``rates`` are the optimizer's learning rates: on a GPU, where there is no digest of a step,
        another schedule would go unnoticed.

        Raises:
            LedgerError: if it is not the step that is due, or not the same as when it was spent
                before, or cannot be written.
        """
        assert self._clipper is not None
        assert self._ledger is not None
        assert self._metrics is not None
        entry = ledger_entry(self.mechanism, self._clipper, step, statistics.released)
        with _in_our_words():
            self._ledger.spend(step, **entry, learning_rates=rates)
        self._metrics.append({"step": step, **statistics.summary()})

    def seal(self, checkpoint: Path, step: int) -> None:
        """Write the manifest of a complete checkpoint."""
        assert self._clipper is not None
        held = {
            **self._manifest,
            "flags": self.flags(),
            "step": step,
            "weights": self._weights(self._clipper.parameters),
            "files": {
                path.relative_to(checkpoint).as_posix(): sha256_file(path)
                for path in sorted(checkpoint.rglob("*"))
                if path.is_file() and path.name != MANIFEST
            },
        }
        held |= self._clipper.policy.state()
        runs.fsync_tree(checkpoint)
        text = json.dumps(sealed(held), indent=1, sort_keys=True)
        write_atomic(checkpoint / MANIFEST, f"{text}\n")

    def close(self) -> None:
        """Unlock the folder; the cost can still be read."""
        for held in (self._ledger, self._metrics, self._lock):
            if held is not None:
                held.close()
        self._ledger = self._metrics = self._lock = None

    def _weights(self, trained: Mapping[str, Tensor]) -> str:
        return runs.keyed_fingerprint(self._stored, f"weights:{digest_of(trained.items())}")

    def _take_up(self, checkpoint: str | None, model: nn.Module) -> int:
        """Set what the run starts from, the model or a checkpoint; return the first step."""
        trained = {name for name, p in model.named_parameters() if p.requires_grad}
        held = [*model.named_parameters(), *model.named_buffers()]
        whole, frozen = (
            runs.keyed_fingerprint(self._stored, f"model:{digest_of(tensors)}")
            for tensors in (held, [(name, x) for name, x in held if name not in trained])
        )
        if checkpoint is None:
            self._manifest = {"model": whole, "frozen": frozen}
            return 0
        folder = Path(checkpoint)
        manifest = manifest_of(folder)
        self._manifest = {name: manifest[name] for name in ("model", "frozen")}
        # Without them Trainer would start new ones, and a repeated step be another release.
        if lacking := {"optimizer.pt", "scheduler.pt"} - manifest["files"].keys():
            raise runs.CheckpointError(
                f"{folder} has no {', '.join(sorted(lacking))} (save_only_model=True); expected "
                "them, so that steps can be repeated: leave out resume_from_checkpoint to repeat "
                "the run from its first step, with save_only_model=False"
            )
        if frozen != self._manifest["frozen"]:
            raise runs.LedgerMismatchError(
                f"the frozen parameters are not those that {folder} was trained with; "
                f"expected the same model: load it again, or {runs.START_OVER}"
            )
        assert self._clipper is not None
        names = self._clipper.parameters.keys()
        loaded = {name: p for name, p in model.named_parameters() if name in names}
        if manifest["weights"] != self._weights(loaded):
            kind = type(model).__name__
            raise runs.CheckpointError(
                f"Trainer did not load all of {folder}, since a {kind} has other names for its "
                "weights than are saved; expected the weights of that step: load them by "
                f"{kind}.from_pretrained({str(folder)!r}), make the trainer with that model, then "
                "resume again"
            )
        self._clipper.policy.restore(manifest)
        return int(manifest["step"])


@contextmanager
def _in_our_words() -> Iterator[None]:
    """Replace the advice of the command line in errors of the run's files."""
    try:
        yield
    except runs.RunError as error:
        raise type(error)(str(error).replace(runs.START_OVER, _ANOTHER_FOLDER)) from error


def manifest_of(folder: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint, whose files are read once and compared with it.

    Raises:
        CheckpointError: if there is none, or if it or a file is not what was saved. A step that is
            repeated with another optimizer's state would release its noise on another sum.
    """
    try:
        held = opened(json.loads((folder / MANIFEST).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise runs.CheckpointError(
            f"{folder} has no sound {MANIFEST} ({error!r}); expected a checkpoint that "
            "PrivateTrainer has finished: resume from an earlier one, or leave out "
            "resume_from_checkpoint to repeat the run from its first step"
        ) from error
    files = {name: folder / name for name in held["files"]}
    damaged = [
        name
        for name, file in files.items()
        if not file.is_file() or sha256_file(file) != held["files"][name]
    ]
    if damaged:
        raise runs.CheckpointError(
            f"{folder} is damaged: {', '.join(damaged)}; expected the files that {MANIFEST} "
            "lists: resume from an earlier one"
        )
    return held


def digest_of(tensors: Iterable[tuple[str, Tensor]]) -> str:
    """Return SHA-256 of tensors and their names, as hex."""
    found = hashlib.sha256()
    for name, tensor in tensors:
        array = tensor.detach().cpu().contiguous()
        found.update(f"{name} {array.dtype} {tuple(array.shape)};".encode())
        found.update(array.flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def decisive(trainer: Any, optimizer: str | None, loss: Any, own_loss: bool) -> dict[str, Any]:
    """Return, for the head of the ledger, what must be the same for a step to be repeated.

    On a CPU the digest of a step shows a difference; on a GPU there is no digest.

    Args:
        trainer: a `PrivateTrainer`.
        optimizer: the user's own, as text.
        loss: of each record.
        own_loss: whether the user gave it.
    """
    model, args, asked = trainer.model, trainer.args.to_dict(), trainer.privacy.arguments
    config = model.config.to_dict() if hasattr(model, "config") else {}
    shown = {name: config[name] for name in sorted(config) if name not in _INCIDENTAL}
    if own_loss and "problem_type" in shown:  # a forward with labels, as in evaluate(), sets it
        shown["problem_type"] = None
    attention = getattr(getattr(model, "config", None), "_attn_implementation", None)
    text = re.sub(r" at 0x[0-9a-f]+", "", f"{model!r}\n{shown!r}\n{attention}")
    called = {"loss": loss, "collator": trainer.data_collator}
    for name, one in called.items():
        named = one if hasattr(one, "__qualname__") else type(one)
        called[name] = f"{named.__module__}.{named.__qualname__}"
    return {
        **{name: args[name] for name in _DECISIVE},
        **({"bf16": True} if args["bf16"] else {}),
        "optimizer": optimizer,
        "style": asked.style,
        "clipping": {name: repr(value) for name, value in asked.clipping.items()},
        "forward": {"model": hashlib.sha256(text.encode()).hexdigest()[:16], **called},
    }


def lineage_of(model: Any, folder: Path) -> Sequence[Stored]:
    """Return the flags of a model's own training: as it was left in memory, or in its files."""
    trained_in, before, after = getattr(model, _LINEAGE, (None, (), ()))
    if trained_in is not None:
        return tuple(before if trained_in == folder.absolute() else after)
    file = Path(getattr(model, "name_or_path", None) or "") / lineage.FILE
    flags = lineage.read_lineage(file if file.is_file() else None)
    checkpoint = file.absolute().parent
    if checkpoint.match("checkpoint-*") and checkpoint.parent == folder.absolute():
        return flags[:-1]  # this very run continues, whose own flag is the last
    return flags
