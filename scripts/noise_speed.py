"""How fast noise is drawn on this machine, and how much memory a step's noise takes.

    python scripts/noise_speed.py

Prints the rows of docs/reference/noise.md. Times are of the processor, one thread.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable

import numpy as np
import torch

from dpft.privacy import keys, keystream
from dpft.privacy.noise import _in_tiles, noisy_mean_
from dpft.privacy.normals import tiles

N = 1 << 22
GPT2 = 124_439_808  # parameters
KEY = keys.derive(b"speed", "noise", 0)


def fastest(run: Callable[[], object], repeats: int = 7) -> float:
    """Seconds of processor time of the fastest repeat."""
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        seconds.append(time.process_time() - start)
    return min(seconds)


def peak() -> int:
    """The most bytes that the process has held."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def on_gpu(run: Callable[..., object], *arguments: object) -> float:
    """Milliseconds of the fastest of seven, after one that compiles and checks."""
    run(*arguments)
    found = []
    for _ in range(7):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run(*arguments)
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end))
    return min(found)


def main() -> None:
    torch.set_num_threads(1)
    noisy_mean_(torch.zeros(1), KEY, 0.1, 64)  # checks the device
    sums = torch.zeros(GPT2)
    before = peak()
    seconds = fastest(lambda: noisy_mean_(sums, KEY, 0.1, 64), 3)
    print(f"{GPT2:,} numbers: {seconds:.2f} s, {(peak() - before) / 2**20:.0f} MiB beyond the sums")
    philox = np.random.Generator(np.random.Philox(key=1))
    cpu = torch.device("cpu")
    rows: dict[str, Callable[[], object]] = {
        "normals": lambda: [len(z) for _, z in tiles(KEY, 0, N)],
        "noise, added to sums in float32": lambda: noisy_mean_(torch.zeros(N), KEY, 0.1, 64),
        "words by OpenSSL": lambda: [
            keystream.words(KEY, i, i + 65536) for i in range(0, N, 65536)
        ],
        "words by torch's integers": lambda: keystream._rounds(KEY, 0, N // 8, cpu),
        "NumPy's Philox, float32": lambda: philox.standard_normal(N, dtype="float32"),
        "NumPy's Philox, float64": lambda: philox.standard_normal(N),
    }
    for name, run in rows.items():
        print(f"{name}: {N / fastest(run) / 1e6:.0f} million a second")
    if torch.cuda.is_available():
        sums = torch.zeros(GPT2, device="cuda")
        for name, add in (("one kernel", noisy_mean_), ("operations of torch", _in_tiles)):
            print(f"{GPT2:,} numbers by {name}: {on_gpu(add, sums, KEY, 0.1, 64, 0):.1f} ms")
    small = torch.zeros(768)
    print(f"768 numbers: {1e6 * fastest(lambda: noisy_mean_(small, KEY, 0.1, 64), 200):.0f} us")


if __name__ == "__main__":
    main()
