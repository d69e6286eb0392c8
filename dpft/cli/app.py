"""The command line. Verbs import what they need when they run, so that help answers at once."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from dpft.cli.interrupts import STATUS, heed_at_once, heed_by_exception
from dpft.report.terminal import echo, secho

app = typer.Typer(
    name="dpft",
    help="Fine-tune pretrained models with differential privacy, and prove what was done.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"]},
)

study_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.add_typer(study_app, name="study", help="Human ratings of several runs' texts: make, read.")

# A disk that is full or may not be written to, which any verb may meet anywhere.
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
_SAME = "the same command"
# What a verb does not know itself it gets as it was typed; of Hydra's verbs that is everything.
_AS_TYPED = {"allow_extra_args": True, "ignore_unknown_options": True}
_HYDRA = {**_AS_TYPED, "help_option_names": []}

Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
TrainedRun = Annotated[Path, typer.Argument(help="A run directory that was trained.")]
OutFile = Annotated[
    Path | None, typer.Option(help="File to write; its suffix may tell the format.")
]
Records = Annotated[
    list[Path] | None,
    typer.Option(help="Folder with records; may be repeated. Default: runs and results."),
]
# Of a paper's table or figure, and of the runs that it lacks.
Scale = Annotated[
    str | None, typer.Option(help="paper (default), or laptop: small models and subsets.")
]
Seeds = Annotated[
    str | None, typer.Option(help="0,1,2; default: as many as the paper, one at the laptop's.")
]
Missing = Annotated[
    bool, typer.Option("--missing", help="Print only the commands of the missing runs.")
]
MakeRuns = Annotated[bool, typer.Option("--run", help="Make the missing runs, by dpft sweep.")]
FailFast = Annotated[
    bool,
    typer.Option("--fail-fast/--keep-going", help="Whether a failure ends what --run began."),
]


@app.command(context_settings=_HYDRA, add_help_option=False)
def train(context: typer.Context) -> None:
    """Train, decode, score and record: dpft train task=e2e clip=ghost eps=3

    Takes Hydra overrides and flags in any order: -m (sweep), --cfg job, --info, --config-dir DIR.
    """
    from dpft.cli import train as verb

    forced = any(word.lstrip("+") == "force=true" for word in context.args)
    goes_on = f"{_SAME} without force=true" if forced else _SAME
    _run(lambda: verb.main(context.args), hub=not _asks_help(context), goes_on=goes_on)


@app.command(context_settings=_AS_TYPED)
def sweep(
    context: typer.Context,
    file: Annotated[
        Path | None, typer.Option("--list", help="A file of points, one line of settings each.")
    ] = None,
    fail_fast: Annotated[
        bool,
        typer.Option("--fail-fast/--keep-going", help="Whether the first failure ends the sweep."),
    ] = False,
    name: Annotated[
        str | None, typer.Option(help="Of its folder; default: made of what was typed.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check and show the points; run nothing.")
    ] = False,
    watch: Annotated[
        str | None, typer.Option(help="Only show a sweep that runs elsewhere: name or folder.")
    ] = None,
) -> None:
    """Many runs, with a live table: dpft sweep task=e2e eps=3,8 seed=1,2,3

    Takes what dpft train -m takes: several values with commas, Hydra's sweepers and launchers.
    Every point is checked before the first runs. The same command goes on after a kill.
    """
    from dpft.cli import sweep as verb

    options = {"keep_going": not fail_fast, "dry_run": dry_run}
    _run(
        lambda: verb.main(context.args, file=file, name=name, watch=watch, **options), goes_on=_SAME
    )


@app.command()
def decode(
    run: TrainedRun,
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Settings of decode, such as decode.beams=1.")
    ] = None,
) -> None:
    """Decode again with other settings, without training: dpft decode RUN decode.beams=1"""
    from dpft.cli import decode as verb

    _run(lambda: verb.main(run, overrides or []))


@app.command()
def score(
    arguments: Annotated[
        list[str],
        typer.Argument(help="A run directory, or task=NAME predictions=FILE and overrides."),
    ],
    json: Json = False,
) -> None:
    """Score a run's generations, or any file: dpft score task=e2e predictions=FILE

    FILE has lines of {"prediction": "...", "references": ["...", ...]}.
    """
    from dpft.cli import score as verb

    _run(lambda: verb.main(arguments, json))


@app.command()
def account(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="As for train: task=sst2 eps=3 optim.batch_size=1000 ..."),
    ] = None,
    json: Json = False,
) -> None:
    """Noise and epsilon by three accountants, without data: dpft account task=e2e eps=3"""
    from dpft.cli import account as verb

    _run(lambda: verb.main(overrides or [], json))


@app.command()
def ls(
    group: Annotated[
        str | None, typer.Argument(help="A config group, such as task or clip; or tasks.")
    ] = None,
) -> None:
    """List the choices of every config group, or of one: dpft ls task"""
    from dpft.cli import ls as verb

    _run(lambda: verb.main(group))


@app.command()
def data(
    action: Annotated[
        str, typer.Argument(help="where (is it found?), check (read it all), get, or sample.")
    ] = "where",
    task: Annotated[str, typer.Argument(help="A task, such as e2e.")] = "e2e",
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Settings, such as task.train_file=FILE.")
    ] = None,
    to: Annotated[Path | None, typer.Option(help="Folder to write to, for get and sample.")] = None,
) -> None:
    """Find, check, fetch or generate a task's data: dpft data check e2e"""
    from dpft.cli import data as verb

    _run(lambda: verb.main(action, task, overrides or [], to), hub=True)


