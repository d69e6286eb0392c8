"""The commands as people type them."""

import errno
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from dpft.cli import demo
from dpft.cli.app import VERBS, app, main
from dpft.cli.decode import decoding
from dpft.cli.train import flags_first
from dpft.cli.validate import shipped
from dpft.config.compose import compose
from dpft.config.errors import ConfigError
from dpft.config.schema import parse
from tests.processes import dpft
from tests.runs.example import example_guarantee, without_privacy

ROOT = Path(__file__).resolve().parents[2]


def invoke(*arguments):
    return CliRunner().invoke(app, list(arguments))


@pytest.mark.parametrize("arguments", [["--help"], ["ls"], ["--version"], ["train", "-h"]])
def test_help_and_ls_load_neither_torch_nor_hydra(arguments):
    """So that they answer at once."""
    code = (
        "import sys; from typer.testing import CliRunner; from dpft.cli.app import app; "
        f"result = CliRunner().invoke(app, {arguments!r}); "
        "print('torch' in sys.modules, 'hydra' in sys.modules, result.exit_code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-3:] == ["False", "False", "0"]


@pytest.mark.parametrize("verb", VERBS)
def test_help_lists_every_verb_by_the_first_words_of_its_own_help(verb):
    assert re.search(
        rf"^  {verb} +{VERBS[verb].summary[:50]}", invoke("--help").output, re.MULTILINE
    )
    if not VERBS[verb].own_help:
        assert VERBS[verb].summary in " ".join(invoke(verb, "--help").output.split())


@pytest.mark.parametrize(
    "typed",
    [
        *("select", "predict", "export", "decode"),
        *("score", "report", "generate", "quality"),
    ],
)
def test_an_argument_that_is_missing_is_told_with_an_example(typed):
    result = invoke(*typed.split())
    assert result.exit_code == 2
    verb = typed.removesuffix(" x")
    assert re.search(rf"Missing .+\. \S.* Type for instance dpft {verb} \S", result.output)


def test_ls_shows_every_shipped_choice():
    output = invoke("ls").output
    for choice in shipped()[1:]:
        assert f"  {choice[0].split('=')[1]} " in output
    assert "mnli" in invoke("ls", "tasks").output
    result = invoke("ls", "taks")
    assert result.exit_code == 2


@pytest.mark.parametrize(
    ("typed", "sorted_"),
    [
        ("eps=1 -m seed=2,3", "-m eps=1 seed=2,3"),
        ("task=e2e --cfg job eps=1", "--cfg job task=e2e eps=1"),
        ("eps=1 --config-dir mine +experiment=x", "--config-dir mine eps=1 +experiment=x"),
        ("eps=1 --info", "--info all eps=1"),
        ("--info defaults eps=1", "--info defaults eps=1"),
        ("eps=1 -cd=mine", "-cd=mine eps=1"),
    ],
)
def test_flags_and_overrides_in_any_order(typed, sorted_):
    assert flags_first(typed.split()) == sorted_.split()


@pytest.mark.parametrize(
    ("arguments", "delta", "gdp", "prv"),
    [
        ("task=sst2 optim.batch_size=1000 optim.epochs=3 eps=3", 1 / (2 * 67349), None, 2.41),
        ("task=qnli optim.batch_size=2000 optim.epochs=6 eps=8", 1 / (2 * 104743), 4.75, 6.87),
        ("task=mnli optim.batch_size=6000 optim.epochs=18 eps=3", 1 / (2 * 392702), 2.52, 2.75),
        ("task=e2e optim.batch_size=1024 optim.epochs=10 eps=8", 1 / (2 * 42061), 5.51, 6.98),
    ],
)
def test_account_prints_the_papers_epsilons(arguments, delta, gdp, prv):
    result = invoke("account", *arguments.split(), "privacy.accountant=rdp", "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    epsilon = answer["epsilon"]
    assert answer["delta"] == delta
    assert answer["noise_multiplier"] > 0
    assert answer["sampling_rate"] == answer["batch_size"] / answer["dataset_size"]
    assert answer["steps"] > 0
    assert epsilon["rdp"] <= answer["target_epsilon"]
    assert epsilon["prv"]["lower"] <= epsilon["prv"]["estimate"] <= epsilon["prv"]["upper"]
    assert epsilon["prv"]["estimate"] == pytest.approx(prv, abs=0.03)
    if gdp is not None:
        assert epsilon["gdp_clt"] == pytest.approx(gdp, abs=0.03)


def test_account_writes_json_where_an_epsilon_is_infinite():
    words = ("task=e2e", "eps=null", "privacy.noise_multiplier=0.03", "--json")

    def refused(constant):
        raise AssertionError(f"{constant} is no JSON")

    answer = json.loads(invoke("account", *words).stdout, parse_constant=refused)
    assert answer["epsilon"]["gdp_clt"] is None


def test_account_prints_a_table():
    output = " ".join(invoke("account", "task=e2e", "eps=3").output.split())
    assert "noise multiplier" in output
    assert "GDP-CLT" in output
    # Bounds, rounded up; PRV's estimate is a remark.
    assert "epsilon, PLD 3.000 upper bound" in output
    assert "epsilon, PRV 3.034 upper bound for removal" in output
    assert "delta 1.19e-05 1/(2N)" in output  # as on cards: never less than it is


def test_account_names_the_accountant_that_the_noise_rests_on():
    output = " ".join(invoke("account", "task=e2e", "eps=3", "privacy.delta=1e-20").output.split())
    assert "calibrated to epsilon 3.0 by rdp: PLD gives no number" in output
    assert "epsilon, PLD" not in output


def test_account_calls_no_figure_of_shuffled_batches_a_bound():
    output = invoke("account", "task=e2e", "eps=3", "sampling=shuffle").output
    assert "upper bound" not in output
    assert "run with shuffled batches" in output
    answer = invoke("account", "task=e2e", "eps=3", "sampling=shuffle", "--json").stdout
    assert json.loads(answer)["sampling"] == "shuffle"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("account eps=1e-7 privacy.accountant=rdp", "epsilon"),
        ("account +optim.bach_size=3", "unknown setting optim.bach_size; did you mean"),
        ("account optim.batch_size=100000", "optim.batch_size is 100000 for 42061"),
        ("account privacy.accountant=pvr", "'pvr'; expected one of pld, rdp"),
        ("account eps=null", "neither privacy.epsilon nor privacy.noise_multiplier"),
        ("account resume=runs/one", "type dpft report runs/one"),
        ("validate task=sst2 sampling=shufle", "expected one of poisson, truncated_poisson, shuf"),
        ("train resume=nowhere", "nowhere holds no config.yaml"),
        ("validate resume=5", "5 holds no config.yaml"),
        ("score task=e2e", "expected one, as in dpft score task=e2e predictions=FILE"),
        ("score task=e2e predictions=none.jsonl", "cannot read none.jsonl"),
        ("cp classify-csv nowhere/x.yaml", "nowhere is no folder"),
        ("score task=e2e predictions=x.jsonl resume=runs/x", "type dpft score runs/x"),
        ("data fetch e2e", "got dpft data fetch; expected one of"),
        ("report nowhere", "there is no folder nowhere"),
    ],
)
def test_bad_input_is_one_message_and_status_2(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke(*arguments.split())
    assert result.exit_code == 2
    assert result.stderr.startswith("dpft: ")
    assert message in result.stderr.replace("\n", " ")
    assert "Traceback" not in result.output


@pytest.mark.parametrize("verb", ["train", "--help"])
def test_a_deleted_working_directory_is_one_message(verb, tmp_path, monkeypatch, capsys):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setattr("sys.argv", ["dpft", verb])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("dpft: the working directory was deleted")


def test_every_shipped_config_is_valid():
    result = invoke("validate")
    assert result.exit_code == 0, result.output
    # What needs an extra that is not installed is named as not checked.
    assert result.output.count("ok:") + result.output.count("not checked:") == len(shipped())
    assert set(re.findall(r"^not checked: (\S+)", result.output, re.MULTILINE)) <= {
        "+hparams_search=optuna"
    }


def test_score_reads_any_predictions_file(tmp_path, monkeypatch):
    """All but METEOR itself, whose start takes ten seconds and which has tests of its own."""
    monkeypatch.setattr("dpft.tasks.metrics.coco.meteor", lambda predictions, references: 0.25)
    lines = [
        {"prediction": "Aromi is a pub.", "references": ["Aromi is a pub.", "A pub: Aromi."]},
        {"prediction": "The Mill serves tea by the river.", "references": ["The Mill has tea."]},
    ]
    file = tmp_path / "out.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)))
    result = invoke("score", "task=e2e", f"predictions={file}", "--json")
    assert result.exit_code == 0, result.output
    answer = json.loads(result.stdout)
    assert answer["examples"] == 2
    assert set(answer["metrics"]) == {"BLEU", "NIST", "METEOR", "ROUGE_L", "CIDEr"}
    assert answer["metrics"]["METEOR"] == 0.25
    assert "repeat" not in result.stderr
    # A reference in each line.
    apart = [{**lines[0], "source": "x", "references": [text]} for text in lines[0]["references"]]
    apart.append({**lines[1], "source": "y"})
    file.write_text("\n".join(map(json.dumps, apart)))
    result = invoke("score", "task=e2e", f"predictions={file}", "--json")
    assert json.loads(result.stdout) == answer
    assert "3 lines are 2 instances" in result.stderr
    # Several texts of one source, or several instances: the file does not say.
    apart[1]["prediction"] = "Aromi."
    file.write_text("\n".join(map(json.dumps, apart)))
    result = invoke("score", "task=e2e", f"predictions={file}", "--json")
    assert json.loads(result.stdout)["examples"] == 3
    assert "1 lines have the source of the line before and other references" in result.stderr


@pytest.mark.parametrize(
    "line", ["not json", '{"prediction": "a"}', '{"prediction": "a", "references": []}', "[1]"]
)
def test_a_malformed_predictions_file_is_refused_with_its_line(tmp_path, line):
    file = tmp_path / "out.jsonl"
    file.write_text('{"prediction": "a", "references": ["a"]}\n' + line)
    result = invoke("score", "task=e2e", f"predictions={file}")
    assert result.exit_code == 2
    assert "out.jsonl, line 2" in result.stderr


def test_data_sample_writes_files_that_data_check_reads(tmp_path, monkeypatch):
    folder = tmp_path / "e2e"
    result = invoke("data", "sample", "e2e", "--to", str(folder))
    assert result.exit_code == 0, result.output
    monkeypatch.delenv("DPFT_DATA", raising=False)
    assert "no files here; the hub would be asked" in invoke("data", "where", "e2e").output
    monkeypatch.setenv("DPFT_DATA", str(tmp_path))
    assert f"e2e: {folder}" in invoke("data", "where", "e2e").output
    assert "e2e train: 4,000 records" in invoke("data", "check", "e2e").output


def test_hydras_own_flags_work_in_any_order(tmp_path):
    result = dpft("train", "eps=8", "--cfg", "job", "task=e2e", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "epsilon: ${eps}" in result.stdout
    assert "eps: 8" in result.stdout
    mine = tmp_path / "mine" / "experiment"
    mine.mkdir(parents=True)
    (mine / "own.yaml").write_text("# @package _global_\neps: 5\n")
    result = dpft("train", "+experiment=own", "--config-dir", "mine", "--cfg", "job", cwd=tmp_path)
    assert "eps: 5" in result.stdout, result.stderr
    result = dpft("train", "--cfg", "job", "name=Übung #1", cwd=tmp_path)
    assert "name: 'Übung #1'" in result.stdout, result.stderr
    result = dpft("train", "optim.larning_rate=1", cwd=tmp_path)
    assert result.returncode != 0
    assert "larning_rate" in result.stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "mine"]


def test_settings_after_training_are_read_as_before_it():
    usual = parse(compose(["task=e2e"])).decode
    typed = ["decode.top_p=9e-1", "decode.sample=true", "decode.beams=1", "decode.split=test"]
    settings = decoding(typed, usual)
    assert (settings.top_p, settings.sample) == (0.9, True)
    for odd in ("[", "${x}", "a: b: c"):
        with pytest.raises(ConfigError, match=r"decode\.top_p is"):
            decoding([f"decode.top_p={odd}"], usual)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is full")
def test_help_on_a_full_disk_is_one_message():
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "dpft", "--help"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 2
    assert done.stderr.startswith("dpft: a file: No space left on device; free some space")


@pytest.mark.parametrize("name", ["Übung", "demo (1)"])
def test_the_demo_goes_into_any_folder(monkeypatch, name):
    def note(run):
        assert run.runs_dir == name
        raise InterruptedError

    monkeypatch.setattr("dpft.training.run.run_experiment", note)
    with pytest.raises(InterruptedError):
        demo.main(Path(name))


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


def test_an_unreachable_hub_is_not_asked_again_and_again(tmp_path, monkeypatch):
    """One sentence, and none of the hub client's retries."""
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.delenv("TRANSFORMERS_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.invalid")
    monkeypatch.delenv("DPFT_DATA", raising=False)
    for overrides, said in (
        (["task.source=sample", "model=gpt2"], "model=tiny is bundled"),
        ([], "task.source=sample for generated data"),
    ):
        # By Python itself: it is on import that the client learns whether to ask.
        result = subprocess.run(
            [sys.executable, "-m", "dpft.cli.app", "train", *overrides],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert result.returncode == 2
        assert said in " ".join(result.stderr.split())
        assert "Retry" not in result.stderr
        assert "Traceback" not in result.stderr


REFUSED = [
    ("optim.step=5", "unknown setting optim.step; did you mean 'optim.steps'?"),
    ("tsk=e2e", "unknown setting tsk; did you mean 'task'?"),
    ("epsilon=3", "unknown setting epsilon; did you mean 'eps'?"),
    ("privacy.eps=3", "unknown setting privacy.eps; did you mean 'eps'?"),
    ("batch_size=3", "unknown setting batch_size; did you mean 'optim.batch_size'?"),
    ("eps", "got 'eps' without a value; type eps=3"),
    ("task=text2txt", "task is 'text2txt'; did you mean 'text2text'?; expected one of chat,"),
    ("clip=Ghost", "clip is 'Ghost'; did you mean 'ghost'?"),
    (
        "task.classes=3",
        "the task that was chosen has no setting task.classes; it belongs to task=c",
    ),
    (
        "adapt.rank=4",
        "the adapt that was chosen has no setting adapt.rank; it belongs to adapt=lora",
    ),
    ("task=null", "task is 'null'; expected one of chat"),
    ("model=./mine", "model is './mine'; expected a name that `dpft ls model` shows. For a folder"),
    (
        "privacy.noise_multiplier=1 eps=3",
        "got eps=3 next to privacy.noise_multiplier=1, from which",
    ),
    ("experiment=demo", "experiment has no choice by default; type +experiment=NAME"),
    ("+task.name=x", "task.name is a setting already; type task.name=VALUE, without +"),
    ("eps=1,2", "got several values in eps=1,2; for a run of each type dpft train -m eps=1,2"),
    ("eps=[", "cannot read 'eps=['"),
    ("eps=${nothing}", "privacy.epsilon: Interpolation key 'nothing' not found"),
]


@pytest.mark.parametrize(("typed", "message"), REFUSED)
def test_what_hydra_refuses_is_told_in_one_sentence(typed, message):
    result = invoke("account", *typed.split(" ") if "=[" not in typed else [typed])
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith(f"dpft: {message}")
    assert "HYDRA" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        *((typed, message) for typed, message in REFUSED[:3]),
        ("-m clip=bk,Ghost", "clip is 'Ghost'; did you mean 'ghost'?"),
        ("-m epsilon=1,3", "unknown setting epsilon; did you mean 'eps'?"),
        ("--epsilon 3", "there is no flag --epsilon; did you mean 'eps'?"),
        ("--batch-size=3", "there is no flag --batch-size; did you mean 'optim.batch_size'?"),
        ("--cfg job tsk=e2e", "unknown setting tsk; did you mean 'task'?"),
        ("eps=${nothing}", "privacy.epsilon: Interpolation key 'nothing' not found"),
    ],
)
def test_train_tells_the_same(tmp_path, arguments, message):
    """In a process of its own: Hydra sets up logging for the whole of one."""
    result = dpft("train", *arguments.split(), cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert result.stderr.startswith(f"dpft: {message}")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "flags",
    ["--cfg job", "--cfg=job -p optim", "-c job --resolve", "--info all", "--info defaults"],
)
def test_hydras_flags_are_left_to_hydra(tmp_path, flags):
    typed = ["hydra.job.name=a", "++optim.lr=1", "hydra/job_logging=none"]
    result = dpft("train", *flags.split(), *typed, cwd=tmp_path)
    assert result.returncode == 0, result.stderr


