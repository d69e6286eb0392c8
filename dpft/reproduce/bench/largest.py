"""The largest batch that fits into the GPU's memory, by binary search (Li et al., Appendix G)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dpft.reproduce.bench.processes import BenchError, Result, RunJob
from dpft.reproduce.bench.rounds import ResultLog, Tell
from dpft.reproduce.bench.settings import BenchSettings, Variant

LIMIT = 1 << 16
# The search ends when the largest batch that fits is known to within a fiftieth.
PRECISION = 50


@dataclass(frozen=True)
class Largest:
    """One variant's largest batch.

    Attributes:
        batch: the largest that fits; 0 if none does.
        too_large: the smallest known not to fit; None if even `LIMIT` fits.
        examples_per_second: at that batch.
        message: why the variant failed, where it did.
    """

    label: str
    batch: int
    too_large: int | None
    examples_per_second: float | None
    message: str | None


def require_cuda(device: str) -> None:
    """Raises BenchError unless the device is a GPU."""
    if device != "cuda":
        raise BenchError(
            "--largest-batch needs a CUDA device, and this is a CPU, whose memory ends softly (by "
            "swapping): run it where there is a GPU, or leave it out"
        )


def search(fits: Callable[[int], bool], start: int) -> tuple[int, int | None]:
    """The largest batch that fits and the smallest known not to, by doubling, then halving.

    ``fits`` is assumed to hold up to some size and not beyond.
    """
    low, high = 0, None
    probe = start
    while high is None or high - low > max(1, low // PRECISION):
        if fits(probe):
            low = probe
            if low >= LIMIT:
                return low, None
        else:
            high = probe
        probe = min(2 * low, LIMIT) if high is None else (low + high) // 2
    return low, high


def largest_batches(
    settings: BenchSettings, journal: ResultLog, run_job: RunJob, tell: Tell
) -> list[Largest]:
    """Search for every variant; probes that the journal holds are not repeated."""
    known: dict[tuple[str, int], Result] = {
        (row["variant"], row["batch"]): row["result"] for row in journal.rows if "batch" in row
    }
    found = []
    for place, variant in enumerate(settings.variants):

        def probe(batch: int, variant: Variant = variant, place: int = place) -> Result:
            if (variant.label, batch) not in known:
                tell(place, len(settings.variants), f"{variant.label}: batch {batch}")
                result = run_job(settings.job("fits", variant, batch=batch))
                journal.append({"variant": variant.label, "batch": batch, "result": result})
                known[variant.label, batch] = result
            return known[variant.label, batch]

        found.append(_largest(variant, probe, settings.batch))
    return found


def _largest(variant: Variant, probe: Callable[[int], Result], start: int) -> Largest:
    failed: list[str] = []

    def fits(batch: int) -> bool:
        result = probe(batch)
        if result["status"] not in ("ok", "oom"):
            failed.append(result["message"])
        return bool(result["status"] == "ok")

    batch, too_large = search(fits, start)
    if failed:
        return Largest(variant.label, 0, None, None, failed[0])
    speed = batch / probe(batch)["median_seconds"] if batch else None
    return Largest(variant.label, batch, too_large, speed, None)
