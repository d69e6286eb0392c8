"""What may be typed, and what it means."""

from pathlib import Path

import pytest

from dpft.config.errors import ConfigError
from dpft.reproduce.bench import MODELS, PEERS, STYLES, Settings, Variant

from .fakes import settings


def test_defaults_are_the_models():
    for name, info in MODELS.items():
        made = settings(model=name)
        assert (made.batch, made.length, made.steps) == (info.batch, info.length, info.steps)


def test_none_is_always_measured_first():
    assert settings(styles="bk, ghost").styles == ("none", "bk", "ghost")
    assert settings(styles="bk,none,bk").styles == ("none", "bk")
    assert settings(styles="all").styles == STYLES


def test_styles_take_a_number_of_groups():
    assert settings(styles="uniform:6,two_group:3,uniform").styles == (
        *("none", "uniform:6", "two_group:3", "uniform"),
    )


def test_peers_run_untied_beside_a_baseline_of_their_own():
    made = settings(styles="bk", peers="opacus")
    labels = [variant.label for variant in made.variants]
    assert labels == ["none", "bk", "none (untied)", "opacus (untied)"]
    bk, peer = made.variants[1], made.variants[3]
    assert made.baseline(bk).label == "none"
    assert made.baseline(peer) == made.variants[2] == Variant("none", untied=True, marked=True)
    assert peer.untied


def test_untied_everything_shares_one_baseline():
    made = settings(styles="bk", peers="opacus", untied=True)
    assert [variant.label for variant in made.variants] == ["none", "bk", "opacus"]
    assert all(variant.untied for variant in made.variants)
    assert {made.baseline(variant).label for variant in made.variants} == {"none"}


def test_a_model_without_head_is_neither_tied_nor_untied():
    made = settings(model="vit-small", peers="opacus")
    assert [variant.label for variant in made.variants] == ["none", "bk", "opacus"]
    assert made.baseline(made.variants[2]) == made.variants[0]


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ({"model": "gtp2"}, ["--model", "'gtp2'", "did you mean 'gpt2'?", "vit-small"]),
        ({"styles": "bk,gost"}, ["--styles", "'gost'", "did you mean 'ghost'?"]),
        ({"styles": "bk:3"}, ["'bk:3'", "uniform:6"]),
        ({"styles": "uniform:0"}, ["'uniform:0'", "at least 1"]),
        ({"peers": "opacuss"}, ["--peers", "did you mean 'opacus'?"]),
        ({"batch": 0}, ["--batch is 0", "at least 1"]),
        ({"rounds": -1}, ["--rounds is -1"]),
        ({"threads": 0}, ["--threads is 0"]),
        ({"dtype": "float16"}, ["--dtype", "bfloat16"]),
        ({"device": "gpu"}, ["--device", "cuda"]),
        ({"model": "vit-small", "length": 10}, ["reads images", "leave it out"]),
        ({"model": "tiny", "length": 257}, ["--length is 257", "2 to 256"]),
        ({"model": "roberta-base", "untied": True}, ["--untied", "leave it out"]),
    ],
)
def test_impossible_settings_say_what_to_type(typed, words):
    with pytest.raises(ConfigError) as error:
        settings(**typed)
    for word in words:
        assert word in str(error.value)


def test_file_names_tell_shapes_apart():
    stems = {
        settings().stem,
        settings(batch=3).stem,
        settings(length=3).stem,
        settings(untied=True).stem,
        settings(dtype="bfloat16").stem,
        settings(device="cuda").stem,
        settings(model="vit-small").stem,
        settings(name="mine").stem,
    }
    assert len(stems) == 8
    assert settings(model="gpt2", untied=True).stem == "gpt2-b4-t100-untied-cpu"
    assert "mine" in stems


def test_the_command_measures_the_same_again():
    typer_made = settings(
        model="gpt2", batch=1, length=512, styles="bk", peers="opacus", rounds=7, out=Path("x")
    )
    words = typer_made.command.split()
    assert words[:2] == ["dpft", "bench"]
    typed = dict(zip(words[2::2], words[3::2], strict=True))
    again = {name.removeprefix("--"): value for name, value in typed.items()}
    numbers = {name: int(again[name]) for name in ("batch", "length", "rounds", "threads")}
    assert Settings.make(**{**again, **numbers, "out": Path(again["out"])}) == typer_made
    assert settings(untied=True).command.endswith("--untied")


def test_the_command_names_no_folder_of_this_machine(tmp_path):
    assert str(tmp_path) not in settings(out=tmp_path).command


def test_jobs_are_plain_data():
    import json

    made = settings(peers=next(iter(PEERS)))
    for variant in made.variants:
        job = made.job("measure", variant)
        assert json.loads(json.dumps(job)) == job
        assert job["name"] == variant.name
    assert made.job("fits", made.variants[0], batch=9)["batch"] == 9
