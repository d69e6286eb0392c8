"""Clipping settings: names say what runs, impossible combinations say what to type."""

import json

import pytest

from dpft.cli import account
from dpft.config.clip import Clip
from dpft.config.compose import compose
from dpft.config.errors import ConfigError
from dpft.config.folder import conf_dir
from dpft.config.schema import parse
from dpft.privacy import spec

SHIPPED = sorted(file.stem for file in (conf_dir() / "clip").glob("*.yaml"))


def settings(*overrides):
    return parse(compose(overrides)).clip


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_choice_is_what_its_name_says(name):
    run = parse(compose([f"clip={name}"]))
    assert run.clip.style == run.raw["clip"]["style"] == name
    assert (run.clip.plan, run.clip.groups, run.clip.adaptive) == spec.STYLES[name]


def test_a_config_from_before_there_were_parts_means_the_same():
    """Runs that exist can be continued: their config.yaml names a style and nothing else."""
    for name, plan in {"flat": "materialised", "ghost": "ghost", "bk": "bk"}.items():
        old = Clip(style=name, threshold=0.1)
        assert (old.plan, old.groups, old.adaptive, old.private) == (plan, "flat", False, True)
    assert not Clip(style="none", threshold=None).private


@pytest.mark.parametrize(
    ("overrides", "style", "parts"),
    [
        (["clip=per_layer", "clip.plan=bk"], "per_layer", ("bk", "per_layer")),
        (["clip=bk", "clip.plan=ghost"], "ghost", ("ghost", "flat")),
        (["clip=bk", "clip.groups=per_layer"], "per_layer", ("bk", "per_layer")),
        (["clip=per_layer", "clip.groups=per_param"], "per_param", ("fused", "per_param")),
        (["clip=flat_adaptive", "clip.plan=ghost"], "flat_adaptive", ("ghost", "flat")),
        (
            ["clip=per_device", "clip.count=null", 'clip.patterns=[["*"]]'],
            *("per_device", ("fused", "per_device")),
        ),
        (
            ["clip=per_layer_adaptive", "clip.groups=block_wise"],
            *("block_wise_adaptive", ("fused", "block_wise")),
        ),
        (
            [
                *("clip=per_layer_adaptive", "clip.style=block_wise_adaptive"),
                "clip.groups=block_wise",
            ],
            *("block_wise_adaptive", ("fused", "block_wise")),
        ),
    ],
)
def test_a_style_follows_from_its_parts(overrides, style, parts):
    chosen = settings(*overrides)
    assert (chosen.style, (chosen.plan, chosen.groups)) == (style, parts)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["clip=ghost", "clip.groups=per_layer"],
            r"two backwards can reweight by one factor per record only; type clip=per_layer$",
        ),
        (["clip=per_layer", "clip.plan=lee_kifer"], "one factor per record only"),
        (["clip=bk", "clip.plan=fused"], r"type clip=bk$"),
        (["clip=per_layer", "clip.plan=none"], "nothing is clipped; type clip=none"),
        (["clip.style=ghost"], r"make the style bk; type clip=bk$"),
        (
            ["clip=per_layer", "clip.groups=block_wise", "clip.plan=bk", "clip.style=per_layer"],
            r"make the style block_wise; type clip=block_wise clip\.plan=bk$",
        ),
        (
            ["clip=per_layer_adaptive", "clip.groups=block_wise", "clip.style=bk"],
            r"type clip=per_layer_adaptive clip\.groups=block_wise$",
        ),
        (["clip=bk", "clip.style=gost"], "did you mean 'ghost'"),
        (["clip=bk", "clip.plan=book"], "clip.plan is 'book'; expected one of none"),
        (["clip=bk", "clip.groups=none"], "clip.groups is 'none'; expected one of flat"),
        (["clip=bk", "+clip.quantile=0.5"], "no effect while thresholds are fixed.*flat_adaptive"),
        (["clip=per_layer", "+clip.rescale=1"], "no effect.*type clip=per_layer_adaptive"),
        (["clip=none", "+clip.threshold=1"], "no effect without clipping"),
        (["clip=none", "+clip.quantile=0.5"], "no effect without clipping"),
        (["clip=bk", "+clip.allocation=weighted"], "changes nothing for a single group"),
        (["clip=bk", "clip.threshold=null"], "clip.threshold is null"),
        (["clip=bk", "clip.threshold=-1"], "clip.threshold is -1"),
        (["clip=bk", "clip.threshold=null", "+clip.thresholds=[1]"], "all parameters are one"),
        (["clip=per_layer", "clip.thresholds=[1,2]"], "type clip.threshold=null"),
        (
            ["clip=per_layer", "clip.threshold=null", "clip.thresholds=[1,-2]"],
            "clip.thresholds.*-2",
        ),
        # Which settings groups take is tested with the partitions.
        (["clip=uniform", "clip.count=null"], r"groups is uniform.*typed as \+\+clip\.count=4"),
        (["clip=custom", 'clip.patterns=["*"]'], "clip.*a list of patterns for each"),
        (["clip=custom", "clip.patterns=[[1]]"], "clip.*patterns"),
        (["clip=per_layer_adaptive", "clip.quantile=null"], "is null.*clip.quantile=0.5"),
        (["clip=per_layer_adaptive", "clip.quantile=1"], "clip.quantile is 1"),
        (["clip=per_layer_adaptive", "clip.quantile_budget=1.2"], "clip.quantile_budget is 1.2"),
        (["clip=per_layer_adaptive", "clip.quantile_lr=0"], "clip.quantile_lr is 0"),
        (["clip=per_layer_adaptive", "clip.quantile_noise=9"], "expected exactly one"),
        (["clip=per_layer_adaptive", "clip.quantile_budget=null"], "expected exactly one"),
        (["clip=flat_adaptive", "+clip.rescale=1"], r"type clip=bk clip\.threshold=1"),
        (["clip=per_layer", "clip.allocation=local"], "expected one of global, equal_budget"),
    ],
)
def test_what_cannot_be_combined_says_what_to_type(overrides, message):
    with pytest.raises(ConfigError, match=message):
        settings(*overrides)