@app.command()
def validate(
    overrides: Annotated[
        list[str] | None, typer.Argument(help="As for train; none: every shipped config.")
    ] = None,
) -> None:
    """Check a configuration without running it: dpft validate task=e2e eps=3"""
    from dpft.cli import validate as verb

    _run(lambda: verb.main(overrides or []))


@app.command()
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run directories.")],
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown.")] = False,
) -> None:
    """Scores and guarantees of several runs side by side: dpft compare runs/*"""
    from dpft.cli import compare as verb

    _run(lambda: verb.main(runs, markdown))


@app.command()
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Run directories, folders that hold some, or a sweep's folder."),
    ],
    private: Annotated[
        bool,
        typer.Option("--private", help="Also losses and norms, which no guarantee covers."),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="The file; default: report.html in the folder, or in its private/."),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            help="Generations shown of each run; default: 8, of several 2, of own data 0."
        ),
    ] = None,
) -> None:
    """One HTML page of a run, of several or of a sweep: dpft report runs/NAME

    Curves, scores, samples, the guarantee in plain words, cost, settings. Without --private the
    page holds nothing that is computed from training records without noise.
    """
    from dpft.cli import report as verb

    _run(lambda: verb.main(runs, private=private, out=out, samples=samples))


@app.command()
def table(
    name: Annotated[
        str | None, typer.Argument(help="PAPER/NUMBER, such as li2022/2; none: list all.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            help="scale=laptop; settings of every run, such as device=cuda or task.data_dir=DIR; "
            "for --run also hydra/launcher=joblib."
        ),
    ] = None,
    scale: Scale = None,
    missing: Missing = False,
    run: MakeRuns = False,
    form: Annotated[
        str | None, typer.Option("--format", help="terminal, markdown, latex, csv or html.")
    ] = None,
    out: OutFile = None,
    seeds: Seeds = None,
    runs: Records = None,
    fail_fast: FailFast = False,
) -> None:
    """A paper's table beside your runs, and the missing ones: dpft table li2022/2 scale=laptop

    Without a name it lists every table. Each cell: printed number; ours with its deviation over
    seeds; difference, verdict and marks; docs/how-to/tables.md defines them.

    \b
    dpft table li2022/2 --missing                      # the commands that would fill it
    dpft table li2022/7 scale=laptop --run             # run them, then show the table
    dpft table he2022/4 --seeds 0,1 --out table.tex    # or .md, .csv, .html
    """  # noqa: D301
    from dpft.cli import table as verb

    _run(
        lambda: verb.main(
            name,
            overrides or [],
            scale=scale,
            form=form,
            out=out,
            seeds=seeds,
            folders=runs or [],
            only_missing=missing,
            run=run,
            keep_going=not fail_fast,
        ),
        goes_on=_SAME,
    )


