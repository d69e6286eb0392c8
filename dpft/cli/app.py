"""The command line: names of the verbs. The module of a verb is imported when it is called."""

from __future__ import annotations

import functools
import os
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
import typer.core

from dpft.cli.guard import guarded, refuse, reporting_errors, tell_of_files
from dpft.cli.interrupts import heed_at_once, heed_no_more
from dpft.report.terminal import echo

TRAIN, BEFORE, AFTER = "Train", "Before a run", "After a run"
USE, PAPERS = "Use a model", "Papers"
# In the order of the help.
_PURPOSES = (TRAIN, BEFORE, AFTER, USE, PAPERS)


class Verb(NamedTuple):
    """A module of `dpft.cli`, whose ``main`` has the options and, as its docstring, the help.

    Attributes:
        summary: for the list of verbs; the docstring of ``main`` begins with it.
        purpose: under which it is listed.
        settings: whether it takes those of a run, from a file (``--config``) too.
        hub: whether it may ask the model hub for something.
        resumes: whether the same command continues what it began.
        forwards: whether options that it does not have are settings or flags of Hydra's.
        own_help: whether it prints its own help.
    """

    summary: str
    purpose: str = AFTER
    settings: bool = False
    hub: bool = False
    resumes: bool = False
    forwards: bool = False
    own_help: bool = False


VERBS = {
    "train": Verb(
        "Train, decode, score and record",
        TRAIN,
        settings=True,
        hub=True,
        resumes=True,
        forwards=True,
        own_help=True,
    ),
    "sweep": Verb(
        "Many runs, with a live table", TRAIN, settings=True, resumes=True, forwards=True
    ),
    "select": Verb(
        "Choose settings on private data, accounted",
        TRAIN,
        settings=True,
        hub=True,
        resumes=True,
        forwards=True,
    ),
    "audit": Verb(
        "Train with canaries, and ask what they prove",
        TRAIN,
        settings=True,
        hub=True,
        resumes=True,
        forwards=True,
        own_help=True,
    ),
    "demo": Verb("The main job on generated data, offline", TRAIN, hub=True, resumes=True),
    "doctor": Verb("What this machine can do, and what it lacks", BEFORE),
    "cp": Verb("List recipes, or copy one to change", BEFORE),
    "ls": Verb("List the choices of every config group, or of one", BEFORE),
    "data": Verb("Find, check, fetch or generate a task's data", BEFORE, hub=True),
    "account": Verb("Noise and epsilon by four accountants, without data", BEFORE, settings=True),
    "plan": Verb(
        "Memory and time of a run's step, before the run", BEFORE, settings=True, hub=True
    ),
    "validate": Verb("Check a configuration without running it", BEFORE, settings=True),
    "decode": Verb("Decode again with other settings, without training"),
    "score": Verb("Score a run's generations, or any file"),
    "report": Verb("Scores and guarantees of runs side by side, and as one HTML page"),
    "export": Verb("The model as a folder for other tools", USE),
    "predict": Verb("A trained model's answers to the rows of a file", USE),
    "generate": Verb("Synthetic records from a private run", USE),
    "quality": Verb("Overlap of synthetic records with the training records", USE, hub=True),
    "table": Verb("A paper's table beside your runs, and the missing ones", PAPERS, resumes=True),
    "figure": Verb("A paper's figure, as PNG and SVG with its data as CSV", PAPERS, resumes=True),
    "claims": Verb("The papers' headline claims: do they hold?", PAPERS),
    "bench": Verb(
        "Time and memory of clipping, beside non-private training and peers", PAPERS, resumes=True
    ),
}

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
        if name and VERBS[name].settings and any(w.partition("=")[0] == "--config" for w in rest):
            from dpft.cli.run_file import expanded

            rest = reporting_errors(expanded, rest)
        return name, name and _command(name), rest

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        width = max(map(len, VERBS))
        for purpose in _PURPOSES:
            with formatter.section(purpose):
                formatter.write_dl(
                    [(f"{n:<{width}}", v.summary) for n, v in VERBS.items() if v.purpose == purpose]
                )


class _Command(typer.core.TyperCommand):
    """Tells what a missing argument is, with the example that ends its help's first line."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            if not error.message:  # one that is there and wrong has a message
                example = (self.help or "").splitlines()[0].rpartition(": ")[2]
                about = getattr(error.param, "help", None) or ""
                error.message = f"{about} Type for instance {example}".strip()
            raise


def _command(name: str) -> Any:
    """Return the verb with its options."""
    verb, module = VERBS[name], import_module(f"dpft.cli.{name}")
    settings: dict[str, Any] = {"ignore_unknown_options": verb.forwards}
    if verb.own_help:
        settings["help_option_names"] = []
    own = _typer(help=f"{verb.summary}.")
    run = guarded(module.main, hub=verb.hub, resumes=verb.resumes)
    own.command(name, cls=_Command, context_settings=settings, add_help_option=not verb.own_help)(
        run
    )
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
    try:
        Path.cwd()
    except FileNotFoundError:
        refuse("the working directory was deleted; go to another one, for instance by cd ..")
    # Threads of GNU OpenMP spin for milliseconds while they wait. Where another process wants the
    # core, that made steps of the bundled model up to ten times slower; spinning for some
    # microseconds costs nothing measurable when the machine is quiet. Read when torch is imported.
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    try:
        app()
    except OSError as error:  # of the help, which no verb prints
        tell_of_files(error)
    finally:
        heed_no_more()


if __name__ == "__main__":
    main()
