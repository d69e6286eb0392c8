"""Models and data sets of a hub, by the client of the hub and a server on this machine."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

import dpft
from tests.hub_server import COMMIT, LARGE, Hub, Repository, serving

SAMSUM = "knkarthick/samsum"
OLDER = "01de" + "0" * 36
SHORT = [
    "task=e2e", "task.source=hub", "model=gpt2", "eps=3", "optim.batch_size=8", "optim.steps=2",
    "task.limit_eval=2", "decode=greedy", "decode.max_new_tokens=3", "threads=1",
]  # fmt: skip
# Runs commands, lists of words, in one process, and prints what each ended with.
COMMANDS = """
import json, sys
from dpft.cli.app import main

for words in json.loads(sys.argv[1]):
    sys.argv = ["dpft", *words]
    try:
        main()
    except SystemExit as end:
        print("ENDED", end.code, flush=True)
"""


def parquet(rows):
    file = io.BytesIO()
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), file)
    return file.getvalue()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The files of a small GPT-2 with the bundled tokenizer."""
    folder = tmp_path_factory.mktemp("model")
    tokenizer = AutoTokenizer.from_pretrained(Path(dpft.__file__).with_name("models") / "tiny")
    tokenizer.save_pretrained(folder)
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 1, "vocab_size": len(tokenizer)}
    config = GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, embd_pdrop=0.0, resid_pdrop=0.0)
    GPT2LMHeadModel(config).save_pretrained(folder)
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    assert len(files["model.safetensors"]) > LARGE
    return files


@pytest.fixture(scope="module")
def hub(model):
    described = [
        {"meaning_representation": f"name[Aromi {n}]", "human_reference": f"It is Aromi {n}."}
        for n in range(40)
    ]
    sentences = [{"sentence": f"film {n}", "label": n % 2, "idx": n} for n in range(40)]
    splits = ("train", "validation", "test")
    e2e = {f"default/{split}/0000.parquet": parquet(described) for split in splits}
    older = {**e2e, "default/train/0000.parquet": parquet(described[:30])}
    glue = {f"sst2/{split}-00000-of-00001.parquet": parquet(sentences) for split in splits}
    files = "".join(f"  - split: {one}\n    path: sst2/{one}-*\n" for one in splits)
    glue["README.md"] = f"---\nconfigs:\n- config_name: sst2\n  data_files:\n{files}---\n".encode()
    talk = [
        {"id": f"{n}", "dialogue": f"A: {n}?\r\nB: Yes.", "summary": f"{n}."} for n in range(40)
    ]
    talks = {f"data/{split}-00000-of-00001.parquet": parquet(talk) for split in splits}
    with serving(
        Repository("models", "openai-community/gpt2", model),
        Repository("models", "openai-community/gpt2", model, ("v1",), commit=OLDER),
        Repository("models", "owner/gated", model, token="hf_secret"),
        Repository("datasets", "tuetschek/e2e_nlg", e2e, branches=("refs/convert/parquet",)),
        Repository("datasets", "tuetschek/e2e_nlg", older, branches=("v1",), commit=OLDER),
        Repository("datasets", "nyu-mll/glue", glue),
        Repository("datasets", SAMSUM, talks, token="hf_secret"),
    ) as served:
        yield served


def commands(hub: Hub, home: Path, *several, **variables):
    """Run commands in one process with this hub, and return their statuses and all output."""
    forbidden = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "DPFT_DATA", "HF_TOKEN")
    environment = {k: v for k, v in os.environ.items() if k not in forbidden}
    environment |= {"HF_ENDPOINT": hub.address, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps(several)],
        env=environment | variables, capture_output=True, text=True, timeout=600, cwd=home.parent,
    )  # fmt: skip
    ends = [int(x.split()[1]) for x in done.stdout.splitlines() if x.startswith("ENDED")]
    return ends, " ".join((done.stdout + done.stderr).split())


@pytest.fixture(scope="module")
def fetched(hub, tmp_path_factory):
    """A run whose model's connection breaks once, and its folder."""
    home = tmp_path_factory.mktemp("home") / "hub"
    hub.breaks, hub.seen[:] = 1, []
    ends, said = commands(hub, home, ["train", *SHORT, f"runs_dir={home.parent}", "name=first"])
    assert ends == [0], said
    return home


