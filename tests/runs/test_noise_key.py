"""The secret key: who may read it, and that no kill forgets it."""

import os
import stat
from pathlib import Path

import pytest

from dpft.runs import Ledger, NoiseKeyLostError, read_ledger
from dpft.runs.ledger import (
    key_fingerprint,
    key_from_seed,
    keyed_fingerprint,
    run_key,
    stored_key,
)


def test_a_key_is_durable_and_its_owners_alone_from_the_first_byte_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only once it is read again: until then others could copy it."""
    sync, seen, synced = os.fsync, [], set()

    def observed(descriptor: int) -> None:
        seen.extend(stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir())
        synced.add(os.fstat(descriptor).st_ino)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", observed)
    before = os.umask(0)
    key = stored_key(tmp_path / "noise_key", steps_spent=0)
    os.umask(before)
    assert set(seen) == {0o600}
    assert len(key) == 32
    assert {(tmp_path / "noise_key").stat().st_ino, tmp_path.stat().st_ino} <= synced
    assert stored_key(tmp_path / "noise_key", steps_spent=1) == key


@pytest.mark.parametrize("text", ["", "abcd", "z" * 64, "ab" * 31, "ab" * 33, "\xe9" * 64])
def test_what_is_no_key_is_replaced_only_while_nothing_was_spent(tmp_path: Path, text: str) -> None:
    file = tmp_path / "noise_key"
    file.write_text(text, "latin-1")
    with pytest.raises(NoiseKeyLostError, match=f"got {len(text)} characters, expected 64"):
        stored_key(file, steps_spent=1)
    assert file.read_text("latin-1") == text
    assert len(stored_key(file, steps_spent=0)) == 32


def test_fingerprints_and_seeds_stay_what_they_are() -> None:
    """Ledgers hold them: a run must be recognised by later code."""
    assert key_fingerprint(b"key") == "a9b145c69b231cae"
    assert keyed_fingerprint(b"key", "data") == "1a73557051bf98de"
    assert key_from_seed(1).hex().startswith("a995e1db7690bba508c5385a26f4f196")


HEADER = {"mechanism": {"steps": 5}, "settings": {"learning_rate": 0.1}, "compute": {"threads": 1}}


@pytest.mark.parametrize(
    "change", [{"mechanism": {"steps": 6}}, {"settings": {}}, {"compute": {"threads": 2}}]
)
def test_no_two_headers_share_a_key(change: dict[str, object]) -> None:
    key = run_key(b"stored", None, HEADER)
    assert key == run_key(b"stored", None, {**HEADER})
    assert key != run_key(b"stored", None, HEADER | change)
    assert key != run_key(b"other", None, HEADER)
    assert key != run_key(b"stored", None, HEADER, "settings")


def test_the_key_stays_once_a_step_was_released_with_it(tmp_path: Path) -> None:
    """Also where a run goes on elsewhere: its later stretches have keys that follow from it."""
    file, elsewhere = tmp_path / "ledger.jsonl", HEADER | {"compute": {"threads": 2}}
    first = run_key(b"stored", None, HEADER)
    with Ledger(file, HEADER) as ledger:
        assert run_key(b"stored", read_ledger(file), elsewhere) != first
        ledger.spend(0)
    assert run_key(b"stored", read_ledger(file), elsewhere) == first
