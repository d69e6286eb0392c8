"""Statements about a run's guarantee, mechanism and scored records, for all views."""

import math
from collections.abc import Mapping
from typing import Any

from dpft.config.flags import TRAINED_BASE, Flag, has
from dpft.config.published import PUBLISHED_TASKS
from dpft.privacy.guarantee import Guarantee
from dpft.privacy.rounding import delta, down, number, percent
from dpft.report.text_table import inline, markdown_table

Rows = list[tuple[str, str]]

SCALES = (
    "with clip_function=automatic the threshold only scales: every gradient is scaled to about it, "
    "so another threshold changes sum and noise by one factor, as another learning rate does in SGD"
)
DO_NOT_RELEASE = "Do not release it if the records are private."
HELD_OUT = (
    "a share of the data was held out, and no guarantee covers it: scores are computed from "
    "held-out records without noise. Publish them only if those records may be spoken about."
)
SEEN = (
    "the base was trained before. If that was on the same data with another split of it, the base "
    "has seen records that are scored here: scores then flatter the model, and no guarantee covers "
    "them."
)


def as_markdown(guarantee: Guarantee, rows: Rows) -> str:
    """Return warnings, statement, meaning and a table, for below the heading ``Privacy``.

    Args:
        guarantee: of a run.
        rows: of the table, after the guarantee's own figures.
    """
    if not guarantee.private:
        return f"> **{guarantee.sentence}** {DO_NOT_RELEASE}"
    blocks = [f"> **Warning:** {text}" for text in guarantee.warnings]
    blocks += [inline(guarantee.sentence), *([guarantee.meaning] if guarantee.meaning else [])]
    return "\n\n".join([*blocks, markdown_table(("", ""), [*guarantee.figures(), *rows])])


def audit_rows(record: Mapping[str, Any]) -> Rows:
    """Return what an audit of the run proved; no row if there was none."""
    audit = record.get("audit")
    if audit is None:
        return []
    bound = f"{down(audit['epsilon_lower'])} at {percent(audit['confidence'])} confidence"
    return [("Epsilon spent at least, by an audit of this run", bound)]


def mechanism_rows(
    mechanism: Mapping[str, Any], config: Mapping[str, Any], noise_seed: int | None
) -> Rows:
    """Return sampling, noise and clipping, as name and figure.

    Args:
        mechanism: of a record.
        config: of the same.
        noise_seed: the explicit seed of the noise, if there was one.
    """
    rate = f"{mechanism.get('sampling')}, rate {number(mechanism.get('sampling_rate'))}"
    if mechanism.get("max_batch") is not None:
        rate += (
            f", cut or filled up to {mechanism['max_batch']:,}: at each step a sample is as large "
            f"with probability {delta(mechanism['overflow'])} at most, which epsilon includes"
        )
    noise = number(mechanism.get("noise_multiplier"))
    if mechanism.get("quantiles"):
        noise = (
            f"{number(mechanism['total_noise_multiplier'])} in all: {noise} on gradients, and "
            f"noise of standard deviation {number(mechanism['count_noise'])} on "
            f"{mechanism['groups']} counts a step, which move the thresholds. Epsilon includes both"
        )
    source = "a secret key from the system's entropy, kept by those who trained the model"
    if noise_seed is not None:
        source = f"explicit seed {noise_seed} (no secret, see the warning)"
    rows = [
        ("Sampling", rate),
        ("Noise multiplier", noise),
        ("Clipping threshold", _thresholds(mechanism)),
    ]
    clip = config.get("clip")
    clip = clip if isinstance(clip, Mapping) else {}
    if "groups" in mechanism:  # written for several groups, or for adaptive thresholds
        partition = f" ({clip['groups']})" if "groups" in clip else ""
        rows += [
            ("Clipping groups", f"{mechanism['groups']}{partition}"),
            ("Noise allocation", str(mechanism.get("allocation", "not recorded"))),
        ]
    style = ", ".join(f"{k}={_brief(v)}" for k, v in clip.items() if v is not None)
    if clip.get("clip_function") == "automatic":
        rows.append(("What the threshold does", SCALES))
    return [*rows, ("Clipping style", style or "not recorded"), ("Noise drawn from", source)]


def _thresholds(mechanism: Mapping[str, Any]) -> str:
    thresholds = mechanism.get("thresholds")
    if not thresholds:
        return "not recorded"
    least, most = number(min(thresholds)), number(max(thresholds))
    span = least if least == most else f"{least} to {most}"
    if quantiles := mechanism.get("quantiles"):
        rescaled = quantiles.get("rescale")
        joint = f", scaled to {number(rescaled)} together" if rescaled else ""
        return (
            f"adaptive: the private {number(quantiles['target'])}-quantile of each group's norms"
            f"{joint}; estimates begin at {span}"
        )
    if len(thresholds) == 1:
        return f"{least}, on the whole gradient"
    return f"{len(thresholds)} groups, {span}; together {number(math.hypot(*thresholds))}"


def _brief(value: Any) -> str:
    several = isinstance(value, list | tuple) and len(value) > 4
    return f"a list of {len(value)}" if several else str(value)


def evaluation_remarks(record: Mapping[str, Any]) -> list[str]:
    """Return a sentence on evaluations during training; nothing if there were none."""
    section = record.get("evaluation")
    if not section:
        return []
    return [
        f"Nothing was chosen by {section['evaluations']:,} evaluations while it trained, on "
        f"{section['records']:,} records of the {section['of']} split."
    ]


def score_warnings(record: Mapping[str, Any]) -> list[str]:
    """Return warnings about all scores of a run; see `is_held_out` for the record."""
    held_out = [HELD_OUT] if is_held_out(record) else []
    return [*held_out, *([SEEN] if may_be_seen(record) else [])]


def may_be_seen(record: Mapping[str, Any]) -> bool:
    """Return whether the base may have seen what is scored: published splits stay apart."""
    published = (record.get("dataset") or {}).get("task") in PUBLISHED_TASKS
    before = has(record.get("flags", []), *TRAINED_BASE)
    return bool(before and not published and record.get("scores"))


def is_held_out(record: Mapping[str, Any]) -> bool:
    """Return whether records of a split were held out of the training data.

    By the settings of a task on one's own data, or by a flag, as tasks of other packages may have.
    Of a run without a record, its ``config`` is enough.
    """
    task = (record.get("config") or {}).get("task") or {}
    shares = task.get("dev_share") or task.get("test_share")
    return bool(shares or has(record.get("flags", []), Flag.HELD_OUT))
