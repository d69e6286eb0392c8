"""A whole run record, as training and scoring would leave it."""

from typing import Any

from dpft.privacy.guarantee import NONE


def example_record(config_hash: str = "0123456789ab") -> dict[str, Any]:
    return {
        "stage": "scored",
        "dpft": {"version": "0.1.0", "commit": "abc123", "dirty": True},
        "config": {
            "task": {"name": "e2e"},
            "clip": {"groups": "flat", "plan": "ghost", "threshold": 0.1},
            "decode": {"split": "test"},
            "seed": 0,
        },
        "config_hash": config_hash,
        "environment": {"python": "3.11"},
        "seeds": {"noise": None, "model": 0},
        "dataset": {
            "task": "e2e",
            "source": "hub",
            "fingerprint": "ab12",
            "counts": {"train": 42061, "test": 630},
        },
        "model": {
            "base_model": "openai-community/gpt2",
            "adaptation": "full",
            "parameters": 124_439_808,
            "trainable_parameters": 124_439_808,
        },
        "mechanism": {
            "sampling": "poisson",
            "sampling_rate": 0.0243,
            "steps": 410,
            "noise_multiplier": 0.8,
            "thresholds": [0.1],
            "private": True,
        },
        "privacy": example_guarantee(),
        "training": {"steps": 410, "seconds": 1234.5, "peak_memory_bytes": 10**9, "device": "cpu"},
        "scores": {
            "test": {"metrics": {"BLEU": 61.519}, "examples": 630, "signature": "e2e-metrics|v1"}
        },
        "generations": {"test": "generations/test.jsonl"},
        "flags": [{"flag": "note", "text": "subset"}],
    }


def example_guarantee(**changes: Any) -> dict[str, Any]:
    """The section ``privacy`` of the record above."""
    return {
        "kind": "private",
        "noun": "record",
        "unit": "one meaning representation with one reference",
        "neighbouring": "add or remove one record",
        "steps_taken": 410,
        "delta": 8e-6,
        "epsilon": {
            "rdp": 2.99901,
            "gdp_clt": 2.7,
            "prv": {"lower": 2.6109, "estimate": 2.63, "upper": 2.6491},
        },
        "stated": 2.99901,
        "accountant": "rdp",
        "statement": "(3, 8e-06)-differential privacy by Renyi accounting",
        "strength": "reasonable",
        "meaning": "Nobody can tell.",
        "voided_by": [],
        "warnings": [],
        "caveats": ["Two earlier runs on the same data were set aside."],
        "selected": False,
        **changes,
    }


def without_privacy(**changes: Any) -> dict[str, Any]:
    """The same section of a run without noise."""
    return example_guarantee(
        kind="none",
        delta=None,
        epsilon=None,
        stated=None,
        accountant=None,
        statement=NONE,
        strength="none",
        meaning="",
        caveats=[],
        **changes,
    )