@app.command()
def claims(
    name: Annotated[
        str | None, typer.Argument(help="A paper, such as li2022, or a claim, such as li2022/c05.")
    ] = None,
    form: Annotated[str | None, typer.Option("--format", help="terminal, markdown or json.")] = (
        None
    ),
    out: OutFile = None,
    runs: Records = None,
    bench: Annotated[
        list[Path] | None,
        typer.Option(help="Folder with files of dpft bench. Default: runs/bench, results/bench."),
    ] = None,
) -> None:
    """The papers' headline claims: do they hold, by print and by your runs? dpft claims li2022

    Holds, fails, mixed, too close to tell, not yet testable (and by which command), or cannot be
    tested here. With a claim's name: every number. docs/how-to/claims.md says what counts.
    """
    from dpft.cli import claims as verb

    _run(lambda: verb.main(name, form=form, out=out, runs=runs or [], benches=bench or []))


@app.command()
def figure(
    name: Annotated[
        str | None, typer.Argument(help="PAPER/NUMBER, such as li2022/6; none: list all.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="scale=laptop; settings of every run; for --run also Hydra's."),
    ] = None,
    scale: Scale = None,
    missing: Missing = False,
    run: MakeRuns = False,
    out: Annotated[Path, typer.Option(help="Folder of the files.")] = Path("runs/figures"),
    seeds: Seeds = None,
    runs: Annotated[
        list[Path] | None,
        typer.Option(help="Folder with records, or a run; may be repeated."),
    ] = None,
    bench: Annotated[
        list[Path] | None,
        typer.Option(help="Folder with files of dpft bench; may be repeated."),
    ] = None,
    fail_fast: FailFast = False,
) -> None:
    """A paper's figure, as PNG and SVG with its data as CSV: dpft figure li2022/6

    Without a name it lists every figure and what it is made from: computed, from recorded runs,
    from files of dpft bench, or from what a run keeps under private/. docs/how-to/figures.md.
    """
    from dpft.cli import figure as verb

    _run(
        lambda: verb.main(
            name,
            overrides or [],
            scale=scale,
            out=out,
            seeds=seeds,
            folders=runs or [],
            benches=bench or [],
            only_missing=missing,
            run=run,
            keep_going=not fail_fast,
        ),
        goes_on=_SAME,
    )


@app.command()
def generate(
    run: TrainedRun,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            help="n=1000; sources=dev, test, sample or FILE; out=FILE; seed=0; unique=true; "
            "decode.top_p=0.9 and other settings of decode."
        ),
    ] = None,
    not_private: Annotated[
        bool, typer.Option("--not-private", help="Also from a run without any guarantee.")
    ] = False,
) -> None:
    """Synthetic records from a private run: dpft generate RUN n=1000 sources=dev

    Texts that a privately trained model writes have its guarantee; FILE.guarantee.md says so. Where
    the model writes for a source (all tasks but language_modeling), sources are copied as they are
    and are NOT covered: give public ones. Those of the training records are refused.
    """
    from dpft.cli import generate as verb

    _run(lambda: verb.main(run, overrides or [], not_private))


