"""The HTML page of `dpft report`, whose words and markup are in ``templates/``.

Every text is escaped, and the page loads and runs nothing. Its one plot is an inline SVG of 400 by
230: scores by epsilon or by training step.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jinja2 import StrictUndefined

from dpft.config.flags import sentences
from dpft.config.schema import Audit, build
from dpft.privacy.accounting import spent
from dpft.privacy.accounting.pld import LossDistribution, PrivacyProfile
from dpft.privacy.guarantee import BY, STRONG, VACUOUS, Guarantee, marked, odds, warnings
from dpft.privacy.rounding import delta, number, up
from dpft.report.cost import planned, remarks
from dpft.report.gather import (
    Found,
    Gathered,
    Scored,
    differing,
    first_score,
    flat,
    metrics,
    ranked,
    references,
    section,
    siblings,
    value_text,
    without_folders,
)
from dpft.report.statements import (
    SEEN,
    Rows,
    audit_rows,
    evaluation_remarks,
    is_held_out,
    may_be_seen,
    mechanism_rows,
    score_warnings,
)
from dpft.report.terminal import clock, plain
from dpft.report.text_table import environment
from dpft.runs.ledger import LedgerContents
from dpft.runs.lineage import base_model
from dpft.tasks.scores import cautions_of, figure, shown

_MOST_COLUMNS = 5
# Rates of false alarms of a test that asks whether a record was used.
_FALSE_ALARMS = (0.01, 0.05)
# How far an epsilon that is computed again may be above the record's, whose grid may be finer; and
# below it, as a share: Renyi accounting states up to a third more.
_ABOVE, _BELOW = 0.01, {"pld": 0.01, "rdp": 0.3}


_LETTER, _LINE = 6, 14  # of text, about
# From left to right in [0, 1], tick, value, name, and whether its epsilon is proven for all.
Point = tuple[float, str, float, str, bool]


def page(found: Found, runs: Sequence[Gathered]) -> str:
    """Return the whole file."""
    ordered, several = ranked(runs), found.several
    runs = [run for run, _ in ordered]
    top = _top(ordered, several)
    pages = environment(autoescape=True, finalize=_fit, undefined=StrictUndefined)
    pages.filters |= {"up": up, "delta": delta, "clock": clock, "thousands": "{:,}".format}
    pages.filters["sentence"] = lambda text: text[:1].upper() + text[1:]
    pages.globals["figure"] = figure
    return pages.get_template("report.html").render(
        found=found,
        without=[run.name for run in runs if not run.private and (run.record or run.ledger)],
        covered=any(run.private for run in runs),
        empty=not any(r.record or r.problems or (r.ledger and r.ledger.steps_spent) for r in runs),
        top=top,
        written=[run for run in runs if run.samples][:3],
        overview=_overview(ordered) if several else {},
        runs=[_view(run, True) for run in runs] if several else [top["view"]],
    )


def _top(ordered: Sequence[tuple[Gathered, Scored]], several: bool) -> dict[str, Any]:
    """Return the first screen's run, the best with privacy, what it compares with, and a plot."""
    runs = [run for run, _ in ordered]
    lead = min(runs, key=_weakness)
    found: dict[str, Any] = {"view": _view(lead, False), "kind": None, "plot": None}
    scored = first_score(lead)
    if scored is None:
        return found
    kind, value = scored
    of = section(section(lead.record, "scores"), kind.split)
    sign = -1 if kind.lower else 1
    by = references(lead, runs if several else siblings(lead))
    gap = sign * (by["without privacy"][1] - value) if "without privacy" in by else None
    constant = section(of, "baselines").get(kind.metric)
    level = None if constant is None else shown(kind.metric, constant, of.get("signature"))
    points = [(lead, value), *by.values()]
    steps = by_step(section(lead.record, "evaluation").get("history") or ())
    if several:
        points = [(run, one[1]) for run, one in ordered if one is not None and one[0] == kind]
    elif len(steps) > 1:
        found["plot"] = drawn(steps, None)
    if found["plot"] is None and (len(points) > 1 or level is not None):
        found["plot"] = drawn(by_epsilon(points), level)
    return found | {"kind": kind, "by": by, "gap": gap, "higher": sign > 0}


def _weakness(run: Gathered) -> tuple[bool, bool, bool]:
    """Return what makes another run the one to show: no record, no privacy, or a void bound."""
    given = run.guarantee
    return given is None, given is None or given.kind != "private", bool(given and given.voided_by)


def _fit(value: object) -> object:
    """Return text without characters that have no place in HTML."""
    # Markup comes from macros, whose texts are fit already.
    return value if hasattr(value, "__html__") else plain(value)


