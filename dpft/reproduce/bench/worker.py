"""One measurement in a process of its own; started with a job as JSON.

Prints one line, `MARK` and the result as JSON, with a ``status``:

ok       measured
refused  the variant raised an error: it would again
oom      the device's memory did not suffice
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from dpft.config.errors import DpftError
from dpft.reproduce.bench.memory import Meter, meter
from dpft.reproduce.bench.models import Inputs, Workload, build
from dpft.reproduce.bench.processes import MARK, READY, STEP
from dpft.reproduce.bench.steps import Step, style_step, weights_dtype

Tell = Callable[[float], None]

# The clipper checks its rules on the first step and, where a gradient is always zero, on the
# second, fourth, eighth and so on (`dpft.privacy.clipping.checks.checker`), or on the 64th, 256th
# and so on. What that takes is not a step's, and small batches of short records do for it.
_VERIFY_BATCH = 2
_LEAST_CHECKED = 16
# Full batches that warm up: the first for all that is made once, the second fills the allocator's
# pools again.
_WARM_UP = 2
# On the CPU the C library keeps pieces between blocks, and a process grows for a dozen steps; its
# peak is taken over no fewer than these, timed or not.
_MEMORY_STEPS = 13
# Full batches that are checked, after all others: their memory counts as that of a whole run.
_CHECKED_STEPS = 3


def main(job: dict[str, Any], asked: Iterable[Tell] | None = None) -> dict[str, Any]:
    """Do a job of `dpft.reproduce.bench.settings.Settings.job`, whatever happens.

    Args:
        job: as plain data.
        asked: yields once for each step that a measurement is to take, and what is called with
            its seconds; default: ``job["steps"]`` in a row.
    """
    torch.set_num_threads(job["threads"])
    try:
        if job["kind"] == "measure":
            return {"status": "ok", **measure(job, asked)}
        return {"status": "ok", **_KINDS[job["kind"]](job)}
    except (torch.OutOfMemoryError, MemoryError) as error:
        return {"status": "oom", "message": _first_line(error)}
    except Exception as error:  # whatever a peer raises is its result
        return {"status": "refused", "message": _first_line(error)}


def environment(job: dict[str, Any]) -> dict[str, Any]:
    """What the measurements run on; ``device`` says what ``auto`` means here."""
    from dpft.runs.environment import environment as facts

    cuda = torch.cuda.is_available()
    device = ("cuda" if cuda else "cpu") if job["device"] == "auto" else job["device"]
    if device == "cuda" and not cuda:
        raise RuntimeError("torch sees no CUDA device here: type --device cpu")
    tf32 = torch.backends.cuda.matmul.allow_tf32 if device == "cuda" else None
    return {"device": device, "environment": {**facts(), "tf32": tf32}}


def measure(job: dict[str, Any], asked: Iterable[Tell] | None = None) -> dict[str, Any]:
    """Seconds and, but for ``job["time_only"]``, peak memory of a variant's steps after warm-up.

    No step with a full batch is one of those that the clipper checks, as long as no more are asked
    for than ``job["steps"]``. Steps that are checked, as a run's first is, come after all of them.
    """
    workload, step = _prepare(job)
    inputs = workload.inputs(job["batch"])
    memory = meter(job["device"])
    baseline = memory.now()
    few = workload.inputs(min(_VERIFY_BATCH, job["batch"]), short=True)
    longer = job["device"] == "cpu" and not job["time_only"]
    watched = max(job["steps"], _MEMORY_STEPS) if longer else job["steps"]
    for _ in range(checked_steps(_WARM_UP + watched)):
        _timed(job, step, few)
    for _ in range(_WARM_UP):
        step.reset()
        memory.reset()
        _timed(job, step, inputs)
    seconds: list[float] = []
    began = time.process_time()
    for tell in asked or [lambda _: None] * job["steps"]:
        seconds.append(_timed(job, step, inputs))
        tell(seconds[-1])
    cpu_seconds = time.process_time() - began
    for _ in range(watched - len(seconds)):
        _timed(job, step, inputs)
    peaks = {}
    if not job["time_only"]:
        peak = memory.peak()
        whole = max(peak, _peak_of_checks(job, step, inputs, memory))
        peaks = {"peak_bytes": peak, "whole_peak_bytes": whole}
    squares = [gradient.double().square().sum() for gradient in step.gradients()]
    return {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "baseline_bytes": baseline,
        **peaks,
        "memory": memory.method,
        "gradient_norm": float(torch.stack(squares).sum().sqrt()),
    }


def _peak_of_checks(job: dict[str, Any], step: Step, inputs: Inputs, memory: Meter) -> int:
    """Peak memory of steps that are checked; of a variant that checks nothing, of more steps."""
    memory.reset()
    for _ in range(_CHECKED_STEPS):
        step.check_again()
        _timed(job, step, inputs)
    return memory.peak()


def checked_steps(following: int) -> int:
    """How many small steps to take so that the clipper checks none of so many that follow.

    It checks steps whose number is a power of two.
    """
    return max(_LEAST_CHECKED, 1 << following.bit_length())


def fits(job: dict[str, Any]) -> dict[str, Any]:
    """Whether a batch fits into the device's memory; `torch.OutOfMemoryError` if not."""
    workload, step = _prepare(job)
    few = workload.inputs(min(_VERIFY_BATCH, job["batch"]), short=True)
    for _ in range(checked_steps(_WARM_UP)):
        _timed(job, step, few)
    inputs = workload.inputs(job["batch"])
    memory = meter(job["device"])
    memory.reset()
    _timed(job, step, inputs)
    seconds = _timed(job, step, inputs)
    return {"median_seconds": seconds, "peak_bytes": memory.peak()}


