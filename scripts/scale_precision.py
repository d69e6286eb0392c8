"""What privacy costs on a GPU, predicted: a table of docs/reference/scale.md, by simulation.

    python scripts/scale_precision.py run --out runs/plan/precision.jsonl
    python scripts/scale_precision.py table --out runs/plan/precision.jsonl --write

What is in the file already is not simulated again; a file made by other code is to be removed
first. Of one core it takes about ten minutes. ``--write`` puts the table between its markers.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from dpft.report.markdown import table

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "scale.md"
BEGIN, END = "<!-- precision: begin -->", "<!-- precision: end -->"
DEVICE = "h100-sxm"
TOKENS = 8192  # of a microbatch
RECORDS = 1024  # of a step
STYLES = ("bk", "ghost", "per_layer")
_E2E, _SST2 = "task=e2e", "task=sst2"
MODELS = {
    "gpt2": (f"{_E2E} model=gpt2", 1024),
    "gpt2-medium": (f"{_E2E} model=gpt2-medium", 1024),
    "gpt2-large": (f"{_E2E} model=gpt2-large", 1024),
    "gpt2-xl": (f"{_E2E} model=gpt2-xl", 1024),
    "roberta-base": (f"{_SST2} model=roberta-base", 512),
    "llama-3-8b, LoRA": (f"{_E2E} model=llama-3-8b adapt=lora", 1024),
}
LENGTHS = (100, 512, 1024)


def wanted(only: str = "") -> Iterator[tuple[str, int, str, str]]:
    for name, (words, longest) in MODELS.items():
        for length in LENGTHS:
            if length <= longest and f"{name} {length}".startswith(only):
                for style in STYLES:
                    yield name, length, style, words


def read(path: Path) -> dict[str, Any]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {row["key"]: row for row in map(json.loads, lines)}


def run(path: Path, only: str) -> None:
    """Simulate what is missing; what needs no privacy once for all styles."""
    from dpft.config.compose import compose
    from dpft.config.schema import parse
    from dpft.parallel.simulate import simulated
    from dpft.training.devices import device
    from dpft.training.estimate import estimate, microbatches_of
    from dpft.training.plan import share_outside
    from dpft.training.planned_step import shape_of, training_of

    path.parent.mkdir(parents=True, exist_ok=True)
    sheet = device(DEVICE)
    for name, length, style, words in wanted(only):
        for key in (f"{name} {length} none", f"{name} {length} {style}"):
            if key in read(path):
                continue
            start = time.process_time()
            private = not key.endswith(" none")
            settings = parse(compose([*words.split(), f"clip={style}", "precision=bfloat16"]))
            shape = shape_of(settings, 1, TOKENS // length, length)
            cost = simulated(training_of(settings, shape, private), check=False)
            found = estimate(cost, shape, sheet, microbatches_of(shape, RECORDS))
            row = {
                "key": key,
                "outside": share_outside(cost),
                "noise": cost.noise,
                "operations": sum(sum(work.values()) for work in cost.work.values()),
                "microbatch": found.microbatch,
                "noise_seconds": found.noise,
                "seconds": found.seconds,
            }
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
            print(f"{key}: {time.process_time() - start:.0f} s", flush=True)


def rows(found: Mapping[str, Any]) -> Iterator[list[str]]:
    """One for each model and length of which every style is there."""
    for (name, length), group in groupby(wanted(), lambda one: one[:2]):
        plain = found.get(f"{name} {length} none")
        styles = [found.get(f"{name} {length} {style}") for _, _, style, _ in group]
        if plain is None or None in styles:
            continue
        yield [
            f"{name}; T={length}",
            f"{1000 * plain['microbatch']:.1f}",
            *(f"{one['seconds'] / plain['seconds']:.2f}" for one in styles),
            f"{1000 * styles[0]['noise_seconds']:.0f}",
            f"{100 * max(one['outside'] for one in styles):.1f}",
        ]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=["run", "table"])
    parser.add_argument("--out", type=Path, default=Path("runs/plan/precision.jsonl"))
    parser.add_argument("--only", default="", help="rows that begin so, as 'gpt2 512'")
    parser.add_argument("--write", action="store_true", help=f"into {PAGE.name}")
    options = parser.parse_args()
    if options.action == "run":
        run(options.out, options.only)
        return
    headings = [
        *("model", "ms of a microbatch without privacy", *STYLES, "ms of noise"),
        "at most % outside bfloat16",
    ]
    made = table(headings, list(rows(read(options.out))), left=1)
    if not options.write:
        print(made)
        return
    text = PAGE.read_text(encoding="utf-8")
    between = re.compile(f"{re.escape(BEGIN)}.*{re.escape(END)}", re.DOTALL)
    if not between.search(text):
        raise SystemExit(f"{PAGE} has no {BEGIN} ... {END}; put both lines where the table goes")
    written = between.sub(lambda _: f"{BEGIN}\n{made}\n{END}", text)
    PAGE.write_text(written, encoding="utf-8")


if __name__ == "__main__":
    main()
