"""The command line. The module of a verb is imported when the verb is called."""

import functools
import gc
import os
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
import typer.core

from dpft.cli.guard import guarded, one_message
from dpft.cli.interrupts import end_at_signals, restore_signals
from dpft.report.terminal import echo


class Verb(NamedTuple):
    """A function ``NAME_verb`` of a module of `dpft.cli`; its docstring is the help."""

    module: str
    summary: str
    traits: str = ""


PURPOSES = {
    purpose: {name: Verb(*facts) for name, facts in verbs.items()}
    for purpose, verbs in tomllib.loads(
        Path(__file__).with_name("verbs.toml").read_text(encoding="utf-8")
    ).items()
}
VERBS = {name: verb for verbs in PURPOSES.values() for name, verb in verbs.items()}

_typer = functools.partial(
    typer.Typer,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class Verbs(typer.core.TyperGroup):
    """Lists all verbs by purpose with their summaries, and imports the one that is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, _, rest = super().resolve_command(ctx, args)
        if not name:
            return name, None, rest
        verb = VERBS[name]
        function = getattr(import_module(f"dpft.cli.{verb.module}"), f"{name}_verb")
        if "settings" in verb.traits and any(w.partition("=")[0] == "--config" for w in rest):
            from dpft.cli.inputs import expanded

            with one_message():
                rest = expanded(rest)
        own_help = "help" in verb.traits
        settings: dict[str, Any] = {"help_option_names": []} if own_help else {}
        settings["ignore_unknown_options"] = "forwards" in verb.traits
        own = _typer(help=f"{verb.summary}.")
        run = guarded(function, name, verb.traits)
        own.command(name, context_settings=settings, add_help_option=not own_help)(run)
        return name, typer.main.get_command(own), rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = max(map(len, VERBS))
        for purpose, verbs in PURPOSES.items():
            with formatter.section(purpose):
                formatter.write_dl([(f"{name:<{width}}", v.summary) for name, v in verbs.items()])


app = _typer(
    name="dpft",
    cls=Verbs,
    help="Fine-tune pretrained models with differential privacy, and record the guarantee.",
    context_settings={"help_option_names": ["--help", "-h"]},
)
for _name, _verb in VERBS.items():
    app.command(_name, help=_verb.summary)(lambda: None)  # replaced by `Verbs`


@app.callback(invoke_without_command=True)
def version(  # noqa: D103
    show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    # No docstring: it would replace the program's own help text.
    if show:
        from dpft import __version__

        echo(f"dpft {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command that was typed, for the ``dpft`` script (`dpft.__main__`)."""
    end_at_signals()
    # Threads of GNU OpenMP spin for milliseconds while they wait, which makes steps of the bundled
    # model up to ten times slower on a busy machine. Spinning for microseconds costs nothing
    # measurable on an idle one. torch reads this when it is imported.
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    if sys.argv[1:2] in (["account"], ["claims"]):
        gc.disable()  # a tenth of the time of a command that ends within two seconds
    try:
        with one_message():  # of the help, which no verb prints
            app()
    finally:
        restore_signals()


if __name__ == "__main__":
    main()
