"""Independent random streams from one key.

Every random draw of a run is a function of (key, purpose, step), never of a generator's state. A
run that was killed therefore replays exactly the batches and the noise it had already used, and no
two steps share noise. What the guarantee rests on (noise, Poisson sampling, the number of a
selection's runs) is drawn from a derived key by ChaCha20 (`dpft.privacy.keystream`). The rest may
come from `generator`.
"""

import hmac
from functools import lru_cache

import numpy as np


def derive(key: bytes, *labels: str | int) -> bytes:
    """Return 32 bytes determined by ``key`` and ``labels`` (HMAC-SHA256, labels kept apart).

    Guarantee: without the key, keys of different labels look random and unrelated. Use each for one
    purpose.
    """
    return hmac.digest(key, b"".join(map(_apart, labels)), "sha256")


@lru_cache(maxsize=4096, typed=True)
def _apart(label: str | int) -> bytes:
    text = f"{type(label).__name__}:{label}".encode()
    return len(text).to_bytes(8, "big") + text


def seed(key: bytes, *labels: str | int) -> int:
    """Return a seed for torch's generators, 63 bits of ``derive(key, *labels)``."""
    return int.from_bytes(derive(key, *labels)[:8], "big") >> 1


def generator(key: bytes, *labels: str | int) -> np.random.Generator:
    """Return a counter-based generator (Philox) with 128 bits of ``derive(key, *labels)``.

    A statistical generator, not a cryptographic one: for what no guarantee rests on. PyTorch's CPU
    generator keeps 32 bits of its seed, few enough to try them all; hence NumPy's.
    """
    return np.random.Generator(
        np.random.Philox(key=int.from_bytes(derive(key, *labels)[:16], "big"))
    )


def public_key(seed: int) -> bytes:
    """Return a key from a published seed, for runs that have nothing to hide (no privacy)."""
    return f"dpft public seed {seed}".encode()
