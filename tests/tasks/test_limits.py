"""A small file that unpacks to gigabytes is refused before it does."""

import io
import resource

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image

from dpft.config.errors import ConfigError, DataError
from dpft.runs.stored import stored_config
from dpft.tasks import limits, sources
from dpft.tasks.images import hub_images
from dpft.tasks.objectives.images import LabelledImage
from dpft.tasks.table_files import table_file

MOST = 300 << 20


@pytest.fixture(autouse=True)
def little_memory():
    """No test takes much more memory than there is of its file's limit."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    taken = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert taken < 2 * MOST


@pytest.mark.parametrize("how", ["dictionary", "nested", "plain", "nulls"])
def test_a_table_of_gigabytes_is_refused(tmp_path, monkeypatch, how):
    monkeypatch.setattr(limits, "_TABLE", 32 << 20)
    file, rows = tmp_path / "a.parquet", 400_000
    shared = pyarrow.DictionaryArray.from_arrays(
        pyarrow.array(np.zeros(rows, np.int32)), ["a" * 10_000]
    )
    if how == "nested":
        shared = pyarrow.ListArray.from_arrays(np.arange(rows + 1, dtype=np.int32), shared)
    elif how == "plain":
        shared = pyarrow.array(["a" * 10_000] * 10_000)
    elif how == "nulls":
        shared = pyarrow.nulls(rows)
    pyarrow.parquet.write_table(pyarrow.table({"text": shared}), file, compression="zstd")
    assert file.stat().st_size < 100_000
    with pytest.raises(DataError, match="unpacks to more than"):
        sources.parquet(file)
    with pytest.raises(DataError, match="unpacks to more than"):
        list(table_file(file).scan())


def test_a_table_may_hold_what_its_file_holds(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "_TABLE", 0)
    file = tmp_path / "a.parquet"
    texts = [f"{number:x} of {number}" for number in np.random.default_rng(0).permutation(5000)]
    labels = pyarrow.array(["yes", "no"] * 2500).dictionary_encode()
    table = pyarrow.table({"text": texts, "label": labels, "tags": [[text] for text in texts]})
    pyarrow.parquet.write_table(table, file)
    assert sources.parquet(file) == table.to_pylist()


def _png(side):
    buffer = io.BytesIO()
    Image.new("1", (side, side)).save(buffer, "PNG")
    return buffer.getvalue()


def test_an_image_of_a_billion_pixels_is_refused():
    with pytest.raises(DataError, match="at most 16,777,216 pixels"):
        LabelledImage(_png(5000), 0, "one").pixels()


def test_images_that_are_kept_decoded_are_small():
    read = hub_images("img", "label", decode=True)
    assert len(read([{"img": {"bytes": _png(32)}, "label": 0}])) == 1
    with pytest.raises(DataError, match="got 65 by 65 pixels; expected at most 64 a side"):
        read([{"img": {"bytes": _png(65)}, "label": 0}])


@pytest.mark.parametrize(
    "text", ["&a [*a]", "a: &a [" + "0," * 400 + "]\nb: &b [" + "*a," * 400 + "]"]
)
def test_settings_that_repeat_themselves_are_refused(tmp_path, text):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ConfigError, match="more than 100,000 values"):
        stored_config(tmp_path)
