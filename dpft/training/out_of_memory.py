"""Where memory runs out: one message that says what to type, or the same again in smaller pieces.

A step that ran out of memory has released nothing: noise comes after the sum. It may be begun
again with a smaller microbatch, under the same draw and the same noise. But sums of other pieces
round differently, and one noise on two slightly different sums would be two releases of which one
is accounted for. So a step that was released once keeps its microbatch, also in a replay: `Budget`
writes down from which step on which size holds, before any step is released with it.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from dpft.config.errors import TrainingError
from dpft.runs.atomic import write_atomic
from dpft.runs.errors import START_OVER, RunError, disk_report
from dpft.runs.identity import opened, sealed
from dpft.runs.memory import is_out_of_memory

MICROBATCHES = "microbatches.json"
"""Where a run keeps from which step on microbatches have how many tokens; under ``private/``."""

T = TypeVar("T")
Pieces = Sequence[Sequence[int]]

_MORE_ROOM = "free some, or take a machine with more, and run the same command again"


def in_smaller_batches(size: int, halve: bool, run: Callable[[int], T]) -> T:
    """Decode, in smaller batches if it must be and may be.

    Args:
        size: ``decode.batch_size``.
        halve: whether to begin again with half of it where memory runs out; else it is an error.
        run: decodes everything in batches of so many prompts.

    Raises:
        TrainingError: if memory ran out and batches are not to be halved, or cannot be.
    """
    while True:
        try:
            return run(size)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if size == 1 or not halve:
                advice = (
                    f"type dpft decode RUN decode.batch_size={size // 2}, or, for a run of one "
                    "process, the same command with out_of_memory=halve; what was trained is kept"
                    if size > 1
                    else "type fewer decode.beams or decode.max_new_tokens, or take a machine with "
                    "more"
                )
                raise _refused(f"decoding with decode.batch_size={size}", error, advice) from error
        free()
        size //= 2


@contextmanager
def explained(doing: str) -> Iterator[None]:
    """Within this context running out of memory is a TrainingError, whatever ran out of it."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise _refused(doing, error, _MORE_ROOM) from error


def _refused(doing: str, error: BaseException, advice: str) -> TrainingError:
    said = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
    return TrainingError(f"out of memory in {doing} ({said}); expected room for it: {advice}")


def free() -> None:
    """Give back what a broken-off attempt held; call it when its exception is gone."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


class Budget:
    """Padded tokens that a microbatch may have, step by step.

    Args:
        tokens: as set.
        halve: whether a step that runs out of memory is begun again with half of them, which then
            holds for all later steps; else it is an error.
        file: where halvings are kept, under ``private/``: which step ran out of memory depends on
            the records that it drew. None: nowhere.
        released: steps that were released before this process; they keep what they had.
        warn: called with a message at each halving.
        fixed: whether the shapes that a record is computed in may depend on nobody else
            (`dpft.privacy.shapes`): which step runs out of memory does, so nothing is halved then.

    Attributes:
        sizes: steps, and how many tokens microbatches may have from each of them on.

    Raises:
        RunError: if the file is damaged.
    """

    def __init__(
        self,
        tokens: int,
        halve: bool = False,
        file: Path | None = None,
        released: int = 0,
        warn: Callable[[str], None] = lambda said: None,
        fixed: bool = False,
    ) -> None:
        self._halve = halve
        self._fixed = fixed
        self._file = file
        self._released = released
        self._warn = warn
        self.sizes: list[tuple[int, int]] = [(0, tokens)]
        self.sizes += _read(file) if file is not None and file.exists() else ()

    def at(self, step: int) -> int:
        """The tokens that a microbatch of this step may have."""
        return next(tokens for first, tokens in reversed(self.sizes) if first <= step)

    def attempt(
        self,
        step: int,
        cut: Callable[[int], Pieces],
        run: Callable[[Pieces], T],
        forget: Callable[[], None],
    ) -> T:
        """Sum up one step, in smaller pieces if it must be and may be.

        Args:
            step: its number.
            cut: microbatches of at most so many tokens.
            run: forms the whole sum from these, from the start; releases nothing.
            forget: undoes what a broken-off ``run`` left behind.
        """
        while True:
            tokens = self.at(step)
            pieces = cut(tokens)
            try:
                return run(pieces)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                smaller = self._smaller(step, tokens, pieces, cut, error)
            # Outside of the clause: the exception's frames hold the tensors that filled memory.
            forget()
            free()
            self.sizes.append((step, smaller))
            self._write()
            self._warn(
                f"out of memory in step {step} with microbatches of {tokens} tokens; the step is "
                f"begun again with {smaller}, which holds from here on"
            )

    def _smaller(
        self,
        step: int,
        tokens: int,
        pieces: Pieces,
        cut: Callable[[int], Pieces],
        error: Exception,
    ) -> int:
        """The largest halving that cuts the step otherwise.

        Raises:
            TrainingError: if the microbatch is not to be halved, or cannot be.
        """
        what, again = f"step {step} with optim.microbatch_tokens={tokens}", _MORE_ROOM
        smaller = tokens // 2
        while smaller and cut(smaller) == pieces:
            smaller //= 2
        anew = f"optim.microbatch_tokens={smaller} begins another run, which spends privacy anew"
        if not smaller:
            what = f"step {step} with one unit of privacy at a time"
            again = (
                "shorten the records (task.max_length), train fewer weights (adapt=lora), or take "
                "a machine with more"
            )
        elif step < self._released:
            what += ", with which it was released before"
            again += (
                ". Other microbatches would round the sum differently: a second release of the "
                "step, under the same noise"
            )
        elif self._fixed:
            again += (
                ". Where shapes are fixed (precision=bfloat16, parallel=pipeline, "
                "sampling=truncated_poisson) nothing is halved: no record's shapes may depend on "
                f"who is drawn with it. {anew}"
            )
        elif not self._halve:
            again = (
                "run the same command again with out_of_memory=halve, which goes on with this run; "
                f"{anew}"
            )
        else:
            return smaller
        raise _refused(what, error, again)

    def _write(self) -> None:
        self._keep(self.sizes[1:])

    def _keep(self, entries: Sequence[tuple[int, int]]) -> None:
        if self._file is None:
            return
        try:
            body = json.dumps(sealed({"tokens": entries}))
            write_atomic(self._file, f"{body}\n", mode=0o600)
        except OSError as error:
            raise RunError(
                f"could not write {self._file}: {disk_report(self._file.parent, error)}. Nothing "
                "is lost: free some space and run the same command again"
            ) from error


def begun_with(file: Path) -> int | None:
    """The tokens of the first step's microbatches that `begin_with` has written; None: none has.

    Raises:
        RunError: if the file is damaged.
    """
    return dict(_read(file)).get(0) if file.exists() else None


def begin_with(file: Path, tokens: int) -> None:
    """Keep what a run's microbatches begin with, before any step is released.

    Raises:
        RunError: if it cannot be written.
    """
    Budget(tokens, file=file)._keep([(0, tokens)])


def _read(file: Path) -> list[tuple[int, int]]:
    try:
        told = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(told, list):  # which earlier versions wrote, without a checksum
            told = opened(told)["tokens"]
        held = [(step, tokens) for step, tokens in told]
        if any(type(n) is not int or n < 0 for entry in held for n in entry):
            raise ValueError("numbers of steps and tokens expected")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunError(
            f"{file} cannot be read ({error}); expected from which step on microbatches had how "
            f"many tokens, without which no step can be repeated. Put it back, or {START_OVER}"
        ) from error
    return held
