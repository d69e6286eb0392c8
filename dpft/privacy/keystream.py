"""ChaCha20: words by their position, random to anyone without the key.

The layout is RFC 8439's: a 256-bit key, a 32-bit block counter from 0, a 96-bit nonce. The nonce is
always zero, since every key is derived for one purpose and used for nothing else
(`dpft.privacy.keys.derive`).
"""

import sys

import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from torch import Tensor

WORDS = 8
"""64-bit words in one ChaCha20 block."""

LENGTH = WORDS << 32
"""64-bit words under one key: as far as the counter goes."""

_CONSTANTS = b"expand 32-byte k"


def words(key: bytes, start: int, stop: int, device: torch.device | str = "cpu") -> Tensor:
    """Return words ``start`` to ``stop`` of a key's keystream, 64 bits each, little-endian.

    Guarantee: the same bits on every device. On a CPU they come from OpenSSL, elsewhere from
    integer operations of torch.

    Returns:
        ``(stop - start,)``, int64.

    Raises:
        ValueError: beyond the keystream's end, where it would begin again.
    """
    check(start, stop)
    device = torch.device(device)
    first = start // WORDS
    count = -(-stop // WORDS) - first
    drawn = (
        _openssl(key, first, count) if device.type == "cpu" else _rounds(key, first, count, device)
    )
    return drawn[start - WORDS * first : stop - WORDS * first]


def check(start: int, stop: int) -> None:
    """Raise ValueError where words ``start`` to ``stop`` are not all in a keystream."""
    if not 0 <= start <= stop <= LENGTH:
        raise ValueError(
            f"words {start} to {stop} of a keystream; expected 0 to {LENGTH}, in ascending order: "
            "longer ones repeat themselves"
        )


def _openssl(key: bytes, first: int, count: int) -> Tensor:
    """The keystream is what zeros are encrypted to."""
    assert sys.byteorder == "little", "torch reads words in the machine's order of bytes"
    out = torch.empty(WORDS * count, dtype=torch.int64, device="cpu")
    if count:
        counter_and_nonce = first.to_bytes(4, "little") + bytes(12)
        encryptor = Cipher(algorithms.ChaCha20(key, counter_and_nonce), None).encryptor()
        encryptor.update_into(bytes(64 * count), out.numpy().data.cast("B"))
    return out


def _rounds(key: bytes, first: int, count: int, device: torch.device) -> Tensor:
    """RFC 8439, section 2.3, on ``count`` blocks at once: word ``i`` of all states is row ``i``."""
    start = torch.zeros(16, count, dtype=torch.int32, device=device)
    begin = _CONSTANTS + key
    for row in range(12):
        start[row] = int.from_bytes(begin[4 * row : 4 * row + 4], "little", signed=True)
    counter = torch.arange(first, first + count, dtype=torch.int64, device=device)
    start[12] = counter - ((counter >> 31) << 32)  # the same 32 bits, as a signed number
    a, b, c, d = start.clone().split(4)
    for _ in range(10):
        _quarter_rounds(a, b, c, d)
        b, c, d = b.roll(-1, 0), c.roll(-2, 0), d.roll(-3, 0)  # diagonals become columns
        _quarter_rounds(a, b, c, d)
        b, c, d = b.roll(1, 0), c.roll(2, 0), d.roll(3, 0)
    state = torch.cat([a, b, c, d]).add_(start)
    return state.t().reshape(-1).view(torch.int64)


def _quarter_rounds(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> None:
    """RFC 8439, section 2.1, of four columns at once, in place."""
    for x, y, z, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        x += y
        z ^= x
        low = (z >> (32 - bits)) & ((1 << bits) - 1)  # of a negative number, >> brings in ones
        z <<= bits
        z |= low
