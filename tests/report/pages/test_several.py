"""The page of several runs, of a folder and of a sweep."""

import json
import re
import statistics

import pytest

from dpft.cli.report import build
from dpft.config.errors import ConfigError
from dpft.report.pages.gather import Options, gather
from dpft.report.pages.ranking import Mean, ranked
from dpft.report.pages.several import together
from dpft.report.pages.tradeoff import tradeoffs
from dpft.runs.finished import marked
from dpft.sweep import journal as events
from dpft.sweep.arguments import ParsedOverrides
from dpft.sweep.find import find
from dpft.sweep.folder import folder_of
from dpft.sweep.journal import Event, Journal
from dpft.sweep.points import SweepPlan, SweepPoint
from tests.report.pages.example import (
    LOSSES,
    Page,
    a_run,
    a_selection,
    config,
    ledger,
    mechanism,
    record,
    write_lines,
)


def page_of(*paths, **options):
    return Page(build(find(list(paths)), Options(**options)))


@pytest.fixture
def runs(tmp_path):
    folder = tmp_path / "runs"
    a_run(folder / "worse", record(0.50))
    a_run(folder / "best", record(0.61, settings=config(optim__lr=0.001)))
    a_run(folder / "plain", record(0.55, private=False, settings=config(clip={"plan": "none"})))
    a_run(folder / "best.old-1", record(0.99))
    return folder


def test_runs_are_sorted_by_score_and_their_differences_shown(runs):
    page = page_of(runs)
    rows = page.text[page.text.index("Sorted by BLEU, highest first.") :]
    assert "best 0.001 0.6100 – 3.000 4 0:01:01 finished" in rows
    assert "plain 0.004 0.5500 – none 4" in rows
    assert rows.index("best 0.001") < rows.index("plain 0.004") < rows.index("worse 0.004")
    assert "0.9900" not in page.text  # set aside
    assert "1 of 3 runs have no privacy guarantee (plain)" in page.text
    assert "seed" not in rows.partition("Each run")[0]
    assert str(runs.parent) not in page.text


def test_a_copy_is_no_further_seed(tmp_path, capsys):
    folder = tmp_path / "all"
    for seed, bleu in ((1, 0.50), (2, 0.60)):
        found = record(bleu, settings={**config(), "seed": seed})
        found["training"] = {**found["training"], "seconds": 60.0 + seed}
        a_run(folder / "runs" / f"s{seed}", found)
        a_run(folder / "results" / f"s{seed}", found)
    page = page_of(folder)
    assert "0.5000 and 0.6000 with epsilon 3.000" in page.text
    assert "2 seeds" in page.text
    assert "2 runs were trained with privacy" in page.text
    copies = [f"runs/s{seed} is a copy of results/s{seed}" for seed in (1, 2)]
    said = capsys.readouterr().err
    assert all(copy in page.text and copy in said for copy in copies)


def test_no_total_is_proven_of_runs_whose_noise_a_search_chose(tmp_path):
    for name, sigma in (("one", 1.07), ("other", 1.5)):
        a_run(tmp_path / name, record(mechanism=mechanism(noise_multiplier=sigma)))
    found = [gather(target, Options(), 1) for target in find([tmp_path]).targets]
    for searched in (True, False):
        (said,) = together(found, searched)
        assert ("is then not proven" in said) == searched


def test_an_unfinished_run_whose_ledger_is_damaged_has_no_finite_cost(tmp_path):
    """It is not left out: what it released, it released."""
    a_run(tmp_path / "one", record())
    (tmp_path / "other").mkdir()
    (tmp_path / "other/config.yaml").touch()
    ledger(tmp_path / "other", steps=3)
    file = tmp_path / "other/ledger.jsonl"
    for damaged in (False, True):
        first, second, *others = file.read_bytes().splitlines(keepends=True)
        file.write_bytes(b"".join([first, second[:damaged] + second, *others]))
        found = [gather(target, Options(), 1) for target in find([tmp_path]).targets]
        (said,) = together(found, False)
        assert ("other: epsilon no finite number" in said) == damaged
        assert "Runs that are not finished" in said


def test_the_headline_states_what_holds_for_every_seed(tmp_path):
    finished = [record(0.6, settings={**config(), "seed": seed}) for seed in (0, 1)]
    killed = a_run(tmp_path / "one/s0", record(settings={**config(), "seed": 2}))
    (killed / "record.json").unlink()
    for seed in (0, 1):
        a_run(tmp_path / f"one/s{seed + 1}", finished[seed])
    assert "0.6000 and 0.6000 with epsilon 3.000" in page_of(tmp_path / "one").text

    sound, refuted = finished
    refuted["privacy"] = {**refuted["privacy"], "voided_by": ["refuted"]}
    a_run(tmp_path / "two/a", sound)
    a_run(tmp_path / "two/b", refuted)
    assert "with an epsilon of 3.000 that is not proven" in page_of(tmp_path / "two").text


