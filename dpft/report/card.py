"""The model card: what was trained, what is guaranteed, and what is not."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dpft.runs.atomic import write_atomic
from dpft.runs.lineage import FILE, descent
from dpft.runs.shown import bounds, delta, down, number, up, warnings

NOT_COVERED = (
    "**Hyperparameter search.** Each run on the same records spends its own budget, also those "
    "that were thrown away. Epsilon above is this run's alone.",
    "**Other releases from the same data**: other models, statistics, earlier attempts. Their "
    "costs add up.",
    "**The number of training records, or of users where those are the unit, N** is treated as "
    "public, and so are the choices that depend on it (sampling rate, delta, steps).",
    "**Floating-point noise.** The analysis is for real numbers; noise and sums have finitely many "
    "digits, which attacks on exact bit patterns can exploit.",
    "**The pseudo-random generator.** Sampling and noise come from a statistical generator, "
    "not from a cryptographic one.",
    "**The `private/` folder** of the run holds noiseless statistics and the noise key. It is no "
    "part of this release and must not be published.",
    "**Validation and test records.** Scores are computed from them without noise, and generated "
    "texts may repeat their prompts or references.",
    "**Running time and memory use**, which depend on how many records a batch drew.",
)

_FURTHER_SEARCH = (
    "**Further search.** Epsilon above includes the choice among the candidates of one selection. "
    "Other runs on the same records spend their own budgets, also those that were thrown away."
)

HELD_OUT = (
    "> **Mind:** a share of the data was held out, and no guarantee covers it: scores are computed "
    "from held-out records without noise. Publish them only if those records may be spoken about."
)


def write_card(model: Path, record: Mapping[str, Any]) -> None:
    """Put the model card of a run's record into the folder of its weights."""
    write_atomic(model / "README.md", model_card(record))


def write_descent(model: Path, record: Mapping[str, Any]) -> None:
    """Put beside the weights what a run that trains them further is to say of them."""
    write_atomic(model / FILE, descent(record))


def model_card(record: Mapping[str, Any]) -> str:
    """Render a run record as a model card.

    Upper bounds on epsilon are rounded up and lower bounds down, so no digit promises more than
    was computed.

    Args:
        record: a run record, see `dpft.runs.RunRecord`.

    Returns:
        Markdown with the YAML head that model hubs read.
    """
    private = _is_private(record)
    parts = [_head(record, private), _title(record, private), _privacy(record, private)]
    parts += [_exclusions(record, private), _scores(record), _provenance(record)]
    return "\n\n".join(part for part in parts if part) + "\n"


def not_covered(record: Mapping[str, Any]) -> tuple[str, ...]:
    """What the guarantee of a private run leaves out, as Markdown sentences."""
    if record.get("selection"):
        return (_FURTHER_SEARCH, *NOT_COVERED[1:])
    return NOT_COVERED


def _is_private(record: Mapping[str, Any]) -> bool:
    mechanism = record.get("mechanism")
    if not mechanism or not record.get("privacy"):
        return False
    return bool(mechanism.get("private", mechanism.get("noise_multiplier") or 0))


def _head(record: Mapping[str, Any], private: bool) -> str:
    # JSON strings are YAML strings, whatever characters a name has.
    lines = ["---", "library_name: transformers"]
    if base := record.get("model", {}).get("base_model"):
        lines.append(f"base_model: {json.dumps(base)}")
    tags = ["dpft", "differential-privacy"] if private else ["dpft"]
    lines += ["tags:", *(f"  - {tag}" for tag in tags), "---"]
    return "\n".join(lines)


def _title(record: Mapping[str, Any], private: bool) -> str:
    dataset, model = record["dataset"], record.get("model", {})
    base = model.get("base_model")
    counts = ", ".join(f"{split} {count:,}" for split, count in dataset["counts"].items())
    how = "with differential privacy" if private else "**without** differential privacy"
    lines = [
        f"# {_plain(base or 'Model')} fine-tuned on {_plain(dataset['task'])}",
        "",
        f"Fine-tuned {how} by dpft {record['dpft']['version']}.",
        "",
        f"- Base model: {_plain(base) if base else 'none on a hub'}",
        f"- Adaptation: {_plain(model.get('adaptation', 'not recorded'))}",
    ]
    if model.get("adaptation") == "prefix":
        lines.append(
            "- **The weights in this folder are the base model's, as they were.** What was trained "
            "is the prefix in `adapter/`: load it with `peft.PeftModel.from_pretrained(base, "
            "FOLDER/adapter)`. All that is said here is of both together."
        )
    if str(record.get("config", {}).get("model", {}).get("path", "")).endswith("wrn16-4"):
        lines.append("- `import dpft.models.load` makes transformers know the architecture.")
    if "trainable_parameters" in model:
        of = f" of {model['parameters']:,}" if "parameters" in model else ""
        lines.append(f"- Trained parameters: {model['trainable_parameters']:,}{of}")
    if precision := record.get("config", {}).get("precision"):
        lines.append(f"- Products while training: in {_plain(precision)}; everything else float32")
    lines.append(f"- Data: {_plain(dataset['task'])}, {_plain(dataset['source'])} ({counts})")
    if labels := record.get("labels"):
        lines.append(f"- Mind: {', '.join(map(_plain, labels))}")
    return "\n".join(lines)


