"""The page for those who decide whether a model may be released: one screen, in plain words.

Its numbers are the most that anybody could find out, by theorems on tests between two hypotheses
(Kairouz et al. 2015; Dong et al. 2022). Chances are told as so many of 100, which readers without
training understand better than epsilon (Nanayakkara et al. 2023).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dpft.config.flags import sentences
from dpft.privacy.accounting import spent
from dpft.privacy.accounting.pld import LossDistribution, PrivacyProfile
from dpft.privacy.guarantee import BY, Guarantee
from dpft.privacy.meaning import STRONG, VACUOUS, odds, verdict
from dpft.privacy.rounding import delta, down, number, percent, up
from dpft.report.held_out import is_held_out
from dpft.report.html import render
from dpft.report.pages.gather import Gathered
from dpft.report.pages.guarantee import brief
from dpft.report.pages.ranking import ranked
from dpft.report.pages.result import of_one
from dpft.report.pages.sections import section
from dpft.runs.lineage import base_model
from dpft.tasks.metrics.shown import cautions_of

# How often somebody who asks whether a record was used may name one that was not.
_FALSE_ALARMS = (0.01, 0.05)
_EPSILONS = 201
# How far an epsilon that is computed again may be above the record's, whose grid may be finer; and
# below it, as a share: Renyi accounting states up to a third more.
_ABOVE, _BELOW = 0.01, {"pld": 0.01, "rdp": 0.3}
_MENDED = {"known seed": "privacy.noise_seed=null", "shuffled": "sampling=poisson"}
_BY = {**BY, "pld": f"{BY['pld']} (Google's dp-accounting)"}


def review_page(run: Gathered) -> str:
    """The whole file.

    Args:
        run: one that has a record.
    """
    return render(
        "review.html",
        title=f"{run.name}: privacy, for reviewers",
        run=run,
        brief=brief(run),
        instead=_instead(run),
        review=section("review", lambda: review(run)),
    )


def review(run: Gathered) -> dict[str, Any] | None:
    """What the page says; None where nothing is guaranteed, or next to nothing, or not to all."""
    given, record = run.guarantee, run.record
    if record is None or given is None or not (said := verdict(given)):
        return None
    epsilon, remainder = given.stated, given.delta
    if epsilon is None or remainder is None or epsilon > VACUOUS:
        return None
    profile = bounds(given, run.mechanism)
    (result, _), *_ = of_one(ranked([run], None)[0])
    factor, sure = odds(epsilon)
    return {
        "noun": given.noun,
        "verdict": said,
        "right": _of_100(profile.right()),
        "found": [(_of_100(rate), _of_100(profile.found(rate))) for rate in _FALSE_ALARMS],
        "sure": sure,
        "factor": factor,
        "result": result,
        "mind": [*sentences(record.get("flags")), *cautions_of(record)],
        "epsilon": up(epsilon),
        "twice": up(2 * epsilon),
        "delta": delta(remainder),
        "once_in": f"{math.floor(round(1 / remainder, 6)):,}",
        "unit": given.unit,
        "count": f"{run.mechanism['dataset_size']:,}",
        "selected": given.selected,
        "caveats": given.caveats,
        "scores": _scores(record),
        "base": base_model(str(record["model"].get("base_model") or "new weights")),
        "batch": f"{run.mechanism['batch_size']:,}",
        "steps": f"{given.steps_taken:,}",
        "noise": number(spent(run.mechanism)["noise_multiplier"]),
        "by": _BY[given.accountant or "rdp"],
        "audit": _audit(record),
        "counted": run.ledger is not None and run.ledger.steps_spent == given.steps_taken,
        "weaker": epsilon > STRONG,
    }


def _instead(run: Gathered) -> str:
    """Return what to type where this page has nothing to show but why."""
    void = run.guarantee.voided_by if run.guarantee is not None else ()
    changes = " ".join(_MENDED[reason] for reason in void if reason in _MENDED) or "eps=3"
    return (
        f"For a page with numbers, train under another name with {changes}. For scores, curves, "
        "cost and settings of this run, type dpft report RUN."
    )


def bounds(given: Guarantee, mechanism: Mapping[str, Any]) -> PrivacyProfile:
    """All that is known of what anybody can find out: of the pairs of epsilon and delta that hold.

    Guarantee: the pair that the record states is always among them. The others are of its
    mechanism, and left out of a selection, which is no single mechanism, and where they do not
    give the record's epsilon again.

    Args:
        given: stated with a finite epsilon.
        mechanism: of the same record.
    """
    epsilon, remainder = given.stated, given.delta
    assert epsilon is not None
    assert remainder is not None
    epsilons, deltas = np.array([epsilon]), np.array([remainder])
    if not given.selected:
        losses = LossDistribution(**spent(mechanism), steps=given.steps_taken)
        below = _BELOW[given.accountant or "rdp"]
        if (1 - below) * epsilon <= losses.epsilon(remainder) <= (1 + _ABOVE) * epsilon:
            more = losses.profile(np.linspace(0, epsilon, _EPSILONS))
            epsilons = np.concatenate([epsilons, more.epsilons])
            deltas = np.concatenate([deltas, more.deltas])
    return PrivacyProfile(epsilons, deltas)


def _of_100(chance: float) -> int:
    """Rounded up: no promise is larger than what was computed."""
    return math.ceil(100 * chance)


def _scores(record: Mapping[str, Any]) -> str:
    """Which records were scored, with their number, and whether they are of the same people."""
    counted = [f"{score['examples']:,} {split}" for split, score in record["scores"].items()]
    which = f"{' and '.join(counted) or 'test'} examples that the scores come from"
    return f"{which}, which were held out of the same data" if is_held_out(record) else which


def _audit(record: Mapping[str, Any]) -> str | None:
    audit = record.get("audit")
    return audit and f"{down(audit['epsilon_lower'])} ({percent(audit['confidence'])} confidence)"
