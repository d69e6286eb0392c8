"""Sections of one run: what it is, its scores, samples, cost, and where it came from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpft.report.card import HELD_OUT
from dpft.report.pages.frame import Html, facts, folded, joined, marked, paragraph, table, text
from dpft.report.pages.gather import Gathered
from dpft.report.pages.generations import Sample, withheld
from dpft.report.pages.settings import choices, told
from dpft.report.terminal import clock
from dpft.runs.lineage import base_model

CHOSEN = "evenly spread over it and not chosen by their quality."
COVERED = (
    "What a model trained with privacy wrote is covered by its guarantee, since it follows from "
    "the model and the prompts. Prompts and references are not: they stand here as they are in the "
    "data."
)
_LONGEST = 1200
_MOST_REFERENCES = 3


def summary(run: Gathered) -> Html:
    """What was trained on what, and every label that must stand beside its figures."""
    record = run.record or {}
    rows: list[tuple[object, object]] = [("State", run.stage)]
    if run.label is not None:
        rows.append(("Point of the sweep", told(run.label)))
    if run.config:
        rows.append(("Choices", " ".join(map(told, choices(run.config)))))
    model = record.get("model") or {}
    if model.get("base_model"):
        rows.append(("Model", base_model(str(model["base_model"]))))
    if "trainable_parameters" in model:
        of = f" of {model['parameters']:,}" if "parameters" in model else ""
        rows.append(("Trained parameters", f"{model['trainable_parameters']:,}{of}"))
    if record:
        rows.append(("Data", _data(record)))
    if record.get("labels"):
        rows.append(("Mind", "; ".join(map(str, record["labels"]))))
    if run.error:
        rows.append(("Error", told(run.error)))
    return facts(rows)


def scores(run: Gathered) -> Html:
    """Every score, with the number of examples and the metric's signature."""
    sections = (run.record or {}).get("scores") or {}
    rows = [
        (split, metric, _score(value), f"{section.get('examples', 0):,}")
        for split, section in sections.items()
        for metric, value in section["metrics"].items()
    ]
    if not rows:
        return paragraph("Not scored yet.")
    parts = [table(("split", "metric", "score", "examples"), rows, labels=2)]
    if any("held out" in str(label) for label in (run.record or {}).get("labels") or ()):
        parts.insert(0, paragraph(marked(HELD_OUT), "banner"))
    signatures = [
        (split, Html(f"<code>{text(section.get('signature', '-'))}</code>"))
        for split, section in sections.items()
    ]
    parts.append(folded("Signatures of the metrics", facts(signatures)))
    return joined(parts)


def samples(run: Gathered, explained: bool = True) -> Html:
    """Generations beside what was asked and the references.

    Args:
        run: whose they are.
        explained: whether it is said how they were chosen and what covers them.
    """
    found = run.generations
    if found is None:
        return paragraph("No generations are here.")
    if found.left_out is not None:
        return paragraph(found.left_out)
    if not found.samples:
        return paragraph(f"{found.total:,} generations, of which none is shown.")
    rows = [
        (_long(sample.source), _long(sample.prediction), _references(sample))
        for sample in found.samples
    ]
    listing = Html(
        f"<div class='samples'>{table(('asked', 'written', 'references'), rows, 3)}</div>"
    )
    if not explained:
        return listing
    count = len(found.samples)
    return joined(
        [
            paragraph(
                f"{count} of {found.total:,} generations of the {found.split} split, {CHOSEN} "
                + (COVERED if run.private else "No guarantee covers what the model wrote.")
            ),
            listing,
        ]
    )


def cost(run: Gathered) -> Html:
    """Time, memory and hardware."""
    if run.record is None:
        return paragraph("Told when the run is trained.")
    training, machine = run.record["training"], run.record.get("environment") or {}
    seconds, steps = float(training["seconds"]), int(training["steps"])
    rows: list[tuple[object, object]] = [
        ("Training time (h:mm:ss)", clock(seconds)),
        ("Steps", f"{steps:,}"),
    ]
    if steps:
        rows.append(("Seconds per step", f"{seconds / steps:.3g}"))
    if (peak := training.get("peak_memory_bytes")) is not None:
        rows.append(("Peak memory", f"{peak / 2**30:.2f} GiB"))
    rows.append(("Device", training.get("device", "not recorded")))
    for key, name in (("gpu", "GPU"), ("cpu", "CPU"), ("cores", "Cores"), ("threads", "Threads")):
        if machine.get(key) is not None:
            rows.append((name, machine[key]))
    if machine.get("ram_bytes"):
        rows.append(("Main memory", f"{machine['ram_bytes'] / 2**30:.0f} GiB"))
    note = (
        "Time and memory depend a little on how many records each batch drew, which the guarantee "
        "does not cover."
        if run.private
        else ""
    )
    return joined([facts(rows), paragraph(note, "quiet") if note else ""])


