"""Stands where tables took their configs from; `dpft.config.compose.compose` does it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dpft.config.compose import compose
from dpft.runs.closing import Closing


class Composer(Closing):
    """Composes configs within ``with Composer() as composer``."""

    def close(self) -> None:
        """Nothing is open."""

    def compose(self, words: Sequence[str]) -> dict[str, Any]:
        """The resolved config of ``words``."""
        return compose(words)
