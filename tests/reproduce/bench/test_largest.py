"""The largest batch is found, with few probes, each made once."""

import pytest

from dpft.reproduce.bench.largest import LIMIT, PRECISION, largest_batches, require_cuda, search
from dpft.reproduce.bench.processes import BenchError
from dpft.reproduce.bench.rounds import ResultLog

from .fakes import REFUSED, Worker, result, settings, silent


@pytest.mark.parametrize("largest", [0, 1, 3, 4, 37, 63, 64, 1000, 5000])
@pytest.mark.parametrize("start", [1, 4, 100])
def test_the_search_ends_at_the_largest(largest, start):
    probes = []

    def fits(batch):
        probes.append(batch)
        return batch <= largest

    low, high = search(fits, start)
    assert low <= largest < high
    assert high - low <= max(1, low // PRECISION)
    assert len(probes) == len(set(probes)) < 30
    assert 0 not in probes


def test_a_search_without_end_ends():
    assert search(lambda batch: True, 4) == (LIMIT, None)


def test_each_variant_is_searched_and_probes_are_kept(tmp_path):
    largest = {"none": 20, "bk": 10}

    def probe(job):
        fits = job["batch"] <= largest[job["name"]]
        return result(2.0) if fits else {"status": "oom", "message": "CUDA out of memory"}

    made = settings(batch=4)
    path = tmp_path / "x.jsonl"
    worker = Worker({"none": probe, "bk": probe})
    none, bk = largest_batches(made, ResultLog(path, "k"), worker.run, silent)
    assert {job["kind"] for job in worker.jobs} == {"fits"}
    assert (none.batch, none.too_large, none.examples_per_second) == (20, 21, 10.0)
    assert (bk.batch, bk.too_large) == (10, 11)
    again = Worker()
    assert largest_batches(made, ResultLog(path, "k"), again.run, silent) == [none, bk]
    assert again.jobs == []


def test_a_refusal_is_no_lack_of_memory(tmp_path):
    worker = Worker({"bk": REFUSED, "none": lambda job: result() if job["batch"] < 9 else REFUSED})
    found = largest_batches(settings(), ResultLog(tmp_path / "x.jsonl", "k"), worker.run, silent)
    assert found[1].batch == 0
    assert found[1].message == REFUSED["message"]


def test_a_cpu_is_no_place_for_it():
    with pytest.raises(BenchError, match=r"needs a CUDA device.*leave it out"):
        require_cuda("cpu")
    require_cuda("cuda")
