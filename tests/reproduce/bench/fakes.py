"""A benchmark without processes: results as a worker would give them."""

from dpft.reproduce.bench.choices import BenchSettings

FACTS = {
    "status": "ok",
    "device": "cpu",
    "environment": {"packages": {"torch": "2.0"}, "cpu": "a processor", "gpu": None},
}
REFUSED = {"status": "refused", "message": "ValueError: not this one"}


def settings(**typed):
    return BenchSettings.make(**{"threads": 1, "device": "cpu", "styles": "none,bk", **typed})


def result(seconds=1.0, peak=100):
    return {"status": "ok", "seconds": [seconds] * 2, "peak_bytes": peak}


class Worker:
    """Starts sessions and remembers their jobs and steps; ``answers`` are results by style."""

    def __init__(self, answers=None):
        self.answers = answers or {}
        self.names = []
        self.steps = []

    def __call__(self, job):
        self.names.append(job["name"])
        return Session(self, job["name"])


class Session:
    """A worker that has warmed up, unless its answer is a failure."""

    def __init__(self, worker, name):
        self.worker = worker
        self.name = name
        self.answer = worker.answers.get(name, result())

    def ready(self):
        return self.answer["status"] == "ok"

    def step(self):
        self.worker.steps.append(self.name)
        return 1.0

    def finish(self):
        return self.answer
