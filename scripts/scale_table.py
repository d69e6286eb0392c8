"""What would fit where: the table of docs/reference/scale.md, by simulation.

    python scripts/scale_table.py run --out runs/plan/scale.jsonl
    python scripts/scale_table.py table --out runs/plan/scale.jsonl

Each line of the table is a fresh `dpft plan`. What is in the file already is not simulated again:
the same command goes on after it was stopped. Of one core it takes about half an hour.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

from dpft.report.markdown import table

GIB = 2**30
_LAYOUTS, _STYLES = ("fsdp", "data"), ("bk", "per_layer")
_LLAMA = "model=llama-3-8b parallel=fsdp --length 1024"
_PIPELINE = (
    "model=llama-3-8b parallel=pipeline parallel.microbatches=16 --length 1024 --batch 1 --ranks 8 "
    "clip=per_device clip.count=8"
)
_GPT3 = (
    "model=gpt3-175b adapt=lora parallel=fsdp --length 1024 --batch 1 --checkpointing "
    "clip=per_layer"
)
COMMANDS = (
    *(f"model=gpt2 parallel={p} --batch 4 --length 1024 clip=bk --ranks 8" for p in _LAYOUTS),
    *(f"model=gpt2-xl parallel=fsdp --batch 4 --length 1024 clip={s} --ranks 8" for s in _STYLES),
    *(f"{_LLAMA} clip={s} --ranks 8 --batch 1" for s in (*_STYLES, "ghost")),
    f"{_LLAMA} clip=per_layer --ranks 64 --batch 1",
    *(f"{_LLAMA} adapt=lora clip={s} --ranks 8 --batch 4" for s in _STYLES),
    f"{_LLAMA} parallel.shards=8 clip=per_layer --ranks 64 --batch 1",
    *(f"{_PIPELINE} --rank {rank}" for rank in (0, 7)),
    *(f"{_GPT3} --ranks {ranks}" for ranks in (16, 64, 1024)),
)


def read(path: Path) -> dict[str, Any]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {row["command"]: row for row in map(json.loads, lines)}


def run(path: Path) -> None:
    """Simulate what is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for command in COMMANDS:
        if command in read(path):
            continue
        start = time.time()
        words = [sys.executable, "-m", "dpft", "plan", *command.split(), "--json"]
        done = subprocess.run(words, capture_output=True, text=True)
        if done.returncode:
            print(f"{command}: {done.stderr[-2000:]}", file=sys.stderr, flush=True)
            continue
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"command": command, **json.loads(done.stdout)}) + "\n")
        print(f"{command}: {time.time() - start:.0f} s", flush=True)


def rows(path: Path) -> Iterator[list[Any]]:
    """A row for each style of clipping, after one without privacy."""
    known = read(path)
    found = [(known[command], command) for command in COMMANDS if command in known]

    def same(entry: tuple[Mapping[str, Any], str]) -> str:
        return " ".join(word for word in entry[1].split() if not word.startswith("clip="))

    for what, entries in groupby(found, same):
        listed = list(entries)
        named = label(listed[0][0], what)
        if listed[0][0]["plain"] is not None:  # dpft has no pipelines without privacy
            yield [named, "none", *figures(listed[0][0], "plain")]
            named = ""
        for entry, command in listed:
            style = next(w for w in command.split() if w.startswith("clip="))
            yield [named, style.partition("=")[2], *figures(entry, "private")]
            named = ""


def label(entry: Mapping[str, Any], what: str) -> str:
    shape = entry["shape"]
    words = what.split()
    model = words[0].partition("=")[2] + (", LoRA" if "adapt=lora" in words else "")
    extra = ", checkpointing" if shape["checkpointing"] else ""
    return f"{model}; {layout(shape)}; B={shape['batch']}, T={shape['length']}{extra}"


def layout(shape: Mapping[str, Any]) -> str:
    """In a pipeline ranks hold different stages."""
    parallel, ranks = shape["parallel"], shape["ranks"]
    said = f"{parallel['name']}, {ranks} ranks"
    if parallel["shards"]:
        said = f"{parallel['name']} of {parallel['shards']} shards, {ranks} ranks"
    return f"{said}, rank {shape['rank']}" if parallel["name"] == "pipeline" else said


def figures(entry: Mapping[str, Any], side: str) -> list[str]:
    cost = entry[side]["cost"]
    traffic = cost["sent"]
    kinds = ("all-gather", "reduce-scatter", "all-reduce", "send")
    return [
        gib(cost["held"]),
        *during(cost["peaks"]),
        gib(cost["checked"]) if cost["checked"] else "",
        *(gib(traffic.get(kind, 0)) for kind in kinds),
    ]


def during(peaks: Mapping[str, int]) -> list[str]:
    """The most in the forward and in the backward, which a pipeline interleaves."""
    both = peaks.get("forward and backward")
    return ["", gib(both)] if both else [gib(peaks["forward"]), gib(peaks["backward"])]


def gib(size: int) -> str:
    return f"{size / GIB:.2f}" if size >= GIB / 100 or not size else f"{size / GIB:.1e}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=["run", "table"])
    parser.add_argument("--out", type=Path, default=Path("runs/plan/scale.jsonl"))
    options = parser.parse_args()
    if options.action == "run":
        run(options.out)
        return
    headings = [
        *("step of one rank", "clip", "between steps", "forward", "backward", "checked"),
        *("gathered", "scattered", "reduced", "handed on"),
    ]
    print(table(headings, list(rows(options.out)), left=2))


if __name__ == "__main__":
    main()
