"""Headline claims of the papers as checks, over printed numbers and over our own.

`schema` and `reader` hold what a claim's file says, `evidence` what is at hand (tables, records,
benchmarks), `cells`, `variants`, `benches` and `computed` make comparisons of it, `contrast` and
`judging` say what a comparison must show to count, `evaluate` puts a verdict on each claim, and
`render` shows them. Nothing here reads data or loads a pretrained model. ``docs/claims.md`` says
how to add one.
"""

from dpft.reproduce.claims.library import load, papers_with_claims
from dpft.reproduce.claims.schema import Claim, ClaimError

__all__ = ["Claim", "ClaimError", "load", "papers_with_claims"]
