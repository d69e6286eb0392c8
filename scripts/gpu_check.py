"""Check and time dpft on a GPU that is lent for minutes, without a network.

    python scripts/gpu_check.py --device cpu --small   # everything in tiny sizes, here
    scripts/gpu_pack.sh pack .gpu                      # what must travel
    . scripts/gpu_pack.sh unpack .gpu/part-*; python3 scripts/gpu_check.py --limit 300   # there

Every part is a process with a time limit; what it printed until then counts. Results are written to
$OUT/gpu_check.json after every part, and printed as a table at the end. Parts overlap, but nothing
else runs while something is timed.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ARCHITECTURES = ("gpt2", "llama", "roberta_classifier", "t5", "bart", "vit", "wrn", "lora")
# Of norms and sums, as a share of their size.
TOLERANCE = {"float64": 1e-10, "float32": 2e-4, "bfloat16": 4e-2}
SHAPES = {"128": ("gpt2", 128, 100), "40": ("gpt2", 40, 100), "smollm2": ("smollm2-135m", 40, 100)}
COMMAND = [sys.executable, str(Path(__file__).resolve()), "--part"]
VARIANTS = ["none eager", "none compiled", "bk eager", "bk compiled", "per_layer eager"]
VARIANTS += ["per_layer compiled", "ghost eager"]
NOW = SimpleNamespace(**json.loads(os.environ.get("GPU_CHECK", "{}")))  # a part's settings
SHARED, ALONE = fcntl.LOCK_SH, fcntl.LOCK_EX


def emit(item: str, ok: bool | None = None, **numbers: Any) -> None:
    """Report a result of this part on standard output."""
    print("RESULT " + json.dumps({"item": item, "ok": ok, **numbers}), flush=True)


@contextmanager
def turn(how: int, item: str = "") -> Iterator[None]:
    """Hold the device, alone or with others; report an exception as the result of ``item``.

    Whoever waits to be alone is next.
    """
    with Path(NOW.place, "gate").open("w") as gate, Path(NOW.place, "device").open("w") as device:
        fcntl.flock(gate, ALONE)
        fcntl.flock(device, how)
        fcntl.flock(gate, fcntl.LOCK_UN)
        try:
            yield
        except Exception as error:  # whatever a compiler, a kernel or a driver raises
            if not item:
                raise
            emit(item, False, error=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")


def seconds(work: Callable[[], Any]) -> float:
    import torch

    began = time.perf_counter()
    work()
    if NOW.cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - began


def off(found: Sequence[Any], expected: Sequence[Any]) -> float:
    """Return the distance of tensors from others, as a share of the size of those."""
    pairs = [(x.double().cpu(), y.double().cpu()) for x, y in zip(found, expected, strict=True)]
    size = math.hypot(*(float(y.norm()) for _, y in pairs))
    return math.hypot(*(float((x - y).norm()) for x, y in pairs)) / size


def exact(names: str) -> None:
    kinds = [("float64", "bk"), ("float64", "per_layer"), ("bfloat16", "bk")]
    if not NOW.small:
        kinds += [("bfloat16", "per_layer"), ("float32", "bk"), ("float32", "per_layer")]
    for name in names.split("+"):
        for kind in [*kinds, *([("float32", "bk", 0.3)] if name == "gpt2" else [])]:
            item = " ".join(map(str, (name, *kind)))
            with turn(SHARED, item):
                numbers = compared(name, *kind)
                emit(item, all(x <= TOLERANCE[kind[0]] for x in numbers.values()), **numbers)


def compared(name: str, precision: str, style: str, dropout: float = 0.0) -> dict[str, float]:
    """Return how far a replayed program's norms and sums are from the eager step's and a loop's.

    The last record is padding. In a second batch the first record is not finite.
    """
    import torch

    from dpft.privacy import LostRecordError, make_clipper
    from dpft.tasks.objectives.objective import Batch
    from dpft.tasks.units import UnitBatch
    from dpft.training import executors
    from dpft.training.statistics import StepStatistics
    from tests.privacy import pairs, small_models
    from tests.privacy.reference import clip_records, record_gradients

    plain = "gpt2" if name == "lora" else name
    case = pairs.padded(name) if name in ("t5", "bart") else small_models.build(plain)
    case = small_models.gpt2(True, dropout) if dropout else case
    model = small_models.adapted(case.model) if name == "lora" else case.model
    dtype = torch.float64 if precision == "float64" else torch.float32
    device, size = torch.device(NOW.device), case.batch
    model.to(device, dtype)
    data = {n: x.to(device, dtype if x.is_floating_point() else None) for n, x in case.data.items()}
    data["scale"] = torch.ones(size, dtype=dtype, device=device)

    def losses(rows: Any) -> Any:
        halved = torch.autocast(device.type, torch.bfloat16, enabled=precision == "bfloat16")
        with halved, torch.device(device):  # losses make positions of their own
            found = case.losses(model, {n: x for n, x in rows.items() if n != "scale"})
        return found.to(dtype) * rows["scale"]

    seen = StepStatistics()

    def added(add: Callable[..., None], first: float = 1.0) -> list[Any]:
        executors.forget(clipper)
        torch.manual_seed(1)
        scale, weights = data["scale"].clone(), torch.ones(size, 1, dtype=torch.float64)
        scale[0] = first
        rows = UnitBatch(Batch(data | {"scale": scale}), weights, torch.arange(size) < size - 1)
        with executors.exact(clipper):
            add(rows.to(device), size - 1, seen)
        return [clipper.norms, *(p.grad.clone() for p in clipper.parameters.values())]

    units = SimpleNamespace(losses=lambda _, rows: losses(rows.batch.tensors))
    clipper = make_clipper(model, style, threshold=0.7)
    programs = executors.Programs(units, model, clipper, precision, NOW.backend)
    eagerly = partial(executors.add_clipped, units, model, clipper)
    added(programs.add)  # eagerly with every check, then as a program, which is compared
    replayed, eager = added(programs.add), added(eagerly)
    programs.settle(seen)
    numbers = {"norms": off(replayed[:1], eager[:1]), "sums": off(replayed[1:], eager[1:])}
    if dropout:
        return numbers
    with clipper.paused():
        alone = [{n: x[i : i + 1] for n, x in data.items()} for i in range(size - 1)]
        records = record_gradients(model, lambda i: losses(alone[i])[0], size - 1)
    groups, limits = [g.parameters for g in clipper.groups], clipper.thresholds

    def loop(records: Any) -> list[Any]:
        norms, total = clip_records(records, groups, lambda k, n: min(1.0, limits[k] / (n + 1e-30)))
        return [norms, *(total[n] for n in clipper.parameters)]

    numbers["loop"] = off(replayed, loop(records))
    added(programs.add, math.nan)
    with suppress(LostRecordError):
        programs.settle(seen)
        raise RuntimeError("the program does not report a record that is not finite")
    with suppress(LostRecordError):
        added(eagerly, math.nan)  # the clipper is careful from here on
    numbers["not finite"] = off(added(eagerly, math.nan)[1:], loop(records[1:])[1:])
    return numbers


def run(given: str) -> None:
    """Train as another part asks, alone or as a rank, and save the weights."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh

    from dpft.parallel.cohort import Replicas
    from dpft.parallel.sharded import Shards
    from dpft.training import setup
    from tests import small_runs

    words, file, layout, backend, size, rank = json.loads(given)
    cohort: Any = None
    if size:
        dist.init_process_group(backend, f"file://{file}.store", rank=rank, world_size=size)
        mesh = init_device_mesh("cuda" if NOW.cuda else "cpu", (size,))
        cohort, attach = Shards(mesh) if layout == "fsdp" else Replicas(), setup.attach_clipper
        # Alone, a rank has its collectives too.
        setup.attach_clipper = lambda clip, model, _: attach(clip, model, cohort)
    settings = small_runs.settings(Path(f"{file}-runs"), *words)
    found = list(small_runs.trained(settings, cohort).parts.loaded.model.parameters())
    found = [p.detach() if cohort is None else cohort.whole(p.detach()) for p in found]
    if not rank:
        torch.save([p.cpu() for p in found], file)


