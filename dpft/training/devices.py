"""The device that a run is on, and the data sheets of devices that `dpft plan` knows."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import yaml

from dpft.config.errors import ConfigError, suggestion

if TYPE_CHECKING:
    from dpft.parallel.cohort import TrainingCohort

_SHEETS = Path(__file__).parent / "devices"
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
        link: bytes a second that it sends to others of its node.
        network: to those of other nodes.
        per_node: devices of a node.
        attained: of the data sheet's rates, for a reader.
    """

    title: str
    memory: float
    rates: Mapping[str, float]
    bandwidth: float
    overhead: float
    link: float
    network: float
    per_node: int
    attained: str = ""

    def rate(self, precision: str) -> float:
        """Return the operations a second of products.

        Raises:
            ConfigError: if the data sheet lacks them.
        """
        if precision not in self.rates:
            raise ConfigError(
                f"the data sheet of {self.title} has no rate of {precision}; expected one of "
                f"{', '.join(self.rates)}: write teraflops.{precision} into a copy of its file, "
                "and type --on FILE"
            )
        return self.rates[precision]


def names() -> list[str]:
    """Return the names of the data sheets."""
    return sorted(path.stem for path in _SHEETS.glob("*.yaml"))


def device(name: str) -> Device:
    """Return a device by its name, or by a file like those in ``dpft/training/devices``.

    Raises:
        ConfigError: if there is none, or it lacks a number.
    """
    path = Path(name) if name.endswith((".yaml", ".yml")) else _SHEETS / f"{name}.yaml"
    if not path.is_file():
        raise ConfigError(
            f"device {name!r} has no data sheet{suggestion(name, names())}; expected "
            f"{', '.join(names())} or a file: type --on NAME"
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
