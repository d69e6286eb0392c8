"""A small input that expands to gigabytes is refused before it does."""

import io
import pickle
import struct

import pytest
from PIL import Image

from dpft.config.errors import ConfigError, DataError
from dpft.runs.stored import stored_config
from dpft.tasks import unpickle
from dpft.tasks.dart import read_xml
from dpft.tasks.images import hub_images
from dpft.tasks.objectives.images import LabelledImage

MOST = 300 << 20


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
    with pytest.raises(ConfigError, match="more than 100,000 values"):
        stored_config(tmp_path)
