"""The claims that are shipped: complete, free of typing errors, and borne out by print as noted."""

import shlex

import pytest
import typer

from dpft.cli.app import app
from dpft.config.compose import compose
from dpft.config.schema import parse
from dpft.reproduce.bench.catalog import BenchSettings
from dpft.reproduce.claims.claim import BenchCheck, load
from dpft.reproduce.claims.comparison import Outcome, Side
from dpft.reproduce.claims.evaluate import Evidence, evaluate
from dpft.reproduce.figures.catalog import ROOT
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
            known = (
                names()
                if verb == "table"
                else {f"{x.parent.name}/{x.stem}" for x in ROOT.glob("*/*.yaml")}
            )
            assert options["name"] in known, command


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