def started(words: Sequence[str], file: Path, *rank: Any) -> Any:
    words = [*words, f"device={NOW.device}", "optim.steps=8", "privacy.noise_seed=1", "clip=bk"]
    words += ["task.limit_train=48", "model.dropout=0", "optim.lr=0.01", "checkpoint_every=3"]
    given = json.dumps([words, str(file), *(rank or ("", "", 0, 0))])
    return subprocess.Popen([*COMMAND, "run:" + given], stderr=Path(f"{file}.err").open("ab"))


def ended(file: Path, *processes: Any) -> None:
    """Wait for processes; where one fails, end the others and raise what it said last."""
    while any(process.poll() is None for process in processes):
        if any(process.returncode for process in processes):
            break
        time.sleep(0.02)
    failed = any(process.returncode for process in processes)
    for process in processes:
        process.kill()
    if failed:
        raise RuntimeError(Path(f"{file}.err").read_text().strip().splitlines()[-1])


def killed() -> None:
    import torch

    one, other = Path(NOW.place, "unbroken"), Path(NOW.place, "killed")
    ledgers = [Path(f"{file}-runs/small/ledger.jsonl") for file in (one, other)]

    def counted() -> int:
        return ledgers[1].read_bytes().count(b"\n") if ledgers[1].exists() else 0

    with turn(SHARED):
        ended(one, started(["compile=true"], one))
        for lines in (3, 6):
            process = started(["compile=true"], other)
            while process.poll() is None and counted() <= lines:
                time.sleep(0.005)
            process.kill()
            process.wait()
        ended(other, started(["compile=true"], other))
    texts = [ledger.read_bytes() for ledger in ledgers]
    change = off(torch.load(other), torch.load(one))
    emit("ledger of a run killed twice", texts[0] == texts[1], lines=texts[0].count(b"\n"))
    emit("its weights", change < 1e-4, off=change)


