"""A small file that unpacks to gigabytes is refused before it does."""

import gzip
import io
import pickle
import resource
import struct
import tarfile
import time
import zlib

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from PIL import Image
from scipy.io import savemat

from dpft.config.errors import ConfigError, DataError
from dpft.runs.folders import stored_config
from dpft.tasks import limits, sources, unpickle
from dpft.tasks.cifar import CIFAR10, TEN
from dpft.tasks.dart import read_xml
from dpft.tasks.images import hub_images
from dpft.tasks.objectives.images import LabelledImage
from dpft.tasks.svhn import read_mat
from dpft.tasks.table_files import table_file

MOST = 300 << 20


@pytest.fixture(autouse=True)
def little_memory():
    """No test takes much more memory than there is of its file's limit."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    taken = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    assert taken < 2 * MOST


def _zeros(path, size, head=b""):
    """A gzip file of so many zeros, quickly made: its members are all alike."""
    piece = gzip.compress(bytes(1 << 24), 1)
    with path.open("wb") as file:
        file.write(gzip.compress(head, 1) if head else b"")
        for _ in range(size >> 24):
            file.write(piece)


@pytest.mark.parametrize("first", [TEN.meta, "something else"])
def test_an_archive_of_gigabytes_is_refused(tmp_path, first):
    size = 4 << 30
    member = tarfile.TarInfo(f"{TEN.folder}/{first}")
    member.size = size
    _zeros(tmp_path / TEN.archive, size, member.tobuf())
    assert (tmp_path / TEN.archive).stat().st_size < size / 200
    began = time.process_time()
    with pytest.raises(DataError, match=r"unpacks to more than 268,435,456 bytes"):
        CIFAR10(data_dir=str(tmp_path)).rows("test")
    assert time.process_time() - began < 5


def test_a_pickle_that_asks_for_many_objects_is_refused():
    lists = b"\x80\x04(" + b"]" * (unpickle._MOST + 1) + b"l."
    with pytest.raises(DataError, match="more than 2,000,000 values"):
        unpickle.load(io.BytesIO(lists), "batch", MOST)


def test_a_pickle_that_repeats_a_text_is_refused():
    # BINUNICODE, memoised; then _codecs.encode of it, a thousand times.
    text = b"X" + struct.pack("<I", 1 << 20) + bytes(1 << 20) + b"q\x00"
    again = b"c_codecs\nencode\nh\x00X\x06\x00\x00\x00latin1\x86R"
    bomb = b"\x80\x02(" + text + again * 1000 + b"l."
    with pytest.raises(DataError, match="one text coded again and again"):
        unpickle.load(io.BytesIO(bomb), "batch", 4 << 20)


def test_a_pickle_larger_than_any_batch_is_refused(tmp_path):
    with pytest.raises(DataError, match="unpacks to more than 10 bytes"):
        unpickle.load(io.BytesIO(pickle.dumps({"a": bytes(100)})), "batch", 10)


def test_a_matlab_file_of_far_more_images_is_refused(tmp_path):
    file = tmp_path / "train_32x32.mat"
    savemat(file, {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.ones((2, 1))})
    header = file.read_bytes()[:128]
    size = 1 << 29
    pack = zlib.compressobj(1)
    packed = pack.compress(struct.pack("<II", 14, size & 0xFFFFFFFF))
    zeros = bytes(1 << 24)
    packed += b"".join(pack.compress(zeros) for _ in range(size >> 24)) + pack.flush()
    file.write_bytes(header + struct.pack("<II", 15, len(packed)) + packed)
    with pytest.raises(DataError, match=r"unpacks to more than 307,300,000 bytes"):
        read_mat(file)


def test_compressed_matlab_files_of_the_usual_size_pass(tmp_path):
    file = tmp_path / "train_32x32.mat"
    images = np.arange(32 * 32 * 3 * 5, dtype=np.uint8).reshape(32, 32, 3, 5)
    savemat(file, {"X": images, "y": np.full((5, 1), 10)}, do_compression=True)
    limits.check_mat(file, images.nbytes + 1000)
    assert len(read_mat(file)) == 5
    with pytest.raises(DataError, match="unpacks to more than"):
        limits.check_mat(file, images.nbytes)


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


def test_entities_of_entities_are_refused(tmp_path):
    file = tmp_path / "a.xml"
    file.write_text('<!DOCTYPE x [\n<!ENTITY a "aaaa">\n]>\n<x><entry><lex>&a;</lex></entry></x>')
    with pytest.raises(DataError, match="line 2: declares an entity 'a'"):
        read_xml(file)


@pytest.mark.parametrize(
    "text", ["&a [*a]", "a: &a [" + "0," * 400 + "]\nb: &b [" + "*a," * 400 + "]"]
)
def test_settings_that_repeat_themselves_are_refused(tmp_path, text):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ConfigError, match="at most 100,000 values"):
        stored_config(tmp_path)
