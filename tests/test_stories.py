"""The tutorials' stories: their commands as they are typed, at a small size, from an empty folder.

What is quoted must be what is printed, in shape: numbers differ at another size.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dpft.cli.app import app

TUTORIALS = Path(__file__).parents[1] / "docs/tutorials"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r".*<<'END'\n(?:.*\n)*?END\n|(?:.*\\\n)*.+\n")
NUMBER = re.compile(r"[\d.,:%-]*\d[\d.,:%]*(?:e-\d+)?")
# What installs, or stays until it is stopped.
LEFT_OUT = {"pip", "tensorboard"}


def steps(page):
    """The commands of a page, each with what it is said to print."""
    found = []
    for kind, text in BLOCK.findall((TUTORIALS / page).read_text(encoding="utf-8")):
        if kind == "sh":
            found += [[command, ""] for command in COMMAND.findall(text)]
        elif kind == "":
            found[-1][1] = text
    return found


@pytest.fixture(autouse=True)
def _wide(monkeypatch):
    """Tables are quoted as they are where no terminal breaks their lines."""
    monkeypatch.delenv("COLUMNS", raising=False)


def follow(page, small):
    """Run a page's commands here, with more words by a run's name or by verb; return the verbs."""
    verbs = []
    for command, quoted in steps(page):
        words = shlex.split(command.split("<<")[0].replace("\\\n", " "))
        if words[0] in LEFT_OUT:
            continue
        if words[0] == "dpft":
            result = CliRunner().invoke(
                app, [*words[1:], *small.get(words[-1], small.get(words[1], ()))]
            )
            status, printed = result.exit_code, result.output
        else:
            shell = ["bash", "-c", re.sub(r"^python\b", sys.executable, command)]
            done = subprocess.run(shell, capture_output=True, text=True)
            status, printed = done.returncode, done.stdout + done.stderr
        assert status == 0, (command, printed)
        assert untold(quoted, printed) == [], (command, printed)
        verbs.append(" ".join(words[:2]))
    return verbs


def untold(quoted, printed):
    """The pieces of a quotation, at dots, gaps and ends of lines, that were not printed."""
    there = shape(printed)
    return [piece for piece in re.split(r"\.{3}|\s{2,}|\n", quoted) if shape(piece) not in there]


def shape(text):
    """A text without its numbers, rules and outer brackets, and with single spaces."""
    return re.sub(r"[\s─]+", " ", NUMBER.sub("#", text)).strip(" ()")


def test_a_file_of_letters_becomes_a_classifier_and_a_page_for_the_reviewer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = ["hide new secretions from the parental units \t0"]
    rows += ["contains no wit , only labored gags \t0"]
    rows += [f"letter {i} is {'fine' if i % 2 else 'bad'} \t{i % 2}" for i in range(70)]
    Path("train.tsv").write_text("\n".join(["sentence\tlabel", *rows]))
    # All in every batch: then epsilon has a closed form.
    small = ("model=random-bert", "optim.batch_size=68", "optim.steps=1", "device=cpu", "threads=1")
    done = follow("csv_to_review.md", {"train": small})
    assert done == ["python -", "head -3", "dpft data", "dpft train", "dpft report"]
    page = Path("runs/letters/report.html").read_text()
    assert "Each of 68 records" in page
    assert (
        "The 4 test examples that the scores are computed from, which were held out of the same"
        in page
    )


def test_chats_become_a_model_that_others_load(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    quick = ("task.limit_eval=2", "decode.max_new_tokens=8", "threads=1")
    small = {
        "name=public": (*quick, "optim.steps=2"),
        "name=patients": (*quick, "optim.batch_size=4", "optim.steps=2", "optim.lr=1e-6"),
    }
    verbs = ["data", "data", "data", "train", "train", "export"]
    done = follow("private_chats.md", small)
    assert [verb[5:] for verb in done if verb.startswith("dpft")] == verbs
    assert [verb.split()[0] for verb in done if not verb.startswith("dpft")] == ["grep", "python"]
    home = {path.name for path in Path("patients").iterdir()}
    assert {"model.safetensors", "chat_template.jinja", "README.md"} <= home


@pytest.mark.slow  # Java scores four runs
def test_two_more_seeds_fill_a_table_and_are_counted_by_its_claim(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = ("task.source=sample", "task.limit_train=64", "task.limit_eval=2", "threads=1")
    small += ("optim.batch_size=64", "decode=greedy", "decode.max_new_tokens=4")
    done = follow("paper_table.md", {"table": small})
    assert done == ["dpft table"] * 3 + ["dpft claims"]
    assert "(2)" in Path("sgd.md").read_text()
