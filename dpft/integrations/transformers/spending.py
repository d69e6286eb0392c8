"""What a training run spends: its key, its frozen mechanism, its ledger, and its checkpoints.

In ``output_dir`` lie ``ledger.jsonl``, a line a noisy step, and ``private/`` with the key and the
losses, which is not for others. Trainer writes the checkpoints; a manifest in each says that it is
whole, and what it was trained from.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpft import runs
from dpft.config.flags import Stored
from dpft.integrations.transformers.arguments import PrivacyArguments
from dpft.integrations.transformers.checkpoints import (
    MANIFEST,
    check_sound,
    digest,
    digests,
    manifest_of,
)
from dpft.privacy import Clipper, Mechanism
from dpft.privacy.guarantee import Guarantee, guarantee
from dpft.privacy.noise import NOISE_VERSION, GaussianNoise, Released
from dpft.report.guarantee import as_markdown, mechanism_rows
from dpft.runs.atomic import Closing, owners_folder, sha256_file, write_atomic
from dpft.runs.directory import PRIVATE_README
from dpft.runs.identity import differences, sealed
from dpft.runs.lineage import ancestral_caveats, flagged, trained_on
from dpft.runs.lock import DirectoryLock
from dpft.runs.noise_key import key_from_seed, stored_key
from dpft.training.devices import rounds_like
from dpft.training.session import release_digest

if TYPE_CHECKING:
    from torch import Tensor, nn

_LOGGER = logging.getLogger(__name__)

UNIT = "one row of the training set, as the trainer has prepared it"
_ANOTHER_FOLDER = (
    "begin anew with another output_dir (what this ledger spent still counts if anything of that "
    "run was, or will be, shown to anyone)"
)
_SCORES = (
    "scores of `evaluate()` and `predict()` are computed without noise, and go to "
    "`trainer_state.json` and trackers: epsilon does not cover what they tell of the records that "
    "are scored. A data set is refused where most of its records are trained on; a few may be"
)
_LOSSES_LOGGED = (
    "**Training losses**, computed without noise, were put into the training logs "
    "(`trainer_state.json`, callbacks): publish none of them."
)


class Spending(Closing):
    """The privacy of one run of `PrivateTrainer`.

    Attributes:
        arguments: what was asked for.
        mechanism: the frozen statement that sampler, noise and epsilon come from. Before training
            over one group of parameters, then over the clipper's.
        folder: ``output_dir``.
        ancestry: flags of the base model, of its own training (`dpft.runs.lineage`).
    """

    def __init__(
        self,
        arguments: PrivacyArguments,
        mechanism: Mechanism,
        folder: Path,
        ancestry: Sequence[Stored] = (),
    ) -> None:
        self.arguments = arguments
        self.ancestry = tuple(ancestry)
        self.mechanism = self._planned = mechanism
        self.folder = folder.absolute()
        self._lock: DirectoryLock | None = None
        self._ledger: runs.Ledger | None = None
        self._metrics: runs.MetricsLog | None = None
        self._manifest: dict[str, Any] = {}
        self._clipper: Clipper | None = None
        self._stored = self.key = b""

    # --- what was spent ---------------------------------------------------------------------------

    @property
    def ledger(self) -> Path:
        """A line for each noisy step, on disk before the weights moved."""
        return self.folder / "ledger.jsonl"

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
        if held.entries:
            self._check_cost(held.header["mechanism"])
        return held.steps_spent

    @property
    def epsilon(self) -> float:
        """An upper bound, at `delta`, on what a model that is shown gives away.

        While it trains, of the steps so far. Otherwise of all steps that were planned, once one was
        taken: whoever stops earlier does so by what the releases showed (scores, a loss that
        rises), and the number of steps then depends on the records.
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
        """What all planned steps guarantee, once one was taken: see `epsilon`."""
        mechanism, taken = self.mechanism, self.steps_spent
        caveats = [*ancestral_caveats(self.ancestry), _SCORES]
        if 0 < taken < mechanism.steps:
            caveats.append(
                f"{taken:,} of {mechanism.steps:,} planned steps were taken, and epsilon is that "
                "of all: when a training ends may follow from what its releases showed"
            )
        return guarantee(
            mechanism if taken else replace(mechanism, steps=0),
            noun="record",
            unit=UNIT,
            noise_seed=self.arguments.noise_seed,
            caveats=caveats,
        )

    def descent(self) -> list[Stored]:
        """What a model that was trained so says of itself to whoever trains it further."""
        data = "the training set of a PrivateTrainer"
        return [*self.ancestry, *trained_on(data, self.guarantee())]

    def card(self) -> str:
        """The section on privacy of a model card, as Markdown."""
        made = self.guarantee()
        clip = {"style": self.arguments.style, **self.arguments.clipping}
        batch = f"{self.mechanism.batch_size:,} (`train_batch_size` is a microbatch's)"
        rows = [
            ("Records of a batch, on average", batch),
            *mechanism_rows(self.mechanism.to_dict(), {"clip": clip}, self.arguments.noise_seed),
        ]
        open_ends = [*made.not_covered, *made.caveats]
        if self.arguments.log_private:
            open_ends.insert(0, _LOSSES_LOGGED)
        listed = "\n".join(f"- {text}" for text in open_ends)
        return f"## Privacy\n\n{as_markdown(made, rows)}\n\n### What is not covered\n\n{listed}\n"

    # --- a run ------------------------------------------------------------------------------------

    def newest_checkpoint(self) -> str | None:
        """The newest whole checkpoint of Trainer in the folder; damaged ones are warned of."""
        found = (re.fullmatch(r"checkpoint-(\d+)", path.name) for path in self.folder.glob("*-*"))
        for step in sorted((int(match[1]) for match in found if match), reverse=True):
            path = self.folder / f"checkpoint-{step}"
            try:
                check_sound(path)
            except runs.CheckpointError as error:
                _LOGGER.warning("Passed over: %s", error)
            else:
                return str(path)
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
    ) -> int:
        """Take the folder, the key and the ledger; from now on steps may be spent.

        Args:
            clipper: attached to the model; its thresholds become those of the checkpoint.
            model: with the checkpoint's weights, if there is one.
            checkpoint: that Trainer goes on from, of which `check_sound` was asked; None: step 0.
            data: fingerprint of the records.
            collated: fingerprint of some of them as the collator puts them together.
            settings: what else the weights of a step follow from.

        Returns:
            Steps that the weights have behind them.

        Raises:
            RunError: if the folder's run is not this one, or is in use; if the ledger lost lines,
                or a checkpoint is damaged.
        """
        with in_our_words():
            self._lock = DirectoryLock.acquire(self.folder)
            held = runs.check_ledger(self.folder, 0)
            private = self.folder / "private"
            owners_folder(private)
            write_atomic(private / "README.md", PRIVATE_README, mode=0o600)
            seed = self.arguments.noise_seed
            self._stored = (
                stored_key(private / "noise_key", steps_spent=self.steps_spent)
                if seed is None
                else key_from_seed(seed)
            )
            self._clipper = clipper
            self.mechanism = self._planned.over(
                tuple(group.threshold for group in clipper.groups),
                dimensions=tuple(
                    sum(clipper.sizes[name] for name in group.parameters)
                    for group in clipper.groups
                ),
                quantiles=clipper.adaptive,
                quantile_budget=self.arguments.quantile_budget if clipper.adaptive else None,
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
            self._ledger = runs.Ledger(self.ledger, header, held)
            self._check_devices(start)
            self._metrics = runs.MetricsLog(private / "metrics.jsonl", start)
        return start

    def noise(self) -> GaussianNoise:
        """For the clipper's sums."""
        assert self._clipper is not None
        return self.mechanism.noise(self.key, self._clipper)

    def spend(self, step: int, released: Released) -> None:
        """Write down a step that was released; call it before the weights move.

        Raises:
            LedgerError: if it is not the step that is due, or not the same as when it was spent
                before, or cannot be written.
        """
        assert self._ledger is not None
        assert self._clipper is not None
        entry: dict[str, Any] = {"epsilon_rdp": self.mechanism.rdp_after(step + 1)}
        parameters = self._clipper.parameters
        if all(p.device.type == "cpu" for p in parameters.values()):  # elsewhere rounding may vary
            entry["update"] = release_digest(parameters, released)
            if released.thresholds:
                entry["thresholds"] = [float(f"{c:.6g}") for c in released.thresholds]
        with in_our_words():
            self._ledger.spend(step, **entry)

    def note(self, step: int, **values: Any) -> None:
        """Keep what was computed without noise, under ``private/``."""
        assert self._metrics is not None
        self._metrics.append(step, **values)

    def seal(self, checkpoint: Path, step: int) -> None:
        """Say in a checkpoint that it is whole."""
        assert self._clipper is not None
        held = {
            **self._manifest,
            **flagged(self.descent()),
            "step": step,
            "weights": self._weights(self._clipper.parameters),
            "files": {
                path.relative_to(checkpoint).as_posix(): sha256_file(path)
                for path in sorted(checkpoint.rglob("*"))
                if path.is_file() and path.name != MANIFEST
            },
        }
        if self._clipper.adaptive is not None:
            held["estimates"] = list(self._clipper.estimates)
        runs.fsync_tree(checkpoint)
        write_atomic(
            checkpoint / MANIFEST, json.dumps(sealed(held), indent=1, sort_keys=True) + "\n"
        )

    def check_loaded(self, checkpoint: Path, model: nn.Module, then: str) -> None:
        """Refuse a model that lacks weights of the checkpoint that Trainer has loaded.

        Args:
            checkpoint: finished by `seal`.
            model: that Trainer has loaded it into.
            then: what to do behind loading it otherwise.

        Raises:
            CheckpointError: if a trained weight is another one.
        """
        assert self._clipper is not None
        names = self._clipper.parameters.keys()
        trained = {name: p for name, p in model.named_parameters() if name in names}
        if manifest_of(checkpoint)["weights"] != self._weights(trained):
            raise runs.CheckpointError(
                f"Trainer did not load all of {checkpoint}, since a {type(model).__name__} has "
                "other names for its weights than are saved; expected the weights of that step: "
                f"load them by {type(model).__name__}.from_pretrained({str(checkpoint)!r}) and "
                f"{then}"
            )

    def close(self) -> None:
        """Let go of the folder; what was spent can still be asked for."""
        for held in (self._ledger, self._metrics):
            if held is not None:
                held.close()
        if self._lock is not None:
            self._lock.close()
        self._ledger = self._metrics = self._lock = None

    # --- inside -----------------------------------------------------------------------------------

    def _weights(self, trained: Mapping[str, Tensor]) -> str:
        return runs.keyed_fingerprint(self._stored, f"weights:{digest(trained.items())}")

    def _check_cost(self, spent: Mapping[str, Any]) -> None:
        """That what is on file costs what this mechanism does, whatever its groups are."""
        own = self.mechanism.to_dict()

        def noise(of: Mapping[str, Any]) -> float:
            return float(of.get("total_noise_multiplier", of["noise_multiplier"]))

        names = ("dataset_size", "batch_size", "steps", "delta", "sampling")
        alike = all(spent[name] == own[name] for name in names)
        if not alike or not math.isclose(noise(spent), noise(own), rel_tol=1e-9):
            changed = "\n  ".join(differences(dict(spent), own))
            raise runs.LedgerMismatchError(
                f"{self.ledger} counts steps of another mechanism (old -> new):\n  {changed}\n"
                "Expected the same, since epsilon follows from it. Make the trainer with the old "
                "arguments, or with another output_dir"
            )

    def _take_up(self, checkpoint: str | None, model: nn.Module) -> int:
        """What this run begins with, from the model or from the checkpoint's manifest."""
        whole, frozen = (runs.keyed_fingerprint(self._stored, f"model:{x}") for x in digests(model))
        if checkpoint is None:
            self._manifest = {"model": whole, "frozen": frozen}
            return 0
        folder = Path(checkpoint)
        held = manifest_of(folder)
        self._manifest = {name: held[name] for name in ("model", "frozen")}
        lacking = {"optimizer.pt", "scheduler.pt"} - held["files"].keys()
        if lacking:  # Trainer would go on with new ones, and a repeated step be another release
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
        self.check_loaded(folder, model, "make the trainer with that model, then resume again")
        if "estimates" in held and self._clipper is not None:
            self._clipper.move(held["estimates"])
        return int(held["step"])

    def _check_devices(self, start: int) -> None:
        assert self._ledger is not None
        was = self._ledger.stretch
        now = self._ledger.go_on(start)
        if now != was:
            listed = "\n  ".join(differences(was.compute, now.compute))
            raise runs.LedgerMismatchError(
                f"{self.ledger} counts {self._ledger.steps_spent} steps of another machine (old -> "
                f"new):\n  {listed}\nExpected the same: sums that are rounded otherwise under the "
                f"same noise would be further releases. Undo the change, or {runs.START_OVER}"
            )


@contextmanager
def in_our_words() -> Iterator[None]:
    """Around the run's files, whose messages speak of the command line."""
    try:
        yield
    except runs.RunError as error:
        told = str(error).replace(runs.START_OVER, _ANOTHER_FOLDER)
        raise type(error)(told) from error
