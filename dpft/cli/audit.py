"""``dpft audit``: ``dpft train`` with canaries of a kind, and what they prove."""

from pathlib import Path

from dpft.cli import train
from dpft.cli.options import Settings
from dpft.config.errors import ConfigError, suggestion
from dpft.report.terminal import echo

KINDS = ("bound", "canary")


def main(arguments: Settings = None) -> None:
    """Train with canaries, and ask what they prove: dpft audit bound task=e2e eps=3"""
    if not arguments or {"--help", "-h"}.intersection(arguments):
        echo(Path(__file__).with_name("audit_help.txt").read_text(encoding="utf-8"), nl=False)
        return
    kind, *rest = arguments
    if kind not in KINDS:
        raise ConfigError(
            f"got dpft audit {kind}{suggestion(kind, KINDS)}; expected one of {', '.join(KINDS)}, "
            "as in dpft audit bound task=e2e eps=3"
        )
    for word in rest:
        if word.partition("=")[0] == "audit":
            raise ConfigError(f"got {word} beside dpft audit {kind}; leave one of them out")
    train.main([f"audit={kind}", *rest])
