"""Reading, encoding and losses of the E2E task."""

import pytest
import torch
import torch.nn.functional as F

from dpft.config import Model
from dpft.errors import ConfigError, DataError
from dpft.models import load_model
from dpft.tasks import load_task, text_to_text
from dpft.tasks.base import Example, TextRecord, fingerprint
from dpft.tasks.e2e import E2E, hub_rows, linearise, read_csv, slots

GOOD = 'mr,ref\n"name[Aromi], area[riverside]","Aromi, by the river."\n'


@pytest.fixture(scope="module")
def tiny():
    return load_model(Model("tiny", "bundled:tiny"), seed=0)


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_an_official_file_is_read_with_its_quotes_and_line_breaks(tmp_path):
    text = 'mr,ref\n"name[A ""B""], near[C, D]","One.\nTwo, three."\nname[E],Four\n'
    assert read_csv(write(tmp_path / "a.csv", text)) == [
        ('name[A "B"], near[C, D]', "One.\nTwo, three."),
        ("name[E]", "Four"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: got an empty file; expected columns mr,ref"),
        ("mr,ref\n", "a header but no rows"),
        ("text,label\na,b\n", "line 1: got columns text, label; expected columns mr,ref"),
        (GOOD + "name[B]\n", r"line 3: got \['name\[B\]'\]"),
        (GOOD + "name[B],a,b\n", "line 3"),
        (GOOD + "name[B],\n", "line 3.*neither empty"),
        (GOOD + "no attributes,text\n", r"line 3: got meaning representation 'no attributes'"),
        (GOOD + '"name[B],x\n', "after line 2.*quoted fields"),
        (b"mr,ref\nname[\xff],b\n", "not UTF-8"),
    ],
)
def test_a_malformed_file_is_refused_with_its_line(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        read_csv(write(tmp_path / "bad.csv", text))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"cannot read .*none\.csv"):
        read_csv(tmp_path / "none.csv")


def test_meaning_representations_become_prompts():
    mr = "name[The Mill], eatType[coffee shop], priceRange[£20-25], near[Café, Rouge]"
    assert slots(mr)[3] == ("near", "Café, Rouge")
    assert linearise(mr) == (
        "name : The Mill | eatType : coffee shop | priceRange : £20-25 | near : Café, Rouge"
    )


def test_data_is_looked_for_in_the_folder_then_in_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFT_DATA", str(tmp_path))
    (tmp_path / "e2e").mkdir()
    write(tmp_path / "e2e" / "trainset.csv", GOOD)
    assert E2E().location == ("files", tmp_path / "e2e")
    other = tmp_path / "other"
    with pytest.raises(DataError, match=r"looked in .*other.*task\.source=sample"):
        _ = E2E(data_dir=str(other)).location
    monkeypatch.delenv("DPFT_DATA")
    with pytest.raises(DataError, match="DPFT_DATA is not set"):
        _ = E2E(source="files").location


def test_without_files_and_offline_one_sentence_says_what_to_do(monkeypatch):
    monkeypatch.delenv("DPFT_DATA", raising=False)
    with pytest.raises(
        DataError, match=r"Set DPFT_DATA .*, go online, or type task\.source=sample"
    ):
        E2E().records("train")


def test_rows_in_the_hubs_format():
    row = {"meaning_representation": "name[A]", "human_reference": "A."}
    assert hub_rows([row]) == [("name[A]", "A.")]
    with pytest.raises(DataError, match="human_reference"):
        hub_rows([{"meaning_representation": "name[A]"}])


def test_instances_are_runs_of_consecutive_equal_rows(tmp_path):
    rows = "mr,ref\nname[A],one\nname[A],two\nname[B],three\nname[A],four\n"
    for name in E2E.files.values():
        write(tmp_path / name, rows)
    task = E2E(data_dir=str(tmp_path))
    prompts = task.prompts("test")
    assert [p.references for p in prompts] == [("one", "two"), ("three",), ("four",)]
    assert len(task.records("train")) == 4


def test_limits_are_labelled():
    task = E2E(source="sample", limit_train=7, limit_eval=2)
    assert len(task.records("train")) == 7
    assert len(task.prompts("test")) == 2
    assert task.labels() == [
        "generated sample data",
        "first 7 training records only",
        "first 2 test instances only",
    ]


