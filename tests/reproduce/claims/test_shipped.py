"""The claims that are shipped: complete, free of typing errors, and borne out by print as noted."""

import shlex

import pytest
import typer

from dpft.cli.app import app
from dpft.config.compose import compose
from dpft.config.schema import parse
from dpft.reproduce.bench import catalog
from dpft.reproduce.bench.catalog import BenchSettings
from dpft.reproduce.claims.claim import BenchCheck, CellsCheck, FigureCheck, load
from dpft.reproduce.claims.comparison import Outcome, Side
from dpft.reproduce.claims.evaluate import Evidence, evaluate
from dpft.reproduce.figures import lists
from dpft.reproduce.figures.lists import load as load_list
from dpft.reproduce.papers import load as load_table
from dpft.reproduce.papers import names
from dpft.reproduce.tables.record_index import Index

CLAIMS = load()


@pytest.fixture(scope="module")
def results():
    """Every claim without any record or benchmark: names of rows and columns are checked here."""
    evidence = Evidence(Index(), [])
    return {claim.name: evaluate(claim, evidence) for claim in CLAIMS}


def test_without_records_nothing_of_ours_is_known_but_what_is_computed(results):
    for name, result in results.items():
        assert set(result.sides) <= {Side.COMPUTED}, name
        if result.by_us.verdict is Outcome.NOT_YET:
            assert result.commands, name
        if result.by_us.verdict is Outcome.CANNOT:
            assert result.reasons, name


def test_every_command_is_one_that_dpft_takes(results):
    program_of = typer.main.get_command(app)
    commands = {command for result in results.values() for command in result.commands}
    commands |= {c.command for one in CLAIMS for c in one.checks if isinstance(c, BenchCheck)}
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
            away = ("explain", "largest_batch")
            BenchSettings.make(**{k: v for k, v in options.items() if k not in away})
        else:
            assert options["run"]
            known = names() if verb == "table" else lists.names()
            assert options["name"] in known, command


def test_what_is_as_good_over_seeds_is_said():
    for claim in CLAIMS:
        for one in claim.checks:
            if isinstance(one, CellsCheck) and one.sides != ("printed",) and one.expected.alike:
                table = load_list(one.table) if isinstance(one, FigureCheck) else None
                table = table or load_table(*one.table.split("/"))
                columns = [c for c in table.columns if c.key in (one.columns or (c.key,))]
                measured = any(column.metrics for column in columns)
                assert (one.expected.equivalence is not None) is measured, claim.name


def test_benchmarks_name_styles_and_models():
    known = {*catalog.STYLES, *catalog.PEERS}
    checks = [c for claim in CLAIMS for c in claim.checks if isinstance(c, BenchCheck)]
    assert checks
    for one in checks:
        assert set(one.first) | set(one.second) <= known
        assert set(one.models) <= set(catalog.MODELS)


@pytest.mark.parametrize(
    ("name", "verdict", "holds", "fails"),
    [
        ("li2022/c02", Outcome.FAILS, 0, 4),
        ("li2022/c16", Outcome.HOLDS, 4, 0),
        ("he2022/c06", Outcome.HOLDS, 16, 0),
        ("he2022/c07", Outcome.MIXED, 5, 3),
        ("bu2023/c06", Outcome.MIXED, 3, 1),
        ("bu2023/c16", Outcome.FAILS, 0, 1),
    ],
)
def test_what_the_printed_numbers_say(results, name, verdict, holds, fails):
    printed = results[name].by_print
    counts = (printed.count[Outcome.HOLDS], printed.count[Outcome.FAILS])
    assert (printed.verdict, *counts) == (verdict, holds, fails)
