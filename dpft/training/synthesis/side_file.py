"""What accompanies a file of synthetic records: how it was made, and what is guaranteed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpft.privacy.guarantee import Guarantee
from dpft.report.guarantee import as_markdown as privacy_as_markdown
from dpft.runs.lineage import base_model
from dpft.training.synthesis.sampling import Synthetic
from dpft.training.synthesis.sources import Sources

_POSTPROCESSING = (
    "The texts were sampled from the trained model, which is all that they know of the training "
    "records. Whatever is computed from a differentially private result, without the records, has "
    "the same guarantee: sampling costs no further privacy, however many texts are drawn, and "
    "neither does leaving some of them out, or training on them."
)
_NONE = "Handle the texts as you would the training records."


def side_path(file: Path, kind: str = "json") -> Path:
    """Where the guarantee of a file of synthetic records lies: for programs, or ``md`` to read."""
    return file.with_name(f"{file.name}.guarantee.{kind}")


def side_file(
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
    private = Guarantee.of_record(record).private
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
            "base_model": base_model(base) if base else None,
            "task": record["dataset"]["task"],
            "noise_seed": record.get("seeds", {}).get("noise"),
        },
        "private": private,
        "privacy": record["privacy"],
        "selection": record.get("selection"),
        "mechanism": record["mechanism"],
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
        f"{records['empty_left_out']:,} were empty or no conversation and "
        f"{records['duplicates_left_out']:,} repeated another record; they were left out. Of those "
        "written, "
        f"{records['stopped_before_their_end']:,} were stopped before they ended, and of "
        f"{records['sources_cut_for_the_model']:,} the source was too long for the model, which "
        "saw a part of it.",
        "",
        "## Privacy",
        "",
    ]
    guarantee = Guarantee.of_record(content)
    lines += [privacy_as_markdown(guarantee, []), "", content["post_processing"], ""]
    if guarantee.private:
        lines += [f"- Mind: {caveat}" for caveat in guarantee.caveats]
        search = "further search" if guarantee.selected else "the search"
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
