"""The commands as people type them."""

import errno
import json
import os
import re
import shlex
from pathlib import Path

import pytest
import yaml

from dpft.cli.app import VERBS
from dpft.cli.inputs import check, typed
from dpft.cli.results import decoding
from dpft.config import folder
from dpft.config.compose import compose
from dpft.config.errors import ConfigError
from dpft.config.schema import parse
from tests.processes import dpft, invoke

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = [f"{typed(g)}{name}" for g in folder.groups() for name in folder.choices(g)]


def test_every_verb_setting_and_shipped_choice_is_listed():
    said = invoke("--help").output
    for verb in VERBS:
        assert f"  {verb} " in said
        assert invoke(verb, "--help").exit_code == 0
    said = invoke("train", "--help").output
    for group in folder.groups():
        assert f"\n{group}: {', '.join(folder.choices(group))}\n" in said
    assert "\n  eps: " in said
    said = invoke("ls").output
    for choice in SHIPPED:
        assert f"  {choice.split('=')[1]} " in said
    assert invoke("ls", "clip=ghost").output == (ROOT / "conf/clip/ghost.yaml").read_text()


def test_account_prints_the_papers_epsilons():
    typed = ("task=e2e", "optim.batch_size=1024", "optim.epochs=10", "eps=8")
    result = invoke("account", *typed, "privacy.accountant=rdp", "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert answer["delta"] == 1 / (2 * 42061)
    assert answer["epsilon"]["rdp"] <= answer["target_epsilon"] == 8
    assert answer["epsilon"]["prv"]["estimate"] == pytest.approx(6.98, abs=0.03)


def test_every_shipped_config_is_valid():
    needs = {"model=custom": ["model.path=FOLDER"]}
    needs |= {f"parallel={layout}": ["ranks=2"] for layout in ("fsdp", "pipeline")}
    for choice in SHIPPED:
        check([choice, *needs.get(choice, ())])


def test_score_reads_any_predictions_file(tmp_path, monkeypatch):
    """All but METEOR itself, whose start takes ten seconds and which other tests cover."""
    monkeypatch.setattr("dpft.tasks.metrics.coco.meteor", lambda predictions, references: 0.25)
    lines = [
        '{"prediction": "Aromi is a pub.", "references": ["Aromi is a pub.", "A pub: Aromi."]}',
        '{"prediction": "The Mill serves tea outside.", "references": ["The Mill has tea."]}',
    ]
    file = tmp_path / "out.jsonl"
    file.write_text("\n".join(lines))
    result = invoke("score", "task=e2e", f"predictions={file}", "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert answer["examples"] == 2
    assert set(answer["metrics"]) == {"BLEU", "NIST", "METEOR", "ROUGE_L", "CIDEr"}
    assert answer["metrics"]["METEOR"] == 0.25


def test_hydras_own_flags_work_in_any_order(tmp_path):
    mine = tmp_path / "mine" / "experiment"
    mine.mkdir(parents=True)
    (mine / "own.yaml").write_text("# @package _global_\nseed: 5\n")
    typed = ("eps=8", "+experiment=own", "--config-dir", "mine", "--cfg", "job", "task=e2e")
    result = dpft("train", *typed, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    for line in ("epsilon: ${eps}", "eps: 8", "seed: 5"):
        assert line in result.stdout
    assert list(tmp_path.iterdir()) == [tmp_path / "mine"]


def test_settings_after_training_are_read_as_before_it():
    usual = parse(compose(["task=e2e"])).decode
    typed = ["decode.top_p=9e-1", "decode.sample=true", "decode.beams=1", "decode.split=test"]
    settings = decoding(typed, usual)
    assert (settings.top_p, settings.sample) == (0.9, True)
    for odd in ("[", "${x}", "a: b: c"):
        with pytest.raises(ConfigError, match=r"decode\.top_p"):
            decoding([f"decode.top_p={odd}"], usual)


def test_the_readme_commands_are_valid():
    """Every dpft command in README.md composes; what it would run is tested elsewhere."""
    text = (ROOT / "README.md").read_text()
    commands = re.findall(r"^(?:DPFT_DATA=\S+ )?dpft (\w+) ?(.*?)(?:\s+#.*)?$", text, re.MULTILINE)
    assert len(commands) > 5
    for verb, rest in commands:
        if verb in ("train", "account"):
            words = [w for w in shlex.split(rest) if "=" in w and not w.startswith("-")]
            words = [w if "[" in w else w.split(",")[0] for w in words]  # of a sweep the first
            result = invoke("validate", *words)
            assert result.exit_code == 0, f"{verb} {rest}: {result.output}"
        else:
            assert invoke(verb, "--help").exit_code == 0


REFUSED = [
    ("optim.step=5", "unknown setting optim.step; did you mean 'optim.steps'?"),
    ("epsilon=3", "unknown setting epsilon; did you mean 'privacy.epsilon'?"),
    ("eps", "got 'eps'"),
    ("clip=Ghost", "clip is 'Ghost'; did you mean 'ghost'?"),
    ("adapt.rank=4", "adapt.rank is no setting of the choice"),
    ("privacy.noise_multiplier=1 eps=3", "got eps=3 next to privacy.noise_multiplier=1"),
    ("eps=[", "cannot read 'eps=['"),
    ("eps=${nothing}", "Interpolation key 'nothing' not found"),
    ("eps=1,2", "got eps=1,2; expected one value. For a run of each type dpft sweep eps=1,2"),
]


@pytest.mark.parametrize(("typed", "message"), REFUSED)
def test_an_error_of_hydra_is_one_sentence(typed, message):
    result = invoke("account", *typed.split(" ") if "=[" not in typed else [typed])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith(f"dpft: {message}")
    assert "HYDRA" not in result.stderr


def test_validate_says_what_it_could_not_check():
    typed = ["validate", "task=text2text", "model=gpt2"]
    assert "were not checked; type task.train_size=N" in invoke(*typed).output
    given = ["task.train_size=5000", "privacy.noise_multiplier=1", "eps=null"]
    assert invoke(*typed, *given).output == f"ok: {' '.join([*typed[1:], *given])}\n"
    result = invoke(*typed, "task.train_size=270")
    assert "optim.batch_size is 1024 for 270" in result.stderr
    assert "type optim.batch_size=64" in " ".join(result.stderr.split())


def test_validate_checks_the_run_that_is_resumed(tmp_path):
    file = tmp_path / "config.yaml"
    stored = compose(["task=text2text", "task.train_file=mine.jsonl"])
    file.write_text(yaml.safe_dump(stored))
    asked = ["validate", f"resume={tmp_path}"]
    # Its size is not known here, but was when it began.
    assert invoke(*asked, "device=cpu").output == f"ok: resume={tmp_path} device=cpu\n"
    result = invoke(*asked, "eps=5")
    assert (result.exit_code, f"got eps next to resume={tmp_path}" in result.stderr) == (2, True)
    file.write_text(yaml.safe_dump({**stored, "seed": -1}))
    result = invoke(*asked)
    assert (result.exit_code, "seed is -1" in result.stderr) == (2, True)


def test_a_file_that_cannot_be_written_is_one_message_wherever_it_happens(monkeypatch):
    def refuse(words):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "results/page.html")

    monkeypatch.setattr("dpft.cli.inputs.check", refuse)
    result = invoke("validate")
    assert result.exit_code == 2
    assert result.stderr.startswith("dpft: results/page.html: No space left on device; free some")
