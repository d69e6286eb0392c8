"""Tables come from records and say what the records say."""

from pathlib import Path

import pytest

from dpft.privacy.guarantee import APPROXIMATION
from dpft.report.comparison import as_markdown, row, show
from tests.runs.example import example_guarantee, without_privacy

PRIVATE = {
    "config": {"clip": {"plan": "ghost", "groups": "flat"}, "decode": {"split": "test"}},
    "training": {"steps": 410, "seconds": 61.4},
    "scores": {"test": {"metrics": {"BLEU": 0.61234, "NIST": None}, "examples": 630}},
    "privacy": example_guarantee(
        epsilon={"rdp": 2.9991, "gdp_clt": 2.32, "prv": {"estimate": 2.66, "upper": 2.6801}},
        warnings=["run with shuffled batches"],
        caveats=["few records"],
    ),
    "labels": ["bundled tiny model"],
}
PLAIN = {**PRIVATE, "privacy": without_privacy()}


def test_a_row_holds_scores_and_three_epsilons():
    """Upper bounds are rounded up, and PRV's is the upper one of its three."""
    cells = row(Path("runs/a"), PRIVATE)
    assert cells["BLEU"] == "0.6123"
    assert cells["NIST"] == "-"
    assert cells["instances"] == "630"
    assert (cells["eps RDP"], cells["eps PRV"], cells["eps GDP-CLT"]) == ("3.000", "2.681", "2.320")
    assert row(Path("a"), PLAIN)["eps RDP"] == "none"


def test_a_lower_bound_is_rounded_down():
    audited = {**PRIVATE, "audit": {"epsilon_lower": 1.2999}}
    assert row(Path("a"), audited)["eps at least (audit)"] == "1.299"


def test_an_epsilon_beyond_all_meaning_fits_its_column():
    privacy = {**PRIVATE["privacy"], "epsilon": {"rdp": 5.2e7, "gdp_clt": 4e90, "prv": None}}
    cells = row(Path("a"), {**PRIVATE, "privacy": privacy})
    assert (cells["eps RDP"], cells["eps GDP-CLT"]) == ("5.20e+07", "4.00e+90")


def test_an_epsilon_that_is_not_there_is_a_dash():
    privacy = {**PRIVATE["privacy"], "epsilon": {"rdp": 5.2, "gdp_clt": None, "prv": None}}
    cells = row(Path("a"), {**PRIVATE, "privacy": privacy})
    assert (cells["eps RDP"], cells["eps PRV"], cells["eps GDP-CLT"]) == ("5.200", "-", "-")


def test_markdown_has_all_columns_of_all_rows():
    text = as_markdown([{"run": "a", "BLEU": "1"}, {"run": "b", "F1": "2"}])
    assert text.splitlines() == [
        "| run | BLEU | F1 |",
        "| --- | --- | --- |",
        "| a | 1 | - |",
        "| b | - | 2 |",
    ]


def test_labels_and_caveats_are_never_left_out(capsys):
    for markdown in (True, False):
        show([(Path("runs/a"), PRIVATE), (Path("runs/b"), PLAIN)], markdown=markdown)
        text = capsys.readouterr().out
        for said in (
            "bundled tiny model",
            "shuffled batches",
            "few records",
            "no privacy guarantee",
            "(3, 8e-06)",
        ):
            assert said in " ".join(text.split())


def test_other_weights_under_one_name_are_told(capsys):
    begun = [
        {**PRIVATE, "model": {"base_model": name, "weights_sha256": digest}}
        for name, digest in (("rung", "a"), ("rung", "b"), ("gpt2", "c"), ("gpt2", None))
    ]
    runs = [(Path(f"runs/{i}"), record) for i, record in enumerate(begun)]
    for markdown in (True, False):
        show(runs, markdown=markdown)
        text = " ".join(capsys.readouterr().out.split())
        assert "ote: rung had different weights in these runs" in text
        assert "gpt2 had different weights" not in text
        show(runs[1:], markdown=markdown)
        assert "had different weights" not in capsys.readouterr().out


