"""What accompanies a file of synthetic records: how it was made, and what is guaranteed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpft.runs import shown
from dpft.training.synthesis.sampling import Synthetic
from dpft.training.synthesis.sources import Sources

_POSTPROCESSING = (
    "The texts were sampled from the trained model, which is all that they know of the training "
    "records. Whatever is computed from a differentially private result, without the records, has "
    "the same guarantee: sampling costs no further privacy, however many texts are drawn, and "
    "neither does leaving some of them out, or training on them."
)
_NONE = (
    "None. The model was trained without privacy, so that these texts may repeat its training "
    "records word for word. Handle them as you would those records."
)


def is_private(record: Mapping[str, Any]) -> bool:
    """Whether the run of this record has any guarantee."""
    mechanism = record["mechanism"]
    return record["privacy"] is not None and mechanism is not None and bool(mechanism["private"])


def guarantee(
    record: Mapping[str, Any],
    run_name: str,
    synthetic: Synthetic,
    sources: Sources,
    sampling: Mapping[str, Any],
    file_name: str,
    sha256: str,
) -> dict[str, Any]:
    """The side file's content; it names no folder of this machine.

    Args:
        record: of the run.
        run_name: its folder's name.
        synthetic: what was written.
        sources: what the model was given.
        sampling: settings and seed.
        file_name: of the synthetic records.
        sha256: of that file.
    """
    private = is_private(record)
    base = record.get("model", {}).get("base_model")
    return {
        "file": file_name,
        "sha256": sha256,
        "records": {
            "asked": synthetic.asked,
            "written": len(synthetic.targets),
            "empty_left_out": synthetic.empty,
            "duplicates_left_out": synthetic.duplicates,
            "stopped_before_their_end": synthetic.unfinished,
            "sources_cut_for_the_model": synthetic.cut,
        },
        "run": {
            "name": run_name,
            "config_hash": record["config_hash"],
            "dpft": record["dpft"]["version"],
            "base_model": shown.base_model(base) if base else None,
            "task": record["dataset"]["task"],
            "noise_seed": record.get("seeds", {}).get("noise"),
        },
        "private": private,
        "privacy": record["privacy"] if private else None,
        "selection": record.get("selection"),
        "mechanism": record["mechanism"] if private else None,
        "post_processing": _POSTPROCESSING if private else _NONE,
        "sources": {
            "origin": sources.origin,
            "distinct": sources.distinct,
            "privacy": sources.privacy,
        },
        "sampling": dict(sampling),
        "labels": list(record.get("labels", [])),
    }


def as_markdown(content: Mapping[str, Any]) -> str:
    """The same for readers; upper bounds on epsilon are rounded up."""
    records, run, sources = content["records"], content["run"], content["sources"]
    lines = [
        f"# {content['file']}",
        "",
        f"{records['written']:,} synthetic records of {run['task']}, sampled from run "
        f"`{run['name']}` (configuration `{run['config_hash']}`, base model {run['base_model']}, "
        f"dpft {run['dpft']}). Of {records['asked']:,} sampled texts, "
        f"{records['empty_left_out']:,} were empty and {records['duplicates_left_out']:,} repeated "
        "another record; they were left out. Of those written, "
        f"{records['stopped_before_their_end']:,} were stopped before they ended, and of "
        f"{records['sources_cut_for_the_model']:,} the source was too long for the model, which "
        "saw a part of it.",
        "",
        "## Privacy",
        "",
    ]
    if content["private"]:
        lines += _bounds(content["privacy"], content["mechanism"], run["noise_seed"])
    lines += [content["post_processing"], ""]
    if content["private"]:
        lines += [f"- Mind: {caveat}" for caveat in content["privacy"]["caveats"]]
        search = "further search" if content.get("selection") else "the search"
        lines += [
            "- Not covered: other releases from the same training records, whose costs add up, and "
            f"{search} for settings; see the run's model card.",
        ]
    lines += [
        "",
        "## Sources",
        "",
        f"From {sources['origin']}; {sources['distinct']:,} distinct. They are "
        f"{sources['privacy']}."
        if sources["distinct"]
        else f"Sources: {sources['origin']}.",
        "",
        "## How they were sampled",
        "",
        ", ".join(f"{key}={value}" for key, value in content["sampling"].items()) + ".",
    ]
    if content["labels"]:
        lines += ["", f"Mind: {', '.join(content['labels'])}."]
    return "\n".join([*lines, "", f"SHA-256: `{content['sha256']}`", ""])


def _bounds(
    privacy: Mapping[str, Any], mechanism: Mapping[str, Any], noise_seed: int | None
) -> list[str]:
    above = [f"{privacy['statement']}.", *shown.warnings(mechanism, noise_seed)]
    shuffled = mechanism.get("sampling") == "shuffle"
    rows = [
        *shown.bounds(privacy["epsilon"] or {}, shuffled),
        ("Delta", shown.delta(privacy["delta"])),
        ("Unit of privacy", privacy["unit"]),
        ("Neighbouring relation", privacy["neighbouring"]),
        ("Steps", f"{privacy['steps_taken']:,}"),
    ]
    return [
        *(line for paragraph in above for line in (paragraph, "")),
        "| | |",
        "| --- | --- |",
        *(f"| {name} | {value} |" for name, value in rows),
        "",
    ]
