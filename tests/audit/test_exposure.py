"""Exposure: right where it can be worked out, and finite where it is large."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import dpft
from dpft.audit.exposure import (
    LENGTHS,
    WORDS,
    Exposure,
    exposure,
    exposure_by_rank,
    make_secrets,
    section,
)
from dpft.config.errors import ConfigError


@pytest.fixture
def others() -> np.ndarray:
    return np.random.default_rng(0).normal(50, 4, size=4000)


@pytest.mark.parametrize("deviations", [0.0, -1.0, -2.0, -3.0])
def test_exposure_is_minus_log2_of_the_share_that_is_likelier(
    others: np.ndarray, deviations: float
) -> None:
    expected = -math.log2(stats.norm.cdf(deviations))

    assert exposure(50 + 4 * deviations, others) == pytest.approx(expected, rel=0.15, abs=0.15)


def test_far_outside_it_is_large_and_finite(others: np.ndarray) -> None:
    far, farther = exposure(50 - 4 * 9, others), exposure(50 - 4 * 12, others)

    assert 40 < far < farther < 500


def test_the_least_likely_secret_has_none(others: np.ndarray) -> None:
    assert exposure(200.0, others) == pytest.approx(0, abs=1e-6)


def test_texts_that_do_not_differ_tell_nothing() -> None:
    assert math.isnan(exposure(1.0, np.ones(200)))


def test_a_skewed_distribution_is_followed() -> None:
    drawn = stats.skewnorm.rvs(6, size=6000, random_state=1)
    share = float((drawn <= 0.1).mean())

    assert exposure(0.1, drawn) == pytest.approx(-math.log2(share), rel=0.15)


def test_means_and_deviations_are_over_secrets() -> None:
    given = [Exposure(1.0, 0.5), Exposure(3.0, 2.5), Exposure(math.inf, 9.0)]
    metrics = section(given, 10)["metrics"]

    assert metrics["exposure"] == 2.0
    assert metrics["exposure deviation"] == pytest.approx(math.sqrt(2))
    # The most exposed secret does not vanish where no fit reaches it.
    assert (metrics["exposures without a fit"], metrics["exposure by rank"]) == (1, 4.0)
    assert section([Exposure(math.nan, 0.0)], 1)["metrics"]["exposure"] is None


def test_a_rank_says_what_was_seen() -> None:
    others = np.arange(1.0, 1024.0)

    assert exposure_by_rank(0.5, others) == 10.0
    assert exposure_by_rank(511.0, others) == 1.0
    assert exposure_by_rank(5000.0, others) == 0.0


def test_secrets_are_made_of_few_words_that_are_one_token_each(tokenizer: object) -> None:
    secrets, words = make_secrets(tokenizer, 6, seed=3)

    assert len(set(words)) == WORDS
    assert {len(secret.words) for secret in secrets} == set(LENGTHS)
    assert {word for secret in secrets for word in secret.words} <= set(words)
    assert make_secrets(tokenizer, 6, seed=3)[0] == secrets
    assert make_secrets(tokenizer, 6, seed=4)[0] != secrets
    for word in words:
        assert len(tokenizer.encode(f" {word}", add_special_tokens=False)) == 1  # type: ignore[attr-defined]


def test_a_tokenizer_without_words_is_refused() -> None:
    class Letters:
        def __len__(self) -> int:
            return 26

        def decode(self, ids: list[int]) -> str:
            return chr(97 + ids[0])

        def encode(self, text: str, add_special_tokens: bool) -> list[int]:
            return [ord(c) - 97 for c in text.strip()]

    with pytest.raises(ConfigError, match="whole words"):
        make_secrets(Letters(), 2, seed=0)


@pytest.fixture(scope="module")
def tokenizer() -> object:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(Path(dpft.__file__).parent / "models" / "tiny")