def accounted(capsys, *overrides):
    account.main(list(overrides), as_json=True)
    answer = json.loads(capsys.readouterr().out)
    account.main(list(overrides), as_json=False)
    return answer, " ".join(capsys.readouterr().out.split())


def test_account_tells_how_adaptive_thresholds_split_the_noise(capsys):
    """Without a model the number of groups is unknown; what follows without it is shown."""
    flat, text = accounted(capsys, "task=sst2")
    assert "quantiles" not in flat
    assert "on gradients" not in text
    budget = ("task=sst2", "clip=per_layer_adaptive", "clip.quantile_budget=0.1")
    answer, text = accounted(capsys, *budget)
    sigma, parts = answer["noise_multiplier"], answer["quantiles"]
    assert sigma == flat["noise_multiplier"]
    assert parts["gradient_noise_multiplier"] == pytest.approx(sigma / 0.9**0.5)
    assert parts["count_noise_over_root_groups"] == pytest.approx(sigma / (2 * 0.1**0.5))
    assert f"{parts['gradient_noise_multiplier']:.6g}" in text
    assert "sqrt(K)" in text
    given = ("clip.quantile_noise=10", "clip.quantile_budget=null")
    answer, text = accounted(capsys, "task=sst2", "clip=per_layer_adaptive", *given)
    most = answer["quantiles"]["most_groups"]
    assert most < (2 * 10 / sigma) ** 2 <= most + 1
    assert f"at most {most} groups" in text


def test_a_noise_multiplier_given_is_that_of_the_whole_release(capsys):
    answer, text = accounted(
        capsys, "task=sst2", "clip=per_layer_adaptive", "privacy.noise_multiplier=1.5"
    )
    assert answer["noise_multiplier"] == 1.5
    assert "as given" in text
    assert answer["quantiles"]["gradient_noise_multiplier"] > 1.5
