"""``dpft ls``: choices and settings of the config groups, and what this machine has."""

import os
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from dpft.cli.output import print_table, width_to_fit
from dpft.config import folder
from dpft.config.errors import ConfigError, DpftError, one_of, suggestion
from dpft.report.terminal import echo, secho


def main(
    group: Annotated[
        str | None,
        typer.Argument(help="A group, such as clip; a choice, such as clip=ghost; or machine."),
    ] = None,
) -> None:
    """List the choices of all config groups, or of one: dpft ls clip

    dpft ls clip=ghost shows the settings of a choice, with comments. dpft ls machine shows what is
    installed here: versions, GPUs, Java, the model hub's cache, and data; it sends nothing but one
    request to the hub's address.
    """
    if group == "machine":
        print_table(("what", "found"), _machine())
        return
    name, equals, choice = (group or "").lstrip("+").partition("=")
    groups = folder.groups()
    if group is not None and name not in groups:
        expected = f"expected one of {', '.join(groups)}, machine"
        raise ConfigError(f"no config group {name!r}{suggestion(name, groups)}; {expected}")
    if equals:
        one_of(name, choice, folder.choices(name))
        echo((folder.conf_dir() / name / f"{choice}.yaml").read_text(encoding="utf-8"), nl=False)
        return
    width, indent = width_to_fit() or 10_000, " " * 22
    for one in groups if group is None else [name]:
        secho(folder.typed(one), bold=True)
        for choice in folder.choices(one):
            line = f"  {choice:<19} {folder.summary(one, choice)}"
            echo(textwrap.fill(line, width, subsequent_indent=indent, break_on_hyphens=False))


def _machine() -> Iterator[tuple[str, str]]:
    import torch

    from dpft.config.offline import stay_offline_if_unreachable
    from dpft.runs.environment import environment
    from dpft.tasks.metrics.java import find_java, java_version

    facts, gib = environment(), 2**30
    names = ("torch", "transformers", "datasets", "peft")
    packages = ", ".join(f"{name} {facts['packages'].get(name)}" for name in names)
    yield "dpft", f"{facts['dpft']['version']}, Python {facts['python']}, {packages}"
    memory = "memory unknown"
    if facts["ram_bytes"] is not None:
        memory = f"{facts['ram_bytes'] / gib:,.1f} GiB"
    yield "processor", f"{facts['cpu']}, {facts['cores']} cores, {memory}"
    for index in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(index)
        capability = f"capability {gpu.major}.{gpu.minor}"
        yield f"GPU {index}", f"{gpu.name}, {gpu.total_memory / gib:,.1f} GiB, {capability}"
    if not torch.cuda.is_available():
        built = "has no CUDA" if torch.version.cuda is None else f"has CUDA {torch.version.cuda}"
        yield "GPU", f"none (this torch {built}); runs use the processor"
    try:
        yield "Java", f"{java_version()} in {find_java()}"
    except DpftError as error:
        yield "Java", f"none; METEOR of E2E and DART needs it. {error}"
    stay_offline_if_unreachable()
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE)
    where = "offline" if constants.HF_HUB_OFFLINE else constants.ENDPOINT
    models, data = (len(list(cache.glob(f"{kind}--*"))) for kind in ("models", "datasets"))
    yield "hub", f"{where}; {models} models and {data} data sets in {cache}"
    given = os.environ.get("DPFT_DATA")
    found = [name for name in folder.choices("task") if given and (Path(given) / name).is_dir()]
    yield "data", f"DPFT_DATA is {given or 'not set'}; tasks there: {', '.join(found) or 'none'}"