def _view(run: Gathered, several: bool) -> dict[str, Any]:
    """Return what is shown of a run."""
    record, given = run.record or {}, run.guarantee
    epsilon = None if given is None or given.strength == "none" else given.stated
    noise_seed = section(run.config, "privacy").get("noise_seed")
    started = warnings(run.mechanism.get("sampling"), noise_seed).values() if run.private else ()
    parts = ("model", "dataset", "dpft", "seeds", "config_hash", "environment", "plugins")
    scores, origin = section(record, "scores"), {p: record[p] for p in parts if p in record}
    origin |= {f"metrics of {split}": scored["signature"] for split, scored in scores.items()}
    return {
        "run": run,
        "planned": up(planned(run.ledger)) if not record and run.ledger else "",
        "labels": sentences(record.get("flags")),
        "warnings": list(started) if given is None else given.warnings,
        "verdict": "" if given is None else given.verdict,
        "noun": given.noun if given is not None else "record",
        "count": _records(run) if "dataset_size" in run.mechanism else None,
        "unit": given.unit if given is not None else run.ledger and run.ledger.header.get("unit"),
        "point": without_folders(run.target.label or ""),
        "settings": [(key, value_text(value)) for key, value in flat(run.config).items()],
        "figures": _figures(run),
        "review": None if several else review(run),
        "sure": odds(epsilon)[1] if epsilon is not None and epsilon <= VACUOUS else "",
        "cautions": [*cautions_of(record), *([SEEN] if may_be_seen(record) else [])],
        "scores": scores,
        "score_warnings": [*score_warnings(record), *cautions_of(record)] if record else [],
        "evaluation": evaluation_remarks(record),
        "history": section(record, "evaluation").get("history") or [],
        "held_out": is_held_out(record),
        "audit": audit_rows(record),
        "machine": section(record, "environment"),
        "base": base_model(str(section(record, "model").get("base_model") or "new weights")),
        "origin": [(key, value_text(value)) for key, value in flat(origin).items()],
    }


def _figures(run: Gathered) -> Rows:
    """Return all numbers of the guarantee, with audit, sampling, noise and clipping."""
    given, rows = run.guarantee, list[tuple[str, str]]()
    if not run.private or (given is not None and not given.steps_taken):
        return rows
    if given is not None and run.record is not None:
        rows = [*given.figures(), *audit_rows(run.record)]
        seed = run.record["seeds"].get("noise")
    elif run.ledger is not None:
        seed = section(run.config, "privacy").get("noise_seed")
        steps = f"{run.ledger.next_step:,} of {run.mechanism.get('steps')}"
        rows = [
            ("Steps in the ledger", steps),
            ("Delta", str(run.mechanism.get("delta"))),
            ("Unit of privacy", str(run.ledger.header.get("unit"))),
        ]
    return [*rows, *mechanism_rows(run.mechanism, run.config, seed)]


def review(run: Gathered) -> dict[str, Any] | None:
    """Return the numbers for readers who decide on a release and know nothing of the field.

    They are the most that any attacker can find out, by theorems on tests between two hypotheses
    (Kairouz et al. 2015; Dong et al. 2022). Chances are given as so many of 100, which readers
    without training understand better than epsilon (Nanayakkara et al. 2023).

    Returns:
        None where nothing is guaranteed, or next to nothing, or not against every attacker.
    """
    given, record = run.guarantee, run.record
    if record is None or given is None or not given.verdict:
        return None
    epsilon = given.stated
    if epsilon is None or epsilon > VACUOUS:
        return None
    profile = bounds(given, run.mechanism)
    factor, sure = odds(epsilon)
    return {
        # Rounded up: no promise is larger than what was computed.
        "right": math.ceil(100 * profile.right()),
        "found": [math.ceil(100 * profile.found(rate)) for rate in _FALSE_ALARMS],
        "sure": sure,
        "factor": factor,
        "batch": f"{round(run.mechanism['sampling_rate'] * _records(run)):,}",
        "noise": number(spent(run.mechanism)["noise_multiplier"]),
        "by": BY[given.accountant or "rdp"],
        "weaker": epsilon > STRONG,
    }


def _records(run: Gathered) -> int:
    """Return the units of privacy of a run, without an audit's canaries."""
    return int(run.mechanism["dataset_size"]) - build(Audit, section(run.config, "audit")).canaries


