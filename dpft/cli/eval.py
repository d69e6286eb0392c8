"""``dpft eval RUN tasks=...``: scores by lm-evaluation-harness, written into the run's record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from dpft.cli.decode import read_value
from dpft.cli.guard import alone
from dpft.cli.options import RunFolder
from dpft.config.checks import build
from dpft.config.errors import ConfigError


def main(
    path: RunFolder,
    arguments: Annotated[
        list[str],
        typer.Argument(
            help="tasks=hellaswag,arc_easy; include=FOLDER with tasks of your own; shots=5; "
            "limit=100; batch_size=8; chat=true."
        ),
    ],
) -> None:
    """Score a model by lm-evaluation-harness: dpft eval RUN tasks=hellaswag

    The scores go into the run's record and card, and dpft compare shows them. The guarantee covers
    them where the questions are public. Needs pip install 'dpft[eval]'.
    """
    alone("eval")
    from dpft import runs
    from dpft.training.harness import HarnessSettings, check_harness
    from dpft.training.trained import loaded_run

    settings = build(HarnessSettings, _typed(arguments))
    trained = loaded_run(path)
    check_harness(trained)
    from dpft.config.offline import stay_offline_if_unreachable

    stay_offline_if_unreachable()
    from dpft.report.card import write_card
    from dpft.report.comparison import print_pairs, print_remarks
    from dpft.tasks.metrics.shown import standard_error
    from dpft.training.harness import evaluate

    with runs.RunDirectory.open(path, trained.run.identity(), trained.text) as directory:
        sections = evaluate(trained, settings)
        record = runs.update_record(directory, scores=sections)
        write_card(directory.model, record)
    for name, section in sections.items():
        rows = [
            (
                metric,
                "-" if value is None else f"{value:.4f}",
                standard_error(metric, section, before="standard error "),
            )
            for metric, value in section["metrics"].items()
        ]
        print_pairs(f"{name}: {section['examples']:,} questions", rows)
    print_remarks(path, record)


def _typed(arguments: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals:
            raise ConfigError(f"got {argument!r}; expected NAME=VALUE, as in tasks=hellaswag")
        # Names are not to become numbers or dates.
        values[key] = value if key in ("tasks", "include") else read_value(value)
    if "tasks" not in values:
        raise ConfigError("no tasks given; type dpft eval RUN tasks=hellaswag,arc_easy")
    return values