def explain(job: dict[str, Any]) -> dict[str, Any]:
    """The form that the engine chose for each parameter, for this batch's shape."""
    workload, step = _prepare(job)
    step.run(workload.inputs(job["batch"]))
    if not hasattr(step.clipper, "explain"):
        raise TypeError(f"{job['name']} chooses nothing that could be explained")
    return {"entries": step.clipper.explain()}


def make_step(job: dict[str, Any], workload: Workload) -> Step:
    """The step of the job's variant."""
    if job["peer"]:
        from dpft.reproduce.bench.peers import peer_step

        return peer_step(job["name"], workload, job["batch"], job["threshold"], job["dtype"])
    return style_step(job["name"], workload, job["threshold"], job["dtype"])


def _prepare(job: dict[str, Any]) -> tuple[Workload, Step]:
    if job["memory"] is not None:
        whole = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, job["memory"] * 2**30 / whole))
    workload = build(
        job["model"],
        length=job["length"],
        untied=job["untied"],
        seed=job["seed"],
        device=job["device"],
        dtype=weights_dtype(job["dtype"]),
    )
    return workload, make_step(job, workload)


def _timed(job: dict[str, Any], step: Step, inputs: Inputs) -> float:
    """Seconds of one step; gradients of the step before are forgotten first, untimed."""
    step.reset()
    _wait(job)
    began = time.perf_counter()
    step.run(inputs)
    _wait(job)
    return time.perf_counter() - began


def _wait(job: dict[str, Any]) -> None:
    if job["device"] == "cuda":
        torch.cuda.synchronize()


def _first_line(error: BaseException) -> str:
    """Kind and first line of a message; whole pages of it help nobody beside a table."""
    if isinstance(error, DpftError):
        return str(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"


def _requests() -> Iterator[Tell]:
    """One for each line on standard input, which asks for a step; answered on standard output."""
    print(READY, flush=True)
    for _ in sys.stdin:
        yield lambda seconds: print(f"{STEP}{seconds!r}", flush=True)


_KINDS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "environment": environment,
    "fits": fits,
    "explain": explain,
}


if __name__ == "__main__":
    print(MARK + json.dumps(main(json.loads(sys.argv[1]), _requests())), flush=True)
