"""Each release has a line of its own, and its own draws, whatever happens and wherever."""

import errno
import hashlib
import os
import random
from pathlib import Path

import pytest

from dpft.runs import Ledger, LedgerError, LedgerMismatchError, read_ledger
from dpft.runs.ledger import chained_lines

HEADER = {"mechanism": {"noise_multiplier": 0.8, "steps": 5}, "dataset": "ab12", "key": "cd34"}


def header(threads: int) -> dict[str, object]:
    return HEADER | {"compute": {"device": "cpu", "threads": threads}}


@pytest.fixture
def spent(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.jsonl"
    with Ledger(path, HEADER) as ledger:
        for step in range(3):
            ledger.spend(step, noise_std=0.25, update=f"digest-{step}")
    return path


@pytest.fixture
def moved(spent: Path) -> Path:
    """Three steps on one thread; two of them once more on two threads."""
    spent.unlink()
    with Ledger(spent, header(1)) as ledger:
        for step in range(3):
            ledger.spend(step, update=f"first-{step}")
    with Ledger(spent, header(2)) as ledger:
        ledger.go_on(1)
        for step in (1, 2):
            ledger.spend(step, update=f"second-{step}")
        assert ledger.go_on(3) == read_ledger(spent).stretch
    return spent


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


def test_no_flipped_bit_is_accepted(moved: Path) -> None:
    """Wherever it is in a line that a step was spent with, the ends of the lines included.

    Nothing is read of what a kill has torn, so a bit of that changes nothing.
    """
    torn, draw = b'{"chain":"0123456789abcdef', random.Random(0)
    whole, held = moved.read_bytes(), read_ledger(moved)
    size = 8 * len(whole)

    def flip(bit: int) -> None:
        flipped = bytearray(whole + torn)
        flipped[bit // 8] ^= 1 << bit % 8
        moved.write_bytes(flipped)

    for bit in [*range(size - 8, size), *(draw.randrange(size) for _ in range(80))]:
        flip(bit)
        with pytest.raises(LedgerError):
            read_ledger(moved)
    for bit in range(size, 8 * len(whole + torn), 7):
        flip(bit)
        assert read_ledger(moved) == held


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


# --- a ledger that goes on elsewhere ---


def test_repeated_steps_have_lines_of_their_own(moved: Path) -> None:
    contents = read_ledger(moved)
    assert (contents.steps_spent, contents.next_step, contents.stretch.repeated) == (5, 3, 2)
    moves = [(entry["step"], entry.get("compute")) for entry in contents.entries]
    assert moves == [(0, None), (1, None), (2, None), (1, header(2)["compute"]), (2, None)]


def test_nothing_is_spent_elsewhere_before_the_ledger_goes_on(moved: Path) -> None:
    before = moved.read_bytes()
    with Ledger(moved, header(3)) as ledger:
        for step in (0, 2, 3):
            with pytest.raises(LedgerMismatchError, match="threads: 2 -> 3"):
                ledger.spend(step, update="other")
        with pytest.raises(LedgerMismatchError, match=r"4 steps behind it but .* lost lines"):
            ledger.go_on(4)
        ledger.go_on(1)  # nor is anything on file yet
    assert moved.read_bytes() == before


def test_a_stretch_replays_its_own_steps_and_no_others(moved: Path) -> None:
    before = moved.read_bytes()
    with Ledger(moved, header(2)) as ledger:
        assert ledger.go_on(1) == read_ledger(moved).stretch
        for step in (1, 2):
            ledger.spend(step, update=f"second-{step}")
        with pytest.raises(LedgerMismatchError, match='update: "second-2" -> "first-2"'):
            ledger.spend(2, update="first-2")
        with pytest.raises(LedgerError, match="got step 0"):
            ledger.spend(0, update="first-0")
    assert moved.read_bytes() == before


@pytest.mark.parametrize("seed", range(6))
def test_no_life_of_a_run_releases_what_is_not_counted(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills, torn lines, lost checkpoints and moves at random; what was released is kept apart."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # thousands of them, of no power cut
    draw, path, steps = random.Random(seed), tmp_path / "ledger.jsonl", 12
    # By key and step what the sums follow from: two values would be one noise on two sums.
    released: dict[tuple[bytes, int], object] = {}
    checkpoints, threads = [(0, 0)], 1  # steps, and a digest of the weights
    for _ in range(60):
        if draw.random() < 0.4:
            threads = draw.choice([1, 2, 3])
        if draw.random() < 0.2:
            checkpoints = checkpoints[: draw.randint(1, len(checkpoints))]
        start, weights = checkpoints[-1]
        with Ledger(path, header(threads)) as ledger:
            key = ledger.go_on(start).key(b"k" * 32)
            for step in range(start, min(steps, start + draw.randint(0, 5))):
                ledger.spend(step)
                sums = (threads, weights)
                assert released.setdefault((key, step), sums) == sums
                weights = hash((weights, threads, key, step))
                if draw.random() < 0.4:
                    checkpoints.append((step + 1, weights))
            assert ledger.steps_spent == len(released)
        if draw.random() < 0.3:
            with path.open("ab") as file:  # the next line, torn
                file.write(b'{"chain":"9a","compute"'[: draw.randint(1, 22)])
        assert read_ledger(path).steps_spent == len(released)