def ranked_below(folder):
    return ranked([gather(target, Options(), 0) for target in find([folder]).targets], None)


def test_of_seeds_the_largest_epsilon_is_stated_and_none_where_one_has_none(tmp_path):
    for seed, stated in enumerate((2.0, 5.0, 3.0, None)):
        one = record(0.6, settings=config(seed=seed))
        one["privacy"] |= {"stated": stated}
        a_run(tmp_path / f"s{seed}", one)
        (group,) = ranked_below(tmp_path)
        assert len(group.runs) == seed + 1
        assert group.epsilon == (2.0, 5.0, 5.0, None)[seed]
        if seed == 2:
            text = page_of(tmp_path).text
            assert "0.6000 ± 0.0000 with epsilon 5.000" in text
            assert "What the epsilon means Epsilon 5.000." in text
    assert "with no finite epsilon" in page_of(tmp_path).text


def test_a_run_that_was_chosen_by_its_score_is_no_further_seed(tmp_path):
    a_selection(tmp_path / "one")
    a_run(tmp_path / "plain", record(0.5, settings=config(seed=1)))
    assert [[run.name for run in group.runs] for group in ranked_below(tmp_path)] == [
        ["chosen"],
        ["plain"],
    ]


def test_curves_are_laid_over_each_other_and_costs_composed(runs):
    public, private = page_of(runs), page_of(runs, private=True)
    assert "2 runs were trained with privacy on e2e" in public.text
    assert "the one that scored best, costs up to epsilon" in public.text
    assert "Epsilon spent" not in public.text  # which one curve each would say less than the table
    assert f"{LOSSES[0]:.4g}" not in public.text
    assert "Mean loss of the batch" in private.text
    assert "Mean loss" not in public.text
    assert "do not publish" in private.text
    (runs / "worse/record.json").unlink()
    assert "planned steps, by RDP: worse: epsilon " in page_of(runs).text


def scored(path, metrics, task="e2e", split="test", **changes):
    scores = {split: {"metrics": metrics, "examples": 3, "signature": "s"}}
    rate = {"optim__lr": next(iter(metrics.values()))}  # so that no two are repetitions
    settings = config(task__name=task, decode={"split": split}, **rate | changes)
    a_run(path, record(scores=scores, settings=settings))


def test_lower_perplexity_is_better_and_metrics_stand_together(tmp_path):
    scored(tmp_path / "a", {"token_perplexity": 20.0})
    scored(tmp_path / "b", {"BLEU": 0.1})
    scored(tmp_path / "c", {"token_perplexity": 10.0})
    text = page_of(tmp_path).text
    assert "token_perplexity, lowest first; then BLEU, highest first" in text
    assert text.index("c 10.0 ") < text.index("a 20.0 ") < text.index("b 0.1 ")


def test_scores_of_different_tasks_and_splits_are_not_ranked_together(tmp_path):
    scored(tmp_path / "a", {"accuracy": 0.5}, "sst2")
    scored(tmp_path / "b", {"accuracy": 0.7}, "mnli")
    scored(tmp_path / "c", {"accuracy": 0.9}, "sst2")
    scored(tmp_path / "d", {"accuracy": 0.8}, "sst2", "dev")
    text = page_of(tmp_path).text
    assert "accuracy of test on sst2, highest first; then accuracy of test on mnli" in text
    assert "cannot be compared" in text
    text = text[text.index("Sorted by") :]
    assert re.findall(r" ([abcd]) 0\.", text) == list("cabd")


def test_names_tell_runs_of_equal_folders_apart(tmp_path):
    one = a_run(tmp_path / "x" / "none")
    two = a_run(tmp_path / "y" / "none", record(0.58))
    found = find([one, two / "record.json"])
    assert [target.name for target in found.targets] == ["x/none", "y/none"]
    assert found.folder == tmp_path.resolve()
    assert "Their settings are the same" in page_of(one, two).text
    assert len(find([one, one]).targets) == 1


def test_many_differences_get_a_table_of_their_own(tmp_path):
    a_run(tmp_path / "a")
    more = {f"key_{k}": k for k in range(9)}
    a_run(tmp_path / "b", record(settings=config(task={"name": "other", **more})))
    text = page_of(tmp_path).text
    assert "What else differs" in text
    assert "task.key_8 – 8" in text


def test_a_damaged_run_does_not_hide_the_others(runs):
    (runs / "worse" / "record.json").write_text("{")
    text = page_of(runs).text
    assert "record.json is not JSON" in text
    assert "best 0.6100 – 3.000 4" in text


