"""``dpft audit``: ``dpft train`` with canaries of a kind, and what they prove."""

from dpft.cli import train
from dpft.cli.options import Settings
from dpft.config.errors import ConfigError, suggestion
from dpft.report.terminal import echo

KINDS = {
    "bound": "a lower bound on epsilon, measured in the run, beside what it claims",
    "canary": "how far secret texts in the training data are given away, in bits",
}


def main(arguments: Settings = None) -> None:
    """Train with canaries, and ask what they prove: dpft audit bound task=e2e eps=3"""
    if not arguments or {"--help", "-h"}.intersection(arguments):
        echo("Usage: dpft audit KIND [SETTINGS as for dpft train]\n")
        for kind, what in KINDS.items():
            echo(f"  {kind:8} {what}")
        echo(
            "\n  dpft audit bound task=e2e task.source=sample eps=3\n"
            "  dpft audit bound task=e2e eps=3 audit.gradients=2000 audit.records=200\n"
            "  dpft audit canary task=e2e clip=none audit.repetitions=10\n\n"
            "All settings of an audit: dpft ls audit; what it can show: docs/how-to/audit.md"
        )
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
