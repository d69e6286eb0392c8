"""The guarantee on a page: what the record states, and of an unfinished run what was spent."""

from dpft.report.pages.gather import Options, gather
from dpft.report.pages.guarantee import brief, guarantee
from dpft.report.pages.target import Target
from tests.report.pages.example import Page, a_run, config, ledger, mechanism, record


def gathered(path):
    return gather(Target(path, path.name), Options(), 0)


def text_of(path):
    return Page(str(guarantee(gathered(path)))).text


def test_the_page_says_what_the_record_states(tmp_path):
    text = text_of(a_run(tmp_path / "run"))
    assert "(3, 1e-05)-differential privacy by Renyi accounting." in text
    assert "Nobody can tell." in text


def test_a_run_without_noise_says_so_and_nothing_else(tmp_path):
    path = a_run(tmp_path / "run", record(private=False))
    assert text_of(path).startswith("No privacy guarantee: trained without noise")
    assert "psilon" not in text_of(path)
    assert brief(gathered(path)).startswith("No privacy guarantee")


def test_an_unfinished_run_tells_what_its_ledger_counts(tmp_path):
    path = a_run(tmp_path / "run")
    (path / "record.json").unlink()
    ledger(path, steps=3, mechanism=mechanism(target_epsilon=3.0))
    said = text_of(path)
    assert "So far 3 steps have spent epsilon 2.250 by Renyi accounting." in said
    assert "Steps in the ledger 3 of 4" in said
    assert "Delta 1e-05" in said
    assert "Epsilon in the end, at most 3.000" in said
    assert "Unit of privacy one row" in said
    assert "The run is not finished" in said


def test_warnings_are_banners_of_finished_and_unfinished_runs(tmp_path):
    whole = record()
    whole["privacy"]["warnings"] = ["Do not release this model."]
    page = str(guarantee(gathered(a_run(tmp_path / "run", whole))))
    assert "<p class='banner'>Do not release this model.</p>" in page
    path = a_run(tmp_path / "begun", record(settings=config(privacy__noise_seed=3)))
    (path / "record.json").unlink()
    ledger(path, mechanism=mechanism(sampling="shuffle"))
    text = text_of(path)
    assert "Epsilon computed for Poisson sampling, run with shuffled batches." in text
    assert "explicit seed 3" in text


def test_every_figure_stands_under_its_accountant(tmp_path):
    said = text_of(a_run(tmp_path / "run"))
    for part in (
        "Epsilon by RDP (upper bound) 3.000",
        "Epsilon by PRV (upper bound for removal; for addition unproven) 2.700",
        "Epsilon by PRV (estimate) 2.65, bounds 2.600 to 2.700",
        "Epsilon by GDP-CLT (approximation, usually too small) 2.32",
        "Neighbouring relation add or remove one record",
        "Steps 4",
        "Sampling poisson, rate 0.0243",
        "Noise multiplier 1.07",
        "Clipping threshold 0.1, on the whole gradient",
        "Unit of privacy one row of the training file",
        "Mind: only 42 records",
    ):
        assert part in said


def test_an_audit_has_a_row(tmp_path):
    audit = {"epsilon_lower": 3.4567, "confidence": 0.95, "refuted": True}
    text = text_of(a_run(tmp_path / "run", record(audit=audit)))
    assert "Epsilon spent at least, by an audit of this run 3.456 at 95% confidence" in text


def test_a_run_of_no_steps_has_no_figures(tmp_path):
    whole = record()
    whole["privacy"] |= {"steps_taken": 0, "statement": "no training step was taken"}
    said = text_of(a_run(tmp_path / "run", whole))
    assert said.startswith("No training step was taken.")
    assert "Epsilon by RDP" not in said
