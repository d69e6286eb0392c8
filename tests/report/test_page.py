"""The HTML page of one run or several: what is on it, and above all what is not."""

import json
import re
import shutil
from pathlib import Path

import pytest
from scipy import stats
from typer.testing import CliRunner

from dpft.cli.app import app
from dpft.config.errors import ConfigError
from dpft.config.flags import Flag, flag
from dpft.privacy.accounting.pld import gaussian_epsilon
from dpft.report.gather import Target, gather
from dpft.report.page import bounds, drawn
from dpft.runs.folders import marked
from dpft.sweep.points import ParsedOverrides, SweepPlan, SweepPoint
from dpft.sweep.state import find
from dpft.sweep.sweep_folder import Failure, folder_of
from tests.report.pages.example import (
    DELTA,
    LOSSES,
    NORMS,
    Page,
    a_run,
    a_selection,
    config,
    ledger,
    mechanism,
    record,
)

# Four steps on all records with twice the noise: one Gaussian release with mu = 1.
WHOLE = mechanism(sampling_rate=1.0, noise_multiplier=2.0)


def html_of(*words):
    result = CliRunner().invoke(app, ["report", *map(str, words)])
    assert result.exit_code == 0, result.output
    (*_, file) = result.stdout.splitlines()
    return Path(file).read_text(encoding="utf-8")


def text_of(*words):
    return Page(html_of(*words)).text


def of_whole(**privacy):
    whole = record(mechanism=WHOLE)
    whole["privacy"] |= {"stated": gaussian_epsilon(1.0, DELTA), "accountant": "pld", **privacy}
    return whole


def test_nothing_of_the_private_folder_is_on_the_page(tmp_path):
    run = a_run(tmp_path / "run")
    html = html_of(run)
    for number in [*LOSSES, *NORMS, 0.98765432, 5.08217721]:
        for digits in range(3, 9):
            assert f"{number:.{digits}g}" not in html
    for batch in (1045, 1052, 1059, 1066):
        assert not re.search(rf"(?<![\d.]){batch:,}(?!\d)|(?<![\d.]){batch}(?!\d)", html)
    assert "say 1" not in html  # nor are prompts, references and what was written to them
    (run / "private/metrics.jsonl").write_text('{"step": 0, "loss": 99999.125}\n')
    assert html_of(run) == html
    shutil.rmtree(run / "private")
    (run / "private").write_text("not even a folder")
    assert html_of(run) == html


def test_everything_that_a_run_left_is_shown(tmp_path):
    audit = {"epsilon_lower": 3.4567, "confidence": 0.95, "refuted": False}
    held_out = flag(Flag.HELD_OUT, split="test", share=0.1, noun="record")
    flags = [*record()["flags"], held_out]
    settings = config(audit={"gradients": 1000})
    text = text_of(a_run(tmp_path / "run", record(settings=settings, audit=audit, flags=flags)))
    for said in (
        "Each of 41,061 records that the model is trained on",  # and 1,000 canaries
        "bundled tiny model",
        "A share of the data was held out",
        "Epsilon is at most 3.000 and delta 1e-05, 1 in 100,000, for each record: a reasonable "
        "bound. Only 42 records",
        "(3, 1e-05)-differential privacy by Renyi accounting.",
        "Epsilon by RDP (upper bound) 3.000",
        "Epsilon by PRV (upper bound for removal; for addition unproven) 2.700",
        "Epsilon spent at least, by an audit of this run 3.456 at 95% confidence",
        "Noise multiplier 0.7103",
        "test BLEU 0.5900 - 630",
        "dataset.fingerprint 484b02cba9a223a2",
        "task.data_dir …/e2e",
    ):
        assert said in text, said
    assert "/home/me" not in text


