"""What a run guarantees, in words for people who have never read a paper on privacy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dpft.report.card import not_covered
from dpft.report.pages.frame import Html, facts, folded, joined, listed, marked, paragraph
from dpft.report.pages.gather import Gathered
from dpft.runs.shown import bounds, delta, down, number, stated, up, warnings

NONE = (
    "No privacy guarantee. This run was trained without noise: model, scores and texts may reveal "
    "training records, word for word. Nothing on this page is covered by a guarantee; publish none "
    "of it if the records are private."
)
NONE_BRIEFLY = (
    "No privacy guarantee: trained without noise, so that model, scores and texts may reveal "
    "training records, word for word."
)
UNKNOWN = (
    "Whether this run has a privacy guarantee cannot be told: there is neither a record nor a "
    "ledger of it. Take it for one without."
)
_REFUTED = (
    "An audit of this very run refutes the guarantee: it spent more than is stated here. Something "
    "does not do what is accounted for. Do not release this model."
)
# Beyond this the worst case allows so much that it should not be called protection.
_WEAK = 5.0


def guarantee(run: Gathered) -> Html:
    """The section; for an unfinished run, of the steps that its ledger counts so far."""
    if not run.private:
        return paragraph(NONE if run.known else UNKNOWN)
    mechanism = run.mechanism or {}
    if run.record is None:
        return joined([_so_far(run, mechanism), *_warned(run, mechanism)])
    privacy = run.record["privacy"]
    audit = run.record.get("audit") or {}
    parts: list[str] = [paragraph(f"{_sentence(privacy['statement'])}."), *_warned(run, mechanism)]
    if audit.get("refuted"):
        parts.append(paragraph(_REFUTED, "banner"))
    if privacy["steps_taken"]:
        shuffled = mechanism.get("sampling") == "shuffle"
        if not shuffled:
            parts.append(
                paragraph(
                    in_words(
                        stated(privacy["epsilon"]),
                        privacy["delta"],
                        _noun(privacy["neighbouring"]),
                    )
                )
            )
        if str(privacy["unit"]) not in str(privacy["statement"]):
            parts.append(paragraph(f"One {_noun(privacy['neighbouring'])} is {privacy['unit']}."))
        rows = _figures(privacy, mechanism, shuffled)
        if audit:
            bound = f"{down(audit['epsilon_lower'])} at {audit['confidence']:.0%} confidence"
            rows.insert(2, ("Epsilon spent at least, by an audit of this run", bound))
        parts.append(facts(rows))
    if privacy.get("caveats"):
        parts += [paragraph("Mind:"), listed(privacy["caveats"])]
    covered = [marked(line) for line in not_covered(run.record)]
    parts.append(folded("What is not covered", listed(covered)))
    return joined(parts)


def in_words(epsilon: float | None, at: float, noun: str) -> str:
    """What epsilon and delta mean, in two or three sentences.

    Factor and chance are rounded up, so that no digit promises more than was computed.

    Args:
        epsilon: an upper bound; None: there is none.
        at: delta.
        noun: one unit of privacy, such as ``record``.
    """
    if epsilon is None:
        return "There is no finite epsilon, so nothing is guaranteed."
    if epsilon > 30:
        return (
            f"With an epsilon of {up(epsilon)}, the bound on what the model reveals about a {noun} "
            "is so loose that nothing follows from it."
        )
    factor = _up(math.exp(epsilon))
    sure = f"{100 - _down(100 / (1 + math.exp(epsilon))):.6g}"
    said = (
        f"Whoever has the trained model can hardly tell whether any one {noun} was used: whatever "
        f"they conclude, the chances of concluding it with and without that {noun} differ by a "
        f"factor of at most {factor} (e to the power of epsilon), but for a remainder of delta = "
        f"{delta(at)}. Delta aside, somebody to whom it was an even chance that a certain {noun} "
        f"was used can become at most {sure}% sure."
    )
    if epsilon > _WEAK:
        said = said.replace("can hardly tell", "is limited in telling", 1)
        said += (
            " As a worst case that is little protection. Known attacks do far worse than the bound "
            "allows, which is experience and no proof."
        )
    return said


def brief(run: Gathered) -> str:
    """The guarantee in one sentence."""
    if not run.private:
        return NONE_BRIEFLY if run.known else UNKNOWN
    if run.record is not None:
        return f"{_sentence(run.record['privacy']['statement'])}."
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
    return joined(
        [
            paragraph(
                f"{brief(run)} The run is not finished: this is what releasing its weights as they "
                "are now would cost."
            ),
            facts(rows),
        ]
    )


def _warned(run: Gathered, mechanism: Mapping[str, Any]) -> list[Html]:
    seeds = run.record.get("seeds") if run.record is not None else run.config.get("privacy")
    seeds = seeds if isinstance(seeds, Mapping) else {}
    seed = seeds.get("noise", seeds.get("noise_seed"))
    return [paragraph(marked(line), "banner") for line in warnings(mechanism, seed)]


def _figures(
    privacy: Mapping[str, Any], mechanism: Mapping[str, Any], shuffled: bool
) -> list[tuple[object, object]]:
    epsilon = privacy["epsilon"]
    prv = epsilon.get("prv") or {}
    rows: list[tuple[object, object]] = [*bounds(epsilon, shuffled)]
    if prv:  # of a selection among runs only RDP is known
        between = f"{down(prv.get('lower'))} to {up(prv.get('upper'))}"
        approximation = "Epsilon by GDP-CLT (approximation, usually too small)"
        rows += [
            ("Epsilon by PRV (estimate)", f"{number(prv.get('estimate'))}, bounds {between}"),
            *([("Note on PRV", prv["note"])] if prv.get("note") else []),
            (approximation, number(epsilon.get("gdp_clt"))),
        ]
    return [
        *rows,
        ("Delta", delta(privacy["delta"])),
        ("Neighbouring data sets", privacy["neighbouring"]),
        ("Steps", f"{privacy['steps_taken']:,}"),
        ("Sampling", f"{mechanism.get('sampling')}, rate {number(mechanism.get('sampling_rate'))}"),
        ("Noise multiplier", _noise(mechanism)),
        ("Clipping", _clipping(mechanism)),
    ]


def _noise(mechanism: Mapping[str, Any]) -> str:
    sigma = number(mechanism.get("noise_multiplier"))
    if not mechanism.get("quantiles"):
        return sigma
    return (
        f"{number(mechanism['total_noise_multiplier'])} in all: {sigma} on gradients, and noise of "
        f"standard deviation {number(mechanism['count_noise'])} on the counts that move thresholds"
    )


def _clipping(mechanism: Mapping[str, Any]) -> str:
    thresholds = list(mechanism.get("thresholds") or ())
    if not thresholds:
        return "not recorded"
    least, most = number(min(thresholds)), number(max(thresholds))
    span = least if least == most else f"{least} to {most}"
    kind = "adaptive, from" if mechanism.get("quantiles") else "fixed,"
    groups = "one group" if len(thresholds) == 1 else f"{len(thresholds)} groups"
    return f"{groups}; threshold {kind} {span}"


def _noun(neighbouring: str) -> str:
    return str(neighbouring).removeprefix("add or remove one ") or "record"


def _sentence(statement: str) -> str:
    text = str(statement).strip().removesuffix(".")
    return text[:1].upper() + text[1:]


def _up(value: float) -> str:
    """Three significant digits, never less than the value."""
    unit = _third_digit(value)
    return f"{math.ceil(value / unit) * unit:,.{max(0, -round(math.log10(unit)))}f}"


def _down(value: float) -> float:
    """Three significant digits, never more than the value."""
    unit = _third_digit(value)
    return math.floor(value / unit) * unit


def _third_digit(value: float) -> float:
    return 10.0 ** (math.floor(math.log10(value)) - 2)
