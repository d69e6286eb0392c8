"""Entry point of the ``dpft`` script, and of ``python -m dpft``."""

import os
import sys

from dpft.cli.interrupts import end_at_signals


def main() -> None:
    """Handle Ctrl-C first, then import the rest."""
    open_standard_descriptors()
    end_at_signals()
    from dpft.cli.app import main as run

    run()


def open_standard_descriptors() -> None:
    """Open ``/dev/null`` in place of standard descriptors that are closed.

    Otherwise the next files that are opened get their numbers, and a library that writes to
    standard error writes into a ledger.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:  # as Python has it where the descriptor is closed
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


if __name__ == "__main__":
    main()
