"""Simulated memory and traffic beside true ones, on this machine's CPU.

    python scripts/scale_check.py model=gpt2 parallel=fsdp clip=bk,none --ranks 1,2

Prints the rows of docs/reference/scale.md. Each figure is of fresh processes: one simulates, the
others train on random weights, connected by gloo. A true peak is that of resident memory beyond
what the process held before the model was built. True traffic is what the kernel has sent over the
process's TCP connections.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dpft.runs import memory

_MIB = 2**20
# bytes_sent in the kernel's struct tcp_info (linux/tcp.h), since 4.19.
_BYTES_SENT = 200


def wire() -> int:
    """Bytes that this process has sent over its open TCP connections."""
    total = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if not str(entry.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6):
                    info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                    total += struct.unpack_from("<Q", info, _BYTES_SENT)[0]
        except OSError:
            continue
    return total


class Resident:
    """Resident memory in place of counted storages; messages as the meter counts them."""

    def __init__(self, meter: Any) -> None:
        self._meter = meter
        self._wire = 0
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        self._before = memory.resident("VmRSS") or 0

    @property
    def now(self) -> int:
        return (memory.resident("VmRSS") or 0) - self._before

    @property
    def peak(self) -> int:
        return (memory.resident("VmHWM") or 0) - self._before

    @peak.setter
    def peak(self, _: int) -> None:
        memory.forget_peak()

    @property
    def messages(self) -> Counter[str]:
        return self._meter.messages + Counter(wire=wire() - self._wire)

    @property
    def calls(self) -> Counter[str]:
        calls: Counter[str] = self._meter.calls
        return calls

    @property
    def sent(self) -> Counter[str]:
        sent: Counter[str] = self._meter.sent
        return sent

    def clear(self) -> None:
        self._meter.clear()
        self._wire = wire()


def one(words: list[str], options: argparse.Namespace) -> None:
    """Print the cost of one training as JSON: simulated, or of one true rank."""
    import torch

    from dpft.config.compose import compose
    from dpft.config.schema import parse
    from dpft.parallel.metering import Meter
    from dpft.parallel.simulate import simulated, steps
    from dpft.parallel.simulated_layouts import world
    from dpft.training.planned_step import shape_of, training_of

    torch.set_num_threads(1)
    run = parse(compose(words))
    ranks, rank = int(options.ranks), options.rank or 0
    shape = shape_of(run, ranks, options.batch, options.length, rank=rank)
    training = training_of(run, shape, run.clip.private)
    if options.rank is None:
        cost = simulated(training, on_gpu=False)
    else:
        if shape.ranks > 1:
            torch.distributed.init_process_group(
                "gloo",
                f"file://{options.store}",
                rank=options.rank,
                world_size=shape.ranks,
            )
        layout, meter = world(training), Meter()
        counted: Any = meter if options.storages else Resident(meter)
        with meter:
            cost = steps(training, counted, training.build(), layout)
        if shape.ranks > 1:
            torch.distributed.barrier()
            torch.distributed.destroy_process_group()
    print(json.dumps({**asdict(cost), "work": {}}))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("settings", nargs="*")
    parser.add_argument("--ranks", default="1,2")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--length", type=int, default=100)
    parser.add_argument("--storages", action="store_true", help="count true storages, not the RSS")
    parser.add_argument("--rank", type=int)
    parser.add_argument("--store")
    options = parser.parse_args()
    if options.store is not None:
        one(options.settings, options)
        return
    styles = [w.partition("=")[2] for w in options.settings if w.startswith("clip=")] or ["bk"]
    others = [w for w in options.settings if not w.startswith("clip=")]
    for ranks in options.ranks.split(","):
        for style in styles[0].split(","):
            compare([*others, f"clip={style}"], int(ranks), options)


def compare(words: list[str], ranks: int, options: argparse.Namespace) -> None:
    """Print a table of one training's phases: simulated and true."""
    with tempfile.TemporaryDirectory() as folder:
        common = [
            *(sys.executable, __file__, *words, f"--ranks={ranks}", f"--batch={options.batch}"),
            *(f"--length={options.length}", f"--store={folder}/store"),
            *(["--storages"] if options.storages else []),
        ]
        # Blocks above a MiB go back to the system when they are freed.
        environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(_MIB)}
        true = [
            subprocess.Popen(
                [*common, f"--rank={rank}"], stdout=subprocess.PIPE, env=environment, text=True
            )
            for rank in range(ranks)
        ]
        said = [process.communicate()[0] for process in true]
        simulation = subprocess.run(common, stdout=subprocess.PIPE, check=True, text=True).stdout
    costs = [json.loads(simulation), *map(json.loads, said)]
    print(f"\n{' '.join(words)} on {ranks}: simulated, and true on each rank")
    for phase in costs[0]["peaks"]:
        row(phase, [cost["peaks"][phase] for cost in costs])
    if costs[0]["checked"] is not None:
        row("checked", [cost["checked"] for cost in costs])
    for kind in sorted({kind for cost in costs for kind in cost["messages"]}):
        row(kind, [cost["messages"].get(kind, 0) for cost in costs])


def row(name: str, values: list[int]) -> None:
    """One line, in MiB, with simulated over true of the first rank."""
    ratio = f"{values[0] / values[1]:.3f}" if values[1] else ""
    print(f"{name:16} {' '.join(f'{v / _MIB:12,.3f}' for v in values)}   {ratio}", flush=True)


if __name__ == "__main__":
    main()
