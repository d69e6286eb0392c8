"""What is written with a digest of itself is read as it was written, or not at all."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from dpft.runs.identity import opened, sealed

BODY = {"step": 3, "state": {"thresholds": [0.1, 1e-300], "bound": math.inf, "name": "ü"}}


def reread(value: Any) -> Any:
    return json.loads(json.dumps(value))


def test_a_body_comes_back_from_a_file() -> None:
    assert opened(reread(sealed(BODY))) == BODY


@pytest.mark.parametrize(
    "change", [{"step": 4}, {"step": None}, {"more": 1}, {"sha256": "0" * 64}, {"sha256": None}]
)
def test_a_change_of_body_or_digest_is_noticed(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="does not match its own checksum"):
        opened(reread(sealed(BODY)) | change)


def test_what_lacks_its_digest_is_not_read() -> None:
    with pytest.raises(ValueError, match="no checksum of its own"):
        opened(BODY)


@pytest.mark.parametrize("held", [[1], "text", None])
def test_what_is_no_mapping_says_what_it_is(held: Any) -> None:
    with pytest.raises(ValueError, match=f"it is a {type(held).__name__}"):
        opened(held)