def test_an_unfinished_run_says_what_its_ledger_counts_and_what_all_steps_cost(tmp_path):
    run = tmp_path / "begun"
    shuffled = mechanism(noise_multiplier=0.8, sampling="shuffle")
    ledger(run, steps=2, mechanism=shuffled)
    settings = {"config": config(privacy__noise_seed=3), "config_hash": "x"}
    (run / "identity.json").write_text(json.dumps(settings))
    text = text_of(run)
    for said in (
        "This run is unfinished. To continue it, type dpft train resume=RUN",
        "Epsilon computed for Poisson sampling, run with shuffled batches.",
        "explicit seed 3",
        "costs epsilon 2.279 by Renyi accounting, that of all 4 planned steps. The epsilon of the "
        "2 steps so far, 2.146, holds only if the run was stopped for a reason",
        "Steps in the ledger 2 of 4 Delta 1e-05 Unit of privacy one row",
        "Not scored yet: type dpft",
    ):
        assert said in text


def test_a_page_with_nothing_to_show_is_one_line_with_the_next_command(tmp_path):
    ledger(tmp_path / "runs/none", steps=0)
    (tmp_path / "runs/new").mkdir()
    (tmp_path / "runs/new/identity.json").write_text(json.dumps({"config": config()}))
    line = "Nothing to show yet: the run is unfinished. Next: dpft train resume=RUN"
    for name in ("none", "new"):
        assert text_of(tmp_path / "runs" / name).endswith(f"the content {name} {line}")
    line = "Nothing to show yet: no run is finished. Next: dpft train resume=RUN"
    assert text_of(tmp_path / "runs").endswith(f"runs: 2 runs {line}")
    (tmp_path / "runs/new/record.json").write_text("{")  # of which nothing is known
    assert "It is not known whether" in text_of(tmp_path / "runs/new")


def scored(bleu=0.59, **changes):
    """A record whose references are known to be published, or generated."""
    made = record(bleu, generations={"test": "generations/test.jsonl"}, **changes)
    made["scores"]["test"]["references"] = "c139c925e68f650c"
    return made


def test_a_score_is_shown_next_to_those_on_the_same_records_in_the_same_folder(tmp_path):
    run = a_run(tmp_path / "run", scored())
    assert "clip=none name=NEW" in text_of(run)
    untrained = scored(0.11)
    untrained["privacy"] |= {"kind": "nothing released", "stated": 0.0, "statement": "untouched"}
    a_run(tmp_path / "untrained", untrained)
    a_run(tmp_path / "plain", scored(0.7, private=False))
    a_run(tmp_path / "worse", scored(0.65, private=False))
    a_run(tmp_path / "before.old-1", scored(0.98, private=False))
    a_run(tmp_path / "others", record(0.97, private=False))
    a_run(tmp_path / "elsewhere/far", scored(0.96, private=False))
    fewer = scored(0.95, private=False)
    fewer["scores"]["test"]["examples"] = 629
    a_run(tmp_path / "fewer", fewer)
    settings = config(task={"name": "e2e", "source": "auto", "max_length": 9})
    a_run(tmp_path / "cut", scored(0.94, private=False, settings=settings))
    text = text_of(run)
    for words in (
        "this run 0.5900 without privacy (run plain) 0.7000 before training (run untrained) 0.1100",
        "Privacy costs 0.11 BLEU, compared with the run without it. No guarantee covers",
    ):
        assert words in text
    assert not re.search(r"0\.9[4-8]", text)
    assert "Privacy costs" not in text_of(tmp_path / "untrained")


def marks(*words):
    """Name and score of each run in the plot, its place, and whether its circle is open."""
    circle = r'<circle cx="(.+?)" cy="(.+?)" r="4"( class="open")?><title>(.+?) (\S+)</title>'
    found = re.findall(circle, html_of(*words))
    return {name: (float(x), float(y), bool(void)) for x, y, void, name, _ in found}


