"""``dpft doctor``: what this machine can do, found without training anything."""

import os
from collections.abc import Iterator
from pathlib import Path

from dpft.cli.output import print_table
from dpft.config import folder
from dpft.config.errors import DpftError


def main() -> None:
    """What this machine can do, and what it lacks: dpft doctor

    Shows versions, devices, the hub, data and Java. Nothing is changed, and nothing is sent but a
    question for the hub's address.
    """
    print_table(("what", "found"), _rows())


def _rows() -> Iterator[tuple[str, str]]:
    import torch

    from dpft.config.offline import stay_offline_if_unreachable
    from dpft.runs.environment import environment
    from dpft.tasks.metrics.java import find_java, java_version

    facts = environment()
    names = ("torch", "transformers", "datasets", "peft")
    packages = ", ".join(f"{name} {facts['packages'].get(name)}" for name in names)
    yield "dpft", f"{facts['dpft']['version']}, Python {facts['python']}, {packages}"
    memory = "memory unknown" if facts["ram_bytes"] is None else _size(facts["ram_bytes"])
    yield "processor", f"{facts['cpu']}, {facts['cores']} cores, {memory}"
    for index in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(index)
        capability = f"capability {gpu.major}.{gpu.minor}"
        yield f"GPU {index}", f"{gpu.name}, {_size(gpu.total_memory)}, {capability}"
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


def _size(number: int) -> str:
    return f"{number / 2**30:,.1f} GiB"
