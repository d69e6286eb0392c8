"""The claims that are there, by name."""

from __future__ import annotations

from pathlib import Path

from dpft.config.errors import ConfigError, suggestion
from dpft.reproduce.claims.reader import read
from dpft.reproduce.claims.schema import Claim
from dpft.reproduce.papers.schema import PAPERS

ROOT = Path(__file__).resolve().parent / "data"


def papers_with_claims() -> list[str]:
    """Papers that have a file, by year."""
    found = {path.stem for path in ROOT.glob("*.yaml")}
    return [*(paper for paper in PAPERS if paper in found), *sorted(found - set(PAPERS))]


def load(name: str | None = None) -> list[Claim]:
    """Every claim, those of a paper (``li2022``), or one (``li2022/c05``).

    Raises:
        ConfigError: if there is none of that name.
        ClaimError: for a malformed file.
    """
    papers = papers_with_claims()
    if name is None:
        return [claim for paper in papers for claim in read(ROOT / f"{paper}.yaml")]
    paper, slash, number = name.partition("/")
    if paper not in papers:
        raise ConfigError(
            f"there are no claims of {paper!r}{suggestion(paper, papers)}; expected one of "
            f"{', '.join(papers)}: type dpft claims for all"
        )
    claims = read(ROOT / f"{paper}.yaml")
    if not slash:
        return claims
    one = [claim for claim in claims if claim.number == number]
    if not one:
        known = [claim.name for claim in claims]
        raise ConfigError(
            f"there is no claim {name!r}{suggestion(name, known)}; expected {known[0]} to "
            f"{known[-1]}: type dpft claims {paper} for a list"
        )
    return one