def test_a_broken_download_is_resumed_and_the_revision_recorded(hub, fetched):
    ranges = [line for line in hub.seen if "/storage/" in line and line.startswith("GET")]
    assert len(ranges) >= 2
    assert hub.breaks == 0
    record = json.loads((fetched.parent / "first/record.json").read_text())
    assert record["model"]["hub_model"] == "openai-community/gpt2"
    assert record["model"]["hub_revision"] == COMMIT
    assert record["dataset"]["source"] == "hub"
    assert record["dataset"]["hub_revision"] == COMMIT


def test_what_was_downloaded_needs_no_network(fetched):
    closed = Hub([], address="http://127.0.0.1:9")
    ends, said = commands(
        closed, fetched, ["train", *SHORT, f"runs_dir={fetched.parent}", "name=second"]
    )
    assert ends == [0], said
    weights = [fetched.parent / name / "model/model.safetensors" for name in ("first", "second")]
    first, second = (json.loads((w.parents[1] / "record.json").read_text()) for w in weights)
    assert first["model"]["weights_sha256"] == second["model"]["weights_sha256"]


def test_messages_name_what_the_hub_wants(hub, fetched):
    own = ["train", *SHORT, "model=custom", "model.name=own", f"runs_dir={fetched.parent}"]
    ends, said = commands(
        hub,
        fetched,
        [*own, "model.path=owner/gated", "name=a"],
        [*own, "model.path=owner/absent", "name=b"],
        ["data", "check", "samsum", "task.source=hub"],
        ["data", "check", "dart", "task.source=hub"],
        ["data", "check", "sst2", "task.source=hub"],
    )
    assert ends == [2, 2, 2, 2, 0], said
    for page in ("owner/gated", f"datasets/{SAMSUM}"):
        assert f"accept the terms at {hub.address}/{page}, and log in by hf auth login" in said
    for page in ("owner/absent", "datasets/GEM/dart"):
        assert f"the hub has no {hub.address}/{page}, or it is private" in said
    assert "sst2 train: 40 records" in said


def test_a_revision_is_read_and_recorded_and_refused_where_it_cannot_be_had(hub, fetched, model):
    older = ["model.revision=v1", "task.revision=v1", f"runs_dir={fetched.parent}"]
    folder = fetched.parent / "copy"
    folder.mkdir()
    for name, content in model.items():
        (folder / name).write_bytes(content)
    check = ["data", "check", "e2e", "task.source=hub"]
    ends, said = commands(
        hub,
        fetched,
        ["train", *SHORT, *older, "name=older"],
        [*check, "task.revision=v2"],
        ["train", *SHORT, "model.revision=v2", f"runs_dir={fetched.parent}", "name=a"],
        ["train", *SHORT, *older, f"model.path={folder}", "name=b"],
        ["train", *SHORT, *older, "task.source=sample", "name=c"],
    )
    assert ends == [0, 2, 2, 2, 2], said
    record = json.loads((fetched.parent / "older/record.json").read_text())
    assert record["dataset"]["counts"]["train"] == 30
    for section, group in (("dataset", "task"), ("model", "model")):
        assert record[section]["hub_revision"] == OLDER
        assert record["config"][group]["revision"] == "v1"
    for page in ("datasets/tuetschek/e2e_nlg", "openai-community/gpt2"):
        assert f"{hub.address}/{page} has no such revision" in said
    for setting in ("model.revision", "task.revision"):
        assert f"{setting} is 'v1', and" in said
    # Without a network the library takes the copy that was read last.
    closed = Hub([], address="http://127.0.0.1:9")
    ends, said = commands(
        closed, fetched, [*check, f"task.revision={OLDER}"], [*check, f"task.revision={COMMIT}"]
    )
    assert ends == [0, 2], said
    assert f"type task.revision={OLDER}" in said


def test_a_token_opens_a_gated_repository(hub, fetched):
    words = ["data", "check", "samsum", "task.source=hub"]
    ends, said = commands(hub, fetched, words, HF_TOKEN="hf_secret")
    assert ends == [0], said
    assert "samsum train: 40 records" in said