CONSTANT = {
    "metrics": {"accuracy": 0.6}, "examples": 5, "signature": "s", "distinct": 1,
    "baselines": {"accuracy": 0.6}, "confusion": {"yes": {"yes": 3}, "no": {"yes": 2}},
}  # fmt: skip


def test_scores_of_other_splits_or_tasks_are_told_apart(capsys):
    """Two accuracies side by side look as if they were of the same records."""
    runs = [
        (Path(f"runs/{task}-{split}"), {
            **PRIVATE,
            "config": {**PRIVATE["config"], "task": {"name": task}, "decode": {"split": split}},
        })
        for task, split in (("sst2", "dev"), ("sst2", "test"), ("qnli", "dev"))
    ]  # fmt: skip
    for markdown in (True, False):
        for chosen in (runs[:2], runs[::2], runs):
            show(chosen, markdown=markdown)
            text = capsys.readouterr().out
            for path, _ in chosen:
                assert path.name.replace("-", ", ") in text
        show([runs[0], runs[0]], markdown=markdown)
        assert "scores of" not in capsys.readouterr().out


def test_a_model_that_learned_nothing_is_told_beside_its_score(capsys):
    constant = {**PRIVATE, "scores": {"test": CONSTANT}}
    assert row(Path("a"), constant)["accuracy of one class"] == "0.6000"
    for markdown in (True, False):
        show([(Path("runs/a"), constant)], markdown=markdown)
        text = " ".join(capsys.readouterr().out.split())
        assert "all 5 answers are the same, 'yes'" in text
        assert "no better than always answering the most frequent class" in text


def test_no_number_is_broken_where_many_runs_stand_beside_each_other(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    paths = [Path(f"runs/lora-rank4-bk-eps{n}-seed{n}") for n in range(9)]
    show([(path, PRIVATE) for path in paths])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    figures = [line.split()[1:] for line in lines if line.startswith("  BLEU ")]
    assert len(figures) > 1
    assert [one for line in figures for one in line] == ["0.6123"] * 9
    assert not any("…" in line for line in lines)


@pytest.mark.parametrize("width", range(60, 140, 7))
def test_no_figure_loses_digits_beside_names_that_are_broken(capsys, monkeypatch, width):
    """Runs of different tasks, whose columns need different widths."""
    monkeypatch.setenv("COLUMNS", str(width))
    other = {**PRIVATE["scores"]["test"], "metrics": {"perplexity": 41441.2503}}
    beside = [PRIVATE, {**PRIVATE, "scores": {"test": other}}, PRIVATE]
    names = ("text2text-tiny-bk-eps3-s0-a8b5e7f0", "lm", "text2text-tiny-bk-eps8-s0-f38ef298")
    show([(Path(f"runs/{name}"), each) for name, each in zip(names, beside, strict=True)])
    lines = capsys.readouterr().out.splitlines()

    def of(name):
        return " ".join(line for line in lines if line.startswith(f"  {name} ")).split()

    assert of("BLEU").count("0.6123") == 2
    assert "41441.2503" in of("perplexity")
    epsilon = [cell for cell in of("eps RDP") if cell[0].isdigit()]
    assert len(epsilon) == 3
    assert len(set(epsilon)) == 1
    assert max(map(len, lines)) <= width


def test_each_run_has_a_name_of_its_own(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    show([(Path(), PRIVATE)], markdown=True)
    assert capsys.readouterr().out.count(tmp_path.name) == 2
    both = [(Path("a/best/record.json"), PRIVATE), (Path("b/best"), PLAIN)]
    show(both, markdown=True)
    said = capsys.readouterr().out
    assert "| a/best |" in said
    assert "`b/best`: " in said
    show([(Path("x/a"), PRIVATE), (Path("y/b/record.json"), PLAIN)], markdown=True)
    said = capsys.readouterr().out
    assert "| a |" in said
    assert "`b`: " in said


@pytest.mark.parametrize(("record", "said"), [(PRIVATE, True), (PLAIN, False)])
def test_what_is_no_bound_is_called_so_where_it_is_shown(capsys, record, said):
    for markdown in (True, False):
        show([(Path("runs/a"), record)], markdown=markdown)
        assert (APPROXIMATION in " ".join(capsys.readouterr().out.split())) is said
