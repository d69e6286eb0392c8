"""What a record says of a run's guarantee, and of its cost where a process makes several runs."""

import re

import pytest

from dpft.config.compose import compose
from dpft.config.flags import sentences
from dpft.config.schema import parse
from dpft.privacy.accounting import epsilon_gdp_clt, epsilon_pld
from dpft.privacy.guarantee import least_claim
from dpft.report.card import model_card
from dpft.report.comparison import print_remarks
from dpft.runs.folders import run_path
from dpft.training import recording
from dpft.training import run as experiment
from tests.small_runs import ready, settings


def test_every_run_of_a_process_begins_with_a_peak_of_its_own(monkeypatch, tmp_path):
    happened = []

    def stop(*arguments):
        happened.append("prepare")
        raise KeyboardInterrupt

    monkeypatch.setattr(experiment, "forget_peak", lambda: happened.append("forget"))
    monkeypatch.setattr(experiment, "prepare", stop)
    words = ["task=sst2", "task.source=sample", "model=random-bert", f"runs_dir={tmp_path}"]
    with pytest.raises(KeyboardInterrupt):
        experiment.run_experiment(parse(compose(words)))
    assert happened == ["forget", "prepare"]


@pytest.mark.parametrize(("records", "told"), [(40, True), (96, False), (98, False), (100, True)])
def test_a_part_of_a_published_set_is_labelled(tmp_path, monkeypatch, records, told):
    monkeypatch.setattr(
        "dpft.tasks.metrics.e2e.score", lambda predictions, references: {"BLEU": 0.5}
    )
    monkeypatch.setattr("dpft.tasks.metrics.e2e.signature", lambda: "quick")
    for name, count in (("trainset", records), ("devset", 2), ("testset_w_refs", 2)):
        rows = "".join(f"name[A{i}],A{i} is good.\n" for i in range(count))
        (tmp_path / f"{name}.csv").write_text("mr,ref\n" + rows)
    settings = [
        *(f"task.data_dir={tmp_path}", "task.train_size=97", "clip=none", "optim.steps=1"),
        *("optim.batch_size=4", "decode=greedy", "decode.max_new_tokens=2", f"runs_dir={tmp_path}"),
    ]
    labels = sentences(experiment.run_experiment(parse(compose(settings))).record["flags"])
    label = f"{records} training records, where the published set has 97"
    assert (label in labels) == told


def record_of(run):
    """Of a run whose steps were taken, as it is before scoring."""
    with ready(run) as (prepared, directory, _):
        return recording.make_record(run, prepared, directory, 1.0, {})


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_the_statement_quotes_the_epsilon_of_the_accountant_that_it_names(
    tmp_path, capsys, accountant
):
    """Whatever the noise was calibrated by."""
    budget = ["privacy.noise_multiplier=null", "eps=2", f"privacy.accountant={accountant}"]
    run = settings(tmp_path, *budget, "optim.batch_size=2", "optim.steps=30", "privacy.delta=1e-3")
    record = record_of(run)
    setting = {
        "sampling_rate": 2 / 12,
        "noise_multiplier": record["mechanism"]["noise_multiplier"],
        "steps": 30,
        "delta": 1e-3,
    }
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


@pytest.mark.parametrize("repetitions", [1, 10])
def test_copies_of_a_secret_are_no_record_that_epsilon_is_for(tmp_path, repetitions):
    words = [
        *("task=e2e", "task.source=sample", "task.limit_train=20", "model=tiny", "name=small"),
        *("privacy.noise_multiplier=1", "optim.batch_size=6", "optim.steps=2", "threads=1"),
        *("audit.secrets=2", f"audit.repetitions={repetitions}", "audit.candidates=100"),
        f"runs_dir={tmp_path}",
    ]
    record = record_of(parse(compose(words)))
    told = "each of the 2 secrets is in the data 10 times: it has the influence of 10 records"
    assert any(told in one for one in record["privacy"]["caveats"]) is (repetitions == 10)
    assert (told in model_card(record)) is (repetitions == 10)
