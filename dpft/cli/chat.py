"""``dpft chat RUN``: talk to a trained model."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Iterator
from typing import Annotated

import typer

from dpft.cli.decode import decoding
from dpft.cli.guard import alone
from dpft.cli.options import DecodeSettings, RunFolder
from dpft.cli.output import warn
from dpft.config.errors import ConfigError
from dpft.report.terminal import echo

_NEW = "/new"


def main(
    path: RunFolder,
    overrides: DecodeSettings = None,
    system: Annotated[
        str | None, typer.Option(help="What the model is told before the conversation.")
    ] = None,
) -> None:
    """Talk to a trained model: dpft chat RUN

    In the chat template that the run was trained with; models of plain texts continue each line.
    Replies are sampled with top_p 0.9; decode.sample=false takes the likeliest word.
    """
    alone("chat")
    from dpft.training.trained import loaded_run

    trained = loaded_run(path)
    one = dataclasses.replace(trained.run.decode, beams=1, sample=True, top_p=0.9)
    settings = decoding(overrides or (), one)
    if settings.beams > 1:
        raise ConfigError(
            f"decode.beams={settings.beams}; expected 1: replies are shown as written"
        )
    settings.check(one)
    from dpft.config.offline import stay_offline_if_unreachable

    stay_offline_if_unreachable()
    from dpft.privacy.guarantee import Guarantee
    from dpft.training.talk import Talk

    talk = Talk(trained, settings, system)
    if not Guarantee.of_record(trained.record).private:
        warn("warning: trained without privacy: replies may repeat training records", err=True)
    new = f", {_NEW} begins a new conversation" if talk.has_turns else ""
    echo(f"Ctrl-D ends{new}", err=True)
    for line in _lines():
        if line == _NEW:
            talk.forget()
        elif line:
            talk.ask(line, lambda piece: echo(piece, nl=False))
            echo()


def _lines() -> Iterator[str]:
    """What is typed, or piped, line by line."""
    asked = ""
    if sys.stdin.isatty():
        asked = "> "
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - lines can be edited, and called back
    with contextlib.suppress(EOFError):
        while True:
            yield input(asked).strip()