def _privacy(record: Mapping[str, Any], private: bool) -> str:
    if not private:
        return (
            "## Privacy\n\n> **No privacy guarantee.** This model was trained without noise. It "
            "may reveal its training records, word for word. Do not release it if they are private."
        )
    privacy, mechanism = record["privacy"], record["mechanism"]
    shuffled = mechanism.get("sampling") == "shuffle"
    rows = [
        ("Unit of privacy", _plain(privacy["unit"])),
        ("Neighbouring relation", _plain(privacy["neighbouring"])),
        ("Delta", delta(privacy["delta"])),
        *_epsilons(privacy["epsilon"], shuffled),
        *_audit(record),
        ("Sampler", f"{mechanism.get('sampling', 'not recorded')}{' (!)' if shuffled else ''}"),
        ("Sampling rate", number(mechanism.get("sampling_rate"))),
        ("Steps", _steps(privacy, mechanism)),
        ("Noise multiplier", _noise(mechanism)),
        ("Clipping threshold", _thresholds(mechanism)),
        *_groups(mechanism, record.get("config", {})),
        ("Clipping style", _clipping(record.get("config", {}))),
        ("Noise drawn from", _source(record)),
    ]
    blocks = ["## Privacy", _plain(privacy["statement"])]
    blocks += warnings(mechanism, _seed(record))
    if record.get("audit", {}).get("refuted"):
        blocks.append(
            "> **An audit of this very run refutes the guarantee.** It spent more than is stated "
            "here. Do not release this model."
        )
    blocks.append(_table(("", ""), rows))
    return "\n\n".join(blocks)


def _epsilons(epsilon: Mapping[str, Any], shuffled: bool) -> list[tuple[str, str]]:
    prv = epsilon.get("prv") or {}
    if not prv:
        return bounds(epsilon, shuffled)
    note = f"; {_plain(prv['note'])}" if prv.get("note") else ""
    between = f"{down(prv.get('lower'))} to {up(prv.get('upper'))}"
    return [
        *bounds(epsilon, shuffled),
        (
            "Epsilon by PRV (estimate)",
            f"{number(prv.get('estimate'))}, bounds {between}{note}",
        ),
        (
            "Epsilon by GDP-CLT (approximation, not a bound)",
            number(epsilon.get("gdp_clt")),
        ),
    ]


def _audit(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    audit = record.get("audit")
    if audit is None:
        return []
    bound = f"{down(audit['epsilon_lower'])} at {audit['confidence']:.0%} confidence"
    return [("Epsilon spent at least, by an audit of this run", bound)]


def _exclusions(record: Mapping[str, Any], private: bool) -> str:
    if not private:
        return ""
    said = [f"- {text}" for text in not_covered(record)]
    said += [f"- {_plain(text)}" for text in record["privacy"].get("caveats", [])]
    return "\n".join(["### What is not covered", "", *said])


def _scores(record: Mapping[str, Any]) -> str:
    rows = [
        (split, name, _score(value), f"{score['examples']:,}", _plain(score["signature"]))
        for split, score in record.get("scores", {}).items()
        for name, value in score["metrics"].items()
    ]
    if not rows:
        return "## Scores\n\nNot scored yet."
    table = _table(("Split", "Metric", "Score", "Examples", "Signature"), rows)
    held_out = any("held out" in label for label in record.get("labels", []))
    stopped = [
        f"Of {split}'s texts {score['unfinished']:,} were stopped before they ended."
        for split, score in record["scores"].items()
        if score.get("unfinished")
    ]
    return "\n\n".join(["## Scores", *([HELD_OUT] if held_out else []), table, *stopped])


def _provenance(record: Mapping[str, Any]) -> str:
    code, training = record["dpft"], record["training"]
    commit = f", commit {code['commit']}" if code.get("commit") else ""
    dirty = " with uncommitted changes" if code.get("dirty") else ""
    return (
        f"## How it was made\n\ndpft {code['version']}{commit}{dirty}; configuration "
        f"`{record['config_hash']}`; {training['steps']:,} steps in {training['seconds']:,.0f} s "
        f"on {_plain(training['device'])}. All settings: `record.json` of the run."
    )


def _steps(privacy: Mapping[str, Any], mechanism: Mapping[str, Any]) -> str:
    taken, planned = privacy["steps_taken"], mechanism.get("steps")
    return f"{taken:,}" if planned in (None, taken) else f"{taken:,} of {planned:,} planned"


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


def _groups(mechanism: Mapping[str, Any], config: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Only what was written for several groups, or for adaptive thresholds."""
    if "groups" not in mechanism:
        return []
    clip = config.get("clip")
    partition = _plain(clip.get("groups", "")) if isinstance(clip, Mapping) else ""
    return [
        ("Clipping groups", f"{mechanism['groups']}{f' ({partition})' if partition else ''}"),
        ("Noise allocation", _plain(mechanism.get("allocation", "not recorded"))),
    ]


def _clipping(config: Mapping[str, Any]) -> str:
    clip = config.get("clip")
    if isinstance(clip, Mapping):
        known = [f"{key}={_short(value)}" for key, value in clip.items() if value is not None]
        return _plain(", ".join(known)) or "not recorded"
    return _plain(clip) if clip else "not recorded"


def _short(value: Any) -> str:
    several = isinstance(value, list | tuple) and len(value) > 4
    return f"a list of {len(value)}" if several else str(value)


def _seed(record: Mapping[str, Any]) -> int | None:
    seed: int | None = record.get("seeds", {}).get("noise")
    return seed


def _source(record: Mapping[str, Any]) -> str:
    if (seed := _seed(record)) is not None:
        return f"explicit seed {seed} (no secret, see the warning)"
    return "a secret key from the system's entropy, kept by whoever trained the model"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _plain(text: Any) -> str:
    """Text that breaks neither a table nor a list, and is no HTML."""
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;")


def _score(value: float | None) -> str:
    return "not computed" if value is None else number(value)
