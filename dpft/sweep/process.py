"""Hydra's multirun in a separate process group, which does not outlive its parent.

The child holds the reading end of a pipe of which only the parent has the other end. When the
parent is gone, even by SIGKILL, the kernel closes that end and reading returns. The child then ends
its whole process group, in which its own workers are. That is safe, since runs survive any kill.
"""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from dpft.config.overrides import override
from dpft.runs.atomic import Closing
from dpft.sweep.points import ParsedOverrides
from dpft.sweep.sweep_folder import SweepFolder

_VARIABLE = "DPFT_SWEEP_LIFELINE"
# Seconds that a run has to end by itself after Ctrl-C, and between two looks at the runs.
_PATIENCE = 5.0
_LOOK = 1.0


def run_points(
    parsed: ParsedOverrides,
    lines: Sequence[Sequence[str]],
    folder: SweepFolder,
    look: Callable[[], None] = lambda: None,
) -> int:
    """Run a sweep that `SweepFolder.describe` has written, and return Hydra's exit status.

    ``look`` is called every second.
    """
    typed = [] if parsed.config_dir is None else ["--config-dir", str(parsed.config_dir)]
    typed += [override("hydra.sweep.dir", str(folder.hydra.absolute())), "hydra.sweep.subdir=."]
    typed += parsed.overrides
    typed += [override("sweep.folder", str(folder.path.absolute()))]
    if lines:
        text = "".join(f"{shlex.join(line)}\n" for line in lines)
        folder.list.write_text(text, encoding="utf-8")
        typed.append(override("sweep.list", str(folder.list.absolute())))
        typed.append(f"sweep.point=range(0,{len(lines)})")
    folder.forget_failures()
    status = None
    with Multirun(typed, folder.log) as process:
        while status is None:
            look()
            status = process.wait(_LOOK)
        look()
    return status


class Multirun(Closing):
    """``dpft train -m ...``, which ends when this object is closed or this process dies.

    The arguments go through standard input: every user of the machine sees the arguments of a
    process, and even the number of a selection's trials is secret.
    """

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        reading, self._writing = os.pipe()
        environment = {**os.environ, _VARIABLE: str(reading), "PYTHONUNBUFFERED": "1"}
        try:
            log.touch(mode=0o600)  # an error may quote the data
            # A file without a name, since a pipe could fill up before it is read.
            with log.open("ab") as output, tempfile.TemporaryFile("w+", encoding="utf-8") as typed:
                json.dump(["train", "-m", *arguments], typed)
                typed.seek(0)
                self._process = subprocess.Popen(
                    # -P: as the dpft script, which does not import from the working folder
                    [sys.executable, "-P", "-m", "dpft.cli.children", "typed"],
                    stdin=typed,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=(reading,),
                    process_group=0,
                    env=environment,
                )
        except BaseException:
            os.close(self._writing)
            raise
        finally:
            os.close(reading)

    def wait(self, seconds: float) -> int | None:
        """Return the exit status; None if the process has not ended after ``seconds``."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        """Interrupt the process; after some seconds kill what is left of it and its workers."""
        if self._process.poll() is None:
            self._signal(signal.SIGINT)
            self.wait(_PATIENCE)
        self._signal(signal.SIGKILL)
        self._process.wait()
        os.close(self._writing)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


def end_with_parent() -> None:
    """In the child: end with the parent, if `Multirun` started this process."""
    number = os.environ.pop(_VARIABLE, None)  # the number means nothing in child processes
    if number is None or os.getpgrp() != os.getpid():
        return  # not the leader of its process group: others would be ended too
    os.set_inheritable(int(number), False)

    def follow() -> None:
        os.read(int(number), 1)  # nothing is ever written
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=follow, name="lifeline", daemon=True).start()
