"""Scores by lm-evaluation-harness: asked of the run's model, and written into its record."""

import importlib.machinery
import json
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from dpft import runs
from dpft.cli.app import app
from dpft.report.comparison import row
from dpft.report.pages.gather import Options, gather
from dpft.report.pages.sections import scores as scores_of
from dpft.report.pages.target import Target
from dpft.training.harness import HarnessSettings, _sections, evaluate
from dpft.training.run import run_experiment
from tests.small_runs import settings

TASK = """
task: colours
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
metadata: {{version: 2}}
"""
# What the harness returns, of one task and of a group of two.
FOUND = {
    "results": {
        "colours": {"name": "colours", "acc,none": 0.25, "acc_stderr,none": 0.125},
        "shapes": {"acc,strict": 0.5, "acc_stderr,strict": "N/A"},
        "shapes_a": {"acc,none": 1.0},
        "shapes_b": {"acc,none": 0.0},
    },
    "group_subtasks": {"shapes": ["shapes_a", "shapes_b"], "colours": []},
    "versions": {"colours": 2},
    "n-shot": {"colours": 0, "shapes_a": 5, "shapes_b": 5},
    "n-samples": {
        "colours": {"original": 9, "effective": 4},
        "shapes_a": {"original": 2, "effective": 2},
        "shapes_b": {"original": 3, "effective": 3},
    },
}


def invoke(*arguments):
    return CliRunner().invoke(app, ["eval", *map(str, arguments)])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    words = ["task=language_modeling", "model=tiny", "task.max_length=64"]
    return run_experiment(settings(tmp_path_factory.mktemp("eval"), *words)).path


@pytest.fixture
def asked(monkeypatch):
    """The harness, as far as dpft asks it; it notes how it was asked."""
    taken = {}

    def evaluate(**options):
        taken.update(options)
        if options["tasks"] == ["hellaswag"]:
            raise ConnectionError("Couldn't reach the hub")
        return FOUND

    known = SimpleNamespace(all_tasks=["colours", "shapes", "hellaswag"])
    modules = {
        "lm_eval": {"simple_evaluate": evaluate, "__version__": "9"},
        "lm_eval.models": {},
        "lm_eval.models.huggingface": {"HFLM": lambda **options: options},
        "lm_eval.tasks": {"TaskManager": lambda include_path: known},
    }
    for name, content in modules.items():
        module = ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    return taken


def test_scores_are_part_of_the_record_and_the_run_stays_whole(made, asked):
    before = runs.read_record(made)
    done = invoke(made, "tasks=colours,shapes", "limit=4", "shots=0")
    assert done.exit_code == 0, done.output
    assert not asked["model"]["pretrained"].training
    assert (asked["limit"], asked["num_fewshot"], asked["log_samples"]) == (4, 0, False)
    record = runs.read_record(made)
    scores = record["scores"]
    assert scores.pop("lm-eval colours") == {
        "metrics": {"acc": 0.25},
        "standard_errors": {"acc": 0.125},
        "examples": 4,
        "signature": "lm-eval 9|task version 2|0 shots|the first 4 of 9",
    }
    group = scores.pop("lm-eval shapes")
    assert (group["metrics"], group["examples"]) == ({"acc (strict)": 0.5}, 5)
    assert "5 shots" in group["signature"]
    assert scores == before["scores"]  # nothing of single tasks of a group, the run's own as before
    assert record["privacy"] == before["privacy"]
    card = (made / "model/README.md").read_text()
    assert "| lm-eval colours | acc | 0.25 ± 0.1250 | 4 |" in card
    assert "| Score ± standard error |" in card
    assert row(made, runs.read_record(made))["colours acc"] == "0.2500 ± 0.1250"
    shown = scores_of(gather(Target(made, made.name), Options(), 0))
    assert shown["head"][:4] == ("split", "metric", "score", "standard error")
    assert ("lm-eval colours", "acc", "0.2500", "0.1250") in [line[:4] for line in shown["rows"]]
    assert {line[3] for line in shown["rows"] if line[0] == "test"} == {"-"}
    runs.check_whole(made)


@pytest.mark.parametrize("chat", [False, True])
def test_the_signature_says_whether_a_chat_template_was_applied(asked, chat):
    loaded = SimpleNamespace(model=torch.nn.Identity(), text_tokenizer=None)
    found = evaluate(SimpleNamespace(loaded=loaded), HarnessSettings("colours", chat=chat))
    assert asked["apply_chat_template"] is chat
    assert ("chat template" in found["lm-eval colours"]["signature"]) is chat


@pytest.mark.parametrize(
    ("aggregate", "tasks", "kept"),
    [
        ({"acc,none": 0.5}, "shapes", ["shapes"]),
        ({}, "shapes", ["shapes_a", "shapes_b"]),
        ({"acc,none": 0.5}, "shapes,shapes_b", ["shapes", "shapes_b"]),
        ({}, "all", ["shapes_a", "shapes_b", "colours"]),
        ({"acc,none": 0.5}, "all", ["shapes", "colours"]),
    ],
)
def test_a_group_stands_for_its_tasks_only_where_it_has_a_score(aggregate, tasks, kept):
    results = {"shapes": {"name": "shapes", "alias": "shapes"} | aggregate, "all": {"alias": "all"}}
    results = {**FOUND["results"], **results}
    groups = {"all": ["shapes", "colours"], "shapes": ["shapes_a", "shapes_b"]}
    if "all" not in tasks:
        del groups["all"], results["all"], results["colours"]
    found = {**FOUND, "results": results, "group_subtasks": groups}
    sections = dict(_sections(found, "9", HarnessSettings(tasks)))
    assert {name.removeprefix("lm-eval ") for name in sections} == {*kept}
    assert all(section["metrics"] for section in sections.values())


def test_what_cannot_be_asked_is_told_in_one_sentence(made, asked, monkeypatch):
    for typed, said in {
        "tasks=colour": "no task 'colour'; did you mean 'colours'?",
        "tasks=hellaswag": "take theirs from the hub: go online once, or give tasks whose files",
        "include=x": "no tasks given; type dpft eval RUN tasks=hellaswag,arc_easy",
        "tasks=": "expected names, as in tasks=hellaswag",
    }.items():
        done = invoke(made, typed)
        assert said in done.output
        assert done.exit_code == 2
    monkeypatch.setattr("dpft.training.harness.find_spec", lambda name: None)
    assert "type pip install 'dpft[eval]'" in invoke(made, "tasks=colours").output


@pytest.mark.slow
def test_the_harness_itself_asks_a_task_of_ones_own(made, tmp_path):
    pytest.importorskip("lm_eval")
    file = tmp_path / "colours.jsonl"
    lines = [
        {"question": f"Thing {i} is", "choices": ["red", "blue"], "answer": i % 2} for i in range(4)
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "colours.yaml").write_text(TASK.format(file=file))
    done = invoke(made, "tasks=colours", f"include={tmp_path}")
    assert done.exit_code == 0, done.output
    scored = runs.read_record(made)["scores"]["lm-eval colours"]
    assert scored["metrics"]["acc"] in (0, 0.25, 0.5, 0.75, 1)
    assert scored["examples"] == 4
