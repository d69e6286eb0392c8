"""When two configurations are the same run."""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

HASH_LENGTH = 12
_SEAL = "sha256"


def canonical(value: Any, where: str = "config") -> Any:
    """Return plain JSON data in which equal settings are equal.

    ``3`` and ``3.0`` are one number, tuples are lists, paths are strings, and so are infinities.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            return str(float(value))
        return int(value) if value.is_integer() else float(value)
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): canonical(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [canonical(item, f"{where}[{index}]") for index, item in enumerate(value)]
    raise TypeError(
        f"{where} is a {type(value).__name__}; expected numbers, strings, booleans, null, lists "
        f"and mappings only: convert it before it goes into a run"
    )


def canonical_json(value: Any) -> str:
    """Return one line of JSON, the same for the same settings: sorted keys, no spaces."""
    return json.dumps(
        canonical(value), sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False
    )


def digest_of(value: Any) -> str:
    """Return the SHA-256 of the canonical JSON of a value, as hex."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def config_hash(config: Mapping[str, Any]) -> str:
    """Return the name of a configuration: 12 hex characters of SHA-256 of its canonical JSON."""
    return digest_of(config)[:HASH_LENGTH]


def sealed(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body with its digest as ``sha256``, as `opened` reads it."""
    return {**body, _SEAL: digest_of(body)}


def opened(held: Any) -> dict[str, Any]:
    """Return the body of what was `sealed`, as read from a file; ValueError if it is damaged."""
    if not isinstance(held, Mapping):
        raise ValueError(f"it is a {type(held).__name__}; expected a mapping")
    if _SEAL not in held:
        raise ValueError("it has no checksum")
    body = {name: value for name, value in held.items() if name != _SEAL}
    if held[_SEAL] != digest_of(body):
        raise ValueError("it does not match its checksum")
    return body


def leaves(value: Any, prefix: str = "") -> Iterable[tuple[str, Any]]:
    """Yield every value that is not a mapping, with its dotted key below ``prefix``."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from leaves(item, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, value


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return lines such as ``privacy.epsilon: 3 -> 8``, one for each dotted key that differs."""
    before, after = (
        {
            key: json.dumps(value, ensure_ascii=False, sort_keys=True)
            for key, value in leaves(canonical(side))
        }
        for side in (old, new)
    )
    return [
        f"{key}: {before.get(key, '(absent)')} -> {after.get(key, '(absent)')}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key)
    ]
