"""BLEU and ROUGE-L from 0 to 100, whichever scorer a record has them from."""

import pytest

from dpft.report.comparison import row
from dpft.tasks.metrics.shown import figure, shown
from tests.runs.example import without_privacy

E2E = "bleu:nrefs:var|case:ascii-lc+nist:order:5|case:ascii-lc|tok:13a+coco:pycocoevalcap:1.2"
GEM = "bleu:nrefs:var|case:lc|eff:no|tok:13a|smooth:exp|version:2.6.0"


@pytest.mark.parametrize(
    ("metric", "value", "signature", "said"),
    [
        ("BLEU", 0.59069, E2E, "59.07"),
        ("ROUGE_L", 0.63009, E2E, "63.01"),
        ("METEOR", 0.3953, E2E, "0.3953"),
        ("BLEU", 0.4, GEM, "0.4000"),  # a bad model's
        ("BLEU", 34.5, GEM, "34.5000"),
        ("BLEU", None, E2E, "-"),
        ("BLEU", 34.5, f"{GEM}; nist:order:5|mine:1.0", "34.5000"),
        ("BLEU", 0.59069, f"{E2E}; mine:1.0", "59.07"),
    ],
)
def test_the_scale_follows_from_the_scorer(metric, value, signature, said):
    assert figure(metric, value, signature) == said
    if value is not None:
        assert shown(metric, value, signature) == pytest.approx(float(said), abs=0.005)


def test_runs_are_compared_on_one_scale(tmp_path):
    scores = {"metrics": {"BLEU": 0.59069}, "examples": 3, "signature": E2E}
    record = {
        "config": {"clip": {"plan": "ghost", "groups": "flat"}, "decode": {"split": "test"}},
        "training": {"steps": 4, "seconds": 1.0},
        "privacy": without_privacy(),
        "scores": {"test": scores},
    }
    assert row(tmp_path, record)["BLEU"] == "59.07"
