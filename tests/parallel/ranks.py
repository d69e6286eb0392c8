"""Functions that run on several ranks at once, connected by gloo, forked from one server."""

import pickle
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.processes import Forked

# A rank that waits longer for another than this has found a deadlock.
_TIMEOUT = timedelta(seconds=60)


def together(function: Callable[..., Any], size: int, *arguments: Any) -> list[Any]:
    """What the function returns on each of ``size`` ranks; its first argument is the cohort.

    Raises:
        AssertionError: with the errors of all ranks, if one failed or did not end.
    """
    with tempfile.TemporaryDirectory() as folder:
        ranks = [Forked(_rank, folder, rank, size, function, arguments) for rank in range(size)]
        try:
            deadline = time.monotonic() + 240
            while any(rank.status is None for rank in ranks) and time.monotonic() < deadline:
                time.sleep(0.01)
            errors = [rank.said[1] for rank in ranks]
            assert [rank.status for rank in ranks] == [0] * size, "\n".join(errors)
            return [pickle.loads(Path(folder, f"{rank}").read_bytes()) for rank in range(size)]
        finally:
            for rank in ranks:
                rank.__exit__()


def _rank(
    folder: str, rank: int, size: int, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    import torch
    import torch.distributed as dist

    from dpft.parallel.cohort import Replicas

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", f"file://{folder}/store", rank=rank, world_size=size, timeout=_TIMEOUT
    )
    cohort = Replicas()
    Path(folder, f"{rank}").write_bytes(pickle.dumps(function(cohort, *arguments)))
    # A rank that leaves while another still connects to it would fail that one.
    cohort.barrier()
    if dist.is_initialized():  # a test may have left it
        dist.destroy_process_group()


@contextmanager
def fake_ranks(size: int, rank: int = 0) -> Iterator[None]:
    """A process group of which this process is one rank, and no other exists."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()