@study_app.command("make")
def study_make(
    runs: Annotated[
        list[Path], typer.Argument(help="Run directories, or predictions files (.jsonl).")
    ],
    out: Annotated[Path, typer.Option(help="Folder for sheet.csv, form.html and key.json.")],
    items: Annotated[int, typer.Option(help="Contexts drawn.")] = 20,
    raters: Annotated[int, typer.Option(help="People who rate.")] = 20,
    per_rater: Annotated[int, typer.Option(help="Contexts for each; all systems' replies.")] = 5,
    split: Annotated[str, typer.Option(help="Of the runs' generations.")] = "dev",
    seed: Annotated[
        int | None,
        typer.Option(help="Of what is drawn, and of the order; secret. Default: drawn."),
    ] = None,
    generations: Annotated[
        str | None, typer.Option(help="Their name, where not the split's: see record.json.")
    ] = None,
) -> None:
    """A blinded sheet of several runs' replies: dpft study make RUN RUN --out FOLDER"""
    from dpft.cli import study as verb

    options = {"items": items, "raters": raters, "per_rater": per_rater}
    _run(lambda: verb.make(runs, out, name=generations or split, seed=seed, **options))


@study_app.command("read")
def study_read(
    files: Annotated[list[Path], typer.Argument(help="Filled sheets, or files of the form.")],
    key: Annotated[Path, typer.Option(help="The key.json of the sheet.")],
    partial: Annotated[bool, typer.Option("--partial", help="Though ratings are missing.")] = False,
    json: Json = False,
) -> None:
    """Mean ratings with 95% intervals: dpft study read FILLED.csv --key FOLDER/key.json"""
    from dpft.cli import study as verb

    _run(lambda: verb.read(files, key, partial=partial, as_json=json))


@app.command()
def bench(
    model: Annotated[
        str,
        typer.Option(
            help="tiny, gpt2, gpt2-medium, -large, -xl, smollm2-135m, roberta-base, "
            "roberta-base-mlm, vit-small, vit-base or wrn16-4; random weights."
        ),
    ] = "tiny",
    batch: Annotated[int | None, typer.Option(help="Records per step, B.")] = None,
    length: Annotated[int | None, typer.Option(help="Tokens per record, T.")] = None,
    styles: Annotated[
        str, typer.Option(help="Clipping styles, with commas; uniform:6 for six groups; all.")
    ] = "none,flat,ghost,bk,per_layer",
    peers: Annotated[
        str, typer.Option(help="opacus, opacus-ghost; -linear swaps Conv1D for Linear first.")
    ] = "",
    rounds: Annotated[int, typer.Option(help="Fresh processes per style, interleaved.")] = 3,
    steps: Annotated[int | None, typer.Option(help="Timed steps per process.")] = None,
    threads: Annotated[
        int | None, typer.Option(help="Of each process; default: OMP_NUM_THREADS, or all cores.")
    ] = None,
    untied: Annotated[bool, typer.Option("--untied", help="Head and embedding apart.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 (autocast) or float64.")] = (
        "float32"
    ),
    out: Annotated[Path, typer.Option(help="Folder of the results.")] = Path("runs/bench"),
    name: Annotated[str | None, typer.Option(help="Their file name, without suffix.")] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Only show the form chosen for each layer.")
    ] = False,
    largest_batch: Annotated[
        bool, typer.Option("--largest-batch", help="Search for it instead of timing (CUDA).")
    ] = False,
) -> None:
    """Time and memory of clipping, beside non-private training and peers: dpft bench --model gpt2

    Writes JSON, a Markdown table and a plot; the same command continues where it was stopped.
    """
    from dpft.cli import bench as verb

    options = {
        **{"model": model, "batch": batch, "length": length, "styles": styles, "peers": peers},
        **{"rounds": rounds, "steps": steps, "untied": untied, "device": device, "dtype": dtype},
        **{"out": out, "name": name},
    }
    _run(lambda: verb.main(explain, largest_batch, threads, **options))


