"""The secret that sampling and noise are drawn from."""

import hashlib
import hmac
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpft.config.errors import START_OVER, NoiseKeyLostError
from dpft.runs.atomic import write_atomic
from dpft.runs.identity import digest_of
from dpft.runs.ledger import LedgerContents

KEY_BYTES = 32


def key_from_seed(seed: int) -> bytes:
    """Return the key of an explicit seed: repeatable, hence no secret."""
    return hashlib.sha256(b"dpft-noise-seed" + str(int(seed)).encode()).digest()


def key_fingerprint(key: bytes) -> str:
    """Return 16 hex characters that identify a key without revealing it."""
    return hashlib.sha256(b"fingerprint" + key).hexdigest()[:16]


def keyed_fingerprint(key: bytes, fingerprint: str) -> str:
    """Return a dataset fingerprint that only the key's holder can compute (HMAC-SHA256, 16 hex).

    A plain hash of private records is itself a noiseless release: an attacker who knows all records
    but one can try values for the last. Under a secret key the tag says only "same data as before"
    to the run that wrote it.
    """
    return hmac.new(key, f"dataset:{fingerprint}".encode(), hashlib.sha256).hexdigest()[:16]


def run_key(
    stored: bytes, held: LedgerContents | None, header: Mapping[str, Any], settings: str = ""
) -> bytes:
    """Return the key that the batches, the noise and all other draws of a run's steps follow from.

    Guarantee: runs that differ in their header or settings share no noise, even if one was started
    with the stored key of the other after its ledger was deleted. Otherwise the difference of their
    releases would be one of sums without noise, which neither ledger counts.

    Args:
        stored: the run's secret.
        held: the run's ledger, if there is one. If it counts a release, its header is used, whose
            ``compute`` is what the run started with; the keys of later stretches follow from this.
        header: of a ledger that starts now.
        settings: a digest of the settings that the header lacks.
    """
    from dpft.privacy.keys import derive  # and NumPy, which readers of runs do not need

    used = held.header if held is not None and held.entries else header
    return derive(stored, "run", settings, digest_of(used))


def stored_key(path: Path, *, steps_spent: int) -> bytes:
    """Return the run's secret, created from the system's entropy on first use.

    Guarantee: a key is durable before it is returned, so no step can be spent with a key that a
    kill forgets; and a key is never replaced once a step was spent with it, since a replayed step
    with fresh noise is a second release of the same step that no ledger line counts.

    Raises:
        NoiseKeyLostError: steps were spent and the key is missing or damaged.
    """
    problem = "is missing"
    if path.exists():
        text = path.read_text(encoding="ascii", errors="replace").strip()
        try:
            key = bytes.fromhex(text)
        except ValueError:
            key = b""
        if len(key) == KEY_BYTES:
            path.chmod(0o600)  # a copied folder may have lost it
            return key
        problem = f"holds no key (got {len(text)} characters, expected {2 * KEY_BYTES} hex digits)"
    if steps_spent:
        raise NoiseKeyLostError(
            f"{path} {problem}, but the ledger says that {steps_spent} steps were spent with it. "
            f"Continuing would need fresh noise for steps that are already spent. Put the key file "
            f"back, or {START_OVER}"
        )
    key = os.urandom(KEY_BYTES)
    write_atomic(path, key.hex() + "\n", mode=0o600)
    return key