def brief_cost(record: Mapping[str, Any]) -> str:
    """Time, memory and device in half a sentence."""
    training = record["training"]
    said = [f"{training['steps']:,} steps in {clock(float(training['seconds']))}"]
    if (peak := training.get("peak_memory_bytes")) is not None:
        said.append(f"{peak / 2**30:.2f} GiB")
    machine = record.get("environment") or {}
    device = machine.get("gpu") if training.get("device") != "cpu" else machine.get("cpu")
    return ", ".join([*said, str(device or training.get("device", "device not recorded"))])


def provenance(run: Gathered) -> Html:
    """Code, packages, hashes, data and seeds: what somebody needs who wants to check or repeat."""
    parts, rows = [], _origin(run)
    if run.ledger is not None:
        header = run.ledger.header
        rows.append(("Ledger", f"{run.ledger.steps_spent:,} steps"))
        if header.get("key"):
            rows.append(("Fingerprint of the noise key", header["key"]))
        if isinstance(header.get("compute"), Mapping):
            rows.append(
                ("Ledger's device", ", ".join(f"{k} {v}" for k, v in header["compute"].items()))
            )
    for name, digest in run.digests.items():
        rows.append((f"SHA-256 of {name}", Html(f"<code>{text(digest)}</code>")))
    parts.append(facts(rows))
    packages = ((run.record or {}).get("environment") or {}).get("packages") or {}
    if packages:
        parts.append(folded("Versions of packages", facts(packages.items())))
    return joined(parts)


def _origin(run: Gathered) -> list[tuple[object, object]]:
    if run.record is None:
        return []
    record = run.record
    code, machine = record.get("dpft") or {}, record.get("environment") or {}
    changed = ", with changes that are in no commit" if code.get("dirty") else ""
    commit = f", commit {code['commit']}" if code.get("commit") else ""
    rows: list[tuple[object, object]] = [
        ("dpft", f"{code.get('version', 'not recorded')}{commit}{changed}"),
        ("Python", machine.get("python", "not recorded")),
        ("Platform", machine.get("platform", "not recorded")),
        ("Hash of the configuration", record.get("config_hash", "not recorded")),
        ("Data", _data(record)),
        ("Fingerprint of the data", record["dataset"].get("fingerprint", "not recorded")),
    ]
    seeds = record.get("seeds") or {}
    rows += [(f"Seed ({name})", _seed(name, value)) for name, value in seeds.items()]
    # Older records have the digest of any references: a plain hash, so it is shown of those alone
    # that may be shown themselves.
    public = withheld(record, run.config, None) is None
    for split, section in (record.get("scores") or {}).items():
        if public and section.get("references"):
            rows.append((f"Digest of the {split} references", section["references"]))
    return rows


def _seed(name: str, value: Any) -> str:
    if value is None:
        return "a secret key, which is on no page" if name == "noise" else "not set"
    return str(value)


def _data(record: Mapping[str, Any]) -> str:
    dataset = record["dataset"]
    counts = ", ".join(f"{split} {count:,}" for split, count in dataset["counts"].items())
    return f"{dataset['task']} ({dataset['source']}): {counts}"


def _score(value: float | None) -> str:
    return "not computed" if value is None else f"{value:.4f}"


def _references(sample: Sample) -> Html:
    parts = [
        f"<div dir='auto'>{text(_long(reference))}</div>"
        for reference in sample.references[:_MOST_REFERENCES]
    ]
    more = len(sample.references) - len(parts)
    if more:
        parts.append(f"<div class='quiet'>and {more} more</div>")
    return Html("".join(parts))  # line breaks between them would be shown


def _long(words: str) -> str:
    return words if len(words) <= _LONGEST else f"{words[:_LONGEST]} …"