def test_the_plot_has_scores_by_epsilon(tmp_path):
    for name, epsilon, bleu in (("one", 1.0, 0.3), ("three", 3.0, 0.5), ("nine", 9.0, 0.4)):
        made = scored(bleu)
        made["privacy"] |= {"stated": epsilon}
        a_run(tmp_path / "runs" / name, made)
    made["privacy"] |= {"voided_by": ["shuffled"], "warnings": ["Not proven."]}
    a_run(tmp_path / "runs/nine", made)
    a_run(tmp_path / "runs/plain", scored(0.6, private=False))
    found = marks(tmp_path / "runs")
    (one, three, nine, plain) = (found[name] for name in ("one", "three", "nine", "plain"))
    assert three[0] > one[0] + 50
    assert three[0] - one[0] == pytest.approx(nine[0] - three[0])  # a logarithmic axis
    assert nine[0] < plain[0]
    # Up is a higher score, and equal differences are equally far apart.
    assert one[1] > nine[1] + 40
    assert [one[1] - nine[1], nine[1] - three[1]] == pytest.approx([three[1] - plain[1]] * 2, abs=1)
    assert [void for *_, void in (one, three, nine, plain)] == [False, False, True, False]


def test_names_in_the_plot_do_not_overlap():
    points = [(n / 40, str(n), n % 7 / 100, f"run-{n}", True) for n in range(40)]
    named = [mark for mark in drawn(points, None)["marks"] if mark["labelled"]]
    assert len(named) > 5
    for mark in named:
        assert 45 <= mark["left"] < mark["right"] <= 400
        near = [other for other in named if other is not mark and abs(other["y"] - mark["y"]) < 11]
        assert not any(o["left"] < mark["right"] and mark["left"] < o["right"] for o in near)


def change(part, **values):
    return lambda made: made[part].update(values)


BEFORE = {"flag": "trained_on_unknown"}
SYNTHETIC = {"flag": "synthetic_data"}


@pytest.mark.parametrize(
    ("shown", "changed"),
    [
        (True, lambda made: None),
        (True, change("dataset", source="sample", counts={"train": 70})),
        (False, lambda made: made["scores"]["test"].pop("references")),
        (False, change("dataset", counts={"train": 4455})),  # other data in the form of E2E
        (False, lambda made: made["scores"]["test"].update(examples=545)),
        (False, change("dataset", task="classification")),
        (False, change("dataset", task="mine:Task")),
        (False, lambda made: made["flags"].append(BEFORE)),
        (False, lambda made: made["flags"].append(SYNTHETIC)),
    ],
)
def test_texts_are_shown_only_of_data_that_are_generated_or_published(tmp_path, shown, changed):
    made = scored()
    changed(made)
    text = text_of(a_run(tmp_path / "run", made))
    assert ("ask 0 run say 0 reference one 0" in text) is shown
    assert len(re.findall(r"(say|ask|one) \d", text)) == (9 if shown else 0)
    assert ("No generations are shown" in text) is not shown


def test_what_is_damaged_is_named_and_the_rest_is_shown(tmp_path):
    run = a_run(tmp_path / "run")
    lines = (run / "ledger.jsonl").read_text().splitlines()
    (run / "ledger.jsonl").write_text("\n".join([lines[0], "{oops", *lines[2:], ""]))
    text = text_of(run)
    assert "ledger.jsonl, line 2: not JSON" in text
    assert "test BLEU 0.5900" in text
    (run / "generations/test.jsonl").write_text("{oops")
    (run / "record.json").write_text(json.dumps(scored()))
    assert "test.jsonl has a line that is no prediction" in text_of(run)
    (run / "record.json").write_text("{")
    text = text_of(run)
    assert "record.json is not JSON" in text
    assert "unfinished" in text
    assert str(tmp_path) not in text


EVIL = "</title></style></td><script>alert(1)</script>' onload='x\" \x00\u202e"


def poisoned(value):
    """The same with more in each text and in each name of a setting, a score or a package."""
    if isinstance(value, dict):
        return {key: poisoned(part) for key, part in value.items()}
    if isinstance(value, list):
        return [poisoned(part) for part in value]
    return f"{value}{EVIL}" if isinstance(value, str) else value


