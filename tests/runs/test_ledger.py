import errno
import hashlib
import os
import random
from pathlib import Path

import pytest

from dpft.privacy import Mechanism
from dpft.runs import Ledger, LedgerError, LedgerMismatchError, read_ledger
from dpft.runs.ledger import chained_lines

HEADER = {"mechanism": {"noise_multiplier": 0.8, "steps": 5}, "dataset": "ab12", "key": "cd34"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


@pytest.fixture
def spent(path: Path) -> Path:
    with Ledger(path, HEADER) as ledger:
        for step in range(3):
            ledger.spend(step, noise_std=0.25, update=f"digest-{step}")
    return path


def test_a_line_torn_at_any_byte_is_cut_off_and_respent(spent: Path) -> None:
    whole = spent.read_bytes()
    last = whole.splitlines(keepends=True)[-1]
    for kept in range(len(last)):
        spent.write_bytes(whole[: len(whole) - len(last) + kept])
        assert read_ledger(spent).steps_spent == 2
        with Ledger(spent, HEADER) as ledger:
            assert ledger.steps_spent == 2
            ledger.spend(2, noise_std=0.25, update="digest-2")
        assert spent.read_bytes() == whole


def test_an_equal_replay_changes_nothing_and_an_unequal_one_is_refused(spent: Path) -> None:
    before = spent.read_bytes()
    with Ledger(spent, HEADER) as ledger:
        for step in range(3):
            ledger.spend(step, update=f"digest-{step}", noise_std=0.25)
        with pytest.raises(LedgerMismatchError, match=r'update: "digest-1" -> "other"'):
            ledger.spend(1, noise_std=0.25, update="other")
        for step in (4, -1):
            with pytest.raises(LedgerError, match="expected 3"):
                ledger.spend(step)
        for name in ("loss", "gradient_norms", "clipped_fraction", "indices"):  # are not noisy
            with pytest.raises(LedgerError, match="under private/"):
                ledger.spend(3, inner={name: 1.0})
    assert spent.read_bytes() == before


def test_lines_stay_spelled_as_they_are_and_begin_with_their_chain(spent: Path) -> None:
    """A replay, by later code too, must reproduce them byte for byte."""
    mechanism = b'"mechanism":{"noise_multiplier":0.8,"steps":5}'
    rests = [b'"header":{"dataset":"ab12","key":"cd34",' + mechanism + b'},"ledger":2}\n']
    rests += [b'"noise_std":0.25,"step":%d,"update":"digest-%d"}\n' % (n, n) for n in range(3)]
    chain, expected = "", b""
    for rest in rests:
        chain = hashlib.sha256(chain.encode() + b"{" + rest).hexdigest()[:32]
        expected += f'{{"chain":"{chain}",'.encode() + rest
    assert spent.read_bytes() == expected


def test_another_header_is_refused_by_field(spent: Path) -> None:
    changed = {**HEADER, "mechanism": {"noise_multiplier": 0.5, "steps": 5}}
    with pytest.raises(LedgerMismatchError, match=r"mechanism\.noise_multiplier: 0\.8 -> 0\.5"):
        Ledger(spent, changed)


def test_a_lost_line_is_an_error(spent: Path) -> None:
    lines = spent.read_bytes().splitlines(keepends=True)
    for lost in (1, 2):
        spent.write_bytes(b"".join(lines[:lost] + lines[lost + 1 :]))
        with pytest.raises(LedgerError, match=f"line {lost + 1}: got chain"):
            Ledger(spent, HEADER)
    spent.write_bytes(chained_lines(HEADER, [{"step": 1}]))
    with pytest.raises(LedgerError, match="line 2: got step 1, expected 0"):
        Ledger(spent, HEADER)


MECHANISM = Mechanism(100, 10, 12, 1.0, (0.1,), 1e-3)


def header_of(threads: int) -> dict[str, object]:
    return {"mechanism": MECHANISM.to_dict(), "key": "cd34", "compute": {"threads": threads}}


def test_no_flipped_bit_is_accepted(path: Path) -> None:
    """Wherever it is in a line that a step was spent with, the ends of the lines included.

    Nothing is read of what a kill has torn, so a bit of that changes nothing.
    """
    torn = b'{"chain":"0123456789abcdef'
    draw = random.Random(0)

    def spend(ledger: Ledger, step: int) -> None:
        epsilon = MECHANISM.rdp_after(ledger.steps_spent + 1)
        ledger.spend(step, epsilon_rdp=epsilon, update=f"{draw.getrandbits(64):016x}")

    with Ledger(path, header_of(threads=1)) as ledger:
        for step in range(6):
            spend(ledger, step)
    with Ledger(path, header_of(threads=2)) as ledger:
        ledger.go_on(4)
        for step in range(4, 6):
            spend(ledger, step)
    whole, held = path.read_bytes(), read_ledger(path)
    size = 8 * len(whole)

    def flip(bit: int) -> None:
        flipped = bytearray(whole + torn)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)

    for bit in [*range(size - 8, size), *(draw.randrange(size) for _ in range(80))]:
        flip(bit)
        with pytest.raises(LedgerError):
            read_ledger(path)
    for bit in range(size, 8 * len(whole + torn), 7):
        flip(bit)
        assert read_ledger(path) == held


def test_a_full_disk_leaves_the_step_unspent(spent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, write = spent.read_bytes(), os.write

    def half(descriptor: int, data: bytes) -> int:
        if len(data) < 10:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data[: len(data) // 2])

    ledger = Ledger(spent, HEADER)
    monkeypatch.setattr(os, "write", half)
    with pytest.raises(LedgerError, match=r"step 3 was not taken.*No space left.*free some space"):
        ledger.spend(3, update="digest-3")
    assert spent.read_bytes() == before
    monkeypatch.undo()
    with pytest.raises(LedgerError, match="closed or failed"):
        ledger.spend(3, update="digest-3")
    with Ledger(spent, HEADER) as again:
        again.spend(3, update="digest-3")
        assert again.steps_spent == 4
