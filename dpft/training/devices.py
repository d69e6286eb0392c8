"""The device that a run is on, and what it can do at most: its data sheet, or measurements."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import yaml
from torch import nn

from dpft.config.errors import ConfigError, suggestion
from dpft.parallel.operations import Operations
from dpft.privacy import normals
from dpft.runs import memory

if TYPE_CHECKING:
    from dpft.parallel.cohort import TrainingCohort

_SHEETS = Path(__file__).parent / "devices"
CPU = "cpu"
_GIB, _GIGA, _TERA, _MICRO = 2**30, 1e9, 1e12, 1e-6


def device_of(name: str) -> torch.device:
    """The device that ``device=`` names; ``auto`` is the GPU if there is one.

    Raises:
        ConfigError: if it is not there.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"device is {name!r}, but there is no GPU here; type device=cpu")
    own = os.environ.get("LOCAL_RANK")  # each process of torchrun has its own
    if name == "cuda" and own is not None:
        name = f"cuda:{own}"
    device = torch.device(name)
    if device.type == "cuda" and own is not None and device.index != int(own):
        raise ConfigError(
            f"device is {name!r} with torchrun, which would be one GPU for several processes; "
            "type device=cuda, for one each"
        )
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"device is {name!r}, and this machine has {torch.cuda.device_count()} GPUs, counted "
            "from 0; expected one of them, or as many processes as there are GPUs"
        )
    return device


def rounds_like(device: torch.device) -> dict[str, Any]:
    """What decides how sums are rounded: a step that is repeated must have the same.

    On a CPU the digest of a step would tell of other packages. On a GPU there is none.
    """
    told: dict[str, Any] = {"device": device.type, "threads": torch.get_num_threads()}
    if device.type == "cuda":
        told |= {"gpu": torch.cuda.get_device_name(device), "torch": torch.__version__}
    return told


def all_round_like(device: torch.device, cohort: TrainingCohort) -> dict[str, Any]:
    """What decides it on the first rank, and on each behind it where any differs; all must ask.

    Args:
        device: of this rank.
        cohort: the ranks.
    """
    first, *others = cohort.gather(rounds_like(device))
    unlike = any(other != first for other in others)
    return {**first, "others": others} if unlike else first


@dataclass(frozen=True)
class Device:
    """One device.

    Attributes:
        title: what it is called.
        memory: bytes.
        rates: floating-point operations a second of products, by the precision of their factors.
        bandwidth: bytes a second to and from its memory.
        overhead: seconds that the shortest operation takes.
        serial: whether that is added to every operation, since one processor starts and computes
            it; else it is hidden behind longer ones.
        link: bytes a second that it sends to others of its node.
        network: to those of other nodes.
        per_node: devices of a node.
        normals: numbers of noise a second; None: `dpft.privacy.fused` draws them, whose
            instructions are counted.
        attained: what all this rests on, for a reader.
    """

    title: str
    memory: float
    rates: Mapping[str, float]
    bandwidth: float
    overhead: float
    link: float
    network: float
    per_node: int
    normals: float | None = None
    serial: bool = False
    attained: str = ""

    def rate(self, precision: str) -> float:
        """Operations a second of products.

        Raises:
            ConfigError: if the data sheet does not say.
        """
        if precision not in self.rates:
            raise ConfigError(
                f"the data sheet of {self.title} has no rate of {precision}; expected one of "
                f"{', '.join(self.rates)}: write teraflops.{precision} into a copy of its file, "
                "and type --on FILE"
            )
        return self.rates[precision]


def names() -> list[str]:
    """Of the data sheets that are here."""
    return sorted(path.stem for path in _SHEETS.glob("*.yaml"))


def device(name: str) -> Device:
    """A device by its name, by a file like those in ``dpft/training/devices``, or this CPU.

    Raises:
        ConfigError: if there is none, or it lacks a number.
    """
    if name == CPU:
        return measured_cpu()
    path = Path(name) if name.endswith((".yaml", ".yml")) else _SHEETS / f"{name}.yaml"
    if not path.is_file():
        raise ConfigError(
            f"device {name!r} has no data sheet{suggestion(name, names())}; expected "
            f"{', '.join([*names(), CPU])} or a file: type --on NAME"
        )
    try:
        sheet: Mapping[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
        products, moved = (float(sheet["attained"][key]) for key in ("products", "memory"))
        return Device(
            title=str(sheet["title"]),
            memory=float(sheet["memory_gib"]) * _GIB,
            rates={
                kind: float(rate) * _TERA * products for kind, rate in sheet["teraflops"].items()
            },
            bandwidth=float(sheet["memory_gb_s"]) * _GIGA * moved,
            overhead=float(sheet["operation_us"]) * _MICRO,
            link=float(sheet["link_gb_s"]) * _GIGA,
            network=float(sheet["network_gb_s"]) * _GIGA,
            per_node=int(sheet["per_node"]),
            attained=f"products at {products:.0%} and memory at {moved:.0%} of the data sheet",
        )
    except (OSError, KeyError, TypeError, ValueError, AttributeError, yaml.YAMLError) as error:
        raise ConfigError(
            f"{path} is no data sheet of a device ({type(error).__name__}: {error}); expected the "
            f"keys of {_SHEETS / 'h100-sxm.yaml'}"
        ) from error


def measured_cpu() -> Device:
    """This machine's CPU, by what it attains; takes some seconds.

    With one thread the thread's own time is taken, which other processes hardly lengthen.
    """
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    a = torch.randn(768, 768)
    half = a.bfloat16()
    long = torch.randn(1 << 24)

    def least(work: Callable[[], Any], times: int = 1) -> float:
        found = []
        for _ in range(5):
            start = clock()
            for _ in range(times):
                work()
            found.append((clock() - start) / times)
        return min(found)

    product = 2 * 768**3
    rates = {
        "float32": product / least(lambda: a @ a, 4),
        "float64": product / least(lambda: a.double() @ a.double(), 4),
        "bfloat16": product / least(lambda: half @ half),
    }
    bandwidth = 3 * long.nbytes / least(lambda: torch.add(long, long, out=long))
    noise = (1 << 20) / least(lambda: normals.normals(bytes(32), 0, 1 << 20))
    return Device(
        title=f"this CPU, {torch.get_num_threads()} threads",
        memory=available_memory(),
        rates=rates,
        bandwidth=bandwidth,
        overhead=_overhead(least),
        serial=True,
        link=bandwidth,
        network=_GIGA,
        per_node=os.cpu_count() or 1,
        normals=noise,
        attained=f"as measured: {rates['float32'] / _TERA:.3f} TFLOP/s of float32 products, "
        f"{bandwidth / _GIGA:.1f} GB/s",
    )


def _overhead(least: Callable[[Callable[[], Any]], float]) -> float:
    """Seconds of an operation that computes next to nothing, with Python and autograd around it."""
    small = nn.Sequential(*(nn.Linear(4, 4) for _ in range(64)))
    x = torch.zeros(1, 4)

    def work() -> None:
        small(x).sum().backward()

    operations = Operations()
    with operations:
        work()
    return least(work) / sum(operations.counted.values())


def available_memory() -> float:
    """Bytes that this machine can still give, without what other processes hold.

    Raises:
        ConfigError: if the system does not say.
    """
    found = memory.available()
    if found is None:
        raise ConfigError(
            "how much memory is free cannot be found out on this system; type --memory GIB, or a "
            "number for optim.microbatch_tokens"
        )
    return found