@pytest.mark.realdata
def test_the_real_files_have_their_published_sizes(data_root):
    task = E2E(data_dir=str(data_root / "e2e"))
    assert len(task.records("train")) == 42061
    assert len(task.records("dev")) == 4672
    assert len(task.records("test")) == 4693
    assert len(task.prompts("dev")) == 547
    assert len(task.prompts("test")) == 630
    assert len({p.source for p in task.prompts("test")}) == 630
    assert {len(slots(mr)) > 0 for mr, _ in task.rows("train")} == {True}


def test_every_attribute_of_the_real_files_is_kept(data_root):
    for mr, _ in E2E(data_dir=str(data_root / "e2e")).rows("train"):
        assert len(slots(mr)) == mr.count("["), mr


def test_encoding_ends_the_prompt_and_the_target(tiny):
    task = E2E(source="sample")
    example = task.encode(TextRecord("name : Aromi", "Aromi is good."), tiny.tokenizer)
    end = tiny.tokenizer.eos_token_id
    assert example.prompt[-1] == example.target[-1] == end
    assert tiny.tokenizer.decode(example.target[:-1]) == " Aromi is good."
    assert example.prompt == task.encode_prompt("name : Aromi", tiny.tokenizer)


def test_long_records_lose_the_end_of_the_target_but_never_all_of_it():
    assert text_to_text.truncate(range(5), range(10), 8) == Example((0, 1, 2, 3, 4), (0, 1, 2))
    assert text_to_text.truncate(range(9), range(10), 8) == Example(tuple(range(2, 9)), (0,))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_losses_equal_the_plain_computation_record_by_record(tiny, reduction):
    """Batching, left padding and keeping only the last logits change nothing."""
    task = E2E(source="sample", loss=reduction)
    examples = [task.encode(r, tiny.tokenizer) for r in task.records("train")[:6]]
    assert len({e.length for e in examples}) > 2
    model = tiny.model.eval()
    with torch.no_grad():
        losses = task.losses(model, task.collate(examples))
        for example, loss in zip(examples, losses, strict=True):
            ids = torch.tensor([example.prompt + example.target])
            logits = model(ids).logits[0, len(example.prompt) - 1 : -1]
            plain = F.cross_entropy(logits, torch.tensor(example.target), reduction=reduction)
            torch.testing.assert_close(loss, plain, rtol=1e-4, atol=1e-5)


def test_the_loss_of_a_record_depends_on_no_other_record(tiny):
    task = E2E(source="sample")
    examples = [task.encode(r, tiny.tokenizer) for r in task.records("train")[:6]]
    embedding = tiny.model.eval().get_input_embeddings()
    batch = task.collate(examples)
    captured = []
    handle = embedding.register_forward_hook(lambda m, a, out: captured.append(out))
    losses = task.losses(tiny.model, batch)
    handle.remove()
    for i in range(6):
        (g,) = torch.autograd.grad(losses[i], captured, retain_graph=True)
        others = torch.arange(6) != i
        assert g[i].abs().sum() > 0
        assert g[others].abs().sum() == 0
        # Padding takes no part either.
        assert g[i][batch.tensors["attention_mask"][i] == 0].abs().sum() == 0


def test_the_fingerprint_tells_datasets_apart():
    a, b = TextRecord("ab", "c"), TextRecord("a", "bc")
    assert fingerprint([a]) != fingerprint([b])
    assert fingerprint([a, b]) != fingerprint([b, a])
    assert fingerprint([a]) == fingerprint([TextRecord("ab", "c")])


def test_a_task_that_is_only_accounted_for_says_so():
    with pytest.raises(ConfigError, match="'sst2' cannot be trained yet, only accounted for"):
        load_task({"name": "sst2", "train_size": 67349})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"source": "web"}, "task.source is 'web'"),
        ({"loss": "median"}, "task.loss is 'median'"),
        ({"max_length": 1}, "task.max_length is 1"),
        ({"max_lenght": 100}, "unknown setting task.max_lenght; did you mean 'max_length'"),
        ({"limit_train": "many"}, "task.limit_train is 'many'.*expected int or null"),
    ],
)
def test_bad_settings_are_named(settings, message):
    with pytest.raises(ConfigError, match=message):
        load_task({"name": "e2e", **settings})
