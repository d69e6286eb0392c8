"""A disk that may lose, at a power cut, whatever was not synced to it, in any order.

`Recorder` notes what a process does to a folder: contents of files, entries of folders, and what is
synced. `Disk` makes of that the folder that a power cut at some moment may leave, by the rules of
POSIX and no better:

- a file's content is that of its last fsync, or any later one, or a torn one in between;
- an entry of a folder (made, renamed, removed) is sure after an fsync of that folder; of the
  operations since then any may have reached the disk without the others. A rename is one operation.
"""

import contextlib
import os
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

_CALLS = (
    *("fsync", "write", "rename", "replace", "unlink", "remove"),
    *("rmdir", "mkdir", "truncate", "ftruncate"),
)
ROOT = 0


class Content(NamedTuple):
    """File ``inode`` holds ``data`` now."""

    inode: int
    data: bytes


class Entries(NamedTuple):
    """One operation on folder ``inode``: what names mean now; None: they are gone."""

    inode: int
    names: Mapping[str, int | None]


class Sync(NamedTuple):
    """File or folder ``inode`` is synced."""

    inode: int


Event = Content | Entries | Sync


class Recorder:
    """Notes what happens to a folder while `recording`.

    Libraries in other languages write files too, so the folder is read again before and after each
    call that matters: what changed in between was done by somebody.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.events: list[Event] = []
        self.folders = {ROOT}
        # Called with the name and arguments of each call; may raise, as a kill would.
        self.before: Callable[[str, tuple[Any, ...]], None] = lambda name, arguments: None
        self._alive: dict[int, int] = {root.stat().st_ino: ROOT}
        self._entries: dict[int, dict[str, int]] = {ROOT: {}}
        self._data: dict[int, bytes] = {}
        self._made = 1

    @contextlib.contextmanager
    def recording(self) -> Iterator[None]:
        """Inside, the process's own calls are noted."""
        with pytest.MonkeyPatch.context() as patch:
            for name in _CALLS:
                patch.setattr(os, name, self._noted(name, getattr(os, name)))
            yield
        self.look()

    def _noted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any, **keywords: Any) -> Any:
            self.look()
            self.before(name, arguments)
            if name == "fsync":
                # To the real disk nothing has to go.
                inode = self._alive.get(os.fstat(arguments[0]).st_ino)
                if inode is not None:
                    self.events.append(Sync(inode))
                return None
            done = call(*arguments, **keywords)
            self.look()
            return done

        return noted

    def look(self) -> None:
        """Note what changed since the last look."""
        seen: dict[int, int] = {self.root.stat().st_ino: ROOT}
        entries: dict[int, dict[str, int]] = {ROOT: {}}
        contents: dict[int, bytes] = {}
        pending = [(ROOT, self.root)]
        while pending:
            number, folder = pending.pop()
            for entry in sorted(os.scandir(folder), key=lambda one: one.name):
                inode = entry.inode()
                # What was not there at the last look is new, whatever number it got again.
                known = self._alive.get(inode)
                if known is None or (known in self.folders) != entry.is_dir():
                    known, self._made = self._made, self._made + 1
                    self._alive[inode] = known
                seen[inode] = known
                entries[number][entry.name] = known
                if entry.is_dir():
                    self.folders.add(known)
                    entries[known] = {}
                    pending.append((known, Path(entry.path)))
                else:
                    contents[known] = Path(entry.path).read_bytes()
        self._alive = seen
        for number, names in entries.items():
            old = self._entries.get(number, {})
            changed = {
                n: names.get(n) for n in old.keys() | names.keys() if old.get(n) != names.get(n)
            }
            if None in changed.values():
                self.events.append(Entries(number, changed))  # a rename, or one removal
            else:
                self.events += [Entries(number, {n: i}) for n, i in sorted(changed.items())]
        for number, data in contents.items():
            if self._data.get(number) != data:
                self.events.append(Content(number, data))
        self._entries, self._data = entries, contents


class Disk:
    """What may be left of a recorded folder."""

    def __init__(self, recorder: Recorder) -> None:
        self._events = recorder.events
        self._folders = recorder.folders

    def __len__(self) -> int:
        return len(self._events)

    def after(self, moment: int, draw: random.Random, target: Path) -> None:
        """Make the folder that a power cut after so many events leaves, in one of many ways."""
        sure: dict[int, Any] = {}
        later: dict[int, list[Any]] = {}
        for event in self._events[:moment]:
            if not isinstance(event, Sync):
                held = event.data if isinstance(event, Content) else event.names
                later.setdefault(event.inode, []).append(held)
                continue
            happened = later.pop(event.inode, [])
            if event.inode in self._folders:
                sure[event.inode] = _applied(sure.get(event.inode, {}), happened)
            elif happened:
                sure[event.inode] = happened[-1]
        luck = draw.choice((0.0, 0.3, 0.7, 1.0))
        content_luck = draw.choice((0.0, 0.5, 1.0))

        def write(inode: int, target: Path) -> None:
            held, new = sure.get(inode), later.get(inode, [])
            if inode not in self._folders:
                target.write_bytes(_left(held or b"", new, draw, content_luck))
                return
            target.mkdir(exist_ok=True)
            reached = [names for names in new if draw.random() < luck]
            for name, child in sorted(_applied(held or {}, reached).items()):
                write(child, target / name)

        write(ROOT, target)


def _applied(entries: Mapping[str, int], operations: list[Any]) -> dict[str, int]:
    found: dict[str, int | None] = dict(entries)
    for names in operations:
        found.update(names)
    return {name: inode for name, inode in found.items() if inode is not None}


def _left(sure: bytes, later: list[bytes], draw: random.Random, luck: float) -> bytes:
    """The synced content, a later one, or one of which only a part has reached the disk."""
    if not later or draw.random() >= luck:
        return sure
    new = draw.choice(later)
    # What was synced and is not written again stays: a log only grows.
    pairs = enumerate(zip(sure, new, strict=False))
    same = next((at for at, (a, b) in pairs if a != b), min(len(sure), len(new)))
    torn = draw.randrange(4)
    if torn == 0:
        return new[: draw.randint(same, len(new))]
    if torn == 1:  # the size has reached the disk, a part of the blocks has not
        first = draw.randint(same, len(new))
        last = draw.randint(first, len(new))
        return new[:first] + sure[first:last].ljust(last - first, b"\0") + new[last:]
    return new
