"""The pages under results/ agree with their records."""

import re
import shlex
from pathlib import Path

import pytest
from PIL import Image

from dpft.config.compose import compose
from dpft.config.flags import Flag, flag
from dpft.config.published import is_other_size, with_part_flags
from dpft.config.schema import Audit, build
from dpft.privacy.accounting import rdp_curve, spent
from dpft.reproduce import papers
from dpft.reproduce.figures import catalog
from dpft.reproduce.tables.planned import make_plan
from dpft.reproduce.tables.record_index import Index, match_key
from dpft.runs.record import check_record, read_table
from dpft.sweep import points as sweep
from scripts.collect_results import DRAWN, RUNS, points, rendered, settings

RESULTS = Path(__file__).resolve().parents[1] / "results"
COLLECTED = read_table(RESULTS)


def test_results_are_few_and_small_enough_for_a_clone():
    files = [file for file in RESULTS.rglob("*") if file.is_file()]
    assert len(files) <= 200
    assert sum(file.stat().st_size for file in files) < 6.5e6


def check_guarantee(record):
    mechanism, privacy = record["mechanism"], record["privacy"]
    assert record["training"]["steps"] == mechanism["steps"]
    epsilon = rdp_curve(**spent(mechanism)).epsilon(privacy["steps_taken"], mechanism["delta"])
    assert privacy["epsilon"]["rdp"] == pytest.approx(epsilon, rel=1e-6)
    assert privacy["stated"] <= mechanism["target_epsilon"]


def check_flags(record):
    """Parts of published sets, and copies of a secret, are named whenever the record was made."""
    task = record["config"]["task"]
    audit = build(Audit, record["config"].get("audit", {}), "audit")
    count = record["dataset"]["counts"]["train"] - audit.planted
    whole = task.get("limit_train") is None and task.get("synthetic") is None
    if whole and is_other_size(count, task["train_size"]):
        assert flag(Flag.TRAIN_SIZE, size=count, published=task["train_size"]) in record["flags"]
    found, flags = with_part_flags(record), record["flags"]
    assert all(one in flags for one in found)
    assert all(one in found for one in flags)
    copied = record["mechanism"] is not None and audit.secrets and audit.repetitions > 1
    caveats = record["privacy"]["caveats"]
    assert any("which epsilon does not cover" in one for one in caveats) == bool(copied)


def test_records_and_pages_agree():
    for path, held in COLLECTED.items():
        record = check_record(held, Path(path))
        assert record["scores"], path
        assert record["environment"]["cpu"], path
        if record["mechanism"] is not None and record["privacy"]["steps_taken"]:
            check_guarantee(record)
        check_flags(record)
    assert len(COLLECTED) > 400
    for group in {Path(path).parent for path in COLLECTED}:
        page = RESULTS / group / "README.md"
        if page.is_file():
            assert rendered(COLLECTED, str(group)) in page.read_text(), group


def test_pictures_have_the_numbers_of_the_records():
    def drawn(file):
        return Image.open(file).text["Description"]

    assert drawn(RESULTS / "figures/utility.png") == repr(points())
    for page in RESULTS.rglob("README.md"):
        if DRAWN.search(text := page.read_text()):
            assert drawn(page.with_name("runs.png")) == repr(settings(COLLECTED, text)[1]), page


def test_a_guarantee_in_doubt_is_no_point_of_the_readmes_chart():
    for *private, none in RUNS.values():
        assert points()[none][0] is None
        assert not any(COLLECTED[run]["privacy"]["caveats"] for run in private)


COMMAND = re.compile(r"^dpft (train|sweep|table|figure) (.+)", re.MULTILINE)


def experiments(verb, words):
    """The keys of the runs that a command makes."""
    if verb in ("train", "sweep"):
        words = [word for word in words if not word.startswith("name=")]
        plan = sweep.make_plan(sweep.parse_arguments(words))
        return {match_key(compose(point.overrides)) for point in plan.points}
    name, scale = words[0], words[1].removeprefix("scale=")
    if verb == "table":
        plans = [make_plan(papers.load(*name.split("/")), scale)]
    else:
        plans = [one.plan for one in catalog.plan_tables(catalog.load(name), scale, Index())]
    return {run.key for plan in plans for run in plan.runs.values()}


def test_the_commands_of_a_page_make_its_records():
    wrong = []
    for page in RESULTS.rglob("README.md"):
        group = page.parent.relative_to(RESULTS)
        recorded = {
            match_key(record["config"]): path
            for path, record in COLLECTED.items()
            if Path(path).parent == group
        }
        quoted = set()
        text = page.read_text().replace("\\\n", " ") if recorded else ""
        for verb, rest in COMMAND.findall(text):
            made = experiments(verb, shlex.split(rest, comments=True))
            typed = verb in ("train", "sweep")
            if made.isdisjoint(recorded) or (typed and made - set(recorded)):
                wrong.append(f"{group}: dpft {verb} {rest}")
            quoted |= made
        wrong += [path for key, path in recorded.items() if key not in quoted]
    assert wrong == []
