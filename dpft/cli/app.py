"""The command line: names of the verbs. The module of a verb is imported when it is called."""

import functools
import os
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
import typer.core

from dpft.cli.guard import guarded, one_message, refuse
from dpft.cli.interrupts import heed_at_once, heed_no_more
from dpft.report.terminal import echo


class Verb(NamedTuple):
    """A module of `dpft.cli`, whose ``main`` has the options and, as its docstring, the help.

    Attributes:
        summary: for the list of verbs; the docstring of ``main`` begins with it.
        traits: some of ``settings`` (takes those of a run, also from a file: ``--config``), ``hub``
            (may ask the model hub), ``resumes`` (the same command continues), ``forwards`` (other
            options are settings or flags of Hydra) and ``help`` (prints its own help).
    """

    summary: str
    traits: str = ""


# In the order of the help.
PURPOSES = {
    "Train": {
        "train": Verb("Train, decode, score and record", "settings hub resumes forwards help"),
        "sweep": Verb("Many runs, with a live table", "settings resumes forwards"),
        "select": Verb(
            "Choose settings on private data, accounted", "settings hub resumes forwards"
        ),
        "audit": Verb(
            "Train with canaries, and ask what they prove", "settings hub resumes forwards help"
        ),
        "demo": Verb("The main job on generated data, offline", "hub resumes"),
    },
    "Before a run": {
        "doctor": Verb("What this machine can do, and what it lacks"),
        "cp": Verb("List recipes, or copy one to change"),
        "ls": Verb("List the choices of every config group, or of one"),
        "data": Verb("Find, check or generate a task's data", "hub"),
        "account": Verb("Noise and epsilon by four accountants, without data", "settings"),
        "plan": Verb("Memory and time of a run's step, before the run", "settings hub"),
        "validate": Verb("Check a configuration without running it", "settings"),
    },
    "After a run": {
        "decode": Verb("Decode again with other settings, without training"),
        "score": Verb("Score a run's generations, or any file"),
        "report": Verb("Scores and guarantees of runs side by side, and as one HTML page"),
    },
    "Use a model": {
        "export": Verb("The model as a folder for other tools"),
        "predict": Verb("A trained model's answers to the rows of a file"),
        "generate": Verb("Synthetic records from a private run"),
        "quality": Verb("Overlap of synthetic records with the training records", "hub"),
    },
    "Papers": {
        "table": Verb("A paper's table beside your runs, and the missing ones", "resumes"),
        "figure": Verb("A paper's figure, as PNG and SVG with its data as CSV", "resumes"),
        "claims": Verb("The papers' headline claims: do they hold?"),
        "bench": Verb(
            "Time and memory of clipping, beside non-private training and peers", "resumes"
        ),
    },
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
        verb, module = VERBS[name], import_module(f"dpft.cli.{name}")
        if "settings" in verb.traits and any(w.partition("=")[0] == "--config" for w in rest):
            from dpft.cli.run_file import expanded

            with one_message():
                rest = expanded(rest)
        settings: dict[str, Any] = {"ignore_unknown_options": "forwards" in verb.traits}
        own_help = "help" in verb.traits
        if own_help:
            settings["help_option_names"] = []
        own = _typer(help=f"{verb.summary}.")
        run = guarded(module.main, hub="hub" in verb.traits, resumes="resumes" in verb.traits)
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
    """Run the command that was typed, for the ``dpft`` script (`dpft.__main__`)."""
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
        with one_message():  # of the help, which no verb prints
            app()
    finally:
        heed_no_more()


if __name__ == "__main__":
    main()
