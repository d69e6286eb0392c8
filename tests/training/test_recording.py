"""What a record says of a run's guarantee, and of its cost where a process makes several runs."""

import re

import pytest

from dpft.config.flags import sentences
from dpft.privacy.accounting import epsilon_gdp_clt, epsilon_pld
from dpft.privacy.guarantee import least_claim
from dpft.report.card import model_card
from dpft.report.comparison import print_remarks
from dpft.runs.folders import run_path
from dpft.training.recording import make_record
from tests.small_runs import ready, settings


def record_of(run):
    """Of a run whose steps were taken, as it is before scoring."""
    with ready(run) as (prepared, _, _):
        return make_record(prepared, 1.0, {})


@pytest.mark.parametrize(("records", "labelled"), [(40, True), (96, False)])
def test_a_part_of_a_published_set_is_labelled(tmp_path, records, labelled):
    for name, count in (("trainset", records), ("devset", 2), ("testset_w_refs", 2)):
        rows = "".join(f"name[A{i}],A{i} is good.\n" for i in range(count))
        (tmp_path / f"{name}.csv").write_text("mr,ref\n" + rows)
    words = ["task=e2e", "task.source=auto", "task.limit_train=null", "model=random-gpt2"]
    words += [f"task.data_dir={tmp_path}", "task.train_size=97", "clip=none"]
    labels = sentences(record_of(settings(tmp_path, *words))["flags"])
    assert (f"{records} training records, where the published set has 97" in labels) == labelled


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_the_statement_quotes_the_epsilon_of_the_accountant_that_it_names(
    tmp_path, capsys, accountant
):
    """Whatever the noise was calibrated by."""
    budget = ["privacy.noise_multiplier=null", "eps=2", f"privacy.accountant={accountant}"]
    run = settings(tmp_path, *budget, "optim.batch_size=2", "optim.steps=30", "privacy.delta=1e-3")
    record = record_of(run)
    setting = {"sampling_rate": 2 / 12, "steps": 30, "delta": 1e-3}
    setting["noise_multiplier"] = record["mechanism"]["noise_multiplier"]
    proven = epsilon_pld(**setting)
    assert proven > 1.1 * epsilon_gdp_clt(**setting)
    print_remarks(run_path(run), record)
    for text in (record["privacy"]["statement"], model_card(record), capsys.readouterr().out):
        ((epsilon, delta),) = re.findall(
            r"\(([\d.]+), ([\d.e-]+)\)-differential\s+privacy\s+by\s+privacy\s+loss", text
        )
        assert proven <= float(epsilon) < proven + 0.001
        assert float(delta) == 1e-3
    assert least_claim(record["privacy"]["epsilon"]) == pytest.approx(
        min(proven, record["privacy"]["epsilon"]["prv"]["upper"])
    )
