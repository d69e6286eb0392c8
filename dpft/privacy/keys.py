"""Independent random streams from one key.

Every random draw of a run is a function of (key, purpose, step), never of a generator's state. A
run that was killed therefore replays exactly the batches and the noise it had already used, and no
two steps can share noise: resuming needs no saved generator and cannot spend privacy twice.
"""

from __future__ import annotations

import hashlib

import numpy as np


def derive(key: bytes, *labels: str | int) -> int:
    """A 128-bit integer determined by ``key`` and ``labels`` (SHA-256, labels kept apart)."""
    digest = hashlib.sha256(key)
    for label in labels:
        text = f"{type(label).__name__}:{label}".encode()
        digest.update(len(text).to_bytes(8, "big") + text)
    return int.from_bytes(digest.digest()[:16], "big")


def generator(key: bytes, *labels: str | int) -> np.random.Generator:
    """A counter-based generator (Philox) keyed with all 128 bits of ``derive(key, *labels)``.

    PyTorch's CPU generator keeps 32 bits of its seed, few enough to try them all; hence NumPy's.
    Neither is cryptographic: see the pitfalls page.
    """
    return np.random.Generator(np.random.Philox(key=derive(key, *labels)))


def public_key(seed: int) -> bytes:
    """A key from a published seed, for runs that have nothing to hide (no privacy)."""
    return f"dpft public seed {seed}".encode()
