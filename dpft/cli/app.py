"""The command line: names of the verbs. The module of a verb is imported when it is called."""

from __future__ import annotations

import functools
import os
from importlib import import_module
from typing import Annotated, Any, NamedTuple

import typer
import typer.core

from dpft.cli.guard import guarded
from dpft.cli.interrupts import heed_at_once
from dpft.report.terminal import echo


class Verb(NamedTuple):
    """A module of `dpft.cli`, whose ``main`` has the options and, as its docstring, the help.

    Attributes:
        summary: for the list of verbs; the docstring of ``main`` begins with it.
        hub: whether it may ask the model hub for something.
        resumes: whether the same command continues what it began.
        forwards: whether options that it does not have are settings or flags of Hydra's.
        own_help: whether it prints its own help.
    """

    summary: str
    hub: bool = False
    resumes: bool = False
    forwards: bool = False
    own_help: bool = False


VERBS = {
    "train": Verb(
        "Train, decode, score and record", hub=True, resumes=True, forwards=True, own_help=True
    ),
    "sweep": Verb("Many runs, with a live table", resumes=True, forwards=True),
    "decode": Verb("Decode again with other settings, without training"),
    "score": Verb("Score a run's generations, or any file"),
    "account": Verb("Noise and epsilon by four accountants, without data"),
    "ls": Verb("List the choices of every config group, or of one"),
    "data": Verb("Find, check, fetch or generate a task's data", hub=True),
    "plan": Verb("Memory, time and cost of a run, before it is paid for", hub=True),
    "validate": Verb("Check a configuration without running it"),
    "compare": Verb("Scores and guarantees of several runs side by side"),
    "report": Verb("One HTML page of a run, of several or of a sweep"),
    "table": Verb("A paper's table beside your runs, and the missing ones", resumes=True),
    "claims": Verb("The papers' headline claims: do they hold?"),
    "figure": Verb("A paper's figure, as PNG and SVG with its data as CSV", resumes=True),
    "export": Verb("The model as a folder for other tools"),
    "push": Verb("Upload the model to the hub"),
    "chat": Verb("Talk to a trained model"),
    "predict": Verb("A trained model's answers to the rows of a file"),
    "eval": Verb("Score a model by lm-evaluation-harness"),
    "generate": Verb("Synthetic records from a private run"),
    "study": Verb("Human ratings of several runs' texts: make, read"),
    "bench": Verb(
        "Time and memory of clipping, beside non-private training and peers", resumes=True
    ),
    "select": Verb(
        "Choose settings on private data, accounted", hub=True, resumes=True, forwards=True
    ),
    "audit": Verb(
        "Train with canaries, and ask what they prove",
        hub=True,
        resumes=True,
        forwards=True,
        own_help=True,
    ),
    "demo": Verb("The main job on generated data, offline", hub=True, resumes=True),
}

_typer = functools.partial(
    typer.Typer,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


class Verbs(typer.core.TyperGroup):
    """Lists all verbs by their summaries, and imports the one that is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, _, rest = super().resolve_command(ctx, args)
        return name, name and _command(name), rest


def _command(name: str) -> Any:
    """The verb with its options, or the group of a module that has several ``VERBS``."""
    verb, module = VERBS[name], import_module(f"dpft.cli.{name}")
    settings: dict[str, Any] = {"ignore_unknown_options": verb.forwards}
    if verb.own_help:
        settings["help_option_names"] = []
    own = _typer(help=f"{verb.summary}.")
    functions = getattr(module, "VERBS", None) or {name: module.main}
    for each, function in functions.items():
        run = guarded(function, hub=verb.hub, resumes=verb.resumes)
        own.command(each, context_settings=settings, add_help_option=not verb.own_help)(run)
    return typer.main.get_command(own)


app = _typer(
    name="dpft",
    cls=Verbs,
    help="Fine-tune pretrained models with differential privacy, and prove what was done.",
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
    """All of dpft, for the ``dpft`` script (`dpft.__main__`)."""
    heed_at_once()
    # Threads of GNU OpenMP spin for milliseconds while they wait. Where another process wants the
    # core, that made steps of the bundled model up to ten times slower; spinning for some
    # microseconds costs nothing measurable when the machine is quiet. Read when torch is imported.
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    app()


if __name__ == "__main__":
    main()
