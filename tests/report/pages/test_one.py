"""The page of one run: what stands on it, and above all what does not."""

import hashlib
import json
import re
import shutil

import pytest

from dpft.cli.report import build
from dpft.privacy.accounting import epsilon_pld
from dpft.report.pages import curves
from dpft.report.pages.gather import Options, gather
from dpft.report.pages.target import Target
from dpft.runs.ledger import Ledger, chained_lines, read_ledger
from dpft.runs.summary import summary
from dpft.sweep.find import find
from tests.report.pages.example import (
    DELTA,
    LOSSES,
    NORMS,
    RDP,
    Page,
    a_run,
    config,
    epsilon,
    generations,
    ledger,
    mechanism,
    record,
    write_lines,
)
from tests.report.test_comparison import CONSTANT


def html_of(path, **options):
    return build(find([path]), Options(**options))


def page_of(path, **options):
    return Page(html_of(path, **options))


ADAPTIVE = mechanism(
    quantiles={"target": 0.5, "learning_rate": 0.3, "rescale": None},
    count_noise=12.0,
    noise_multiplier=0.72,
    total_noise_multiplier=0.71028,
    thresholds=[1.0, 2.0],
    groups=2,
)


def adaptive(tmp_path, **of_ledger):
    settings = config(
        clip={"plan": "fused", "groups": "per_layer", "adaptive": True, "threshold": 0.01}
    )
    whole = record(settings=settings, mechanism=ADAPTIVE)
    return a_run(tmp_path / "adaptive", whole, **of_ledger)


def test_nothing_of_the_private_folder_is_on_the_page(tmp_path):
    run = a_run(tmp_path / "run")
    html = html_of(run)
    words = re.sub(r"<svg.*?</svg>", "", html, flags=re.DOTALL)  # whose coordinates are any numbers
    for number in [*LOSSES, *NORMS, 0.98765432, 5.08217721]:
        for digits in range(3, 9):
            assert f"{number:.{digits}g}" not in words
    for batch in (1045, 1052, 1059, 1066):
        assert not re.search(rf"(?<![\d.]){batch:,}(?!\d)|(?<![\d.]){batch}(?!\d)", words)
    (run / "private/metrics.jsonl").write_text('{"step": 0, "loss": 99999.125}\n')
    assert html_of(run) == html
    shutil.rmtree(run / "private")
    (run / "private").write_text("not even a folder")
    assert html_of(run) == html


def test_with_private_the_curves_are_there_under_a_banner(tmp_path):
    page = page_of(a_run(tmp_path / "run"), private=True)
    assert "Not covered by the guarantee: do not publish" in page.text
    for title in ("Mean loss of the batch", "Clipped fraction", "gradient norm", "Records in"):
        assert title in page.text
    public = page_of(tmp_path / "run")
    assert "do not publish" not in public.text
    assert "Mean loss" not in public.text
    assert public.tags.count("figure") < page.tags.count("figure")
    shutil.rmtree(tmp_path / "run/private")
    assert "no private/metrics.jsonl here" in page_of(tmp_path / "run", private=True).text


def test_everything_that_a_run_left_is_shown(tmp_path):
    text = page_of(a_run(tmp_path / "run")).text
    for said in (
        "for each record: a reasonable bound",
        "test BLEU 0.5900 630",
        "NIST not computed",
        "bundled tiny model",
        "0:01:01",
        "1.00 GiB",
        "A Processor",
        "optim.lr 0.004 0.002",
        "task=e2e model=tiny adapt=full clip=ghost optim=adam",
        "484b02cba9a223a2",
        "commit abc123, with changes that are in no commit",
        "torch 2.13.0",
        "The learning rate is 0.004 at every step.",
        "8 of 20 generations",
        "say 0",
        "say 17",
        "k3y",
    ):
        assert said in text, said
    assert "say 1 " not in text
    assert "/home/me" not in text
    assert "…/e2e" in text