def test_a_sweep_shows_every_point(tmp_path):
    folder = folder_of(tmp_path / "runs", "mine")
    folder.path.mkdir(parents=True)
    points = [
        SweepPoint(
            ("task=e2e", f"optim.lr={lr}"), f"hash-{lr}", tmp_path / "runs" / f"lr-{lr}", True
        )
        for lr in (1, 2, 3, 4)
    ]
    folder.describe(
        ParsedOverrides(("optim.lr=1,2,3,4",)), (), SweepPlan(tuple(points), 0, tmp_path)
    )
    a_run(points[0].path, record(0.4, config_hash="hash-1"))
    (points[0].path / "DONE").write_text(marked(points[0].path, "hash-1").spelled())
    ledger(points[1].path, steps=2, mechanism=mechanism(noise_multiplier=0.8))
    journal = Journal(folder.journal)
    journal.add(Event(events.FAILED, "hash-3", error="bad line: my secret"))
    text = page_of(folder.path).text
    for words in (
        "Sweep mine",
        "lr-1 1 0.4000 – 3.000 4 0:01:01 finished",
        "lr-3 3 – – – – – unfinished: failed",
        "lr-4 4 – – – – – unfinished: waiting",
        "2.279 2 of 4",
        "optim.lr=3",
    ):
        assert words in text
    assert "my secret" not in text
    assert "my secret" in page_of(folder.path, private=True).text
    assert find([folder.path]).folder == folder.path
    assert len(find([folder.path, points[0].path]).targets) == 2
    folder.journal.write_text("{}\n")
    assert "journal.jsonl, line 1" in page_of(folder.path).text


def test_where_there_is_no_run_is_one_message(tmp_path):
    with pytest.raises(ConfigError, match="there is no folder"):
        find([tmp_path / "nothing"])
    with pytest.raises(ConfigError, match="holds no runs; expected a run directory"):
        find([tmp_path])
    with pytest.raises(ConfigError, match="type dpft report RUN"):
        find([])


def test_secret_trials_are_on_no_page_and_are_not_counted(tmp_path):
    a_run(tmp_path / "runs/plain")
    selection = a_selection(tmp_path / "runs/selections/one")
    for folder, names in ((tmp_path / "runs", ["plain", "chosen"]), (selection, ["chosen"])):
        assert [target.name for target in find([folder], private=True).targets] == names
    text = page_of(tmp_path / "runs").text
    assert "0.7777" not in text  # a trial's score
    assert "Of 1 that dpft select chose, the whole selection is counted" in text
    assert "Epsilon above includes the choice" in page_of(selection / "chosen").text


def test_a_trial_that_is_given_by_name_is_for_private_pages_only(tmp_path):
    trials = a_selection(tmp_path / "one") / "private/trials"
    (tmp_path / "one/private/selection_key").unlink()
    with pytest.raises(ConfigError, match="secret trials"):
        find([trials / "a"])
    assert len(find([trials], private=True).targets) == 2


def test_a_folder_above_may_be_called_private(tmp_path):
    a_run(tmp_path / "private/runs/a")
    assert [target.name for target in find([tmp_path / "private/runs"]).targets] == ["a"]


def answered(path, texts):
    path.mkdir(parents=True, exist_ok=True)
    write_lines(
        path / "generations/test.jsonl",
        [{"source": ask, "prediction": say, "references": ["r"]} for ask, say in texts.items()],
    )


def test_seeds_are_one_row_with_mean_and_standard_error(tmp_path):
    for seed, bleu in enumerate((0.5, 0.6, 0.7)):
        a_run(tmp_path / f"s{seed}", record(bleu, settings=config(seed=seed)))
    a_run(tmp_path / "lower-rate", record(0.1, settings=config(optim__lr=0.001)))
    ledger(tmp_path / "s3", steps=2)
    identity = {"config": config(seed=3), "config_hash": "x"}
    (tmp_path / "s3/identity.json").write_text(json.dumps(identity))
    page = page_of(tmp_path)
    # The sample deviation is 0.1, of three: 0.1 / sqrt(3).
    assert "BLEU 0.600 ± 0.058 with epsilon 3.000." in page.text
    assert "the best of 2, mean of 3 seeds ± standard error" in page.text
    row = "seeds 0 , 1 , 2 , 3 0.004 0.600 ± 0.058 – 3 3.000 4 / 2 of 4 0:01:01 3 finished"
    assert row in page.text
    assert "lower-rate 0.001 0.1000 – 1 3.000 4" in page.text