def parallel() -> None:
    import torch

    whole = Path(NOW.place, "whole")
    with turn(SHARED):
        ended(whole, started(["compile=false"], whole))
    for size, backend in ((1, "nccl" if NOW.cuda else "gloo"), (2, "gloo")):
        for layout in ("data", "fsdp"):
            item, file = f"{layout}, {size} ranks, {backend}", Path(NOW.place, f"{layout}-{size}")
            words = ["compile=false", f"parallel={layout}"]
            with turn(SHARED, item):
                ended(file, *[started(words, file, layout, backend, size, n) for n in range(size)])
                change = off(torch.load(file), torch.load(whole))
                emit(item, change < 1e-3, off=change)


def steps(shape: str) -> None:
    model, batch, length = ("tiny", 4, 16) if NOW.small else SHAPES[shape]
    ready, peaks = {}, {}
    for name in VARIANTS:
        began = time.perf_counter()
        with turn(SHARED, name):
            ready[name], peaks[name] = variant(*name.split(), model, batch, length)
            emit(f"{name} is prepared", seconds=time.perf_counter() - began)
    times: dict[str, list[float]] = {name: [] for name in ready}
    with turn(ALONE):
        for _ in range(2 if NOW.small else 9):
            for name, step in ready.items():
                times[name].append(1e3 * seconds(step))
    middle = {name: median(found) for name, found in times.items()}
    for name, found in times.items():
        ratios = {f"to {o}": middle[name] / middle[o] for o in VARIANTS[:2] if o in middle}
        memory = {"GiB": peaks[name], "GiB to": peaks[name] / (peaks.get(VARIANTS[0]) or 1)}
        range_ = {"ms": middle[name], "least": min(found), "most": max(found)}
        emit(f"{name}, {batch} x {length}", **range_, **ratios, **(memory if NOW.cuda else {}))


def variant(style: str, how: str, name: str, batch: int, length: int) -> tuple[Any, float]:
    """Return a warm step, and the GiB that it takes at its peak, its model included."""
    import torch

    from dpft.privacy import make_clipper
    from dpft.reproduce.bench import workloads
    from dpft.tasks.objectives.objective import Batch
    from dpft.tasks.units import UnitBatch
    from dpft.training import executors
    from dpft.training.statistics import StepStatistics

    before = torch.cuda.memory_allocated() if NOW.cuda else 0
    given = {"length": length, "untied": False, "seed": 0, "device": NOW.device}
    workload = workloads.build(name, dtype=torch.float32, **given)  # type: ignore
    inputs, model = workload.inputs(batch), workload.model
    if how == "eager":
        eager = workloads.style_step(style, workload, 0.1, "bfloat16")
        for _ in range(16):  # the clipper checks steps whose number is a power of two
            eager.run(workload.inputs(2, short=True))
    else:
        clipper = make_clipper(model, style, threshold=None if style == "none" else 0.1)

        def losses(model: Any, rows: Any) -> Any:
            return workloads.losses(workload, model, rows.batch.tensors, "bfloat16", own=True)

        units: Any = SimpleNamespace(losses=losses)
        programs = executors.Programs(units, model, clipper, "bfloat16", NOW.backend)
        weights = torch.ones(batch, 1, dtype=torch.float64, device=NOW.device)

    def step() -> None:
        model.zero_grad()
        if how == "eager":
            eager.run(inputs)
            return
        seen = StepStatistics()
        with executors.exact(clipper):
            programs.add(UnitBatch(Batch(inputs), weights), batch, seen)
        programs.settle(seen)

    capture = torch.cuda.CUDAGraph.capture_begin

    def begin(*given: Any, **named: Any) -> None:  # a replay takes what its capture has allocated
        torch.cuda.reset_peak_memory_stats()
        capture(*given, **named)

    torch.cuda.CUDAGraph.capture_begin = begin  # type: ignore
    step()
    torch.cuda.CUDAGraph.capture_begin = capture  # type: ignore
    if NOW.cuda:
        torch.cuda.empty_cache()
        if how == "eager":
            torch.cuda.reset_peak_memory_stats()
    step()
    return step, (torch.cuda.max_memory_allocated() - before) / 2**30 if NOW.cuda else 0.0


