"""`dpft bench` on a GPU that is lent by the minute: the same measurements in a quarter of the time.

    python scripts/gpu_bench.py --out results/bench \\
        "--model gpt2 --batch 256 --dtype bfloat16 --styles bk,per_layer,ghost --rounds 5 --steps 6"
    python scripts/gpu_bench.py --out results/bench --at-once 2 "--model gpt2 --batch 82 ..."
    python scripts/gpu_bench.py --out results/bench \\
        "--model gpt2-large --styles ghost,lee_kifer --memory 24 --largest-batch"

Each argument is what `dpft bench` is given. Its workers are forked from this process, which has
imported everything and touched no GPU. The processes of ``--at-once`` rounds warm up side by side,
so all of them must fit into memory; then each takes a step in turn, with the GPU to itself.
Searches for the largest batch go side by side too, each within its ``--memory``; the speed is
measured anew, one variant after the other, at the batch that was found.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import IO, Any

import transformers
import typer

from dpft.cli import bench
from dpft.reproduce.bench import largest, processes, rounds, worker
from dpft.reproduce.bench.processes import Result, RunJob
from dpft.reproduce.bench.rounds import OpenSession, ResultLog, Row, Tell
from dpft.reproduce.bench.settings import BenchSettings, Variant


def fork(run: Callable[[], object]) -> int:
    """The process that does it, and ends."""
    sys.stdout.flush()
    sys.stderr.flush()
    if pid := os.fork():
        return pid
    try:
        run()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


class Forked:
    """What `subprocess.Popen` is to a worker: a process of its own, without its imports."""

    def __init__(self, command: Sequence[str], *, stderr: IO[str], **_: Any) -> None:
        asked, answered = os.pipe(), os.pipe()

        def work() -> None:
            for number, given in enumerate((asked[0], answered[1], stderr.fileno())):
                os.dup2(given, number)
            os.closerange(3, 4096)  # of other workers, too, which would wait for their input's end
            sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
            result = worker.main(json.loads(command[-1]), worker._requests())
            print(processes.MARK + json.dumps(result), flush=True)

        self.pid, self.returncode = fork(work), None
        os.close(asked[0])
        os.close(answered[1])
        self.stdin, self.stdout = os.fdopen(asked[1], "w"), os.fdopen(answered[0])

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


def measure(
    settings: BenchSettings,
    journal: ResultLog,
    open_session: OpenSession,
    tell: Tell,
    *,
    at_once: int,
) -> list[Row]:
    """As `rounds.measure`, with the processes of so many rounds side by side."""
    labels = {variant.label for variant in settings.variants}
    done = rounds.complete_rounds(journal.rows, labels)
    session = 1 + max((row["session"] for row in journal.rows if "session" in row), default=0)
    missing = [turn for turn in range(settings.rounds) if turn not in done]
    while missing:
        turns, missing = missing[:at_once], missing[at_once:]
        tell(turns[0], settings.rounds, "warming up")
        load = rounds._load_average()
        pairs = [(turn, v) for turn in turns for v in rounds.rotated(settings.variants, turn)]
        opened = [(turn, v, open_session(settings.job("measure", v))) for turn, v in pairs]
        ready = [(turn, v, one) for turn, v, one in opened if one.ready()]
        for turn in turns:
            for _ in range(settings.steps):
                for _, _, one in (entry for entry in ready if entry[0] == turn):
                    one.step()
        for _, _, one in opened:
            one._write("")  # all of them end at once
        for position, (turn, variant, one) in enumerate(opened):
            result = one.finish()
            rounds._check_baseline(settings, variant, result)
            about = {"session": session, "round": turn, "load": load, "position": position}
            journal.append({**about, "variant": variant.label, "result": result})
            done.setdefault(turn, []).append(journal.rows[-1])
    return [row for turn in range(settings.rounds) for row in done[turn]]


def largest_batches(
    settings: BenchSettings, journal: ResultLog, run_job: RunJob, tell: Tell
) -> list[largest.Largest]:
    """As `largest.largest_batches`, with the searches of all variants side by side."""
    searches = [
        partial(_search, settings, variant, _part(journal, variant), run_job)
        for variant in settings.variants
    ]
    for pid in [fork(search) for search in searches]:
        os.waitpid(pid, 0)
    for variant in settings.variants:
        part = _part(journal, variant)
        for row in part.rows:
            journal.append({name: value for name, value in row.items() if name != "key"})
        fitting = [row["batch"] for row in part.rows if row["result"]["status"] == "ok"]
        if fitting:
            again = run_job(settings.job("fits", variant, batch=max(fitting)))
            journal.append({"variant": variant.label, "batch": max(fitting), "result": again})
        part.path.unlink(missing_ok=True)
    return largest.largest_batches(settings, journal, run_job, tell)


def _part(journal: ResultLog, variant: Variant) -> ResultLog:
    """Where one variant's search keeps its probes."""
    name = f"{journal.path.stem}-{variant.label.replace(' ', '')}.part"
    return ResultLog(journal.path.with_name(name), journal.key)


def _search(settings: BenchSettings, variant: Variant, part: ResultLog, run_job: RunJob) -> None:
    known: dict[int, Result] = {row["batch"]: row["result"] for row in part.rows}

    def probe(batch: int) -> Result:
        if batch not in known:
            known[batch] = run_job(settings.job("fits", variant, batch=batch))
            part.append({"variant": variant.label, "batch": batch, "result": known[batch]})
        return known[batch]

    largest._largest(variant, probe, settings.batch)


def main() -> None:
    """Measure what each argument says."""
    parser = argparse.ArgumentParser(description="dpft bench on a GPU, by forked workers.")
    parser.add_argument("benches", nargs="+", help="what dpft bench is given, each in quotes")
    parser.add_argument("--out", required=True)
    parser.add_argument("--at-once", type=int, default=1, help="rounds side by side")
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    transformers.logging.set_verbosity_error()
    for name in ("gpt2", "llama", "roberta", "vit"):
        importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    for name in ("dpft.models.wrn", "dpft.privacy.clipping.clipper", "dpft.reproduce.bench.peers"):
        importlib.import_module(name)
    if importlib.util.find_spec("opacus"):
        importlib.import_module("opacus.grad_sample")
    setattr(processes, "subprocess", SimpleNamespace(Popen=Forked, PIPE=None))  # noqa: B010
    setattr(bench, "measure", partial(measure, at_once=given.at_once))  # noqa: B010
    setattr(bench, "largest_batches", largest_batches)  # noqa: B010
    app = typer.Typer()
    app.command()(bench.main)
    for words in given.benches:
        app([*shlex.split(words), "--out", given.out, "--device", given.device], prog_name="bench",
            standalone_mode=False)  # fmt: skip


if __name__ == "__main__":
    main()