def test_a_mean_that_lacks_a_diverged_run_says_so(tmp_path):
    """Its other scores are there, and its perplexity is infinite: the mean is not over all."""
    for seed, perplexity in enumerate((12.0, 14.0, None)):
        one = record(0.6, settings=config(seed=seed))
        one["scores"]["test"]["metrics"]["perplexity"] = perplexity
        a_run(tmp_path / f"s{seed}", one)
    assert "0.6000 ± 0.0000 – 12.00 and 14.00 (n = 2) 3 3.000" in page_of(tmp_path).text


def test_what_runs_wrote_for_one_prompt_stands_together(tmp_path):
    a_run(tmp_path / "a")
    a_run(tmp_path / "b", record(0.1, settings=config(optim__lr=0.001)))
    asked = [f"ask {n}" for n in range(6)]
    answered(tmp_path / "a", {ask: f"a says {ask}" for ask in asked})
    answered(tmp_path / "b", {ask: f"b says {ask}" for ask in reversed(asked)})
    text = page_of(tmp_path).text
    assert "4 of 12 generations" in text
    for ask in ("ask 0", "ask 3"):
        assert f"asked {ask} a a says {ask} b b says {ask} references r" in text
    assert "b says ask 5" not in text


def test_scores_are_drawn_against_epsilon_from_zero(tmp_path):
    """At the axis' scale: epsilon 2 lies at a quarter of 8, 0.2 at half the height of 0.4."""
    for name, epsilon, bleu in (("a", 2.0, 0.2), ("b", 8.0, 0.4)):
        whole = record(bleu, settings=config(privacy__epsilon=epsilon))
        whole["privacy"] |= {"stated": epsilon}
        a_run(tmp_path / name, whole)
    a_run(tmp_path / "plain", record(0.3, private=False, settings=config(clip={"plan": "none"})))
    (drawn,) = tradeoffs(ranked_below(tmp_path))
    b, plain, a = (re.match(r"M([\d.]+) ([\d.]+)", dot.path) for dot in drawn.dots)
    left, (x_a, y_a), (x_b, y_b) = drawn.LEFT - 5, *((float(m[1]), float(m[2])) for m in (a, b))
    assert (x_b - left) == pytest.approx(4 * (x_a - left), abs=0.5)
    assert (drawn.BASE - y_b) == pytest.approx(2 * (drawn.BASE - y_a), abs=0.5)
    assert float(plain[1]) > x_b
    assert drawn.across[0] == (drawn.LEFT, "0")
    assert drawn.across[-1][1] == "no privacy"
    assert (drawn.up[0][1], drawn.up[0][0]) == ("0.0", drawn.BASE)
    assert len(drawn.curves) == 1  # what has no privacy is joined with nothing
    sentence = "BLEU 0.2000 with epsilon 2.000, 0.4000 with epsilon 8.000, 0.3000 with no privacy"
    assert sentence in page_of(tmp_path).text


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([0.5], "0.5000"),
        ([9.0351, 9.7607], "9.0351 and 9.7607"),
        ([0.5, 0.6, 0.7], "0.600 ± 0.058"),
        ([50.0, 60.0, 70.0], "60.0 ± 5.8"),
        ([0.5, 0.5, 0.5], "0.5000 ± 0.0000"),
    ],
)
def test_two_runs_show_both_values_and_more_a_mean_with_two_digits_of_its_error(values, shown):
    n, mean = len(values), statistics.fmean(values)
    error = statistics.stdev(values) / n**0.5 if n > 1 else None
    assert str(Mean(mean, error, n)) == shown


def test_a_legend_has_the_names_of_runs(tmp_path):
    for name, rate in (("careful", 0.001), ("bold", 0.01)):
        a_run(tmp_path / name, record(settings=config(optim__lr=rate)))
    (drawn,) = tradeoffs(ranked_below(tmp_path))
    assert sorted(name for name, _ in drawn.legend) == ["bold", "careful"]


def test_bars_are_one_standard_error_up_and_down(tmp_path):
    """Of 0.2 and 0.4 the error is 0.1: the bar is from the one to the other, where 0.4 is drawn."""
    for name, epsilon, seed, bleu in (("a", 2.0, 0, 0.2), ("b", 2.0, 1, 0.4), ("c", 8.0, 0, 0.4)):
        whole = record(bleu, settings=config(privacy__epsilon=epsilon, seed=seed))
        whole["privacy"] |= {"stated": epsilon}
        a_run(tmp_path / name, whole)
    (drawn,) = tradeoffs(ranked_below(tmp_path))
    alone, averaged = drawn.dots
    assert alone.bar == ""
    high = float(re.match(r"M[\d.]+ ([\d.]+)", alone.path)[1])
    top, bottom = map(float, re.match(r"M[\d.]+ ([\d.]+)V([\d.]+)", averaged.bar).groups())
    assert top == pytest.approx(high, abs=0.2)
    assert drawn.BASE - bottom == pytest.approx((drawn.BASE - high) / 2, abs=0.2)
