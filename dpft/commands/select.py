"""``dpft select``: hyperparameters chosen on private data, with the choice accounted for."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import typer

from dpft.commands import sweep
from dpft.commands.again import override
from dpft.errors import ConfigError
from dpft.sweep.folder import default_name
from dpft.sweep.points import make_plan
from dpft.sweep.words import read_words


def main(
    arguments: Sequence[str],
    *,
    metric: str,
    mean: float,
    shape: float,
    lowest: bool = False,
    name: str | None = None,
) -> None:
    """Run a random number of trials, and release the best.

    Args:
        arguments: the candidates, as for ``dpft sweep``.
        metric: the score that decides.
        mean: of the number of trials.
        shape: of its distribution, see `dpft.privacy.accounting.Trials`.
        lowest: whether the lowest score is the best.
        name: of the folder below ``runs_dir/selections``.

    Raises:
        ConfigError: before anything runs, if a candidate could not, or has no privacy.
        typer.Exit: with status 1, if not every trial is done: the same command goes on.
    """
    from dpft.mechanisms import make_mechanism
    from dpft.privacy.accounting import Trials
    from dpft.runs.record import read_record
    from dpft.runs.shown import up
    from dpft.sweep.scores import score
    from dpft.sweep.selection import Candidate, Selection, draw, price, release

    try:
        trials = Trials(mean, shape)
    except ValueError as error:
        raise ConfigError(f"{error}: --trials and --shape") from error
    words = read_words(arguments)
    plan = make_plan(words)
    if plan.points is None:
        raise ConfigError("a sweeper that chooses by scores is no private selection; give values")
    found = [
        Candidate(point.overrides, run) for point, run in zip(plan.points, plan.runs, strict=True)
    ]
    for candidate in found:
        if not candidate.run.clip.private or candidate.run.privacy.sampling != "poisson":
            raise ConfigError(
                f"{' '.join(candidate.overrides) or 'the defaults'}: "
                f"clip={candidate.run.clip.style} sampling={candidate.run.privacy.sampling}; "
                "expected private runs with Poisson sampling: the price rests on theirs"
            )
        if candidate.run.name is not None:
            raise ConfigError("got name=...; trials have folders of their own: type --name NAME")
    folder = plan.runs_dir / "selections" / (name or default_name(words, ()))
    selection = Selection(folder)
    selection.describe(found, trials, metric, lowest)
    lines = draw(selection.key(), found, trials)
    if not lines:
        typer.echo(f"{folder}: the number of trials was drawn as zero, and nothing is released")
        return
    file = selection.private / "trials.txt"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{shlex.join(line)}\n" for line in lines), encoding="utf-8")
    own = [word for word in words.overrides if word.startswith(("hydra/", "hydra."))]
    typed = [*own, override("runs_dir", str(selection.trials)), override("sweep.metric", metric)]
    if words.config_dir is not None:
        typed += ["--config-dir", str(words.config_dir)]
    typer.secho("How many trials there are is secret, and so is all of them but the best", err=True)
    sweep.main(typed, file=file, name="trials", tell_cost=False)

    made = make_plan(read_words(typed), lines)
    assert made.points is not None
    assert all(selection.trials in point.path.parents for point in made.points)
    records = [read_record(point.path) for point in made.points]
    scores = [score(record, metric)[1] for record in records]
    ranked = [(value, i) for i, value in enumerate(scores) if value is not None]
    if not ranked:
        raise ConfigError(f"no trial has a finite {metric}; nothing is released")
    best = (min if lowest else max)(ranked)[1]
    size = int(records[best]["mechanism"]["dataset_size"])
    mechanisms = [make_mechanism(candidate.run, size) for candidate in found]
    each, total, delta = price(mechanisms, trials)
    chosen = release(
        selection,
        made.points[best].path,
        records[best],
        metric=metric,
        trials=trials,
        candidates=len(found),
        epsilon=total,
        delta=delta,
    )
    typer.echo(f"{selection.chosen}: {metric} {scores[best]:.4f}")
    typer.echo(f"  {chosen['privacy']['statement']}")
    typer.secho(
        f"  each trial spent at most epsilon {up(each)}; the choice makes it {up(total)}. The "
        "scores must be of records that may be looked at freely: they are not counted",
        fg=typer.colors.YELLOW,
    )
