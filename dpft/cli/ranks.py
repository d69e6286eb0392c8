"""``python -m dpft.cli.ranks``: torchrun, and what each rank runs, for `dpft.sweep.ranks`."""

import os
import signal
import sys
from pathlib import Path

from dpft.cli.interrupts import heed_at_once, heed_by_exception, speaks
from dpft.config.errors import DpftError
from dpft.report.terminal import echo
from dpft.sweep.ranks import end_with_job, read_run, report_ends, report_error


def start(folder: Path, ranks: int) -> None:
    """Be torchrun: start the ranks, and end them all if one fails."""
    # Ctrl-C is for the job, which ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main as torchrun

    options = ("--standalone", "--local-addr=localhost", f"--nproc-per-node={ranks}")
    try:
        torchrun([*options, "--signals-to-handle=SIGTERM", "-m", "dpft.cli.ranks", str(folder)])
    except ChildFailedError as error:
        report_ends(folder, {rank: failure.exitcode for rank, failure in error.failures.items()})
        sys.exit(1)
    except SignalException as error:
        sys.exit(128 + error.sigval)


def be_rank(folder: Path) -> None:
    """Be one of the processes of the run."""
    end_with_job(folder)
    heed_at_once()
    heed_by_exception()
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
    start(Path(place), int(*count)) if count else be_rank(Path(place))
