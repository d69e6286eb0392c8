"""The page for reviewers: numbers that follow from the guarantee, and none where there is none."""

import re

import pytest
from scipy import stats
from typer.testing import CliRunner

from dpft.cli.app import app
from dpft.privacy.accounting.pld import gaussian_epsilon
from dpft.report.pages.gather import Options, gather
from dpft.report.pages.review import bounds
from dpft.report.pages.target import Target
from tests.report.pages.example import DELTA, Page, a_run, a_selection, mechanism, record

# Four steps on all records with twice the noise: one Gaussian release with mu = 1.
WHOLE = mechanism(sampling_rate=1.0, noise_multiplier=2.0)


def of_whole(**privacy):
    whole = record(mechanism=WHOLE)
    whole["privacy"] |= {"stated": gaussian_epsilon(1.0, DELTA), "accountant": "pld", **privacy}
    return whole


def page_of(path, *words):
    result = CliRunner().invoke(app, ["report", str(path), "--review", *words])
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{path}/review.html\n"
    return Page((path / "review.html").read_text(encoding="utf-8")).text


def test_the_numbers_are_those_of_the_best_test_there_is(tmp_path):
    text = page_of(a_run(tmp_path / "run", of_whole()))
    exact = [stats.norm.cdf(stats.norm.ppf(rate) + 1) for rate in (0.01, 0.05)]
    found = [float(number) for number in re.findall(r"by mistake \d (\d+)", text)]
    assert found == [int(100 * value) + 1 for value in exact] == [10, 26]
    assert "right at most 70 times of 100" in text  # Phi(1/2) is 0.691
    assert "epsilon = 4.378" in text
    assert "1e-05 , 1 in 100,000" in text
    assert "For somebody with two records epsilon is 8.755" in text
    assert "42,061 records, each by itself. One record is one row of the training file." in text
    assert "The run's ledger counts 4 noisy steps, as its record does." in text
    assert "only 42 records" in text
    assert "6.43" not in text  # of private/
    verdict = (
        "Epsilon is at most 4.378 and delta 1e-05, 1 in 100,000, for each record: a reasonable"
    )
    assert text.index(verdict) < text.index("What somebody can find out")


def test_what_the_mechanism_does_not_confirm_rests_on_epsilon_and_delta_alone(tmp_path):
    def found(whole):
        run = gather(Target(a_run(tmp_path / "run", whole), "run"), Options(), 0)
        return bounds(run.guarantee, run.mechanism)

    pair = found(of_whole(selected=True))
    assert pair.epsilons.tolist() == [gaussian_epsilon(1.0, DELTA)]
    assert pair.right() == pytest.approx(0.9876, abs=1e-4)
    # More noise than was accounted for: no figure may rest on it.
    more = of_whole() | {"mechanism": WHOLE | {"noise_multiplier": 3.0}}
    assert found(more).epsilons.tolist() == pair.epsilons.tolist()
    # What Renyi accounting states is larger; the mechanism's own curve holds all the same.
    renyi = found(of_whole(accountant="rdp", stated=1.1 * gaussian_epsilon(1.0, DELTA)))
    assert renyi.right() < 0.7


@pytest.mark.parametrize(
    ("privacy", "said"),
    [
        ({"voided_by": ["shuffled"], "warnings": ["Batches were shuffled."]}, "were shuffled."),
        ({"voided_by": ["shuffled"]}, "sampling=poisson"),
        ({"voided_by": ["known seed"]}, "privacy.noise_seed=null"),
        ({"stated": None, "strength": "none", "meaning": "Nothing."}, "type dpft report RUN"),
        ({"voided_by": ["refuted"], "strength": "none", "warnings": ["Do not."]}, "Do not."),
        ({"stated": None, "strength": "none", "meaning": "Nothing is guaranteed."}, "Nothing is"),
        ({"stated": 31.0, "strength": "weak", "meaning": "Nothing follows."}, "Nothing follows."),
    ],
)
def test_a_guarantee_that_says_nothing_has_no_numbers(tmp_path, privacy, said):
    text = page_of(a_run(tmp_path / "run", of_whole(**privacy)))
    assert said in text
    assert "of 100" not in text
    assert "differential privacy by" not in text


def test_without_privacy_it_says_so_and_nothing_else(tmp_path):
    text = page_of(a_run(tmp_path / "run", record(private=False)))
    assert "No privacy guarantee: trained without noise" in text
    assert "of 100" not in text


def test_people_audits_selections_and_held_out_records_are_named(tmp_path):
    audit = {"epsilon_lower": 1.2345, "confidence": 0.95, "refuted": False}
    whole = of_whole(noun="user", unit="all rows of one name") | {"audit": audit}
    whole["flags"] = [{"flag": "held_out", "split": "test", "share": 0.1, "noun": "user"}]
    text = page_of(a_run(tmp_path / "run", whole))
    assert "Somebody under two names is two users. For them epsilon is 8.755" in text
    assert "an epsilon of at least 1.234 (95% confidence)" in text
    assert "630 test examples that the scores come from, which were held out of the same" in text
    chosen = a_selection(tmp_path / "selection") / "chosen"
    assert "chosen among several is included" in page_of(chosen)


def test_it_is_of_one_trained_run(tmp_path):
    run = a_run(tmp_path / "run")
    a_run(tmp_path / "other")
    for words in ([run, tmp_path / "other"], [tmp_path], [run, "--private"], [run, "--samples", 1]):
        result = CliRunner().invoke(app, ["report", *map(str, words), "--review"])
        assert (result.exit_code, "is about one run" in result.stderr) == (2, True)
    (run / "record.json").unlink()
    result = CliRunner().invoke(app, ["report", str(run), "--review"])
    assert (result.exit_code, "expected a trained run" in result.stderr) == (2, True)
