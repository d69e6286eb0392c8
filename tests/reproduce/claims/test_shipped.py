"""The claims that are shipped: complete, free of typing errors, and borne out by print as noted."""

import re
import shlex

import pytest
import typer

from dpft.cli.app import app
from dpft.config.compose import compose
from dpft.config.folder import conf_dir
from dpft.config.schema import parse
from dpft.reproduce.bench.choices import BenchSettings
from dpft.reproduce.bench.documents import read_benches
from dpft.reproduce.claims import derived
from dpft.reproduce.claims.claim import BenchCheck, CellsCheck, ComputedCheck, load
from dpft.reproduce.claims.evaluate import Evidence, _table_of, compute, evaluate
from dpft.reproduce.claims.rule import SEEDS_TO_CONFIRM, Word
from dpft.reproduce.claims.show import sentence
from dpft.reproduce.figures.catalog import ROOT
from dpft.reproduce.figures.computed import Layer, peaks
from dpft.reproduce.papers import names, show_label
from dpft.reproduce.tables.record_index import Index, make_index

CLAIMS = load()
RESULTS = conf_dir().parent / "results"


@pytest.fixture(scope="module")
def results():
    """Every claim without any record or benchmark."""
    evidence = Evidence(Index(), [])
    return {claim.name: evaluate(claim, evidence) for claim in CLAIMS}


def test_checks_name_labels_values_and_columns_that_their_tables_have():
    """A typing error there would silently compare fewer numbers."""
    evidence = Evidence(Index(), [])
    checks = [(x.name, c) for x in CLAIMS for c in x.checks if isinstance(c, CellsCheck)]
    for name, check in checks:
        table = _table_of(check, evidence)
        assert len(table.columns) >= len(check.columns), name
        for pattern in (check.first, check.second, check.where, dict.fromkeys(check.free, ())):
            for label, values in pattern.items():
                known = {show_label(row.labels[label]) for row in table.rows}
                assert set(map(show_label, values)) <= known, (name, label)


def test_without_records_nothing_of_ours_is_known_but_what_is_computed(results):
    for name, result in results.items():
        assert {x.origin for x in result.ours if x.text} <= {"computed"}, name
        if result.by_us is Word.NOT_YET:
            assert result.commands, name
        if result.by_us is Word.CANNOT:
            assert result.reasons, name


def words_in(page):
    """The word of each claim by the rows of a table: ``tends to hold | `li2022/c04`, `c07```."""
    words, paper, last = {}, "", 0
    for word, listed in re.findall(r"^\| ([^|,]+).* \| (`.+) \|$", page, re.MULTILINE):
        for to, named, number in re.findall(r"( to )?`(?:(\w+)/)?c(\d\d)`", listed):
            paper, first = named or paper, last + 1 if to else int(number)
            words |= {f"{paper}/c{n:02}": word for n in range(first, int(number) + 1)}
            last = int(number)
    return words


def test_what_the_committed_runs_say():
    assert len(CLAIMS) == 49
    evidence = Evidence(make_index([RESULTS]), read_benches([RESULTS / "bench"])[0])
    found = {claim.name: evaluate(claim, evidence) for claim in CLAIMS}
    words = {result.by_us for result in found.values()}
    seeds = max(x.seeds for result in found.values() for x in result.ours)
    if seeds < SEEDS_TO_CONFIRM:
        assert not words & {Word.CONFIRMED, Word.CONTRADICTED}
    page = (RESULTS.parent / "docs/explanation/evidence.md").read_text()
    stated = words_in(page.split("## The word on each claim")[1].split("The rule")[0])
    assert stated == {name: str(result.by_us) for name, result in found.items()}
    # A stand-in is named with its data.
    text = sentence(found["bu2023/c06"].ours)
    assert text.startswith(
        "inconclusive so far with random-wrn on cifar10 (10,000 records), 3 seeds"
    )


def test_every_command_is_one_that_dpft_takes(results):
    program_of = typer.main.get_command(app)
    commands = {command for result in results.values() for command in result.commands}
    benches = [c for one in CLAIMS for c in one.checks if isinstance(c, BenchCheck)]
    commands |= {check.command for check in benches if check.command}
    assert len(commands) > 20
    for command in commands:
        program, verb, *words = shlex.split(command)
        assert program == "dpft"
        if verb == "train":
            parse(compose(words))
            continue
        _, command_of, _ = program_of.resolve_command(typer.Context(program_of), [verb])
        options = command_of.make_context(verb, words).params
        if verb == "bench":
            del options["overrides"], options["run"]
            BenchSettings.make(threads=1, **options)
        else:
            assert options["run"]
            lists = {f"{file.parent.name}/{file.stem}" for file in ROOT.glob("*/*.yaml")}
            assert options["name"] in (names() if verb == "table" else lists), command


@pytest.mark.parametrize(
    ("name", "word", "failing", "count"),
    [
        ("li2022/c02", Word.NOT_CONSISTENT, 4, 4),
        ("li2022/c16", Word.CONSISTENT, 0, 5),
        ("he2022/c07", Word.NOT_CONSISTENT, 1, 8),
        ("bu2023/c06", Word.NOT_CONSISTENT, 1, 4),
        ("bu2023/c16", Word.NOT_CONSISTENT, 1, 1),
    ],
)
def test_what_the_printed_numbers_say(results, name, word, failing, count):
    printed = [one.word for one in results[name].printed]
    assert (results[name].by_print, len(printed)) == (word, count)
    assert printed.count(Word.NOT_CONSISTENT) == failing


def test_every_function_is_used_and_one_claim_fails_in_part():
    checks = [one for claim in CLAIMS for one in claim.checks if isinstance(one, ComputedCheck)]
    assert {check.function for check in checks} == set(derived.FUNCTIONS)
    results = [(check.function, one) for check in checks for one in compute(check)]
    assert all(one.what and one.text and one.origin == "computed" for _, one in results)
    fails = [function for function, one in results if one.word is not Word.HOLDS]
    assert fails == ["embedding_memory"]


def test_the_formula_leaves_out_the_ends_of_a_group():
    layers = [Layer(T=1, d=d, p=p, block=0) for d, p in ((1, 10), (2, 20), (4, 40), (8, 80))]
    groups = ((0, 3), (3, 4))
    assert peaks(layers, groups) == [7 + 70, 15 + 80]
    assert derived.peaks_as_printed(layers, groups) == [3 + 20, 7]
