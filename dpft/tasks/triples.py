"""The form of DART's JSON files: sets of triples with references."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

Triple = tuple[str, str, str]


def write_json(
    path: Path, items: Iterable[tuple[Sequence[Triple], Sequence[str]]], source: str
) -> None:
    """Write triple sets with their references in the form of the published JSON."""
    listed = [
        {
            "tripleset": [list(triple) for triple in triples],
            "annotations": [{"source": source, "text": text} for text in texts],
        }
        for triples, texts in items
    ]
    path.write_text(json.dumps(listed, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
