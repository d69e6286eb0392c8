"""The generated E2E-style data: reproducible, in the official format, no leak between parts."""

import itertools
from typing import get_args

import pytest

from dpft.tasks.samples.e2e import Split, generate, split_of
from scripts import public_e2e

PARTS = {"public": public_e2e.generate, "private": generate}


def facts(mr: str) -> dict[str, str]:
    return dict(field.rstrip("]").split("[", 1) for field in mr.split("], "))


@pytest.mark.parametrize("part", PARTS)
def test_splits_share_no_meaning_representation_even_under_different_seeds(part: str) -> None:
    mrs = {
        split: {mr for seed in (0, 1) for mr, _ in PARTS[part](split, 400, seed)}
        for split in get_args(Split)
    }
    for one, other in itertools.combinations(mrs, 2):
        assert not mrs[one] & mrs[other]
    assert all(split_of(mr) == split for split, found in mrs.items() for mr in found)


def test_parts_share_no_restaurant_no_landmark_and_no_sentence() -> None:
    public, private = (write("train", 2000) for write in PARTS.values())
    for attribute in ("name", "near"):
        ours, theirs = (
            {facts(mr).get(attribute) for mr, _ in rows} - {None} for rows in (public, private)
        )
        assert not ours & theirs
    assert not {ref for _, ref in public} & {ref for _, ref in private}
