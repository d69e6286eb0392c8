"""The generated E2E-style data: reproducible, in the official format, no leak between parts."""

from __future__ import annotations

import itertools
from typing import get_args

import pytest

from dpft.tasks.samples.e2e import Part, Split, generate, split_of
from dpft.tasks.samples.grammar import vocabulary

PARTS: tuple[Part, ...] = get_args(Part)
SPLITS: tuple[Split, ...] = get_args(Split)
FORMS: dict[str, dict[str, dict[str, list[str]]]] = vocabulary("e2e")["forms"]


def facts(mr: str) -> dict[str, str]:
    return dict(field.rstrip("]").split("[", 1) for field in mr.split("], "))


@pytest.mark.parametrize("part", PARTS)
def test_splits_share_no_meaning_representation_even_under_different_seeds(part: Part) -> None:
    mrs = {
        split: {mr for s in (0, 1) for mr, _ in generate(part, split, 400, seed=s)}
        for split in SPLITS
    }
    for one, other in itertools.combinations(SPLITS, 2):
        assert not mrs[one] & mrs[other]
    assert all(split_of(mr) == split for split in SPLITS for mr in mrs[split])


def test_parts_share_no_restaurant_no_landmark_and_no_sentence() -> None:
    public, private = (generate(part, "train", 2000) for part in PARTS)
    for attribute in ("name", "near"):
        ours, theirs = (
            {facts(mr).get(attribute) for mr, _ in rows} - {None} for rows in (public, private)
        )
        assert not ours & theirs
    assert not {ref for _, ref in public} & {ref for _, ref in private}
