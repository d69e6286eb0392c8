"""Arguments and options that several verbs have."""

from pathlib import Path
from typing import Annotated

import typer

Settings = Annotated[
    list[str] | None, typer.Argument(help="Settings and flags, as for dpft train.")
]
RunFolder = Annotated[
    Path, typer.Argument(metavar="run", help="Folder of a trained run.", file_okay=False)
]
DecodeSettings = Annotated[
    list[str] | None, typer.Argument(help="Settings of decode, such as decode.beams=1.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
OutFile = Annotated[Path | None, typer.Option(help="File to write; its suffix gives the format.")]
SweepName = Annotated[
    str | None, typer.Option(help="Name of its folder. Default: made from the typed settings.")
]
Records = Annotated[
    list[Path] | None,
    typer.Option("--runs", help="Folder with records; may be repeated. Default: runs and results."),
]
Benches = Annotated[
    list[Path] | None,
    typer.Option(
        "--bench",
        help="Folder with files of dpft bench; may be repeated. "
        "Default: runs/bench and results/bench.",
    ),
]
# For a paper's table or figure, and its missing runs.
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="scale=laptop for small models; settings of every run, such as device=cuda; "
        "for --run also hydra/launcher=joblib."
    ),
]
Seeds = Annotated[
    str | None, typer.Option(help="0,1,2; default: as many as the paper, one at the laptop's.")
]
OnlyMissing = Annotated[
    bool, typer.Option("--missing", help="Print only the commands of the missing runs.")
]
MakeRuns = Annotated[bool, typer.Option("--run", help="Make the missing runs, by dpft sweep.")]
