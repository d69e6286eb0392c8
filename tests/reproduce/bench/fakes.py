"""A benchmark without processes: results as a worker would give them."""

from dpft.reproduce.bench.catalog import BenchSettings

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
    return BenchSettings.make(**{"threads": 1, "device": "cpu", "styles": "none,bk", **typed})


def result(seconds=1.0, peak=100):
    return {
        "status": "ok",
        "seconds": [seconds] * 2,
        "median_seconds": seconds,  # of a probe
        "peak_bytes": peak,
        "memory": "a meter",
        "gradient_norm": 0.5,
    }


class Worker:
    """Starts sessions, answers jobs, and remembers them."""

    def __init__(self, answers=None):
        self.answers = answers or {}
        self.jobs = []
        self.steps = []

    def __call__(self, job):
        self.jobs.append(job)
        return Session(self, job)

    def run(self, job):
        """One job from beginning to end."""
        return self(job).finish()

    def answer(self, job):
        answer = self.answers.get(job["name"], result())
        return answer(job) if callable(answer) else answer

    @property
    def names(self):
        return [job["name"] for job in self.jobs]


class Session:
    """A worker that has warmed up, unless its answer is a failure."""

    def __init__(self, worker, job):
        self.worker = worker
        self.job = job

    def ready(self):
        answer = self.worker.answers.get(self.job["name"], result())
        return callable(answer) or answer["status"] == "ok"

    def step(self):
        self.worker.steps.append(self.job["name"])
        return 1.0

    def finish(self):
        return self.worker.answer(self.job)


def silent(done, total, what):
    """Report no progress."""
