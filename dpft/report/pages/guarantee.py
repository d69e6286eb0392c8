"""What a run guarantees, in words for people who have never read a paper on privacy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dpft.privacy.guarantee import NONE, warnings
from dpft.privacy.rounding import delta, up
from dpft.report.guarantee import audit_rows, mechanism_rows
from dpft.report.pages.frame import Html, facts, folded, joined, listed, marked, paragraph
from dpft.report.pages.gather import Gathered

UNKNOWN = (
    "Whether this run has a privacy guarantee is not known: there is neither a record nor a ledger "
    "of it. Take it for one without."
)


def guarantee(run: Gathered) -> Html:
    """The section; for an unfinished run, of the steps that its ledger counts so far."""
    given = run.guarantee
    if given is None:
        return _so_far(run, run.mechanism or {}) if run.private else paragraph(brief(run))
    if not given.private or run.record is None:
        return paragraph(brief(run))
    parts: list[str] = [paragraph(text, "banner") for text in given.warnings]
    parts.append(paragraph(given.sentence))
    if given.meaning:
        parts.append(paragraph(given.meaning))
    if given.steps_taken:
        config, seed = run.config, run.record["seeds"].get("noise")
        rows = [*given.figures(), *audit_rows(run.record)]
        parts.append(facts([*rows, *mechanism_rows(run.mechanism or {}, config, seed)]))
    if given.caveats:
        parts += [paragraph("Mind:"), listed(given.caveats)]
    covered = [marked(line) for line in given.not_covered]
    parts.append(folded("What is not covered", listed(covered)))
    return joined(parts)


def brief(run: Gathered) -> str:
    """The guarantee in one sentence."""
    if run.guarantee is not None:
        return run.guarantee.sentence
    if not run.private:
        return f"{NONE[0].upper()}{NONE[1:]}." if run.known else UNKNOWN
    entries = run.ledger.entries if run.ledger else []
    spent = entries[-1].get("epsilon_rdp") if entries else 0.0
    return f"So far {len(entries)} steps have spent epsilon {up(spent)} by Renyi accounting."


def _so_far(run: Gathered, mechanism: Mapping[str, Any]) -> Html:
    unit = run.ledger.header.get("unit") if run.ledger else None
    of = f" of {mechanism['steps']:,}" if "steps" in mechanism else ""
    steps = run.ledger.steps_spent if run.ledger else 0
    rows: list[tuple[object, object]] = [("Steps in the ledger", f"{steps:,}{of}")]
    if "delta" in mechanism:
        rows.append(("Delta", delta(mechanism["delta"])))
    if mechanism.get("target_epsilon") is not None:
        rows.append(("Epsilon in the end, at most", up(mechanism["target_epsilon"])))
    if unit:
        rows.append(("Unit of privacy", unit))
    text = (
        f"{brief(run)} The run is not finished: this is what releasing its weights as they are now "
        "would cost."
    )
    privacy = run.config.get("privacy")
    seed = privacy.get("noise_seed") if isinstance(privacy, Mapping) else None
    warned = warnings(mechanism.get("sampling"), seed).values()
    return joined(
        [*(paragraph(warning, "banner") for warning in warned), paragraph(text), facts(rows)]
    )
