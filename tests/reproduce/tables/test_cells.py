"""Verdicts and marks, by records written by hand."""

import pytest

from dpft.config.flags import Flag, flag
from dpft.reproduce import papers
from dpft.reproduce.tables.cells import epsilons, fill
from dpft.reproduce.tables.record_index import make_index
from dpft.reproduce.tables.verdicts import CellVerdict, Mark, compare
from tests.reproduce.tables.example import plan, run_of, table, write_record


def cell(tmp_path, method, epsilon=3, column="bleu", the_plan=None):
    table = fill(the_plan or plan(), make_index([tmp_path]))
    keys = [one.key for one in table.plan.columns]
    labels = {"method": method, "epsilon": epsilon}
    (row,) = [one for one in table.rows if one.row.labels == labels]
    return row.cells[keys.index(column)]


@pytest.mark.parametrize(
    ("ours", "spread", "decimals", "verdict"),
    [
        (60.0, None, 2, CellVerdict.MATCHES),
        (60.605, None, 2, CellVerdict.MATCHES),  # 1% and half a unit of the second decimal
        (60.606, None, 2, CellVerdict.ABOVE),
        (59.394, None, 2, CellVerdict.BELOW),
        (61.1, None, 0, CellVerdict.MATCHES),
        (61.0, 0.5, 2, CellVerdict.MATCHES),
        (61.01, 0.5, 2, CellVerdict.ABOVE),
        (60.2, 0.0, 2, CellVerdict.ABOVE),  # a deviation of zero is known
    ],
)
def test_a_match_is_within_two_deviations_or_one_per_cent(ours, spread, decimals, verdict):
    assert compare(60.0, ours, spread, decimals) is verdict


def test_mean_deviation_and_verdict_over_seeds(tmp_path):
    one = run_of(plan(), "full")
    write_record(tmp_path / "a", one, 0, {"BLEU": 0.600, "ROUGE_L": 0.70})
    write_record(tmp_path / "b", one, 1, {"BLEU": 0.612, "ROUGE_L": 0.70})
    bleu = cell(tmp_path, "full")
    assert bleu.ours == pytest.approx(60.6)
    assert bleu.deviation == pytest.approx(1.2 / 2**0.5)
    assert bleu.spread == 0.5  # the printed one, though ours is larger
    assert bleu.difference == pytest.approx(0.6)
    assert (bleu.verdict, bleu.marks) == (CellVerdict.MATCHES, ())
    assert [path.name for path in bleu.paths] == ["a", "b"]
    rouge = cell(tmp_path, "full", column="rouge_l")
    assert (rouge.verdict, rouge.deviation) == (CellVerdict.ABOVE, 0)


def test_a_collapsed_seed_makes_no_match(tmp_path):
    for seed, value in enumerate((0.60, 0.60, 0.20)):  # mean 46.67, deviation 23.1
        write_record(tmp_path / str(seed), run_of(plan(), "full"), seed, {"BLEU": value})
        write_record(tmp_path / f"l{seed}", run_of(plan(), "LoRA"), seed, {"BLEU": value})
    for method in ("full", "LoRA"):  # with a printed deviation, and without
        one = cell(tmp_path, method)
        assert (one.verdict, one.marks) == (CellVerdict.BELOW, (Mark.WIDE,))
    assert cell(tmp_path, "LoRA").spread == pytest.approx(0.05 * 58 / 2)


def scores(examples):
    return {"test": {"metrics": {"BLEU": 0.6}, "examples": examples, "signature": "x"}}


def flagged(one):
    return {"flags": [flag(one)]}


def with_records(count):
    return {"dataset": {"counts": {"train": count}}}


VOID = {"privacy": {"voided_by": ["shuffled"]}}
IN_A_FOLDER = {"settings": {"model.path": "/somewhere/gpt2"}, "model": {"base_model": "gpt2"}}