def bounds(given: Guarantee, mechanism: Mapping[str, Any]) -> PrivacyProfile:
    """Return pairs of epsilon and delta that hold: all that an attacker can find out follows.

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
            more = losses.profile(np.linspace(0, epsilon, 201))
            epsilons = np.concatenate([epsilons, more.epsilons])
            deltas = np.concatenate([deltas, more.deltas])
    return PrivacyProfile(epsilons, deltas)


def _overview(ordered: Sequence[tuple[Gathered, Scored]]) -> dict[str, Any]:
    """Return a row for each run, and what releasing all of them, or the best one, costs."""
    runs = [run for run, _ in ordered]
    different = differing([run.config for run in runs])
    columns = list(different)[:_MOST_COLUMNS]
    names = list(dict.fromkeys(name for run in runs for name in metrics(run)))[:_MOST_COLUMNS]
    rows = []
    for place, run in enumerate(runs):
        epsilon, *further = _spent_by(run)
        values = [metrics(run).get(name) for name in names]
        scores = ["–" if x is None else f"{x:.{2 if abs(x) >= 10 else 4}f}" for x in values]
        rows.append(
            {
                "figures": [epsilon, *scores, *further],
                "words": [run.stage, *(different[key][place] for key in columns)],
            }
        )
    open_ = [run for run in runs if run.record is None]
    unfinished: dict[str, LedgerContents | None] = {
        run.name: run.ledger
        for run in open_
        if run.private and run.ledger is not None and run.ledger.steps_spent
    }
    # A damaged ledger does not show what was spent, but that something was.
    unfinished |= {run.name: None for run in open_ if run.ledger_is_damaged}
    records = [run.record for run in runs if run.private and run.record is not None]
    kinds = dict.fromkeys(scored[0] for _, scored in ordered if scored is not None)
    return {
        "sorted_by": [
            f"{kind.metric} of {kind.split} on {kind.task}, "
            f"{'lowest' if kind.lower else 'highest'} first"
            for kind in kinds
        ],
        "figures": ["epsilon, at most", *names, "steps", "time"],
        "words": ["state", *columns],
        "rows": rows,
        "differing": [(key, *values) for key, values in different.items()],
        "together": remarks(records, unfinished),
    }


def _spent_by(run: Gathered) -> tuple[str, str, str]:
    """Return epsilon, steps and time; of an unfinished run the epsilon of all planned steps."""
    if run.record is not None:
        training, given = run.record["training"], Guarantee.of_record(run.record)
        epsilon = marked(given.stated, given.voided_by) if given.private else "none"
        return epsilon, f"{training['steps']:,}", clock(training["seconds"])
    if run.ledger is None or not run.ledger.steps_spent:
        return "", "", ""
    void = warnings(run.mechanism.get("sampling"), None)
    steps = f"{run.ledger.next_step:,} of {run.mechanism.get('steps')}"
    return marked(planned(run.ledger), void), steps, ""


def by_epsilon(runs: Sequence[tuple[Gathered, float]]) -> list[Point]:
    """Return points, on a logarithmic axis between untrained runs and those without a bound."""
    stated = [run.guarantee.stated if run.guarantee else None for run, _ in runs]
    finite = [epsilon for epsilon in stated if epsilon] or [1.0]
    low, spread = min(finite), math.log(max(finite) / min(finite))
    points = []
    for (run, value), epsilon in zip(runs, stated, strict=True):
        where, tick = 0.93, "no bound" if run.private else "no privacy"
        if epsilon == 0:
            where, tick = 0.07, "not trained"
        elif epsilon is not None:
            where = 0.22 + 0.56 * (math.log(epsilon / low) / spread if spread else 0.5)
            tick = up(epsilon)
        void = run.guarantee and run.guarantee.voided_by
        points.append((where, tick, value, run.name, not void))
    return points


def by_step(history: Sequence[Mapping[str, float | None]]) -> list[Point]:
    """Return points of the last figure of each evaluation, which is the accuracy of classes."""
    found = [(one["step"] or 0, one.get(list(history[0])[-1])) for one in history]
    end = max((step for step, _ in found), default=0) or 1
    return [
        (step / end, f"{step:,}", value, "", True) for step, value in found if value is not None
    ]


def drawn(points: Sequence[Point], level: float | None) -> dict[str, Any]:
    """Return places of marks, ticks and ``level``, a constant's score; no text overlaps another."""
    values = [*(point[2] for point in points), *([] if level is None else [level])]
    low, high = min(values), max(values)

    def height(value: float) -> float:
        return round(180 - 140 * ((value - low) / (high - low) if high > low else 0.5), 1)

    marks, ticks = list[dict[str, Any]](), dict[float, str]()
    for where, tick, value, name, proven in points:
        x, y = round(54 + 330 * where, 1), height(value)
        text = f"{name if len(name) < 25 else name[:23] + '…'} {value:.4g}".strip()
        wide = _LETTER * (len(text) + 1)
        left = min(max(x - wide / 2, 52), 395 - wide)
        near = [m for m in marks if m["labelled"] and abs(m["y"] - y) < _LINE]
        free = all(m["right"] < left or left + wide < m["left"] for m in near)
        mark = {"x": x, "y": y, "left": left, "right": left + wide, "text": text}
        marks.append({**mark, "labelled": free, "proven": proven})
        if all(abs(x - at) > _LETTER * len(tick + other) / 2 for at, other in ticks.items()):
            ticks[x] = tick
    ys = [(height(value), f"{value:.4g}") for value in {low, high}]
    line = None if level is None else height(level)
    return {
        "marks": marks,
        "xs": list(ticks.items()),
        "ys": ys,
        "level": line,
        "by_step": not points[0][3],
    }
