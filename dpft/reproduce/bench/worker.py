"""One measurement in a separate process, which is started with a job as JSON.

It prints one line, `MARK` and the result as JSON, with a ``status``: ``ok``; ``refused``, where the
variant raised an error and would again; ``oom``, where the device's memory did not suffice.
"""

import ctypes
import gc
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import torch

from dpft.config.errors import DpftError
from dpft.reproduce.bench import workloads
from dpft.reproduce.bench.choices import PEERS
from dpft.reproduce.bench.measure import MARK, READY, STEP
from dpft.reproduce.bench.workloads import Inputs, Step
from dpft.runs.environment import forget_peak, peak

Report = Callable[[float], None]

# The clipper checks its rules on the first step and, where a gradient is always zero, on the
# second, fourth, eighth and so on, or on the 64th, 256th and so on. The time of a check is not a
# step's: so many small steps precede the others that none of those is one that is checked.
_VERIFY_BATCH, _LEAST_CHECKED = 2, 16
# Full batches that warm up: the first makes what is made once, the second fills the allocator's
# pools again.
_WARM_UP = 2
# On the CPU the C library keeps pieces between blocks, and a process grows for a dozen steps; its
# peak is taken over no fewer than these, timed or not.
_MEMORY_STEPS = 13


def main(job: dict[str, Any], requests: Iterable[Report] | None = None) -> dict[str, Any]:
    """Do a job of `BenchSettings.job`; every failure becomes a result.

    ``requests`` yields once for each step that a measurement is to take, what is called with its
    seconds; default: ``job["steps"]`` in a row.
    """
    torch.set_num_threads(job["threads"])
    try:
        if job["kind"] == "run":
            from dpft.reproduce.bench import whole_run

            return {"status": "ok", **whole_run.measure(job, requests or ())}
        if job["kind"] == "measure":
            return {"status": "ok", **measure(job, requests)}
        return {"status": "ok", **environment(job)}
    except (torch.OutOfMemoryError, MemoryError) as error:
        return {"status": "oom", "message": _first_line(error)}
    except Exception as error:  # whatever a peer raises is its result
        return {"status": "refused", "message": _first_line(error)}


def _first_line(error: BaseException) -> str:
    """Return kind and first line of a message, which is enough next to a table."""
    if isinstance(error, DpftError):
        return str(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"


def environment(job: dict[str, Any]) -> dict[str, Any]:
    """Return what the measurements run on; ``device`` is what ``auto`` means here."""
    from dpft.runs.environment import environment as facts

    cuda = torch.cuda.is_available()
    device = ("cuda" if cuda else "cpu") if job["device"] == "auto" else job["device"]
    if device == "cuda" and not cuda:
        raise RuntimeError("torch sees no CUDA device here: type --device cpu")
    tf32 = torch.backends.cuda.matmul.allow_tf32 if device == "cuda" else None
    return {"device": device, "environment": {**facts(), "tf32": tf32}}


def measure(job: dict[str, Any], requests: Iterable[Report] | None = None) -> dict[str, Any]:
    """Measure seconds and peak memory of steps after warm-up.

    No step with a full batch is one that the clipper checks, as long as no more are requested than
    ``job["steps"]``.
    """
    asked = {name: job[name] for name in ("length", "untied", "seed", "device")}
    # bfloat16 is autocast's: its parameters are float32.
    dtype = torch.float64 if job["dtype"] == "float64" else torch.float32
    workload = workloads.build(job["model"], **asked, dtype=dtype)
    more = {name: job[name] for name in ("threshold", "dtype")}
    if job["name"] in PEERS:
        step = workloads.peer_step(job["name"], workload, job["batch"], **more)
    else:
        step = workloads.style_step(job["name"], workload, **more)
    meter = Meter(job["device"])
    watched = max(job["steps"], _MEMORY_STEPS) if job["device"] == "cpu" else job["steps"]
    few = workload.inputs(min(_VERIFY_BATCH, job["batch"]), short=True)
    for _ in range(max(_LEAST_CHECKED, 1 << (_WARM_UP + watched).bit_length())):
        _timed(job, step, few)
    inputs = workload.inputs(job["batch"])
    for _ in range(_WARM_UP):
        step.reset()
        meter.reset()
        _timed(job, step, inputs)
    seconds: list[float] = []
    for report in requests or [lambda _: None] * job["steps"]:
        seconds.append(_timed(job, step, inputs))
        report(seconds[-1])
    for _ in range(watched - len(seconds)):
        _timed(job, step, inputs)
    peak = meter.peak()
    squares = [gradient.double().square().sum() for gradient in step.gradients()]
    norm = float(torch.stack(squares).sum().sqrt())
    return {"seconds": seconds, "peak_bytes": peak, "gradient_norm": norm}


def _timed(job: dict[str, Any], step: Step, inputs: Inputs) -> float:
    """Return the seconds of one step; gradients of the step before are cleared first, untimed."""
    step.reset()
    if job["device"] == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    step.run(inputs)
    if job["device"] == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


class Meter:
    """Peak memory: of torch's allocator on a GPU, of the whole process on a CPU.

    Where the system does not let a process reset its peak, the lifetime's peak has to do.
    """

    def __init__(self, device: str) -> None:
        self.cuda = device == "cuda"

    def reset(self) -> None:
        """Forget the peak so far."""
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()
        else:
            # Freed heap would count as in use. Other C libraries than GNU's have no such function.
            with suppress(AttributeError, OSError):
                ctypes.CDLL(None).malloc_trim(0)
        forget_peak()

    def peak(self) -> int:
        """Return the bytes of the peak since the last reset."""
        return peak("cuda" if self.cuda else "cpu")


def _requests() -> Iterator[Report]:
    """Yield once for each line on standard input; answer on standard output."""
    print(READY, flush=True)
    for _ in sys.stdin:
        yield lambda seconds: print(f"{STEP}{seconds!r}", flush=True)


if __name__ == "__main__":
    print(MARK + json.dumps(main(json.loads(sys.argv[1]), _requests())), flush=True)
