"""Kill random ranks of runs under torchrun with SIGKILL at random moments, again and again.

torchrun begins the ranks anew each time (``--max-restarts``). Half of the kills come at any moment
of a life, half after its first step. After each kill the ledger is compared with what else lies in
the folder, and in the end all files with those of a run that was not killed.

    python -m tests.parallel.kills --kills 50 --folder build/kills

There the ranks are forked from torchrun's agent; ``--command`` runs ``torchrun`` itself, whose
ranks take seconds to import what they need. Further settings may follow, such as ``parallel=fsdp``.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.parallel.launched import Agent, Torchrun, await_, end, lives
from tests.processes import Forked
from tests.torture import Watched, content, differing, leftovers, stage

STEPS, CHECKPOINT = 8, 3
SETTINGS = (
    *("train", "task=text2text", "task.source=sample", "task.limit_train=40"),
    *("task.limit_eval=1", "decode=greedy", "decode.max_new_tokens=2", "optim.batch_size=12"),
    *(f"optim.steps={STEPS}", f"checkpoint_every={CHECKPOINT}", "eps=3", "privacy.noise_seed=1"),
    *("threads=1", "clip=per_layer_adaptive"),
)
_LIFE = 300.0  # seconds within which each life must come to its end
_MINUTE = 60.0  # within which all ranks must be gone when one is


@dataclass(frozen=True)
class Kill:
    """How one life ended.

    Attributes:
        rank: that was killed.
        after: ``begin`` of the life, or its first ``step``.
        seconds: behind that.
        gone: seconds until all ranks were.
        steps: in the ledger then.
        stage: how far the run was.
    """

    rank: int
    after: str
    seconds: float
    gone: float
    steps: int
    stage: str


@dataclass
class Result:
    """What came of one run.

    Attributes:
        kills: each life that was killed.
        differing: bits that are not the unbroken run's, by file.
        under: steps that the ledger counted too few, or lines that it lost.
        leftovers: temporary files of killed processes.
        trouble: what went wrong, with what was said.
    """

    kills: list[Kill] = field(default_factory=list)
    differing: dict[str, int] = field(default_factory=dict)
    under: int = 0
    leftovers: list[str] = field(default_factory=list)
    trouble: str = ""

    @property
    def fine(self) -> bool:
        return not (self.differing or self.under or self.leftovers or self.trouble)


class Campaign:
    """Runs that are killed.

    Args:
        folder: where they lie.
        seed: of the moments.
        launcher: what begins the ranks.
        settings: beside `SETTINGS`.
    """

    def __init__(
        self,
        folder: Path,
        seed: int = 0,
        launcher: type[Torchrun] = Agent,
        settings: Sequence[str] = (),
    ) -> None:
        self._folder, self._seed, self._launcher = folder, seed, launcher
        self._settings = [*SETTINGS, *settings]
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder / "runs", ignore_errors=True)
        with Forked(time.sleep, 0) as process:  # the first one of all waits for the server
            process.finish()
        began = time.time()
        with launcher([*self._settings, "name=unbroken"], folder) as run:
            assert run.finish(2 * _LIFE) == 0, run.said
        path = folder / "runs/unbroken"
        self._unbroken = content(path)
        log = path / "private/metrics.jsonl"
        steps = [json.loads(line)["seconds"] for line in log.read_text().splitlines()]
        # In seconds, the end of the run included.
        self._whole = time.time() - began
        self._training = time.time() - log.stat().st_mtime + sum(steps)

    def run(self, number: int, kills: int) -> Result:
        """One run, killed so many times at most."""
        draw, result = random.Random(f"{self._seed} {number}"), Result()
        name = f"run-{number}"
        path = self._folder / "runs" / name
        watched = Watched(path, STEPS, private=True)
        words = [*self._settings, f"name={name}"]
        with self._launcher(words, self._folder, restarts=kills) as run:
            try:
                dead: set[int] = set()
                while len(result.kills) < kills:
                    kill = self._kill(run, path, draw, watched, dead, result)
                    if kill is None:
                        break
                    result.kills.append(kill)
                if run.finish(_LIFE):
                    result.trouble = run.said
            except TimeoutError as error:
                for pid in run.ranks().values():
                    end(pid, signal.SIGABRT)
                time.sleep(2)
                result.trouble = f"{error}\n{run.said}"
        result.under += watched.look()[1]
        if not result.trouble:
            result.differing = differing(self._unbroken, content(path))
            result.leftovers = leftovers(path)
        return result

    def _kill(
        self,
        run: Torchrun,
        path: Path,
        draw: random.Random,
        watched: Watched,
        dead: set[int],
        result: Result,
    ) -> Kill | None:
        """End one life; None if the run comes to its end before."""

        def ended() -> bool:
            return run.status is not None

        await_(lambda: ended() or len(set(run.ranks().values()) - dead) == 2, _MINUTE)
        if ended():
            return None
        pids = run.ranks()
        began, after, rank = time.time(), draw.choice(("begin", "step")), draw.randrange(2)
        # What is left to do: most of the moments shall come before the end.
        done = result.kills[-1].steps if result.kills else 0
        length = self._training * (1 - done / STEPS)
        if after == "begin":
            length += self._whole - self._training
        seconds = draw.random() * length
        if after == "step":
            file = path / "private/metrics.jsonl"
            await_(lambda: ended() or (file.exists() and file.stat().st_mtime > began), _LIFE)
        until = time.monotonic() + seconds
        while time.monotonic() < until and not ended():
            time.sleep(0.002)
        if not lives(pids[rank]):  # it may be through before the first one is
            rank = 1 - rank
        if ended() or not lives(pids[rank]):
            return None
        killed = time.monotonic()
        end(pids[rank], signal.SIGKILL)
        await_(lambda: not any(map(lives, pids.values())), 2 * _MINUTE)
        gone = time.monotonic() - killed
        if gone > _MINUTE:
            raise TimeoutError(f"all ranks were gone after {gone:.0f} s only")
        dead.update(pids.values())
        steps, under = watched.look()  # before the next life has imported what it needs
        result.under += under
        return Kill(rank, after, round(seconds, 3), round(gone, 2), steps, stage(path))


def campaign(
    folder: Path,
    kills: int,
    seed: int = 0,
    each: int = 5,
    launcher: type[Torchrun] = Agent,
    settings: Sequence[str] = (),
) -> Iterator[Result]:
    """Runs until so many kills were made."""
    of = Campaign(folder, seed, launcher, settings)
    made = number = 0
    while made < kills:
        result = of.run(number, min(each, kills - made))
        made, number = made + len(result.kills), number + 1
        yield result


def main(arguments: Sequence[str]) -> int:
    """The command; 1 if anything went wrong."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--each", type=int, default=5, help="kills of one run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--command", action="store_true", help="by the command torchrun")
    parser.add_argument("--folder", type=Path, default=Path("build/kills"))
    parser.add_argument("settings", nargs="*", help="of the runs, beside this module's own")
    given = parser.parse_args(arguments)
    fine, made = True, 0
    launcher = Torchrun if given.command else Agent
    of = (given.folder.absolute(), given.kills, given.seed, given.each, launcher, given.settings)
    for result in campaign(*of):
        made += len(result.kills)
        for kill in result.kills:
            print(kill)
        print(f"{made} kills; {'fine' if result.fine else result}", flush=True)
        if result.trouble:
            print(result.trouble)
        fine = fine and result.fine
    return 0 if fine else 1


if __name__ == "__main__":
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        os.environ[name] = "1"
    # By its own name: what is pickled for the forked processes must be found there.
    from tests.parallel import kills as itself

    raise SystemExit(itself.main(sys.argv[1:]))
