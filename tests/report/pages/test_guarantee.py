"""The guarantee on a page: what the record states, and of an unfinished run what was spent."""

import pytest

from dpft.privacy.guarantee import APPROXIMATION
from dpft.report.html import render
from dpft.report.pages.gather import Options, gather
from dpft.report.pages.guarantee import brief, guarantee
from dpft.report.pages.sections import section
from dpft.report.pages.target import Target
from tests.report.pages.example import Page, a_run, config, ledger, mechanism, record


def gathered(path):
    return gather(Target(path, path.name), Options(), 0)


def html_of(path):
    run = gathered(path)
    return render("section.html", section=section("guarantee", lambda: guarantee(run)))


def text_of(path):
    return Page(html_of(path), whole=False).text


def test_the_section_begins_with_what_a_person_wants_to_know(tmp_path):
    text = text_of(a_run(tmp_path / "run"))
    assert text.startswith(
        "Epsilon is at most 3.000 and delta 1e-05, 1 in 100,000, for each record: a reasonable "
        "bound. "
        "(3, 1e-05)-differential privacy by Renyi accounting. "
        "Mind: only 42 records Epsilon by RDP (upper bound) 3.000"
    )
    assert "What is not covered Hyperparameter search." in text


@pytest.mark.parametrize("change", [{"strength": "none"}, {"voided_by": ["known seed"]}])
def test_a_guarantee_that_says_nothing_has_no_headline(tmp_path, change):
    whole = record()
    whole["privacy"] |= {"warnings": ["Do not release this model."], **change}
    html = html_of(a_run(tmp_path / "run", whole))
    assert html.strip().startswith('<p class="banner">Do not release this model.</p>')
    assert "headline" not in html


def test_a_run_without_noise_says_so_and_nothing_else(tmp_path):
    path = a_run(tmp_path / "run", record(private=False))
    assert text_of(path) == brief(gathered(path))
    assert text_of(path).startswith("No privacy guarantee: trained without noise")
    assert "psilon" not in text_of(path)


def test_an_unfinished_run_says_what_its_ledger_counts_and_what_all_steps_cost(tmp_path):
    path = a_run(tmp_path / "run", record(settings=config(privacy__noise_seed=3)))
    (path / "record.json").unlink()
    shuffled = mechanism(target_epsilon=3.0, sampling="shuffle", noise_multiplier=0.8)
    ledger(path, steps=3, mechanism=shuffled)
    text = text_of(path)
    for part in (
        "Epsilon computed for Poisson sampling, run with shuffled batches.",
        "explicit seed 3",
        "The run is not finished. Releasing the weights as they are now costs epsilon 2.279 by "
        "Renyi accounting, that of all 4 planned steps. That of the 3 steps so far, 2.220, holds "
        "only if the run was stopped for a reason that does not depend on the records; that it "
        "diverged does depend on them.",
        "Steps in the ledger 3 of 4",
        "Delta 1e-05",
        "Unit of privacy one row",
    ):
        assert part in text
    assert "in the end" not in text  # of shuffled batches no figure is a bound


def test_a_run_that_took_all_its_steps_has_one_epsilon(tmp_path):
    path = a_run(tmp_path / "run")
    (path / "record.json").unlink()
    assert brief(gathered(path)).endswith(
        "costs epsilon 3.000 by Renyi accounting, that of all 4 planned steps."
    )


def test_a_run_that_took_no_step_has_spent_nothing(tmp_path):
    path = tmp_path / "run"
    ledger(path, steps=0)
    assert brief(gathered(path)) == "So far 0 steps have spent epsilon 0.000 by Renyi accounting."


@pytest.mark.parametrize(
    ("accountant", "proven"), [("pld", True), ("rdp", True), ("prv", False), ("gdp_clt", False)]
)
def test_a_budget_bounds_an_unfinished_run_where_its_accountant_proves_it(
    tmp_path, accountant, proven
):
    path = a_run(tmp_path / "run")
    (path / "record.json").unlink()
    ledger(path, steps=3, mechanism=mechanism(target_epsilon=3.0, accountant=accountant))
    assert ("Epsilon in the end, at most 3.000" in text_of(path)) is proven


def test_every_figure_stands_under_its_accountant(tmp_path):
    audit = {"epsilon_lower": 3.4567, "confidence": 0.95, "refuted": True}
    text = text_of(a_run(tmp_path / "run", record(audit=audit)))
    for part in (
        "Epsilon by RDP (upper bound) 3.000",
        "Epsilon by PRV (upper bound for removal; for addition unproven) 2.700",
        "Epsilon by PRV (estimate) 2.65, bounds 2.600 to 2.700",
        f"Epsilon by GDP-CLT ({APPROXIMATION}) 2.32",
        "Epsilon spent at least, by an audit of this run 3.456 at 95% confidence",
        "Neighbouring relation add or remove one record",
        "Steps 4",
        "Sampling poisson, rate 0.0243",
        "Noise multiplier 0.7103",
        "Clipping threshold 0.1, on the whole gradient",
        "Unit of privacy one row of the training file",
    ):
        assert part in text


def test_a_run_of_no_steps_has_no_figures(tmp_path):
    whole = record()
    whole["privacy"] |= {
        "kind": "nothing released",
        "steps_taken": 0,
        "strength": "none",
        "meaning": "",
        "statement": "no training step was taken",
    }
    text = text_of(a_run(tmp_path / "run", whole))
    assert text.startswith("No training step was taken.")
    assert "Epsilon by RDP" not in text
