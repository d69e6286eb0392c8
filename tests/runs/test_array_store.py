"""Arrays that are kept between runs: whole or not there, and for their owner's eyes only."""

import errno
import shutil
import stat
import threading

import numpy as np
import pytest

from dpft.runs.array_store import ArrayStore, ArrayWriter

NUMBERS = np.arange(10, dtype=np.uint16)


def fill(writer):
    for start in (0, 3, 3):
        writer.append("numbers", NUMBERS[start : start + 7])
    writer.append("none", np.zeros(0, np.int64))
    return {"told": [1, 2]}


def never(*arguments):
    raise AssertionError


def whole(arrays):
    expected = np.concatenate((NUMBERS[:7], NUMBERS[3:], NUMBERS[3:]))
    assert arrays["numbers"].tolist() == expected.tolist()
    assert arrays["numbers"].dtype == np.uint16
    assert arrays.reader("numbers")(5, 9).tolist() == expected[5:9].tolist()
    assert arrays["none"].tolist() == []
    assert arrays.facts == {"told": [1, 2]}
    return True


@pytest.fixture
def store(tmp_path):
    return ArrayStore(tmp_path / "runs/private/cache")


def test_arrays_are_made_once(store):
    assert whole(store.get("a", fill, never))
    assert whole(store.get("a", never, never))
    assert whole(ArrayStore(store.folder).get("a", never, never))
    with pytest.raises(AssertionError):
        store.get("b", never, never)


def test_arrays_in_memory_are_the_same():
    writer = ArrayWriter()
    assert whole(writer.in_memory(fill(writer)))


def test_nobody_else_may_look(store):
    store.get("the secret of record 7", fill, never)
    modes = {
        path: stat.S_IMODE(path.stat().st_mode)
        for path in (store.folder.parent, *store.folder.parent.rglob("*"))
    }
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}


def test_names_follow_from_a_secret(store, tmp_path):
    other = ArrayStore(tmp_path / "other/private/cache")
    names = []
    for one in (store, other):
        one.get("a", fill, never)
        names.append({path.name for path in one.folder.iterdir() if path.is_dir()})
    assert len(names[0]) == len(names[1]) == 1
    assert names[0] != names[1]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, OSError(errno.ENOSPC, "no space left")])
def test_what_was_stopped_leaves_nothing(store, stop):
    def stopped(writer):
        fill(writer)
        raise stop

    with pytest.raises(type(stop) if isinstance(stop, Exception) else stop):
        store.get("a", stopped, never)
    assert not [path for path in store.folder.iterdir() if path.is_dir()]
    assert whole(store.get("a", fill, never))


def test_what_a_killed_process_left_is_not_believed_and_goes(store):
    store.get("a", fill, never)
    (entry,) = (path for path in store.folder.iterdir() if path.is_dir())
    entry.rename(entry.with_suffix(".partial"))  # as it was before it was whole
    with pytest.raises(AssertionError):
        store.get("a", never, never)
    assert whole(store.get("a", fill, never))
    assert not list(store.folder.glob("*.partial"))


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: (entry / "numbers").write_bytes(b"\1" * 42),
        lambda entry: (entry / "numbers").unlink(),
        lambda entry: (entry / "arrays.json").write_text("{"),
        lambda entry: (entry / "arrays.json").write_text('{"version": 0}'),
    ],
)
def test_damaged_arrays_are_made_again(store, damage):
    store.get("a", fill, never)
    (entry,) = (path for path in store.folder.iterdir() if path.is_dir())
    damage(entry)
    with pytest.raises(AssertionError):
        store.get("a", never, never)
    assert whole(store.get("a", fill, never))


def test_who_comes_second_waits_and_finds_what_the_first_made(store):
    waits, found = threading.Event(), []

    def second():
        found.append(ArrayStore(store.folder).get("a", never, waits.set))

    def first(writer):
        thread.start()
        assert waits.wait(20)
        assert not found
        return fill(writer)

    thread = threading.Thread(target=second, daemon=True)
    whole(store.get("a", first, never))
    thread.join(20)
    assert whole(found[0])


def test_arrays_outlive_their_files(store):
    arrays = store.get("a", fill, never)
    read = arrays.reader("numbers")
    shutil.rmtree(store.folder)
    assert arrays["numbers"][:3].tolist() == read(0, 3).tolist() == [0, 1, 2]


def test_an_array_is_of_one_type():
    writer = ArrayWriter()
    writer.append("a", np.zeros(2, np.int32))
    with pytest.raises(ValueError, match="a is of int32, got int64"):
        writer.append("a", np.zeros(2, np.int64))