def test_the_curve_of_epsilon_ends_at_the_headlines_figure(tmp_path):
    """By the same accountant: the ledger's figures, by Renyi accounting, are larger."""
    whole = record()
    cost = {name: whole["mechanism"][name] for name in ("sampling_rate", "noise_multiplier")}
    whole["privacy"] |= {"stated": epsilon_pld(**cost, steps=4, delta=DELTA), "accountant": "pld"}
    drawn = curves.epsilon(gather(Target(a_run(tmp_path / "run", whole), "run"), Options(), 0))
    steps, spent = zip(*drawn.points, strict=True)
    assert steps == (0, 1, 2, 3, 4)
    assert spent[-1] == whole["privacy"]["stated"]
    assert spent[2] == epsilon_pld(**cost, steps=2, delta=DELTA)


def test_a_run_without_privacy_says_so_first(tmp_path):
    page = page_of(a_run(tmp_path / "plain", record(private=False)))
    assert page.text.index("No privacy guarantee, BLEU") < page.text.index("test BLEU")
    assert "No guarantee covers what a model wrote" in page.text
    assert "Epsilon spent" not in page.text
    assert "privacy.epsilon" not in page.text.partition("All settings")[0]


def test_an_unfinished_run_is_shown_as_far_as_it_is(tmp_path):
    run = tmp_path / "begun"
    ledger(run, steps=2, mechanism=mechanism(noise_multiplier=0.8))
    (run / "identity.json").write_text(json.dumps({"config": config(), "config_hash": "x"}))
    text = page_of(run).text
    for said in ("This run is unfinished.", "the 2 steps so far, 2.146, holds", "2 of 4"):
        assert said in text
    assert "Not scored yet." in text
    (run / "ledger.jsonl").unlink()
    assert "is not known" in page_of(run).text


def test_an_unfinished_run_that_repeats_steps_counts_all_releases(tmp_path):
    run = tmp_path / "begun"
    stated = mechanism(noise_multiplier=0.7)
    head = {"mechanism": stated, "unit": "one row", "compute": {"threads": 1}}
    ledger(run, steps=3, **head)
    with Ledger(run / "ledger.jsonl", {**head, "key": "k3y", "compute": {"threads": 2}}) as log:
        log.go_on(1)
        log.spend(1, epsilon_rdp=epsilon(4, stated))
    (run / "identity.json").write_text(json.dumps({"config": config(), "config_hash": "x"}))
    text = page_of(run).text
    assert (
        "costs epsilon 3.246 by Renyi accounting, that of all 4 planned steps and 2 repeated"
        in text
    )
    assert "That of the 4 steps so far, 3.103, holds only if" in text
    assert "Steps in the ledger 2 of 4" in text
    assert "Further releases of repeated steps 2" in text
    assert "in the end, at most" not in text


def test_what_is_damaged_is_named_and_the_rest_is_shown(tmp_path):
    run = a_run(tmp_path / "run")
    lines = (run / "ledger.jsonl").read_text().splitlines()
    (run / "ledger.jsonl").write_text("\n".join([lines[0], "{oops", *lines[2:], ""]))
    with (run / "generations/test.jsonl").open("r+") as file:
        file.write("x")
    text = page_of(run).text
    assert "ledger.jsonl, line 2: not JSON" in text
    assert "generations/test.jsonl, line 1: no prediction with its references" in text
    assert "test BLEU 0.5900" in text
    assert "7 of 20 generations" in text
    assert str(tmp_path) not in text
    (run / "record.json").write_text("{")
    text = page_of(run).text
    assert "record.json is not JSON" in text
    assert "unfinished" in text
    assert str(tmp_path) not in text


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"training": {"steps": 4, "device": "cpu"}}, "it has no training.peak_memory_bytes"),
        ({"privacy": {"statement": "x", "steps_taken": 4}}, "it has no privacy.accountant"),
        ({"scores": {"test": []}}, "scores.test is []; expected a mapping"),
        ({"dataset": None}, "dataset is null; expected a mapping"),
        ({"environment": {"ram_bytes": "x"}}, "cannot be shown (TypeError: unsupported"),
    ],
)
def test_a_damaged_record_is_no_reason_to_fail(tmp_path, change, problem):
    text = page_of(a_run(tmp_path / "run", record(**change))).text
    assert problem in text
    assert "optim.lr 0.004" in text


