"""What a setting changes is declared once: hash, resumption, tables and pages follow."""

import dataclasses
import re
import typing
from dataclasses import replace

import pytest

from dpft.config.checks import Bounds, Effect, build, names_with
from dpft.config.compose import compose
from dpft.config.decode import Decode
from dpft.config.errors import ConfigError
from dpft.config.optim import Optim
from dpft.config.privacy import Privacy
from dpft.config.schema import SHORTHANDS, Model, Run, parse

PLACE = {"name", "runs_dir", "sweep", "origin"}
EXECUTION = {
    *("resume", "force", "device", "threads", "checkpoint_every"),
    *("checkpoint_minutes", "verbosity"),
    *("record_norms", "cache", "parallel", "ranks", "track"),
}


def test_what_leaves_the_result_alone():
    assert names_with(Run, Effect.PLACE) == PLACE
    assert names_with(Run, Effect.EXECUTION) == EXECUTION
    repetitions = {
        Run: {"seed"},
        Model: {"path", "checkpointing"},
        Optim: {"microbatch_tokens"},
        Privacy: {"noise_seed"},
        Decode: {"split"},
    }
    for group, names in repetitions.items():
        assert names_with(group, Effect.REPETITION) == names


def test_the_hash_is_of_everything_else():
    raw = compose([])
    identity = parse(raw).identity()
    left_out = {*PLACE, *EXECUTION, *SHORTHANDS, "audit", "evaluate", "precision"}
    left_out -= {"origin"}  # there only where a default was taken
    assert set(raw) - set(identity) == left_out
    assert "audit" in parse(compose(["audit=bound"])).identity()
    assert "precision" in parse(compose(["precision=bfloat16"])).identity()
    assert "evaluate" in parse(compose(["evaluate=best"])).identity()


@dataclasses.dataclass(frozen=True)
class Kinds:
    count: int = 1
    share: typing.Annotated[float, Bounds(above=0, below=1)] | None = None
    numbers: typing.Annotated[tuple[float, ...], Bounds(least=0)] = ()
    text: str | None = None
    choice: typing.Literal["one", "two"] | None = None


def test_values_are_of_the_type_of_their_field():
    found = build(Kinds, {"share": None, "numbers": [1, 2.5], "choice": "two"}, "x")
    assert found == Kinds(numbers=(1, 2.5), choice="two")
    assert type(build(Kinds, {"share": 0.5}, "x").share) is float


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"count": "3"}, r"^x\.count is '3' \(str\); expected int$"),
        ({"count": 3.0}, "expected int"),
        ({"count": True}, "expected int"),
        ({"share": "0.5"}, r"expected float or null$"),
        ({"share": 1}, r"^x\.share is 1\.0; expected a number > 0 and < 1$"),
        ({"share": float("nan")}, "expected a finite number"),
        ({"numbers": [1, -1]}, r"^x\.numbers holds -1; expected a number >= 0$"),
        ({"numbers": [1, "a"]}, "holds 'a'"),
        ({"text": 3}, "expected str or null; as text, type \"x.text='3'\""),
        ({"choice": "tow"}, r"expected one of one, two; did you mean 'two'\?$"),
        ({"choice": 2}, "expected one of one, two"),
        ({"cuont": 1}, r"unknown setting x\.cuont; did you mean 'count'\?; known: x\.count"),
    ],
)
def test_a_wrong_value_is_refused_with_what_was_expected(settings, message):
    with pytest.raises(ConfigError, match=message):
        build(Kinds, settings, "x")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["decode.top_p=0.9"], "decode.top_p is 0.9, which has no effect on decode.sample=false"),
        (["decode=greedy", "decode.length_penalty=2"], "has no effect on decode.beams=1"),
        (["decode.sample=true"], "decode.beams is 5 with decode.sample=true"),
        (["decode=nucleus", "decode.beams=2"], "expected one beam"),
    ],
)
def test_settings_of_decoding_without_effect_are_refused(typed, said):
    raw = compose(typed)
    with pytest.raises(ConfigError, match=re.escape(said)):
        parse(raw)
    # A run of an earlier version that has them can still be read, and goes on.
    assert parse(raw, stored=True).decode == parse({**raw, "resume": "runs/x"}).decode


def test_what_a_run_decodes_with_is_not_refused_where_it_has_no_effect_any_more():
    nucleus, searched = Decode(1, sample=True, top_p=0.9), Decode(5, length_penalty=2.0)
    replace(nucleus, sample=False).check(nucleus)
    replace(searched, beams=1).check(searched)
    beams = replace(nucleus, beams=5)
    beams.check(beams)
    for typed, usual in (
        (replace(searched, sample=True), searched),
        (replace(searched, top_p=0.5), searched),
        (replace(nucleus, length_penalty=3.0), nucleus),
        (beams, nucleus),
    ):
        with pytest.raises(ConfigError, match=r"decode\.\w+ is"):
            typed.check(usual)
