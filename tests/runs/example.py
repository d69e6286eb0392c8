"""A whole run record, as training and scoring would leave it."""

from typing import Any


def example_record(config_hash: str = "0123456789ab") -> dict[str, Any]:
    return {
        "stage": "scored",
        "dpft": {"version": "0.1.0", "commit": "abc123", "dirty": True},
        "config": {
            "task": {"name": "e2e"},
            "clip": {"style": "ghost", "groups": "flat", "plan": "ghost", "threshold": 0.1},
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
        "privacy": {
            "unit": "one meaning representation with one reference",
            "neighbouring": "add or remove one record",
            "delta": 8e-6,
            "epsilon": {
                "rdp": 2.99901,
                "gdp_clt": 2.7,
                "prv": {"lower": 2.6109, "estimate": 2.63, "upper": 2.6491},
            },
            "steps_taken": 410,
            "statement": "This model is (3, 8e-6)-differentially private.",
            "caveats": ["Two earlier runs on the same data were set aside."],
        },
        "training": {"steps": 410, "seconds": 1234.5, "peak_memory_bytes": 10**9, "device": "cpu"},
        "scores": {
            "test": {"metrics": {"BLEU": 61.519}, "examples": 630, "signature": "e2e-metrics|v1"}
        },
        "generations": {"test": "generations/test.jsonl"},
        "labels": ["subset"],
    }
