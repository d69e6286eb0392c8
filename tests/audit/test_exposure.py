"""Exposure: right where it can be worked out, and finite where it is large."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from transformers import AutoTokenizer

import dpft
from dpft.audit.exposure import LENGTHS, WORDS, exposure, exposure_by_rank, make_secrets, section


@pytest.mark.parametrize("deviations", [0.0, -1.0, -2.0, -3.0])
def test_exposure_is_minus_log2_of_the_share_that_is_likelier(deviations: float) -> None:
    others = np.random.default_rng(0).normal(50, 4, size=4000)
    expected = -math.log2(stats.norm.cdf(deviations))

    assert exposure(50 + 4 * deviations, others) == pytest.approx(expected, rel=0.15, abs=0.15)


def test_means_and_deviations_are_over_secrets() -> None:
    given = [(1.0, 0.5), (3.0, 2.5), (math.inf, 9.0)]
    metrics = section(given, 10)["metrics"]

    assert metrics["exposure"] == 2.0
    assert metrics["exposure deviation"] == pytest.approx(math.sqrt(2))
    # The most exposed secret does not vanish where no fit reaches it.
    assert (metrics["exposures without a fit"], metrics["exposure by rank"]) == (1, 4.0)
    assert section([(math.nan, 0.0)], 1)["metrics"]["exposure"] is None


def test_a_rank_says_what_was_seen() -> None:
    others = np.arange(1.0, 1024.0)

    assert exposure_by_rank(0.5, others) == 10.0
    assert exposure_by_rank(511.0, others) == 1.0
    assert exposure_by_rank(5000.0, others) == 0.0


def test_secrets_are_made_of_few_words_that_are_one_token_each() -> None:
    tokenizer = AutoTokenizer.from_pretrained(Path(dpft.__file__).parent / "models" / "tiny")
    secrets, words = make_secrets(tokenizer, 6, seed=3)

    assert len(set(words)) == WORDS
    assert {len(secret.target.split()) for secret in secrets} == set(LENGTHS)
    assert {word for secret in secrets for word in secret.target.split()} <= set(words)
    assert make_secrets(tokenizer, 6, seed=3)[0] == secrets
    assert make_secrets(tokenizer, 6, seed=4)[0] != secrets
    for word in words:
        assert len(tokenizer.encode(f" {word}", add_special_tokens=False)) == 1