def e2e(name: str) -> None:
    """Train on E2E for an epoch, while nothing else runs."""
    import torch
    from transformers import GPT2Config

    from dpft.training.predictions import predict
    from dpft.training.progress import Progress
    from tests import small_runs

    folder = Path(NOW.place, name)
    words = [f"device={NOW.device}", "task=e2e", "clip=bk", "eps=3", "precision=bfloat16"]
    words += ["privacy.noise_multiplier=null", "compile=true", "threads=null"]
    if NOW.small:
        words += ["model=random-gpt2", "task.limit_train=200", "task.limit_eval=40"]
        words += ["optim.batch_size=40", "optim.steps=6"]
    else:
        words += ["task.source=files", "task.limit_train=null", "task.limit_eval=null"]
        words += ["optim.batch_size=1024"]
        words += ["optim.steps=41", "optim.microbatch_tokens=25600"]
        # GPT-2's architecture and tokenizer, and no weights.
        tokenizer = f"{os.environ['DPFT_DATA']}/tokenizers/gpt2"
        place = Path(shutil.copytree(tokenizer, f"{folder}-model"))
        GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0).save_pretrained(place)
        gpt2 = "model=gpt2", f"model.path={place}", "model.init=scratch"
        words += ["model=smollm2-135m"] if name == "smollm2" else gpt2
    run = small_runs.settings(folder, *words, "decode=beam")
    with turn(ALONE):
        start = time.perf_counter()
        prepared = small_runs.trained(run)
        whole = time.perf_counter() - start
        task, prompts = prepared.task, prepared.task.instances("test")
        asked = (task, prepared.parts.loaded, prompts, run.decode, 0, Progress(quiet=True))
        decoding = seconds(lambda: predict(*asked))
    lines = (folder / "small/private/metrics.jsonl").read_text().splitlines()
    each = [(one["records"], one["seconds"]) for one in map(json.loads, lines)]
    steady = each[3:]  # each shape has its program by then
    numbers = {
        "records/s": sum(n for n, _ in steady) / sum(t for _, t in steady),
        "in the median step": median(n / t for n, t in steady),
        "compiling": sum(t for _, t in each[:3]),
        "all seconds": whole,
        f"prompts/s, {run.decode.beams} beams": len(prompts) / decoding,
        "GiB": torch.cuda.max_memory_allocated() / 2**30 if NOW.cuda else None,
    }
    spent = json.loads((folder / "small/ledger.jsonl").read_text().splitlines()[-1])
    numbers |= {"records": sum(n for n, _ in each), "epsilon (RDP)": spent["epsilon_rdp"]}
    emit(f"E2E, {name}, {len(each)} steps", True, **numbers)


def kernels() -> None:
    """Run the tests that need a GPU, and time the noise of a whole GPT-2."""
    import torch

    from dpft.privacy import noise

    with turn(SHARED, "tests on a GPU"):
        files = (ROOT / f"tests/privacy/test_{name}.py" for name in ("on_gpu", "kernels"))
        line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        line += [str(file) for file in files if file.exists()]
        done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
        emit("tests on a GPU", not done.returncode, said=done.stdout.strip().splitlines()[-1:])
    size = 10_000 if NOW.small else 124_439_808
    sums = torch.zeros(size, device=NOW.device)
    slices = [noise.Slice(part, bytes(32), 0.7) for part in sums.chunk(148)]
    kernel = noise._kernel(sums.device, sums.dtype)
    for name, add in {"CPU": noise.on_cpu, "one kernel": kernel}.items():
        with turn(ALONE, f"noise, {name}"):
            if add is not None:
                times = [seconds(partial(add, slices, 1 / 3)) for _ in range(3)]
                emit(f"noise, {name}, {size:,} numbers", ms=1e3 * min(times))


