"""A ledger in three lines, for copies that are published beside their record."""

from __future__ import annotations

import hashlib
from pathlib import Path

from dpft.runs.ledger import OMITTED, WHOLE, chained_lines, read_ledger


def summary(path: Path) -> bytes:
    """A ledger's first and last line, and between them how many were left out and a digest.

    The first line has the mechanism, data and key, the last one the epsilon and the thresholds that
    the run ended with: all that a record must agree with. The digest is the SHA-256 of the whole
    file. Whoever has that file makes the summary again and compares the bytes. The lines are
    chained to each other, as those of a ledger.

    Returns:
        The bytes of the summary, which `read_ledger` reads; the ledger as it is where that is no
        longer, where it has several stretches, or where it is a summary already.

    Raises:
        LedgerError: there is no ledger, or it is damaged.
    """
    held = read_ledger(path)
    # Without what a kill has torn.
    lines = path.read_bytes().splitlines(keepends=True)[: 1 + len(held.entries)]
    if held.omitted or held.stretches or not held.entries:
        return path.read_bytes()
    whole = b"".join(lines)
    left_out = {OMITTED: len(held.entries) - 1, WHOLE: hashlib.sha256(whole).hexdigest()}
    return min(whole, chained_lines(held.header, [left_out, held.entries[-1]]), key=len)