def test_every_text_is_escaped_whatever_it_holds(tmp_path):
    run = a_run(tmp_path / "a<b>&'c", groups=[f"one {EVIL}", f"two {EVIL}"])
    whole = poisoned(record(settings=config(clip={"plan": "x", "groups": "y"})))
    whole |= {"stage": "scored"}
    whole["privacy"] |= {"kind": "private", "accountant": "rdp", "warnings": [EVIL]}
    whole["mechanism"]["sampling"] = "poisson"
    whole["config"]["decode"]["split"] = "test"
    whole["config"]["task"][EVIL] = EVIL
    whole["scores"]["test"]["metrics"][EVIL] = 0.5
    whole["flags"] = [flag(Flag.NOTE, text=EVIL)]
    whole["environment"]["packages"][EVIL] = EVIL
    (run / "record.json").write_text(json.dumps(whole))
    other = a_run(tmp_path / "other")
    for paths in ([run], [run, other]):
        html = html_of(*paths)
        assert not re.search("<script|[\x00\u202e]", html)
        page = Page(html)
        assert page.text.count("<script>alert(1)</script>' onload='x\"") > 10
        assert "a<b>&'c" in page.text


def test_evaluations_are_shown_where_they_are_public(tmp_path):
    chosen = {"of": "dev", "public": True, "records": 50, "every": 2, "evaluations": 2}
    chosen |= {"metric": None, "chosen": None, "history": [{"step": 2, "loss": 1.25}, {"step": 4}]}
    text = text_of(a_run(tmp_path / "run", record(evaluation=chosen)))
    assert "step loss 2 1.25 4 –" in text
    assert "held-out records while" not in text  # one number is no curve
    chosen["history"][1:] = [{"step": n, "loss": 1.25 - n / 10} for n in (4, 6)]
    html = html_of(a_run(tmp_path / "run", record(evaluation=chosen)))
    assert "loss of held-out records while the model trained" in html
    (line,) = re.findall(r'<polyline points="(.*?)"', html)
    (first, second, third) = [tuple(map(float, point.split(","))) for point in line.split()]
    assert second[0] - first[0] == pytest.approx(third[0] - second[0])
    assert first[1] < second[1] < third[1]  # downwards
    del chosen["history"]
    text = text_of(a_run(tmp_path / "run", record(evaluation=chosen | {"public": False})))
    assert "The scores of each evaluation are not public" in text


def test_the_numbers_for_a_reviewer_are_those_of_the_best_test_there_is(tmp_path):
    text = text_of(a_run(tmp_path / "run", of_whole()))
    exact = [stats.norm.cdf(stats.norm.ppf(rate) + 1) for rate in (0.01, 0.05)]
    found = [float(number) for number in re.findall(r"unused ones \d (\d+)", text)]
    assert found == [int(100 * value) + 1 for value in exact] == [10, 26]
    assert "right at most 70 times out of 100" in text  # Phi(1/2) is 0.691
    assert "epsilon = 4.378" in text
    assert "For a person with two records epsilon is 8.755" in text
    assert "Each of 42,061 records that the model is trained on. One record is one row" in text
    assert "The run's ledger counts 4 noisy steps, as its record does." in text
    audit = {"epsilon_lower": 1.2345, "confidence": 0.95, "refuted": False}
    whole = of_whole(noun="user", unit="all rows of one name", selected=True) | {"audit": audit}
    whole["flags"] = [flag(Flag.HELD_OUT, split="test", share=0.1, noun="user")]
    text = text_of(a_run(tmp_path / "users", whole))
    assert "A person with two names counts as two users. For such a person epsilon is 8.755" in text
    assert "an epsilon of at least 1.234 at 95% confidence" in text
    assert "the scores are computed from, which were held out of the same" in text
    assert "choice of this model among several is included" in text


