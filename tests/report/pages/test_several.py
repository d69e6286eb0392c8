"""The page of several runs, of a folder and of a sweep."""

import pytest

from dpft.cli.report import build
from dpft.config.errors import ConfigError
from dpft.report.pages.gather import Options
from dpft.runs.finished import marked
from dpft.sweep import journal as events
from dpft.sweep.arguments import ParsedOverrides
from dpft.sweep.find import find
from dpft.sweep.folder import folder_of
from dpft.sweep.journal import Event, Journal
from dpft.sweep.points import Plan, Point
from tests.report.pages.example import LOSSES, Page, a_run, a_selection, config, ledger, record


def page_of(*paths, **options):
    return Page(build(find(list(paths)), Options(**options)))


@pytest.fixture
def runs(tmp_path):
    folder = tmp_path / "runs"
    a_run(folder / "worse", record(0.50))
    a_run(folder / "best", record(0.61, settings=config(seed=1)))
    a_run(folder / "plain", record(0.55, private=False, settings=config(clip={"style": "none"})))
    a_run(folder / "best.old-1", record(0.99))
    return folder


def test_runs_are_sorted_by_score_and_their_differences_shown(runs):
    page = page_of(runs)
    rows = page.text[page.text.index("Sorted by BLEU, highest first.") :]
    assert rows.index("best finished") < rows.index("plain finished") < rows.index("worse finished")
    assert "best finished ghost 0.1 1 0.6100 – 3.000 4 0:01:01" in rows
    assert "plain finished none – 0 0.5500 – none 4" in rows
    assert "0.9900" not in page.text  # set aside
    assert "1 of 3 runs have no privacy guarantee (plain)" in page.text
    assert "optim.lr" not in rows.partition("Each run")[0]
    assert str(runs.parent) not in page.text


def test_curves_are_laid_over_each_other_and_costs_composed(runs):
    public, private = page_of(runs), page_of(runs, private=True)
    assert "2 runs were trained with privacy on e2e" in public.text
    assert "the one that scored best, costs up to epsilon" in public.text
    assert public.text.count("Epsilon spent") == 1
    assert f"{LOSSES[0]:.4g}" not in public.text
    assert "Mean loss of the batch" in private.text
    assert "Mean loss" not in public.text
    assert "do not publish" in private.text


def scored(path, metrics, task="e2e", split="test"):
    scores = {split: {"metrics": metrics, "examples": 3, "signature": "s"}}
    settings = config(task__name=task, decode={"split": split})
    a_run(path, record(scores=scores, settings=settings))


def test_lower_perplexity_is_better_and_metrics_stand_together(tmp_path):
    scored(tmp_path / "a", {"token_perplexity": 20.0})
    scored(tmp_path / "b", {"BLEU": 0.1})
    scored(tmp_path / "c", {"token_perplexity": 10.0})
    text = page_of(tmp_path).text
    assert "token_perplexity, lowest first; then BLEU, highest first" in text
    assert text.index("c finished") < text.index("a finished") < text.index("b finished")


def test_scores_of_different_tasks_and_splits_are_not_ranked_together(tmp_path):
    scored(tmp_path / "a", {"accuracy": 0.5}, "sst2")
    scored(tmp_path / "b", {"accuracy": 0.7}, "mnli")
    scored(tmp_path / "c", {"accuracy": 0.9}, "sst2")
    scored(tmp_path / "d", {"accuracy": 0.8}, "sst2", "dev")
    text = page_of(tmp_path).text
    assert "accuracy of test on sst2, highest first; then accuracy of test on mnli" in text
    assert "cannot be compared" in text
    places = [text.index(f"{name} finished") for name in "cabd"]
    assert places == sorted(places)


def test_names_tell_runs_of_equal_folders_apart(tmp_path):
    one, two = a_run(tmp_path / "x" / "none"), a_run(tmp_path / "y" / "none")
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
    assert "What differs" in text
    assert "task.key_8 – 8" in text


def test_a_damaged_run_does_not_hide_the_others(runs):
    (runs / "worse" / "record.json").write_text("{")
    text = page_of(runs).text
    assert "record.json is not JSON" in text
    assert "best finished" in text


def test_a_sweep_shows_every_point(tmp_path):
    folder = folder_of(tmp_path / "runs", "mine")
    folder.path.mkdir(parents=True)
    points = [
        Point(("task=e2e", f"optim.lr={lr}"), f"hash-{lr}", tmp_path / "runs" / f"lr-{lr}", True)
        for lr in (1, 2, 3, 4)
    ]
    folder.describe(ParsedOverrides(("optim.lr=1,2,3,4",)), (), Plan(tuple(points), 0, tmp_path))
    a_run(points[0].path, record(0.4, config_hash="hash-1"))
    (points[0].path / "DONE").write_text(marked(points[0].path, "hash-1").spelled())
    ledger(points[1].path, steps=2)
    journal = Journal(folder.journal)
    journal.add(Event(events.FAILED, "hash-3", error="bad line: my secret"))
    text = page_of(folder.path).text
    for words in (
        "Sweep mine",
        "lr-1 finished",
        "lr-3 unfinished: failed",
        "lr-4 unfinished: waiting",
        "1.500 2 of 4",
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