def test_files_that_disagree_are_named(tmp_path):
    run = a_run(tmp_path / "run", steps=3)
    (run / "identity.json").write_text(json.dumps({"config": config(), "config_hash": "other"}))
    text = page_of(run).text
    assert "ledger.jsonl has 3 steps, record.json 4" in text
    assert "identity.json of other" in text
    whole = record()
    whole["privacy"]["epsilon"]["rdp"] = 1.0
    text = page_of(a_run(tmp_path / "forged", whole)).text
    assert f"ends at epsilon {RDP}, record.json states 1.0" in text
    run = a_run(tmp_path / "quiet", mechanism=mechanism(noise_multiplier=9.0))
    assert "spent under another mechanism than record.json states" in page_of(run).text


def test_a_ledger_that_counts_more_than_the_record_states_is_named(tmp_path):
    text = page_of(a_run(tmp_path / "run", steps=6)).text
    assert "ledger.jsonl has 6 steps, record.json 4: do not rely on the guarantee" in text


def test_a_summary_of_a_ledger_says_what_it_leaves_out_and_draws_no_course(tmp_path):
    run = adaptive(tmp_path, groups=["transformer.wte", "transformer.h.0.attn"])
    file = run / "ledger.jsonl"
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    file.write_bytes(summary(file))
    text = page_of(run).text
    assert "4 steps, of which this copy leaves 3 out" in text
    assert f"SHA-256 of the whole ledger {digest}" in text
    assert "do not rely on" not in text
    for course in ("Epsilon spent", "Clipping thresholds by group", "thresholds of each step"):
        assert course not in text
    (run / "record.json").unlink()
    assert (
        "costs epsilon 3.000 by Renyi accounting, that of all 4 planned steps." in page_of(run).text
    )
    assert "Further releases" not in page_of(run).text


def test_a_share_that_is_none_is_named(tmp_path):
    edited = record()
    edited["scores"]["test"]["metrics"] = {"accuracy": 1.5}
    text = page_of(a_run(tmp_path / "run", edited)).text
    assert "record.json: its test accuracy is 1.5; expected a share from 0 to 1" in text


EVIL = "</title></style></td><script>alert(1)</script>' onload='x\" \x00\u202e"


def poisoned(value):
    """The same with more in each text and in each name of a setting, a score or a package."""
    if isinstance(value, dict):
        return {key: poisoned(part) for key, part in value.items()}
    if isinstance(value, list):
        return [poisoned(part) for part in value]
    return f"{value}{EVIL}" if isinstance(value, str) else value


def test_every_text_is_escaped_whatever_it_holds(tmp_path):
    run = a_run(tmp_path / "a<b>&'c", groups=[f"one {EVIL}", f"two {EVIL}"])
    plain = record(settings=config(clip={"plan": "x", "groups": "y"}), mechanism=ADAPTIVE)
    whole = poisoned(plain) | {"stage": "scored"}
    whole["privacy"] |= {"kind": "private", "warnings": [EVIL]}
    whole["config"]["decode"]["split"] = "test"
    whole["config"]["task"][EVIL] = EVIL
    whole["scores"]["test"]["metrics"][EVIL] = 0.5
    whole["environment"]["packages"][EVIL] = EVIL
    (run / "record.json").write_text(json.dumps(whole))
    text = {"source": EVIL, "prediction": "half a pair: \ud800", "references": [EVIL, "ok"]}
    write_lines(run / "generations/test.jsonl", [text])
    other = a_run(tmp_path / "other")
    for paths in ([run], [run, other]):
        html = build(find(paths), Options(private=True))
        assert not re.search("<script|[\x00\u202e\ud800]", html)
        page = Page(html)
        assert page.text.count("<script>alert(1)</script>' onload='x\"") > 10
        assert "a<b>&'c" in page.text


def test_samples_of_held_out_data_are_never_on_a_public_page(tmp_path):
    run = a_run(tmp_path / "run", record(labels=["test split: about 0.1 of the records, held out"]))
    for asked in (None, 5):
        text = page_of(run, samples=asked).text
        assert "say 0" not in text
        assert "held out from the private data" in text
    assert "a share of the data was held out" in text  # above the scores
    assert "say 0" in page_of(run, private=True).text


