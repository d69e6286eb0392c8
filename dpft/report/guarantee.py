"""How the guarantee of a run, and the mechanism behind it, stand in cards, pages and side files."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from dpft.privacy.guarantee import Guarantee
from dpft.privacy.rounding import delta, down, number, percent
from dpft.report.markdown import inline, table

Rows = list[tuple[str, str]]

SCALES = (
    "with clip_function=automatic the threshold only scales: every gradient is scaled to about it, "
    "so another threshold changes sum and noise alike, as another learning rate does in SGD"
)
DO_NOT_RELEASE = "Do not release it if the records are private."


def as_markdown(guarantee: Guarantee, rows: Rows) -> str:
    """Warnings, statement, meaning and a table: what stands under the heading ``Privacy``.

    Args:
        guarantee: of a run.
        rows: of the table, below the guarantee's own figures.
    """
    if not guarantee.private:
        return f"> **{guarantee.sentence}** {DO_NOT_RELEASE}"
    blocks = [f"> **Warning:** {text}" for text in guarantee.warnings]
    blocks += [inline(guarantee.sentence), *([guarantee.meaning] if guarantee.meaning else [])]
    return "\n\n".join([*blocks, table(("", ""), [*guarantee.figures(), *rows])])


def audit_rows(record: Mapping[str, Any]) -> Rows:
    """What an audit of the run proved, if there was one."""
    audit = record.get("audit")
    if audit is None:
        return []
    bound = f"{down(audit['epsilon_lower'])} at {percent(audit['confidence'])} confidence"
    return [("Epsilon spent at least, by an audit of this run", bound)]


def mechanism_rows(
    mechanism: Mapping[str, Any], config: Mapping[str, Any], noise_seed: int | None
) -> Rows:
    """Sampling, noise and clipping, as name and figure.

    Args:
        mechanism: of a record, or of a ledger while there is no record.
        config: of the same.
        noise_seed: the explicit seed of the noise, if there was one.
    """
    sampling, rate = mechanism.get("sampling"), number(mechanism.get("sampling_rate"))
    source = "a secret key from the system's entropy, kept by whoever trained the model"
    if noise_seed is not None:
        source = f"explicit seed {noise_seed} (no secret, see the warning)"
    rows = [
        ("Sampling", f"{sampling}, rate {rate}{_places(mechanism)}"),
        ("Noise multiplier", _noise(mechanism)),
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


def _places(mechanism: Mapping[str, Any]) -> str:
    if mechanism.get("max_batch") is None:
        return ""
    return (
        f", cut or filled up to {mechanism['max_batch']:,}: at each step a sample is as large with "
        f"probability {delta(mechanism['overflow'])} at most, which epsilon includes"
    )


def _noise(mechanism: Mapping[str, Any]) -> str:
    sigma = number(mechanism.get("noise_multiplier"))
    if not mechanism.get("quantiles"):
        return sigma
    return (
        f"{number(mechanism['total_noise_multiplier'])} in all: {sigma} on gradients, and noise "
        f"of standard deviation {number(mechanism['count_noise'])} on {mechanism['groups']} "
        "counts a step, which move the thresholds. Epsilon includes both"
    )


def _thresholds(mechanism: Mapping[str, Any]) -> str:
    thresholds: Sequence[float] | None = mechanism.get("thresholds")
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
    total = math.sqrt(sum(value * value for value in thresholds))
    return f"{len(thresholds)} groups, {span}; together {number(total)}"


def _brief(value: Any) -> str:
    several = isinstance(value, list | tuple) and len(value) > 4
    return f"a list of {len(value)}" if several else str(value)
