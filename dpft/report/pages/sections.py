"""Sections of one run as data: what it is, its scores, samples, cost, and where it came from.

``templates/sections.html`` has a macro for each kind of section.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dpft.config.flags import sentences
from dpft.report.held_out import warnings
from dpft.report.pages.gather import Gathered
from dpft.report.pages.generations import withheld
from dpft.report.pages.settings import choices, without_folders
from dpft.report.terminal import clock
from dpft.runs.lineage import base_model
from dpft.tasks.metrics.shown import cautions_of, figure

# Names and values; a value of None has no row.
Rows = list[tuple[str, Any]]


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        kind: the macro that writes it.
        data: the macro's argument; nothing in it: there is no such section.
        damage: why there is no data.
        name: its heading, where it has one.
    """

    kind: str
    data: Any = None
    damage: str = ""
    name: str = ""

    @property
    def filled(self) -> bool:
        """Whether it has anything to say."""
        return bool(self.data or self.damage)


def section(kind: str, make: Callable[[], Any], name: str = "") -> Section:
    """A section of what ``make`` returns; if the record lacks what it needs, of that."""
    try:
        return Section(kind, make(), name=name)
    except (AttributeError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        return Section(kind, damage=f"{type(error).__name__}: {error}"[:200], name=name)


def summary(run: Gathered) -> Rows:
    """What was trained on what, and every label that must stand beside its figures."""
    record = run.record or {}
    model = record.get("model") or {}
    parameters = None
    if "trainable_parameters" in model:
        of = f" of {model['parameters']:,}" if "parameters" in model else ""
        parameters = f"{model['trainable_parameters']:,}{of}"
    chosen = " ".join(map(without_folders, choices(run.config)))
    base, begun = model.get("base_model"), model.get("weights_sha256")
    return [
        ("State", run.stage),
        ("Point of the sweep", None if run.label is None else without_folders(run.label)),
        ("Choices", chosen or None),
        ("Model", base_model(str(base)) if base else None),
        ("Begun with weights of SHA-256", begun),
        ("Trained parameters", parameters),
        ("Data", _data(record) if record else None),
        ("Mind", "; ".join(sentences(record.get("flags"))) or None),
        ("Error", without_folders(run.error) if run.error else None),
    ]


def scores(run: Gathered) -> dict[str, Any]:
    """Every score, with the number of examples and the metric's signature."""
    record = run.record or {}
    sections = record.get("scores") or {}
    constants = any(scored.get("baselines") for scored in sections.values())
    rows = [
        (
            split,
            metric,
            figure(metric, value, scored.get("signature"), none="not computed"),
            *([_constant(scored, metric)] if constants else []),
            f"{scored.get('examples', 0):,}",
        )
        for split, scored in sections.items()
        for metric, value in scored["metrics"].items()
    ]
    return {
        "head": (
            *("split", "metric", "score"),
            *(["most frequent class everywhere"] if constants else []),
            "examples",
        ),
        "rows": rows,
        "warnings": [*warnings(record), *cautions_of(record)],
        "confusions": [
            _confusion(split, scored["confusion"])
            for split, scored in sections.items()
            if scored.get("confusion")
        ],
        "signatures": [(split, s.get("signature", "-")) for split, s in sections.items()],
    }


def _constant(scored: Mapping[str, Any], metric: str) -> str:
    constant = (scored.get("baselines") or {}).get(metric)
    return "" if constant is None else f"{constant:.4f}"


def _confusion(split: str, counts: Mapping[str, Mapping[str, int]]) -> dict[str, Any]:
    """A table with a row for each true class and a column for each answer that was given."""
    answers = list(dict.fromkeys([*counts, *(name for row in counts.values() for name in row)]))
    return {
        "head": (f"{split}: true class", *(f"answered {name}" for name in answers)),
        "rows": [(true, *(f"{row.get(a, 0):,}" for a in answers)) for true, row in counts.items()],
    }


@dataclass(frozen=True)
class Answered:
    """A prompt with its references, and what each run wrote: its name and its text."""

    source: str
    references: tuple[str, ...]
    written: list[tuple[str, str]]


def samples(runs: Sequence[Gathered]) -> dict[str, Any] | None:
    """Generations of runs: what they wrote for one prompt stands together.

    Args:
        runs: in the order in which they are to be shown.
    """
    found: dict[tuple[str, tuple[str, ...]], Answered] = {}
    shown, total = 0, 0
    for run in runs:
        given = run.generations
        for sample in given.samples if given is not None else ():
            prompt = sample.source, sample.references
            found.setdefault(prompt, Answered(*prompt, [])).written.append(
                ("written" if len(runs) == 1 else run.name, sample.prediction)
            )
            shown += 1
        total += given.total if given is not None else 0
    left_out = [g.left_out for run in runs if (g := run.generations) is not None and g.left_out]
    if all(run.generations is None for run in runs):
        return None if len(runs) > 1 else {"none": True}
    return {
        "none": False,
        "rows": list(found.values()),
        "shown": shown,
        "total": total,
        "left_out": list(dict.fromkeys(left_out)),
        "splits": list(dict.fromkeys(r.generations.split for r in runs if r.generations)),
        "private": all(run.private for run in runs),
        "several": len(runs) > 1,
    }


def brief_scores(run: Gathered) -> str:
    """Every score in one sentence; empty without any."""
    said = []
    for split, scored in ((run.record or {}).get("scores") or {}).items():
        figures = ", ".join(
            f"{metric} {figure(metric, value, scored.get('signature'), none='not computed')}"
            for metric, value in scored["metrics"].items()
        )
        said.append(f"{split} ({scored.get('examples', 0):,} examples): {figures}")
    return f"{'; '.join(said)}." if said else ""


def cost(run: Gathered) -> dict[str, Any]:
    """Time, memory and hardware."""
    if run.record is None:
        return {"rows": None}
    training, machine = run.record["training"], run.record.get("environment") or {}
    seconds, steps = float(training["seconds"]), int(training["steps"])
    peak, ram = training.get("peak_memory_bytes"), machine.get("ram_bytes")
    rows: Rows = [
        ("Training time (h:mm:ss)", clock(seconds)),
        ("Steps", f"{steps:,}"),
        ("Seconds per step", f"{seconds / steps:.3g}" if steps else None),
        ("Peak memory", None if peak is None else f"{peak / 2**30:.2f} GiB"),
        ("Device", training.get("device", "not recorded")),
        ("GPU", machine.get("gpu")),
        ("CPU", machine.get("cpu")),
        ("Cores", machine.get("cores")),
        ("Threads", machine.get("threads")),
        ("Main memory", f"{ram / 2**30:.0f} GiB" if ram else None),
    ]
    return {"rows": rows, "private": run.private}


def brief_cost(record: Mapping[str, Any]) -> str:
    """Time, memory and device in one sentence."""
    training, machine = record["training"], record.get("environment") or {}
    parts = [f"{training['steps']:,} steps in {clock(float(training['seconds']))}"]
    if (peak := training.get("peak_memory_bytes")) is not None:
        parts.append(f"{peak / 2**30:.2f} GiB")
    device = machine.get("gpu") if training.get("device") != "cpu" else machine.get("cpu")
    parts.append(str(device or training.get("device", "device not recorded")))
    return f"{', '.join(parts)}."


def provenance(run: Gathered) -> dict[str, Any]:
    """Code, packages, hashes, data and seeds: what somebody needs who wants to check or repeat."""
    compute = run.header.get("compute")
    ledger: Rows = [
        ("Ledger", None if run.ledger is None else f"{run.ledger.steps_spent:,} steps"),
        ("Fingerprint of the noise key", run.header.get("key") or None),
        (
            "Ledger's device",
            ", ".join(f"{name} {value}" for name, value in compute.items() if name != "plugins")
            if isinstance(compute, Mapping)
            else None,
        ),
    ]
    digests: Rows = [(f"SHA-256 of {name}", digest) for name, digest in run.digests.items()]
    record = run.record or {}
    packages = (record.get("environment") or {}).get("packages") or {}
    brought: Rows = [
        (f"{part['kind']} {part['name']}", f"{part['package']} {part['version']}, not dpft's")
        for part in record.get("plugins") or ()
    ]
    rows = [*_origin(run), *brought, *ledger, *digests]
    return {"rows": rows, "packages": list(packages.items())}


def _origin(run: Gathered) -> Rows:
    if run.record is None:
        return []
    record = run.record
    changed = (
        ", with changes that are in no commit" if (record.get("dpft") or {}).get("dirty") else ""
    )
    machine = record.get("environment") or {}
    rows: Rows = [
        ("dpft", f"{_version(record)}{changed}"),
        ("Python", machine.get("python", "not recorded")),
        ("Platform", machine.get("platform", "not recorded")),
        ("Hash of the configuration", record.get("config_hash", "not recorded")),
        ("Data", _data(record)),
        ("Fingerprint of the data", record["dataset"].get("fingerprint", "not recorded")),
    ]
    seeds = record.get("seeds") or {}
    rows += [(f"Seed ({name})", _seed(name, value)) for name, value in seeds.items()]
    # The digest of any references is a plain hash, so that of private ones is left out.
    if withheld(record, run.config, None) is None:
        scored = (record.get("scores") or {}).items()
        rows += [
            (f"Digest of the {split} references", part.get("references") or None)
            for split, part in scored
        ]
    return rows


def brief_provenance(record: Mapping[str, Any]) -> str:
    """Hash of the settings and version of the code, in one sentence."""
    return f"Configuration {record.get('config_hash')}, dpft {_version(record)}."


def _version(record: Mapping[str, Any]) -> str:
    code = record.get("dpft") or {}
    commit = f", commit {code['commit']}" if code.get("commit") else ""
    return f"{code.get('version', 'not recorded')}{commit}"


def _seed(name: str, value: Any) -> str:
    if value is None:
        return "a secret key, which is on no page" if name == "noise" else "not set"
    return str(value)


def _data(record: Mapping[str, Any]) -> str:
    dataset = record["dataset"]
    counts = ", ".join(f"{split} {count:,}" for split, count in dataset["counts"].items())
    return f"{dataset['task']} ({dataset['source']}): {counts}"
