"""Runs of the queue are copied into results/ by one command, with pages made from their records."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

from dpft.runs import Ledger, read_ledger
from dpft.runs.norms import NormsLog
from tests.reproduce.figures import example
from tests.reproduce.tables.example import write_record

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(scope="module")
def script():
    names = (
        *("collect_results", "collect_table", "evidence", "evidence_figure", "evidence_studies"),
        "collect_evidence",
    )
    before = {name: sys.modules.get(name) for name in names}
    sys.path.insert(0, str(SCRIPTS))
    spec = importlib.util.spec_from_file_location("collect_evidence", SCRIPTS / f"{names[-1]}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(SCRIPTS))
    for name, old in before.items():
        sys.modules.pop(name, None)
        if old is not None:
            sys.modules[name] = old


@pytest.fixture
def folders(script, tmp_path, monkeypatch):
    """What `li2022/c10` compares, two runs with two seeds each, in ``runs/``."""
    monkeypatch.setattr(script, "claims", Few(script.claims.load("li2022/c10")))
    monkeypatch.setattr(script.evidence_studies, "STUDIES", ())
    (one, other) = script.evidence.needs(script.claims.load()[0])
    for number, need in enumerate((one, other)):
        for seed in (1, 2):
            run = tmp_path / "runs" / f"{number}{seed}"
            about = {"environment": {"cpu": "CPU Z", "gpu": None, "threads": 1}}
            model = {"parameters": 757_248}
            write_record(run, need.planned, seed, {"BLEU": 0.5}, model=model, **about)
            ledger(run / "ledger.jsonl")
    (tmp_path / "results").mkdir()
    return tmp_path / "runs", tmp_path / "results"


class Few:
    """Stands for the module of claims, with some of them."""

    def __init__(self, some):
        self._some = some

    def load(self, name=None):
        return self._some


def ledger(path):
    with Ledger(path, {"mechanism": {"steps": 9}, "key": "k"}) as log:
        for step in range(9):
            log.spend(step, epsilon_rdp=1.0 + step, update="0123456789abcdef")


def test_runs_are_copied_once_with_a_summary_of_their_ledger(script, folders):
    runs, results = folders
    copied = script.collect(runs, results, script.folders())
    assert sorted(str(path.relative_to(results)) for path in copied) == [
        f"evidence/li2022-appendix-s/{name}-s{seed}"
        for name in ("adam-lr4e-3", "sgd-lr10")
        for seed in (1, 2)
    ]
    for path in copied:
        assert sorted(file.name for file in path.iterdir()) == ["ledger.jsonl", "record.json"]
        held = read_ledger(path / "ledger.jsonl")
        assert (held.steps_spent, held.omitted, len(held.entries)) == (9, 8, 1)
    assert script.collect(runs, results, script.folders()) == []


def test_a_later_seed_joins_the_others(script, folders):
    runs, results = folders
    script.collect(runs, results, script.folders())
    need = script.evidence.needs(script.claims.load()[0])[0]
    write_record(runs / "x", need.planned, 3, {"BLEU": 0.4})
    (path,) = script.collect(runs, results, script.folders())
    assert path.name.endswith("-s3")
    assert len(list(path.parent.glob("*-s?"))) == 5


def test_another_run_in_the_place_of_one_is_no_reason_to_overwrite_it(script, folders):
    runs, results = folders
    (first, *_) = script.collect(runs, results, script.folders())
    file = first / "record.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"config_hash": "another"}))
    with pytest.raises(SystemExit, match="holds run another; expected"):
        script.copy(runs / "11", first)


def test_a_page_names_models_data_seeds_and_hardware(script, folders):
    runs, results = folders
    script.collect(runs, results, script.folders())
    script.pages(results, script.folders())
    page = (results / "evidence/li2022-appendix-s/README.md").read_text()
    for said in (
        "**Not the paper's setting.** The bundled tiny model (757,248 parameters, ",
        "- Models: `tiny` (`bundled:tiny`, 757,248 parameters).",
        "- Data: e2e (42,061 training records, 630 of test scored).",
        "- Seeds: 1, 2.",
        "- Hardware: 1 thread of CPU Z;",
        "- Code: `abc123` with changes.",
        "python scripts/evidence.py li2022/c10\n",
        "| adam-lr4e-3-s1 | bk |",
    ):
        assert said in page, page
    index = (results / "evidence/README.md").read_text()
    assert "| [li2022-appendix-s](li2022-appendix-s/README.md) |" in index
    assert index.rstrip().endswith("| 4 |")


def test_a_study_is_copied_with_its_trials_and_says_what_came_out(script, folders, monkeypatch):
    runs, results = folders
    need = script.evidence.needs(script.claims.load()[0])[0]
    rows, rates = {"full": "", "other one": ""}, ("optim.lr=1", "optim.lr=2")
    study = script.evidence_studies.Study("z", "demo", "which?", "task=e2e", rows, rates)
    monkeypatch.setattr(script.evidence_studies, "STUDIES", (study,))
    named = dict.fromkeys(script.evidence_studies.pilots(study), "dev")
    named |= dict.fromkeys(script.evidence_studies.finals(study, dict.fromkeys(rows, "")), "test")
    about = {"environment": {"cpu": "CPU Z", "gpu": None, "threads": 1}}
    for number, (name, split) in enumerate(named.items()):
        score = {"BLEU": 0.5 + number / 100}
        decode = {"decode.split": split}
        run = write_record(
            runs / name, need.planned, 1, score, split, settings=decode,
            model={"parameters": 7}, **about,
        )  # fmt: skip
        if name != "demo-full-s3":
            (run / "DONE").touch()  # that one is not finished
    script.collect(runs, results, script.folders())
    there = {path.name for path in (results / "evidence/study-demo").iterdir()}
    assert there == {*named} - {"demo-full-s3"}
    script.pages(results, script.folders())
    page = (results / "evidence/study-demo/README.md").read_text()
    assert page.startswith("# Study demo, letter z of the queue: which?")
    assert "| full | 1: 50.00, 2: 51.00 | 10 | 54.50 | 0.50 | 2 | - |" in page
    assert "54.50 and 57.50: -3.00, 95% interval -3.00 to -3.00 over 2 seeds" in page


def test_all_runs_of_all_claims_have_names_of_their_own(script):
    known = script.folders()
    places = [(name, label) for name, folder in known.items() for label in folder.runs]
    assert len(places) == len({*places}) > 100
    for name, label in places:
        assert f"{name}{label}".isascii()
        assert len(label) <= script.LONGEST
        assert not {*name, *label} & {*"/ =,'\"[]{}()"}, label


def test_figures_are_drawn_where_claims_have_numbers(script, tmp_path, monkeypatch):
    """Of one that has runs, one whose runs kept their norms, and one that has none."""
    from dpft.reproduce.figures import catalog

    some = {name: catalog.load(name) for name in ("li2022/1", "li2022/9", "he2022/4", "li2022/6")}
    monkeypatch.setattr(catalog, "figures", lambda: some)
    for folder in ("runs", "results"):
        (tmp_path / folder).mkdir()
    for model, score in (("GPT-2-medium", 0.4), ("GPT-2-large", 0.5)):
        one = example.planned("li2022/1", 2, model=model)
        write_record(tmp_path / "results" / model, one, 1, {"BLEU": score})
    run = tmp_path / "runs" / "x"
    write_record(run, example.planned("he2022/4"), 1, {"accuracy": 0.8}, "dev")
    (run / "private").mkdir()
    with NormsLog(run / "private", 1, ["embed", "value.0", "head"]) as log:
        for step in range(3):
            log.append(step, [torch.rand(8, 3) + 1])
    assert script.draw(tmp_path / "runs", tmp_path / "results") == ["li2022/1", "he2022/4"]
    files = sorted(file.name for file in (tmp_path / "results/figures").iterdir())
    assert files == ["he2022-4.png", "li2022-1.csv", "li2022-1.png"]
