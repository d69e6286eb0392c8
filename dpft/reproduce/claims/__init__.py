"""Headline claims of the papers as checks, over printed numbers and over our own.

`schema` holds what a claim's file says and reads it, `cells` and `computed` (whose numbers `cache`
keeps) give numbers, `comparison` says what counts, `evaluate` puts a verdict on each claim, and
`report` shows them. Nothing here reads data or loads a pretrained model.
``docs/how-to/claims.md`` says how to add one.
"""

from dpft.reproduce.claims.schema import Claim, load

__all__ = ["Claim", "load"]
