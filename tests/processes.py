"""Processes that are forked from one which has imported everything, and ``dpft`` commands in them.

A fresh process takes seconds to import torch and transformers. Where a test is about what a fresh
process imports, or about the program's own entry, it starts Python itself.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

from typer.testing import CliRunner, Result

# A server that is started once for each of pytest's workers, and ends with it.
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    [
        *("dpft.cli.app", "hydra", "dpft.cli.train", "dpft.training.run"),
        # What a run imports on its way.
        *("prv_accountant", "dp_accounting.rdp", "dp_accounting.pld.privacy_loss_distribution"),
        *("sacrebleu", "rouge_score.rouge_scorer", "dpft.tasks.metrics.e2e_scores"),
        *("dpft.tasks.own_texts", "dpft.tasks.task", "dpft.tasks.classification"),
        *("dpft.tasks.samples.texts", "dpft.tasks.objectives.generation", "dpft.models.adapters"),
        *("pandas", "peft", "transformers.models.gpt2.modeling_gpt2"),
        *("dpft.parallel.parts", "dpft.parallel.sharded", "dpft.parallel.pipeline"),
        "tests.warm",
    ]
)


class Forked:
    """A function, running in a process of its own; killed at the end of a ``with`` block."""

    started: ClassVar[list["Forked"]] = []

    def __init__(self, function: Callable[..., None], *arguments: Any, **named: Any) -> None:
        self._said = tempfile.TemporaryDirectory()
        self._files = [Path(self._said.name, name) for name in ("output", "errors")]
        call = (function, arguments, named, dict(os.environ), [str(file) for file in self._files])
        for file in self._files:
            file.touch()
        self._process = _SERVER.Process(target=_call, args=call, daemon=True)
        self._process.start()
        self.started.append(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        self._said.cleanup()

    @property
    def pid(self) -> int | None:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The exit status; minus the signal's number if one ended it; None while it runs."""
        return self._process.exitcode

    @property
    def said(self) -> list[str]:
        return [file.read_text() for file in self._files]

    def wait_for(self, condition: Callable[[], bool], seconds: float = 120) -> None:
        """Return as soon as the condition holds, which it must come to while the process runs."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert self._process.is_alive(), f"ended too early: {self.said[1]}"
            assert time.monotonic() < deadline, f"not within {seconds} s"
            time.sleep(0.005)

    def kill(self) -> None:
        """Kill it by SIGKILL, unless it has ended."""
        self._process.kill()
        self._process.join()

    def finish(self, seconds: float = 240) -> "subprocess.CompletedProcess[str]":
        self._process.join(seconds)
        assert self.status is not None, f"it runs for more than {seconds} s"
        return subprocess.CompletedProcess([], self.status, *self.said)


def command(arguments: Sequence[str], cwd: Path) -> Forked:
    """Start ``dpft ARGUMENTS`` in that folder."""
    return Forked(dpft_in, list(arguments), cwd)


def invoke(*arguments: object) -> Result:
    """Run a command to its end in this process."""
    from dpft.cli.app import app

    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def end_all() -> None:
    """Kill all processes that were started before, unless they have ended."""
    while Forked.started:
        Forked.started.pop().__exit__()


def dpft(*arguments: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, as `subprocess.run` would."""
    with command(arguments, cwd) as process:
        return process.finish()


def _call(
    function: Callable[..., None],
    arguments: Sequence[Any],
    named: dict[str, Any],
    environment: dict[str, str],
    files: Sequence[str],
) -> None:
    """In the child. The environment is the test's of now, not that in which the server began."""
    for descriptor, file in enumerate(files, start=1):
        opened = os.open(file, os.O_WRONLY)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.environ.clear()
    os.environ.update(environment)
    function(*arguments, **named)


def dpft_in(arguments: list[str], cwd: Path) -> None:
    """``dpft ARGUMENTS`` in that folder, by this process."""
    os.chdir(cwd)
    sys.argv = ["dpft", *arguments]
    # What a shell runs in the background ignores it, a test suite's children among it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    from dpft.cli.app import main

    main()