def check(options: argparse.Namespace, place: str) -> bool:
    """Run all parts, write the results after each, print them; return whether all is well."""
    import torch

    cuda, out = options.device != "cpu", Path(os.environ.get("OUT", ROOT / "build"))
    out.mkdir(parents=True, exist_ok=True)
    device = torch.cuda.get_device_name() if cuda else f"{os.cpu_count()} cores"
    parts: dict[str, Any] = {}
    report = {"device": device, "torch": torch.__version__, "small": options.small, "parts": parts}
    given = {"device": options.device, "small": options.small, "cuda": cuda, "place": place}
    given["backend"] = options.backend or ("inductor" if cuda else "graph")
    environment = {**os.environ, "GPU_CHECK": json.dumps(given), "HF_HUB_OFFLINE": "1"}
    environment |= {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    environment |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    # A step that runs without its program is an error.
    environment["PYTHONWARNINGS"] = "error:the step runs without compiling"
    began, lock = time.monotonic(), threading.Lock()

    def perform(name: str) -> None:
        start, status = time.monotonic() - began, -1
        with tempfile.TemporaryFile() as log:
            given = {"env": environment, "start_new_session": True, "stdout": log, "stderr": log}
            process = subprocess.Popen([*COMMAND, name], **given)  # type: ignore
            try:
                status = process.wait(max(0.1, min(options.most, options.limit - start)))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, 9)
            log.seek(0)
            lines = log.read().decode(errors="replace").splitlines()
        found = [json.loads(x.removeprefix("RESULT ")) for x in lines if x.startswith("RESULT ")]
        part = {"status": status, "seconds": time.monotonic() - began - start, "results": found}
        with lock:
            parts[name] = part | {"log": lines[-15:] if status else []}
            (out / "gpu_check.json").write_text(json.dumps(report, indent=1) + "\n")

    groups = ["+".join(ARCHITECTURES)] if options.small else ARCHITECTURES
    heavy = ["steps:128", "e2e:gpt2", *([] if options.small else ["e2e:smollm2"])]
    light = [*(f"exact:{group}" for group in groups), "killed", "parallel", "kernels", "steps:40"]
    light += [] if options.small else ["steps:smollm2"]
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(max(1, os.cpu_count() - 4)) as others:
        for name in [*heavy, *light]:
            if options.parts == "all" or name.startswith(tuple(options.parts.split(","))):
                (one if name in heavy else others).submit(perform, name)
    print(f"{device}, torch {torch.__version__}, {time.monotonic() - began:.0f} s")
    for name, part in parts.items():
        ends = {0: "done", -1: "out of time"}.get(part["status"], "failed")
        print(f"{name[:50]}: {ends}, {part['seconds']:.0f} s", *part["log"][-3:])
        for item, ok, *numbers in (result.items() for result in part["results"]):
            text = [f"{k} {x:.3g}" if isinstance(x, float) else f"{k} {x}" for k, x in numbers]
            mark = {True: "ok", False: "NO", None: ""}[ok[1]]
            print(f"  {mark:2} {item[1]:36} {', '.join(text)}"[:200])
    results = [one for part in parts.values() for one in part["results"]]
    return all(x["ok"] is not False for x in results) and not any(
        p["status"] for p in parts.values()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="tiny sizes")
    parser.add_argument("--backend", help="of programs; default: inductor on a GPU, else graph")
    parser.add_argument("--parts", default="all", help="names or their first words, with commas")
    parser.add_argument("--limit", type=float, default=470.0, help="seconds of all parts")
    parser.add_argument("--most", type=float, default=300.0, help="seconds of each part")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        from dpft.training import executors, session

        session.Programs = partial(executors.Programs, backend=NOW.backend)  # type: ignore
        name, _, given = options.part.partition(":")
        globals()[name](*([given] if given else []))
    else:
        with tempfile.TemporaryDirectory() as place:
            sys.exit(not check(options, place))


if __name__ == "__main__":
    main()
