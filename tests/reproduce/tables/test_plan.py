"""From a table's file to composed runs, and to the commands of those that are missing."""

import pytest

from dpft.config.compose import compose
from dpft.config.errors import ConfigError
from dpft.config.schema import parse
from dpft.reproduce import papers
from dpft.reproduce.figures.catalog import figures
from dpft.reproduce.tables.cells import missing
from dpft.reproduce.tables.planned import SCALES, make_plan, planned
from dpft.reproduce.tables.record_index import Index, make_index
from dpft.runs.identity import config_hash
from dpft.tasks import load_task
from dpft.training.mechanisms import expected_batch_size, published_size
from tests.reproduce.tables.example import plan, run_of, table, write_record


def test_laptop_replaces_setting_swaps_words_and_skips():
    the_plan = plan("laptop")
    assert [row.name for row in the_plan.skipped] == ["LoRA, 3"]
    assert [column.key for column in the_plan.columns] == ["bleu", "rouge_l", "human"]
    one = run_of(the_plan, "full")
    assert one.words == (
        *("task=e2e", "task.limit_train=5000", "clip=bk", "optim.batch_size=500"),
        *("privacy.accountant=rdp", "model=tiny", "adapt=full", "eps=3"),
    )
    assert the_plan.seeds == (0,)
    assert plan().seeds == (0, 1)


@pytest.mark.parametrize("seed", [0, 7])
def test_hash_of_a_seed_is_that_of_composing_with_it(seed):
    one = run_of(plan(), "LoRA")
    run = parse(compose(one.overrides(seed)))
    assert one.config_hash(seed) == config_hash(run.identity())


def test_overrides_of_the_user_come_last_and_some_are_refused():
    extra = plan(extra=("optim.lr=5e-3", "device=cpu"))
    assert run_of(extra, "LoRA").run.optim.lr == 5e-3
    for word in ("seed=3", "name=x", "force=true"):
        with pytest.raises(ConfigError, match="which a table decides"):
            make_plan(table(), extra=[word])
    with pytest.raises(ConfigError, match=r"decode\.split is dev; expected test"):
        planned(["task=e2e", "decode.split=dev"], "test")


@pytest.mark.parametrize(
    ("name", "word", "altered"),
    [
        ("li2022/figure-2", "optim.batch_size=1024", {True, False}),  # of its column only
        ("bu2023/3", "eps=8", {True, False}),  # runs without privacy have no epsilon
        ("he2022/4", "adapt=lora", {True}),
        ("he2022/4", "adapt=attention", {False}),
    ],
)
def test_what_tells_cells_apart_is_not_free_though_it_is_not_printed(name, word, altered):
    the_plan = make_plan(papers.load(*name.split("/")), extra=[word])
    assert {run.altered for run in the_plan.runs.values()} == altered
    commands = [one.line for one in missing(the_plan, Index())]
    assert len(commands) == len(set(commands))


def test_every_shipped_row_composes_at_both_scales():
    """Batches fit into the data, too; the noise is not calibrated, which takes long."""
    wrong, tasks = [], {}
    shipped = {name: papers.load(*name.split("/")) for name in papers.names()}
    lists = [one for figure in figures().values() for one in figure.tables if one.is_list]
    shipped |= {f"list {one.name}": one.load() for one in lists}
    for name, one_table in shipped.items():
        for scale in SCALES:
            if scale == "laptop" and one_table.laptop is None:
                continue
            runs = make_plan(one_table, scale).runs.values()
            for one in {run.words: run for run in runs}.values():
                size = published_size(one.run)
                batch = expected_batch_size(one.run.optim, size)
                if not 1 <= batch <= size:
                    wrong.append(f"{name}, {scale}: batches of {batch} of {size}: {one.words}")
                tasks[str(one.run.task)] = one.run.task
    assert not wrong, "\n".join(wrong)
    for task in tasks.values():
        load_task(task)


def test_what_is_recorded_is_not_missing(tmp_path):
    full, lora = run_of(plan(), "full"), run_of(plan(), "LoRA")
    write_record(tmp_path / "a", full, 0, {"BLEU": 0.6, "ROUGE_L": 0.6})
    write_record(tmp_path / "b", lora, 7, {"BLEU": 0.6})  # another seed; ROUGE-L is not scored
    write_record(tmp_path / "c", full, 1, scores={})
    lacking = {(one.planned, one.seed) for one in missing(plan(), make_index([tmp_path]))}
    assert [seed for planned, seed in lacking if planned is full] == [1]
    assert [seed for planned, seed in lacking if planned is lora] == [0]
    asked = plan(seeds=(0, 1))
    lacking = missing(asked, make_index([tmp_path]))
    assert sorted(one.seed for one in lacking if one.planned is run_of(asked, "LoRA")) == [0, 1]