@pytest.mark.parametrize(
    ("extra", "sections", "verdict", "mark"),
    [
        # What is not the paper's setting is never a match.
        (["task.limit_train=9"], {}, CellVerdict.TREND, Mark.SUBSET),
        ([], {"flags": [flag(Flag.LIMITED_EVAL, limit=9)]}, CellVerdict.TREND, Mark.SUBSET),
        (["optim.epochs=1"], {}, CellVerdict.TREND, Mark.OTHER),
        ([], with_records(2000), CellVerdict.TREND, Mark.SUBSET),
        ([], flagged(Flag.STAND_IN_MODEL), CellVerdict.TREND, Mark.MODEL),
        ([], flagged(Flag.SAMPLE_DATA), CellVerdict.TREND, Mark.GENERATED),
        ([], flagged(Flag.TRAINED_ON_UNKNOWN), CellVerdict.TREND, Mark.MODEL),
        ([], {"scores": scores(600)}, CellVerdict.TREND, Mark.SUBSET),
        # The rate is not printed, and less than 2% of the records may lack.
        (["optim.lr=5e-3", "task.data_dir=D", "device=cpu"], {}, CellVerdict.MATCHES, None),
        (["sampling=shuffle"], VOID, CellVerdict.MATCHES, Mark.SHUFFLED),
        ([], IN_A_FOLDER, CellVerdict.MATCHES, None),
        ([], with_records(42061 - 400), CellVerdict.MATCHES, None),
    ],
)
def test_a_number_in_the_papers_setting_may_match_and_no_other(
    tmp_path, extra, sections, verdict, mark
):
    the_plan = plan(extra=tuple(extra))
    write_record(tmp_path / "a", run_of(the_plan, "full"), 0, {"BLEU": 0.60}, **sections)
    one = cell(tmp_path, "full", the_plan=the_plan)
    assert one.verdict is verdict
    if verdict is CellVerdict.MATCHES:
        assert one.marks == (*([mark] if mark else []), Mark.FEWER)
    else:
        assert mark in one.marks


def test_of_several_runs_with_one_seed_data_settings_and_paths_choose_and_no_score(tmp_path):
    one = run_of(plan(), "full")
    write_record(tmp_path / "a", one, 0, {"BLEU": 0.4}, **with_records(2000))
    write_record(tmp_path / "b", one, 0, {"BLEU": 0.8}, config_hash="elsewhere")
    write_record(tmp_path / "c", one, 0, {"BLEU": 0.6})
    write_record(tmp_path / "d", one, 0, {"BLEU": 0.9})
    bleu = cell(tmp_path, "full")
    assert (bleu.ours, bleu.verdict) == (pytest.approx(60.0), CellVerdict.MATCHES)


def test_at_laptop_scale_nothing_matches_and_a_stand_in_is_marked(tmp_path):
    """Against the paper's model, also one that the scale asks for and that has no label."""
    the_plan = plan("laptop")
    planned = run_of(the_plan, "full")
    assert (planned.model_path, planned.paper_model) == ("bundled:tiny", "openai-community/gpt2")
    for model, marks in (("bundled:tiny", (Mark.MODEL,)), ("openai-community/gpt2", ())):
        write_record(tmp_path / "a", planned, 0, {"BLEU": 0.60}, model={"base_model": model})
        one = cell(tmp_path, "full", the_plan=the_plan)
        assert (one.verdict, one.marks) == (CellVerdict.TREND, (Mark.LAPTOP, Mark.SUBSET, *marks))


def load(name):
    return papers.load(*name.split("/", 1))


def test_epsilons_follow_from_the_papers_settings():
    rows = epsilons(table(), table().rows)
    assert [len(row) for row in rows] == [2, 0, 0, 0, 0]
    by_name = {cell.accountant: cell for cell in rows[0]}
    # E2E, batches of 1024, ten epochs, epsilon 3: docs/reference/accounting.md, and Li et al.
    # 2022, Table 7.
    assert by_name["gdp_clt"].ours == pytest.approx(2.32, abs=0.02)
    assert by_name["gdp_clt"].columns == ()  # one number for the row
    assert not by_name["gdp_clt"].within
    assert by_name["prv"].ours == pytest.approx(2.66, abs=0.02)
    assert by_name["prv"].columns == ("BLEU",)  # printed for this column alone


PRINTED = [name for name in papers.names() if any(row.epsilons for row in load(name).rows)]


@pytest.mark.parametrize("name", PRINTED)
def test_a_table_whose_epsilons_do_not_come_out_says_why(name):
    cells = [cell for row in epsilons(load(name), load(name).rows) for cell in row]
    assert all(cell.within for cell in cells) is (load(name).unequal is None)
