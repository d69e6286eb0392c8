"""Prepare a run: load the model, attach the clipper, and check what can be checked.

`prepare` makes everything that the steps need, in order; `dpft plan` uses some of its parts. The
data are read, and the mechanism is made, in `dpft.training.mechanisms`, which needs no torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from dpft import runs
from dpft.config import foreign
from dpft.config.errors import ConfigError, ModelError, SettingError
from dpft.config.schema import Clip, Optim, Run
from dpft.models.adapt import adapt
from dpft.models.load import LoadedModel, check_room, load_model, stored_weights
from dpft.models.nf4 import pack
from dpft.parallel.cohort import Pipeline, TrainingCohort, own_part
from dpft.privacy import Clipper, Mechanism, keys, make_clipper
from dpft.privacy.clipping import CLIP_FUNCTIONS
from dpft.privacy.guarantee import own_caveats
from dpft.privacy.noise import NOISE_VERSION
from dpft.privacy.policies import Cohort
from dpft.privacy.sampling import FixedShapes
from dpft.privacy.spec import Partition
from dpft.privacy.styles import own_function
from dpft.tasks.objectives.evaluation import Mixed, check_blank, check_supported
from dpft.tasks.objectives.independence import check_independence
from dpft.tasks.objectives.objective import Instance, Objective, cut_in_encoding, encoded
from dpft.tasks.objectives.record_types import Record
from dpft.tasks.scores import rare
from dpft.tasks.task import Task, fingerprint
from dpft.tasks.units import Records, TrainingSet, Users
from dpft.training.devices import all_round_like, device_of
from dpft.training.held_out import held_out_records
from dpft.training.mechanisms import Data, quantiles_of
from dpft.training.progress import Progress
from dpft.training.recording import deciding_parts

if TYPE_CHECKING:
    from dpft.audit.canaries import Canaries
    from dpft.audit.exposure import Planted
    from dpft.parallel.pipeline import PipelinedSums


@dataclass
class TrainingParts:
    """A model ready to be trained, the clipper of its gradients, and the mechanism.

    Attributes:
        digest: of weights and tokenizer as they were loaded, see `LoadedModel.digest`.
        pipeline: forms the sums where ranks hold stages of the model; None: the clipper does.
    """

    loaded: LoadedModel
    digest: bytes
    clipper: Clipper
    mechanism: Mechanism
    pipeline: PipelinedSums | None


@dataclass
class Prepared:
    """All that a run needs for its steps; where they continue a ledger, `Session` changes it.

    Attributes:
        directory: the run's folder, which the first rank has.
        records: trained on, planted secrets included.
        units: the same as units of privacy.
        key: decides batches, noise and dropout; secret in a private run (`dpft.runs.run_key`).
        header: of the ledger, with keyed fingerprints of data and model; the run cannot continue
            where any of it differs.
        revision: commit of the hub's copy of the data; None if they were not the hub's.
        weights: their digest and revision, on the first rank; empty if they are random.
        instances: questions that the trained model answers.
        planted: secrets among the records, if any.
        auditor: canaries in slots after the units, if any.
        held_out: records for evaluation during the training, if any.
    """

    run: Run
    task: Task
    directory: runs.RunDirectory | None
    progress: Progress
    cohort: TrainingCohort
    parts: TrainingParts
    objective: Objective
    records: Sequence[Record]
    units: TrainingSet
    key: bytes
    header: Mapping[str, Any]
    revision: str | None
    weights: Mapping[str, str | None]
    instances: Sequence[Instance]
    planted: Planted | None
    auditor: Canaries | None
    held_out: Sequence[Record]


def prepare(
    run: Run,
    data: Data,
    directory: runs.RunDirectory | None,
    progress: Progress,
    cohort: TrainingCohort | None = None,
) -> Prepared:
    """Load, encode and check, so that errors are raised before the first step."""
    cohort = cohort or TrainingCohort()
    task, records, owners = data.task, data.records, data.owners
    held_out = held_out_records(run.evaluate, task)
    device = device_of(run.device)
    if run.precision != "float32":
        check_supported(run.precision, device)
        # Its backward may give no numbers for a query that may attend to nothing, as padding on
        # the left produces (pytorch#196678); the other kernels for masks do.
        torch.backends.cuda.enable_cudnn_sdp(False)
    with progress.phase("loading", None, note=run.model.name):
        parts = assemble(run, task, data.mechanism, device, cohort)
    loaded, clipper, mechanism = parts.loaded, parts.clipper, parts.mechanism
    if owners is not None:
        clipper.check_rows(task.records_per_user)
    objective = task.objective(loaded)

    tokenizer = loaded.tokenizer_digest()  # with the template that a chat's objective sets
    planted = None
    if run.audit.secrets:
        from dpft.audit.exposure import Planted, make_secrets

        secrets, words = make_secrets(loaded.text_tokenizer, run.audit.secrets, run.seed)
        planted = Planted(secrets, words, run.audit, run.seed)
        records = [*records, *planted.records]
    plain = fingerprint(records, owners)
    # The number of records of all users together is private: not for a log file.
    count = len(records) if owners is None or progress.console.is_terminal else None
    with progress.phase("encoding", count) as advance:
        examples = encoded(objective, records, advance)
    if loaded.tokenizer_digest() != tokenizer:
        raise ModelError(
            f"encoding the records changed the tokenizer of {run.model.name}, which is saved with "
            "the model and would reveal records without noise; expected an objective that leaves "
            "it unchanged: add tokens where the model is made"
        )
    size = mechanism.dataset_size
    if mechanism.private and mechanism.delta >= 1 / size:  # known before a budget is spent
        progress.warn(" ".join(own_caveats(None, mechanism.delta, task.unit_noun, size)))
    if task.needs.classes:
        scored = Counter(one.references for one in data.instances)
        for remark in rare({name: scored[name,] for name in task.needs.classes}):
            progress.warn(remark)
    if progress.may_tell(mechanism.noise_multiplier > 0):
        for remark in filter(None, [*task.remarks(), cut_in_encoding(examples)]):
            progress.warn(remark)

    stored, held = keys.public_key(run.seed), None
    if directory is not None and mechanism.private:
        held = runs.check_ledger(directory.path, mechanism.steps)
        # Also for a run of no steps, which needs no noise: a plain fingerprint is a release.
        stored = directory.noise_key(run.privacy.noise_seed, held)
    stored = cohort.broadcast_object(stored)  # only the first rank has the folder
    compiled, own, shapes = compiles(run, device), deciding_parts(run), None
    exact = all(p.dtype.itemsize >= 4 for p in loaded.model.parameters())
    free = run.precision == "float32" and exact and run.parallel.name != "pipeline"
    # Shapes may not depend on which records are drawn where batches have one size, where each shape
    # has a program, and where rounding would otherwise make records depend on each other.
    if mechanism.max_batch is not None or compiled or (mechanism.private and not free):
        shapes = FixedShapes(mechanism.batch_size, mechanism.max_batch, compiled)
    header: dict[str, Any] = {
        "mechanism": mechanism.to_dict(),
        "data": runs.keyed_fingerprint(stored, plain),
        "model": runs.keyed_fingerprint(stored, f"model:{parts.digest.hex()}"),
        "key": runs.key_fingerprint(stored),
        "unit": task.unit_in_words,
        "noise_version": NOISE_VERSION,
        # Another machine rounds differently: the same noise on a slightly different sum would be a
        # second release that is not counted.
        "compute": {
            **all_round_like(device, cohort),
            **cohort.layout,  # sums of shares are added up in another order
            **({} if shapes is None else {"shapes": "fixed"}),
            # There `auto` may find another number: on a GPU with more memory.
            **({"microbatch_tokens": run.optim.tokens} if device.type == "cuda" else {}),
            **({"step": "compiled"} if compiled else {}),
            **({"plugins": own} if own else {}),
        },
    }
    if clipper.policy.rule is not None:  # the groups that each step's thresholds belong to
        header["groups"] = [group.name for group in clipper.groups]
    key = stored
    if directory is not None and mechanism.private and run.privacy.noise_seed is None:
        key = runs.run_key(stored, held, header, directory.config_hash)
    key = cohort.broadcast_object(key)  # only the first rank has the ledger

    trained = objective if run.precision == "float32" else Mixed(objective)
    units: TrainingSet = Records(trained, examples, shapes, task.weights_of(examples))
    if owners is not None:
        units = Users(trained, examples, owners, task.records_per_user, key, shapes)
    if parts.pipeline is None:
        check_blank(trained, loaded.model, clipper, run.precision, cohort.sharded)
        if cohort.sharded:
            from dpft.parallel.sharded import reshard

            reshard(loaded.model)
    if mechanism.private:
        whole = loaded.model if parts.pipeline is None else parts.pipeline.stage
        check_independence(units, whole, clipper, run.optim.tokens, parts.pipeline)
    auditor = None
    if run.audit.gradients:
        from dpft.audit.canaries import Canaries

        auditor = Canaries(run.audit.gradients, clipper, mechanism, key)
    return Prepared(
        run=run,
        task=task,
        directory=directory,
        progress=progress,
        cohort=cohort,
        parts=parts,
        objective=objective,
        records=records,
        units=units,
        key=key,
        header=header,
        revision=next(iter(task.commits.values()), None),
        weights=stored_weights(run.model) if cohort.rank == 0 else {},
        instances=data.instances,
        planted=planted,
        auditor=auditor,
        held_out=held_out,
    )


def assemble(
    run: Run,
    task: Task,
    mechanism: Mechanism,
    device: torch.device,
    cohort: TrainingCohort | None = None,
) -> TrainingParts:
    """Load and adapt the model, attach the clipper, and spread the noise over its groups."""
    cohort, clip, pipeline = cohort or TrainingCohort(), run.clip, None
    longest = None if task.cuts_to_fit else getattr(task, "max_length", None)
    check_room(run.model, task.needs, longest, run.adapt.length or 0)
    loaded = load_adapted(run, task, cohort)
    # Each copy is read separately, so copies are compared; shards come from the first rank.
    digest = loaded.digest() if cohort.rank == 0 or not cohort.sharded else b""
    digest = cohort.broadcast_object(digest) if cohort.sharded else digest
    # Divided before it goes to the device, where the whole may have no room.
    cohort.place(loaded.model.train())
    if not isinstance(cohort, Pipeline):
        loaded.model.to(device)  # type: ignore[arg-type]
    clipper = attach_clipper(clip, loaded.model, cohort if cohort.size > 1 else None)
    try:
        if clip.private:
            mechanism = mechanism.over(
                tuple(group.threshold for group in clipper.groups),
                allocation=clip.allocation,
                dimensions=tuple(
                    sum(clipper.parameters[name].numel() for name in group.parameters)
                    for group in clipper.groups
                ),
                quantiles=quantiles_of(clip),
                quantile_budget=clip.quantile_budget,
                count_noise=clip.quantile_noise,
            )
        if isinstance(cohort, Pipeline):
            from dpft.parallel.pipeline import pipelined

            same = clip.groups == "per_device"
            how = clip.partition if same else Partition("per_device", cohort.size)
            stage, pipeline = pipelined(loaded.model, clipper, how, cohort, device)
            # It has what noise, session and loop need of a clipper, and no backward itself.
            clipper = cast(Clipper, stage)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return TrainingParts(loaded, digest, clipper, mechanism, pipeline)


def load_adapted(run: Run, task: Task, cohort: TrainingCohort) -> LoadedModel:
    """Return the adapted model; where it is sharded, only the first rank reads weights."""
    weights = cohort.rank == 0 or not cohort.sharded
    loaded = load_model(run.model, task.needs, run.seed, weights=weights)
    adapted = adapt(loaded, run.adapt, task.needs, run.seed)
    if run.model.dtype == "nf4":
        pack(adapted.model)
    return adapted


def attach_clipper(clip: Clip, model: nn.Module, cohort: Cohort | None = None) -> Clipper:
    """Attach the clipper of the settings to a model."""
    name, function = clip.clip_function, clip.clip_function
    if clip.private and name not in CLIP_FUNCTIONS:
        function = foreign.load("clip.clip_function", name)
        try:
            own_function(function, name)
        except ValueError as error:
            raise SettingError("clip.clip_function", name, advice=str(error)) from error
    try:
        if not clip.private:
            return make_clipper(model, "none", cohort=cohort)
        return make_clipper(
            model,
            "materialised",  # every part of a style is given below; this one has no defaults
            threshold=clip.threshold,
            thresholds=clip.thresholds,
            groups=foreign.load("clip.groups", clip.groups) if clip.own_groups else clip.partition,
            plan=clip.plan,
            clip_function=function,
            adaptive=quantiles_of(clip),
            cohort=cohort,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error


def make_optimizer(settings: Optim, moved: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return the optimizer of ``conf/optim``; on privatised gradients it is DP-Adam, DP-SGD etc."""
    parameters = [*moved]
    common: dict[str, Any] = {"lr": settings.lr, "weight_decay": settings.weight_decay}
    if all(p.device.type == "cuda" and own_part(p) is p for p in parameters):
        common["fused"] = True  # one kernel for all parameters
    if settings.name == "sgd":
        return torch.optim.SGD(parameters, momentum=settings.momentum, **common)
    common |= {"betas": settings.betas, "eps": settings.adam_epsilon}
    cls = torch.optim.AdamW if settings.name == "adamw" else torch.optim.Adam
    return cls(parameters, **common)


def compiles(run: Run, device: torch.device) -> bool:
    """Return whether microbatches are added up by compiled programs."""
    wanted = run.compile if isinstance(run.compile, bool) else device.type == "cuda"
    return wanted and run.parallel.name == "data" and not run.model.checkpointing