def test_who_asks_for_hydras_own_error_gets_it(monkeypatch, tmp_path):
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    assert "ConfigCompositionException" in dpft("train", "tsk=e2e", cwd=tmp_path).stderr


def test_validate_says_what_it_could_not_check():
    assert "were not checked; type task.train_size=N" in invoke("validate", "task=text2text").output
    typed = ["task=text2text", "task.train_size=5000", "privacy.noise_multiplier=1", "eps=null"]
    assert invoke("validate", *typed).output == f"ok: {' '.join(typed)}\n"
    result = invoke("validate", "task=text2text", "task.train_size=270")
    assert "optim.batch_size is 1024 for 270" in result.stderr
    assert "type optim.batch_size=64" in " ".join(result.stderr.split())


RECORD = {
    "config": {"clip": {"plan": "ghost", "groups": "flat"}, "decode": {"split": "test"}},
    "training": {"steps": 4, "seconds": 1.0},
    "privacy": without_privacy(),
}


def test_validate_checks_the_run_that_is_resumed(tmp_path):
    file = tmp_path / "config.yaml"
    stored = compose(["task=text2text", "task.train_file=mine.jsonl"])
    file.write_text(yaml.safe_dump(stored))
    asked = ["validate", f"resume={tmp_path}"]
    # Its size is not known here, but was when it began.
    result = invoke(*asked, "device=cpu", "hydra.verbose=true")
    assert result.output == f"ok: resume={tmp_path} device=cpu hydra.verbose=true\n"
    result = invoke(*asked, "eps=5")
    assert result.exit_code == 2
    assert f"got eps=5 beside resume={tmp_path}" in result.stderr
    file.write_text(yaml.safe_dump({**stored, "seed": -1}))
    result = invoke(*asked)
    assert result.exit_code == 2
    assert "seed is -1" in result.stderr


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_a_file_that_cannot_be_written_is_one_message_wherever_it_happens(number, monkeypatch):
    def refuse():
        raise OSError(number, os.strerror(number), "results/page.html")

    monkeypatch.setattr("dpft.cli.validate.shipped", refuse)
    result = invoke("validate")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"dpft: results/page.html: {os.strerror(number)}; free some")