def test_samples_of_own_data_are_shown_only_if_asked_for(tmp_path):
    settings = config(task={"name": "text2text", "train_file": "a.jsonl", "source": "auto"})
    run = a_run(tmp_path / "run", record(settings=settings))
    assert "if they may, --samples 8 shows some" in page_of(run).text
    assert "say 0" not in page_of(run).text
    assert "3 of 20 generations" in page_of(run, samples=3).text
    assert "none is shown" in page_of(run, samples=0).text


def test_thresholds_are_shown_by_layer(tmp_path):
    run = adaptive(tmp_path, groups=["transformer.wte", "transformer.h.0.attn"])
    text = page_of(run).text
    assert "Clipping thresholds by group" in text
    assert "transformer.h.0.attn 2 0.25 0.25 2" in text
    assert "adaptive: the private 0.5-quantile of each group" in text


def test_thresholds_that_no_ledger_has_come_from_the_private_metrics(tmp_path):
    run = adaptive(tmp_path)
    assert "thresholds of each step are not in this run's ledger" in page_of(run).text
    lines = [{"step": s, "loss": 1.0, "clip_thresholds": [1.0, 0.5]} for s in range(3)]
    write_lines(run / "private/metrics.jsonl", lines)
    text = page_of(run, private=True).text
    assert "group 2 0.5 0.5" in text
    assert "thresholds of each step are not" not in text


def test_a_digest_of_references_that_may_not_be_shown_is_left_out(tmp_path):
    scores = record()["scores"]
    scores["test"]["references"] = "0123456789abcdef"
    run = a_run(tmp_path / "run", record(scores=scores))
    assert "Digest of the test references 0123456789abcdef" in page_of(run).text
    run = a_run(tmp_path / "run", record(scores=scores, labels=["test split: held out"]))
    assert "0123456789abcdef" not in page_of(run).text


def test_the_learning_rate_follows_from_the_settings(tmp_path):
    settings = config(optim={"name": "adam", "lr": 0.01, "epochs": 1, "batch_size": 8,
                             "schedule": "linear", "warmup_steps": 2})  # fmt: skip
    page = page_of(a_run(tmp_path / "run", record(settings=settings)))
    assert "Learning rate" in page.text
    assert "at every step" not in page.text


def test_a_page_stays_small(tmp_path):
    names = [f"transformer.h.{k}.attn.c_attn" for k in range(150)]
    run = adaptive(tmp_path, groups=names)
    head = read_ledger(run / "ledger.jsonl").header
    entries = [
        {"step": s, "epsilon_rdp": epsilon(s + 1), "thresholds": [k + s / 7 for k in range(150)]}
        for s in range(1500)
    ]
    (run / "ledger.jsonl").write_bytes(chained_lines(head, entries))
    generations(run, 500)
    html = html_of(run)
    assert len(html) < 200_000
    assert "16 of 150 groups" in Page(html).text


def test_a_model_that_learned_nothing_is_told_above_its_scores(tmp_path):
    whole = {**record(), "scores": {"test": CONSTANT}}
    page = html_of(a_run(tmp_path / "run", whole))
    assert "all 5 answers are the same, &#39;yes&#39;" in page
    opening = Page(page).text.partition("Losses, gradient")[0]
    assert (
        "run Epsilon 3.000, accuracy 0.6000 on 5 test examples, majority class 0.6000." in opening
    )
    for said in ("most frequent class everywhere", "0.6000", "answered yes", "test: true class"):
        assert said in page


def test_what_epsilon_means_stands_near_the_top_in_the_run_s_numbers(tmp_path):
    text = page_of(a_run(tmp_path / "run")).text
    means = text[text.index("What the epsilon means Epsilon 3.000.") : text.index("Scores split")]
    assert "One record is one row of the training file." in means
    assert "a factor of at most 20.1 (e to the power of epsilon)" in means
    assert "more than 95.26% sure" in means
    for voided in ({"voided_by": ["shuffled"], "meaning": ""}, {"stated": None, "meaning": "-"}):
        whole = record()
        whole["privacy"] |= voided
        text = page_of(a_run(tmp_path / "run", whole)).text
        assert "a factor of at most" not in text
        assert "not proven" in text or "no finite epsilon" in text.lower()
