"""pytest in processes that are forked from one which has imported all libraries."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Chosen:
    """Of all that pytest collects, the tests that are asked for, quick ones first."""

    def __init__(self, seconds: dict[str, float] | None) -> None:
        self._seconds = seconds
        self.failed = ""

    def pytest_collection_modifyitems(self, config: Any, items: list[Any]) -> None:
        if self._seconds is not None:
            items[:] = [item for item in items if item.nodeid in self._seconds]
            items.sort(key=lambda item: list(self._seconds or ()).index(item.nodeid))

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid


class Observed:
    """Which functions each test calls, and how long it takes.

    What is called while fixtures are made counts for all tests of the file.
    """

    def __init__(self) -> None:
        self.calls: dict[str, set[str]] = defaultdict(set)
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []
        self._at = ""
        self._inside = f"{Path.cwd()}/dpft/"

    def pytest_runtest_setup(self, item: Any) -> None:
        self._at = item.nodeid.partition("::")[0]
        sys.setprofile(self._called)

    def pytest_runtest_call(self, item: Any) -> None:
        self._at = item.nodeid

    def pytest_runtest_teardown(self, item: Any) -> None:
        sys.setprofile(None)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0) + report.duration
        if report.failed:
            self.failed.append(report.nodeid)

    def _called(self, frame: Any, event: str, argument: object) -> None:
        file: str = frame.f_code.co_filename
        if event == "call" and file.startswith(self._inside):
            where = f"dpft/{file.removeprefix(self._inside)}:{frame.f_code.co_firstlineno}"
            self.calls[where].add(self._at)


def forked(seconds: float, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What ``work()`` returns in a process of its own, or how that ended."""
    with tempfile.TemporaryFile() as said:
        pid = os.fork()
        if not pid:
            try:
                os.setsid()
                resource.setrlimit(resource.RLIMIT_DATA, (8 * 2**30,) * 2)
                quiet = os.open(os.devnull, os.O_RDWR)
                for descriptor in range(3):
                    os.dup2(quiet, descriptor)
                try:
                    result = work()
                except BaseException:
                    result = {"status": "crashed", "why": traceback.format_exc()}
                said.write(json.dumps(result).encode())
                said.flush()
            finally:
                os._exit(0)
        until = time.monotonic() + seconds
        while os.waitpid(pid, os.WNOHANG) == (0, 0):
            if time.monotonic() > until:
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                return {"status": "timeout"}
            time.sleep(0.01)
        said.seek(0)
        text = said.read()
    return json.loads(text) if text else {"status": "crashed"}


def tested(files: list[str], plugin: Any, *options: str) -> int:
    import pytest

    sys.dont_write_bytecode = True  # of the one module that changes all the time
    with tempfile.TemporaryDirectory() as folder:
        base = ["-q", "-p", "no:cacheprovider", f"--basetemp={folder}/t"]
        base += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # hypothesis is imported before
        return int(pytest.main([*base, *options, *files], plugins=[plugin]))
