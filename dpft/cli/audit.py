"""``dpft audit``: ``dpft train`` with canaries of a kind, and what they prove."""

from pathlib import Path

from dpft.cli import train
from dpft.cli.options import Settings
from dpft.report.terminal import echo


def main(arguments: Settings = None) -> None:
    """Train with canaries, and ask what they prove: dpft audit bound task=e2e eps=3"""
    if not arguments or {"--help", "-h"}.intersection(arguments):
        echo(Path(__file__).with_name("audit_help.txt").read_text(encoding="utf-8"), nl=False)
        return
    kind, *rest = arguments
    train.main([*rest, f"audit={kind}"])
