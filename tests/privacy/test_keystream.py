"""The words are those of RFC 8439's tables, by position."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpft.privacy.keys import LENGTH, derive, words

KEY = bytes(range(32))

# RFC 8439, appendix A.1, the first and the fourth: key, block counter, keystream.
VECTORS = [
    (
        bytes(32),
        0,
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
    ),
    (
        b"\x00\xff" + bytes(30),
        2,
        "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
        "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096",
    ),
]


@pytest.mark.parametrize(("key", "counter", "expected"), VECTORS)
def test_the_words_are_those_of_rfc_8439(key, counter, expected):
    assert words(key, 8 * counter, 8 * counter + 8).astype("<i8").tobytes().hex() == expected


@given(start=st.integers(0, 100), length=st.integers(0, 100))
@settings(deadline=None)
def test_any_range_is_a_slice_of_the_whole(start, length):
    assert np.array_equal(words(KEY, start, start + length), words(KEY, 0, 200)[start:][:length])


def test_the_end_of_the_keystream_is_not_passed():
    """The counter would start again, and with it the words."""
    assert len(words(KEY, LENGTH - 5, LENGTH)) == 5
    for start, stop in ((LENGTH - 5, LENGTH + 1), (-1, 5), (5, 4)):
        with pytest.raises(ValueError, match=f"words {start} to {stop} of a keystream"):
            words(KEY, start, stop)


def test_an_empty_key_is_refused():
    with pytest.raises(ValueError, match="key is empty"):
        derive(b"", "noise", 0)
