"""Predicted GPU hours of each claim's runs at the paper's own scale, as a Markdown table.

    python scripts/paper_cost.py                        # all claims, on one H100; minutes
    python scripts/paper_cost.py --page                 # into docs/explanation/evidence.md
    python scripts/paper_cost.py li2022/c10 --on a100-80gb

A run's step is simulated as `dpft plan` simulates it, without weights, data or a device, once for
each model, method, style and length; its hours are those of its steps. Runs that `dpft plan` cannot
simulate are counted in a column of their own. Nothing is trained or measured.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import evidence

from dpft.config.errors import ConfigError, ModelError
from dpft.config.schema import Run
from dpft.parallel.simulate import Cost, simulated
from dpft.report import markdown
from dpft.reproduce import claims
from dpft.reproduce.claims import Claim
from dpft.tasks import load_task
from dpft.training.devices import Device, device
from dpft.training.estimate import estimate, length_of, microbatches_of
from dpft.training.planned_step import shape_of, training_of

SEEDS = len(evidence.SEEDS)
PAGE = Path(__file__).resolve().parents[1] / "docs/explanation/evidence.md"
BEGIN, END = "<!-- paper cost: begin -->", "<!-- paper cost: end -->"
HEADS = ("claim", "settings", "not predicted", "longest run, hours", "all runs, hours")


class Hours:
    """Predicted hours of runs on one device; equal steps are simulated once."""

    def __init__(self, sheet: Device, precision: str = "float32") -> None:
        self.device, self.precision = sheet, precision
        self._costs: dict[tuple[object, ...], Cost] = {}

    def __call__(self, run: Run) -> float | None:
        """Hours of a run's steps on one device; None where no step can be simulated."""
        length = length_of(run)
        if length is None:
            return None
        run = as_simulated(replace(run, precision=self.precision))
        key = (run.model.path, repr(run.adapt), run.clip.plan, run.clip.groups, run.clip.style)
        try:
            shape = shape_of(run, 1)
            key = (*key, run.optim.name, load_task(run.task).needs.kind, shape)
            if key not in self._costs:
                training = training_of(run, shape, run.clip.private)
                self._costs[key] = simulated(training, on_gpu=True, check=False)
        except (ConfigError, ModelError):  # no such step, or a model whose shape is on the hub
            return None
        count = microbatches_of(shape, length.records)
        step = estimate(self._costs[key], shape, self.device, count).seconds
        return length.steps * step / 3600


def as_simulated(run: Run) -> Run:
    """The run whose step is simulated: drawn weights take as much as pretrained ones."""
    if run.adapt.name == "scratch":
        run = replace(run, adapt=replace(run.adapt, name="full"))
    return run


class Priced:
    """A claim with the hours of its runs.

    Attributes:
        claim: whose.
        runs: at the paper's scale, each once.
    """

    def __init__(self, claim: Claim, hours: Callable[[Run], float | None]) -> None:
        self.claim = claim
        self.runs = [need.planned.run for need in evidence.needs(claim, "paper")]
        self._hours = hours

    @cached_property
    def hours(self) -> list[float]:
        """Of the runs that can be predicted, one seed each."""
        return [found for run in self.runs if (found := self._hours(run)) is not None]

    @property
    def row(self) -> tuple[object, ...]:
        """Of the table: hours with as many seeds as claims of ours have."""
        lacking = len(self.runs) - len(self.hours)
        longest, every = "-", "-"
        if self.hours:
            longest, every = f"{max(self.hours):.1f}", f"{SEEDS * sum(self.hours):,.0f}"
        return (f"`{self.claim.name}`", len(self.runs), lacking or "-", longest, every)


def priced(names: Sequence[str], hours: Hours) -> Iterator[Priced]:
    """The claims that runs at the paper's scale decide."""
    for claim in claims.load():
        if not names or {claim.name, claim.paper} & {*names}:
            found = Priced(claim, hours)
            if found.runs:
                yield found


def table(listed: Sequence[Priced], hours: Hours) -> str:
    """The table with what it assumes."""
    every = SEEDS * sum(sum(one.hours) for one in listed)
    total = ("all, a run of several claims each time", "", "", "", f"{every:,.0f}")
    rows = [one.row for one in listed]
    sheet = hours.device
    return "\n".join(
        [
            markdown.table(HEADS, [*rows, total]),
            "",
            f"**Predicted, not measured**, for one {sheet.title}: {sheet.attained}. Hours are of "
            f"{SEEDS} seeds of every setting; the longest run is one seed's. In {hours.precision}; "
            "float32 products without TF32. Every record has the task's longest length, "
            "microbatches have 4,096 tokens, and reading data, decoding, checkpoints and the "
            "host's waits are not counted. *Not predicted* are settings whose step `dpft plan` "
            "cannot simulate: prefixes, RGP, a model whose shape only the hub has.",
        ]
    )


def split(page: str) -> tuple[str, str, str]:
    """The page up to the table's first marker line, what lies between, and the rest."""
    before, rest = page.split(BEGIN)
    between, after = rest.split(END)
    return f"{before}{BEGIN}", between, f"{END}{after}"


def main() -> None:
    """Parse the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", help="claims or papers; default: all")
    parser.add_argument("--on", default="h100-sxm", help="the device, as of dpft plan")
    parser.add_argument("--precision", default="float32", help="or bfloat16, float16")
    parser.add_argument("--page", action="store_true", help="write it into the documentation")
    args = parser.parse_args()
    hours = Hours(device(args.on), args.precision)
    made = table(list(priced(args.names, hours)), hours)
    if not args.page:
        print(made)
        return
    before, _, after = split(PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(f"{before}\n{made}\n{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
