"""A small input that expands to gigabytes is refused before it does."""

import io

import pytest
from PIL import Image

from dpft.config.errors import ConfigError, DataError
from dpft.runs.folders import stored_config
from dpft.tasks.images import hub_images
from dpft.tasks.objectives.images import LabelledImage


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
    with pytest.raises(ConfigError, match="at most 100,000 values"):
        stored_config(tmp_path)
