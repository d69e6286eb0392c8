"""Entry point of the ``dpft`` script, and of ``python -m dpft``."""

from dpft.cli.interrupts import heed_at_once


def main() -> None:
    """Heed Ctrl-C first, then import what it takes."""
    heed_at_once()
    from dpft.cli.app import main as run

    run()


if __name__ == "__main__":
    main()