@app.command(context_settings=_AS_TYPED)
def select(
    context: typer.Context,
    metric: Annotated[str, typer.Option(help="The score that decides, such as BLEU.")],
    trials: Annotated[float, typer.Option(help="Mean of the number of runs.")] = 10.0,
    shape: Annotated[
        float,
        typer.Option(help="Of its distribution: 1 geometric, 0 logarithmic, inf Poisson."),
    ] = 1.0,
    lowest: Annotated[bool, typer.Option("--lowest", help="The lowest score is the best.")] = False,
    name: Annotated[str | None, typer.Option(help="Of its folder.")] = None,
) -> None:
    """Choose settings on private data, accounted: dpft select optim.lr=1e-3,4e-3 --metric BLEU

    Runs a random number of private trials with settings drawn from those given, and releases the
    best, whose record states the price of the choice (Papernot & Steinke 2022).
    docs/how-to/sweeps.md explains it.
    """
    from dpft.cli import select as verb

    _run(
        lambda: verb.main(
            context.args, metric=metric, mean=trials, shape=shape, lowest=lowest, name=name
        ),
        hub=True,
        goes_on=_SAME,
    )


@app.command(context_settings=_HYDRA, add_help_option=False)
def audit(context: typer.Context) -> None:
    """Train with canaries, and ask what they prove: dpft audit bound task=e2e eps=3

    bound: a lower bound on epsilon from this one run, beside what it claims. canary: how far
    secrets in the data are given away (Li et al. 2022, table 9). The rest as for dpft train.
    """
    from dpft.cli import audit as verb

    _run(lambda: verb.main(context.args), hub=not _asks_help(context), goes_on=_SAME)


@app.command()
def demo(
    folder: Annotated[Path, typer.Option(help="Where the runs go.")] = Path("runs/demo"),
) -> None:
    """The main job on generated data, offline: pretrained, private, non-private."""
    from dpft.cli import demo as verb

    _run(lambda: verb.main(folder), hub=True, goes_on=_SAME)


@app.callback(invoke_without_command=True)
def version(  # noqa: D103
    show: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    # No docstring: it would replace the program's own help text.
    if show:
        from dpft import __version__

        echo(f"dpft {__version__}")
        raise typer.Exit


def _asks_help(context: typer.Context) -> bool:
    # Help asks no hub, and a name server may take seconds to say that there is none.
    return not {"--help", "-h"}.isdisjoint(context.args)


def _run(verb: Callable[[], None], hub: bool = False, goes_on: str | None = None) -> None:
    """Run a verb; errors that are the user's to mend become one message and exit status 2.

    Args:
        verb: what to do.
        hub: whether it may ask the model hub for something.
        goes_on: what continues what it began, where it was stopped; None: nothing does.
    """
    from dpft.config.errors import DpftError

    if hub:
        from dpft.config.offline import stay_offline_if_unreachable

        stay_offline_if_unreachable()
    heed_by_exception()
    try:
        verb()
    except DpftError as error:
        _refuse(str(error))
    except OSError as error:
        said = _of_files(error)
        if said is None:
            raise
        _refuse(said)
    except (MemoryError, RuntimeError) as error:
        from dpft.training.out_of_memory import is_out_of_memory

        if not is_out_of_memory(error):
            raise
        _refuse(
            f"out of memory ({' '.join(str(error).split()) or 'of the machine'}); free some, or "
            "take a machine with more, and type the same command again"
        )
    except KeyboardInterrupt:
        after = f"{goes_on} continues where it left off" if goes_on else f"{_SAME} begins anew"
        secho(f"dpft: stopped; {after}", err=True)
        sys.exit(STATUS)


def _refuse(said: str) -> NoReturn:
    secho(f"dpft: {said}", fg=typer.colors.RED, err=True)
    sys.exit(2)


def _of_files(error: OSError) -> str | None:
    """What an error of the system means, if it is one of files: any verb may meet it anywhere."""
    if error.errno in _DISK:
        return (
            f"the disk refused: {error}; free some space there, or give a folder that may be "
            "written to (runs_dir=DIR, --out FILE), and type the same command again"
        )
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return f"{error}; type ulimit -n 1024, and then the same command again"
    if error.filename is None:
        return None
    return (
        f"{error.filename}: {error.strerror}; expected it to be there, and of its usual kind. If "
        "it was moved or removed meanwhile, put it back, and type the same command again"
    )


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
