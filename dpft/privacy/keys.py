"""Independent random streams from one key.

Every random draw of a run is a function of (key, purpose, step), never of a generator's state. A
run that was killed therefore replays exactly the batches and the noise it had already used, and no
two steps share noise. What the guarantee rests on (noise, Poisson sampling, the number of a
selection's runs) is drawn from a derived key by ChaCha20 (`words`). The rest may come from
`generator`.
"""

import hmac
import sys
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

WORDS = 8
"""64-bit words in one ChaCha20 block."""

LENGTH = WORDS << 32
"""64-bit words under one key: as far as the counter goes."""


def derive(key: bytes, *labels: str | int) -> bytes:
    """Return 32 bytes determined by ``key`` and ``labels`` (HMAC-SHA256, labels kept apart).

    Guarantee: without the key, keys of different labels look random and unrelated. Use each for one
    purpose.

    Raises:
        ValueError: if the key is empty, as that of a variable that is not set.
    """
    if not key:
        raise ValueError("the key is empty; expected a secret, such as secrets.token_bytes(32)")
    return hmac.digest(key, b"".join(map(_apart, labels)), "sha256")


@lru_cache(maxsize=4096, typed=True)
def _apart(label: str | int) -> bytes:
    text = f"{type(label).__name__}:{label}".encode()
    return len(text).to_bytes(8, "big") + text


def words(key: bytes, start: int, stop: int) -> npt.NDArray[np.int64]:
    """Return words ``start`` to ``stop`` of a key's ChaCha20 keystream, 64 bits, little-endian.

    The layout is RFC 8439's: a 256-bit key, a 32-bit block counter from 0, a 96-bit nonce. The
    nonce is always zero, since every key is derived for one purpose and used for nothing else.

    Raises:
        ValueError: beyond the keystream's end, where it would begin again.
    """
    assert sys.byteorder == "little", "NumPy reads words in the machine's order of bytes"
    check_words(start, stop)
    first = start // WORDS
    drawn = np.empty(WORDS * (-(-stop // WORDS) - first), dtype=np.int64)
    if drawn.size:
        counter_and_nonce = first.to_bytes(4, "little") + bytes(12)
        encryptor = Cipher(algorithms.ChaCha20(key, counter_and_nonce), None).encryptor()
        encryptor.update_into(bytes(drawn.nbytes), drawn.data.cast("B"))  # the encrypted zeros
    return drawn[start - WORDS * first : stop - WORDS * first]


def check_words(start: int, stop: int) -> None:
    """Raise ValueError where words ``start`` to ``stop`` are not all in a keystream."""
    if not 0 <= start <= stop <= LENGTH:
        raise ValueError(
            f"words {start} to {stop} of a keystream; expected 0 to {LENGTH}, in ascending order: "
            "longer ones repeat themselves"
        )


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