def test_an_error_of_our_own_is_not_one_of_files(monkeypatch):
    def fail():
        raise ConnectionResetError(errno.ECONNRESET, "reset")

    monkeypatch.setattr("dpft.cli.validate.shipped", fail)
    assert isinstance(invoke("validate").exception, ConnectionResetError)


@pytest.mark.parametrize("verb", [[], ["table"]])
def test_help_has_a_short_name(verb):
    result = invoke(*verb, "-h")
    assert result.exit_code == 0
    assert "dpft" in result.output


def test_a_bound_that_promises_little_says_so():
    assert "promises little" in invoke("account", "eps=10.5").output
    assert "promises little" not in invoke("account", "eps=10").output


def test_score_prints_labels_and_guarantee(tmp_path, monkeypatch):
    statement = "(3, 1e-05)-differential privacy"
    private = example_guarantee(epsilon={}, statement=statement, caveats=["few records"])
    record = {**RECORD, "privacy": private, "flags": [{"flag": "sample_data"}]}
    section = {"metrics": {"BLEU": 0.5}, "examples": 2}
    monkeypatch.setattr("dpft.cli.score.score_run", lambda path: {"test": section})
    monkeypatch.setattr("dpft.runs.read_record", lambda path: record)
    said = " ".join(invoke("score", str(tmp_path)).output.split())
    for words in ("0.5000", "generated sample data", statement, "note: few records"):
        assert words in said
    assert invoke("score", str(tmp_path), "--json").output == json.dumps(section, indent=2) + "\n"