def test_what_the_mechanism_does_not_confirm_rests_on_epsilon_and_delta_alone(tmp_path):
    def found(whole):
        run = gather(Target(a_run(tmp_path / "run", whole), "run"))
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
        ({"voided_by": ["known seed"]}, "privacy.noise_seed=null"),
        ({"stated": None, "strength": "none", "meaning": "Nothing."}, "Nothing."),
        ({"stated": 31.0, "strength": "weak", "meaning": "Nothing follows."}, "Nothing follows."),
    ],
)
def test_a_guarantee_that_says_nothing_has_no_numbers(tmp_path, privacy, said):
    text = text_of(a_run(tmp_path / "run", of_whole(**privacy)))
    assert said in text
    assert "out of 100" not in text


def test_runs_are_sorted_by_score_and_their_differences_shown(tmp_path):
    runs = tmp_path / "runs"
    a_run(runs / "worse", record(0.50))
    a_run(runs / "best", record(0.61, settings=config(optim__lr=0.001)))
    a_run(runs / "plain", record(0.55, private=False, settings=config(clip={"plan": "none"})))
    a_run(runs / "best.old-1", record(0.99))
    text = text_of(runs)
    rows = text[text.index("Sorted by BLEU of test on e2e, highest first.") :]
    assert "best 3.000 0.6100 – 4 0:01:01 finished ghost 0.1 0.001" in rows
    assert "plain none 0.5500 – 4 0:01:01 finished none – 0.004" in rows
    assert rows.index("best 3") < rows.index("plain none") < rows.index("worse 3")
    assert "0.9900" not in text  # set aside
    assert "1 of 3 runs has no privacy guarantee (plain)" in text
    assert "The best run with privacy, best:" in text
    assert "this run 0.6100 without privacy (run plain) 0.5500" in text
    assert "Privacy costs no BLEU" in text
    assert "There are other runs with privacy." in text
    assert "2 runs were trained with privacy on e2e" in text
    assert "2 of 4" not in text
    assert str(runs.parent) not in text
    (runs / "worse/record.json").write_text("{")
    text = text_of(runs)
    assert "record.json is not JSON" in text
    assert "planned steps, by RDP: worse: epsilon " in text


def test_a_sweep_shows_every_point_and_no_error_that_quotes_data(tmp_path):
    folder = folder_of(tmp_path / "runs", "mine")
    folder.path.mkdir(parents=True)
    points = [
        SweepPoint((f"optim.lr={lr}",), f"hash-{lr}", tmp_path / "runs" / f"lr-{lr}", True)
        for lr in (1, 2, 3, 4)
    ]
    plan = SweepPlan(tuple(points), 0, tmp_path)
    folder.describe(ParsedOverrides(("optim.lr=1,2,3,4",)), (), plan)
    a_run(points[0].path, record(0.4, config_hash="hash-1"))
    (points[0].path / "DONE").write_text(marked(points[0].path, "hash-1"))
    ledger(points[1].path, steps=2, mechanism=mechanism(noise_multiplier=0.8))
    folder.fail("hash-3", Failure(error="bad line: my secret", diverged=False))
    text = text_of(folder.path)
    for words in (
        "Sweep mine",
        "lr-1 3.000 0.4000 – 4 0:01:01 finished",
        "lr-2 2.279 – – 2 of 4",
        "unfinished: failed",
        "unfinished: waiting",
        "Point of the sweep: optim.lr=3",
    ):
        assert words in text
    assert "my secret" not in text


def test_secret_trials_are_on_no_page_and_are_not_counted(tmp_path):
    a_run(tmp_path / "runs/plain")
    selection = a_selection(tmp_path / "runs/selections/one")
    for folder, names in ((tmp_path / "runs", ["plain", "chosen"]), (selection, ["chosen"])):
        assert [target.name for target in find([folder]).targets] == names
    text = text_of(tmp_path / "runs")
    assert "0.7777" not in text  # a trial's score
    assert "For 1 of them, which dpft sweep --select chose, the whole selection is counted" in text
    trials = selection / "private/trials"
    with pytest.raises(ConfigError, match="secret trials"):
        find([trials / "a"])
