"""A benchmark without processes: results as a worker would give them."""

from dpft.bench import Settings

FACTS = {
    "status": "ok",
    "device": "cpu",
    "environment": {
        "dpft": {"version": "0", "commit": None, "dirty": None},
        "packages": {"torch": "2.0"},
        "cpu": "a processor",
        "cores": 2,
        "gpu": None,
    },
}
REFUSED = {"status": "refused", "message": "ValueError: not this one"}


def settings(**typed):
    return Settings.make(**{"threads": 1, "device": "cpu", "styles": "none,bk", **typed})


def result(seconds=1.0, peak=100):
    return {
        "status": "ok",
        "seconds": [seconds],
        "median_seconds": seconds,
        "min_seconds": seconds,
        "cpu_seconds": seconds,
        "baseline_bytes": 50,
        "peak_bytes": peak,
        "memory": "a meter",
        "gradient_norm": 0.5,
    }


class Worker:
    """Answers jobs, and remembers them."""

    def __init__(self, answers=None):
        self.answers = answers or {}
        self.jobs = []

    def __call__(self, job):
        self.jobs.append(job)
        answer = self.answers.get(job["name"], result())
        return answer(job) if callable(answer) else answer

    @property
    def names(self):
        return [job["name"] for job in self.jobs]


def silent(done, total, what):
    """Progress that nobody watches."""
