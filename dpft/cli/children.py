"""The processes that dpft starts itself: ``python -m dpft.cli.children ...``.

``typed`` runs the command whose words are on standard input, as a JSON list (`dpft.sweep.process`).
``FOLDER RANKS`` runs torchrun, and ``FOLDER`` is one of its ranks (`dpft.sweep.ranks`).
"""

import json
import os
import signal
import sys
from pathlib import Path

from dpft.cli.interrupts import end_at_signals, raise_at_signals, speaks
from dpft.config.errors import DpftError
from dpft.report.terminal import echo
from dpft.sweep.ranks import end_with_job, read_run, report_ends, report_error


def run_typed() -> None:
    """Run a command of which other users of the machine may not see the arguments."""
    from dpft.cli.app import main
    from dpft.sweep.process import end_with_parent

    end_with_parent()
    sys.argv[1:] = json.load(sys.stdin)
    main()


def start(folder: Path, ranks: int) -> None:
    """Run torchrun: start the ranks, and end them all if one fails."""
    # The job handles Ctrl-C and ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    options = ("--standalone", "--local-addr=localhost", f"--nproc-per-node={ranks}")
    try:
        torchrun([*options, "--signals-to-handle=SIGTERM", "-m", "dpft.cli.children", str(folder)])
    except ChildFailedError as error:
        report_ends(folder, {rank: failure.exitcode for rank, failure in error.failures.items()})
        sys.exit(1)
    except SignalException as error:
        sys.exit(128 + error.sigval)


def be_rank(folder: Path) -> None:
    """Run one of the processes of the run."""
    end_with_job(folder)
    end_at_signals()
    raise_at_signals()
    try:
        from dpft.cli.train import execute

        execute(read_run(folder))
    except KeyboardInterrupt as stopped:
        # The job prints that it was stopped; only a rank knows what is kept.
        for note in getattr(stopped, "__notes__", ()) if speaks() else ():
            echo(f"dpft: {note}", err=True)
        sys.exit(128 + signal.SIGTERM)
    except Exception as error:
        report_error(folder, int(os.environ["RANK"]), error)
        if isinstance(error, DpftError):
            sys.exit(2)
        raise


if __name__ == "__main__":
    place, *count = sys.argv[1:]
    if place == "typed":
        run_typed()
    elif count:
        start(Path(place), int(*count))
    else:
        be_rank(Path(place))
