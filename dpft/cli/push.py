"""``dpft push RUN NAME``: the exported model on the hub."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from dpft.cli.guard import alone
from dpft.cli.options import Base, Licence, Merge, NotPrivate, RunFolder
from dpft.cli.output import print_table, warn
from dpft.config.errors import ConfigError
from dpft.report.terminal import echo


def main(
    path: RunFolder,
    name: Annotated[str, typer.Argument(help="On the hub, such as OWNER/my-model.")],
    merge: Merge = False,
    public: Annotated[
        bool, typer.Option("--public", help="For anyone to read; else a new one is yours alone.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    base: Base = None,
    licence: Licence = None,
    not_private: NotPrivate = False,
) -> None:
    """Upload the model to the hub: dpft push RUN OWNER/NAME --merge

    The files of dpft export, which are shown before; nothing of private/.
    """
    alone("push")
    from dpft.privacy.guarantee import Guarantee
    from dpft.report.comparison import print_guarantee
    from dpft.training.export import plan_export
    from dpft.training.trained import loaded_run

    trained = loaded_run(path)
    guarantee = Guarantee.of_record(trained.record)
    if not guarantee.private and not not_private:
        raise ConfigError(
            f"{path} was trained without privacy: its model may repeat training records. Train "
            "with eps=3 first, or type --not-private if the records are public"
        )
    plan = plan_export(trained, merge=merge, base=base, licence=licence)
    if plan.shape.base is not None and plan.shape.hub is None:
        raise ConfigError(
            f"--base {plan.shape.base} is a folder of this machine, where nobody else finds the "
            "adapter's base; type --merge, for the whole model"
        )
    from dpft.config.offline import stay_offline_if_unreachable

    stay_offline_if_unreachable()
    from dpft.training.push import check_push, left_over, push

    check_push(name)
    sizes = [(file, f"{size:,}") for file, size in plan.sizes().items()]
    print_table(("file", "bytes"), sizes, right=("bytes",))
    if old := left_over(plan, name):
        warn(f"removed from {name}, where they would be loaded with this model: {', '.join(old)}")
    print_guarantee(trained.record)
    if plan.licence is None:
        warn("note: the base's licence is not known here; type --license ID to put it on the card")
    whose = "public" if public else "private, if it is new"
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigError("there is nobody to ask; type --yes to upload without a question")
        if not typer.confirm(f"Upload these files to {name} ({whose})?"):
            echo("nothing was uploaded")
            return
    echo(push(plan, name, public=public))
