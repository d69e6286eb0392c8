"""The settings of one benchmark: checked, and named so that a repeated command continues."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from dpft.config.errors import ConfigError, one_of
from dpft.reproduce.bench.catalog import (
    BASELINE,
    COUNTED,
    DEFAULT_STYLES,
    DEVICES,
    DTYPES,
    MODELS,
    PEERS,
    STYLES,
)

DEFAULT_ROUNDS = 3
DEFAULT_OUT = Path("runs/bench")
THRESHOLD = 0.1
SEED = 0


@dataclass(frozen=True)
class Variant:
    """One thing that is timed: a clipping style, or a peer.

    Attributes:
        name: a style, perhaps with a number (``uniform:6``), or a peer.
        peer: whether it is somebody else's implementation.
        untied: whether head and embedding are separate parameters.
        marked: whether to say so, since the benchmark's own models are tied.
    """

    name: str
    peer: bool = False
    untied: bool = False
    marked: bool = False

    @property
    def label(self) -> str:
        """The row's name, unique within a benchmark."""
        return f"{self.name} (untied)" if self.marked else self.name


@dataclass(frozen=True)
class BenchSettings:
    """What is measured and how. Build it with `make`; the fields are in the order of `command`.

    Attributes:
        model: a name in `MODELS`.
        batch: records per step, ``B``.
        length: tokens per record, ``T``; None for images.
        styles: clipping styles; ``none`` is always measured.
        peers: other implementations; they run untied whatever ``untied`` says, since tied they
            refuse or are wrong, and are compared with an untied ``none``.
        rounds: how often each variant runs, each time in a fresh process.
        steps: timed steps per process, after those that warm up.
        threads: of torch and OpenMP in each process.
        device: ``auto``, ``cpu`` or ``cuda``.
        dtype: ``float32``, ``bfloat16`` (autocast) or ``float64``.
        out: folder of the results.
        name: their file name without suffix; None: made from the settings.
        untied: whether head and embedding are separate parameters.
        time_only: measure no memory, which on a CPU takes four times as many steps.
        memory: GiB of the GPU that a largest batch may take; None: all of it.
    """

    model: str
    batch: int
    length: int | None
    styles: tuple[str, ...]
    peers: tuple[str, ...]
    rounds: int
    steps: int
    threads: int
    device: str
    dtype: str
    out: Path
    name: str | None
    untied: bool
    time_only: bool
    memory: float | None

    @classmethod
    def make(
        cls,
        *,
        threads: int,
        model: str = "tiny",
        styles: str = DEFAULT_STYLES,
        peers: str = "",
        **typed: Any,
    ) -> BenchSettings:
        """Settings as typed: lists are separated by commas, None means the model's usual value.

        Raises:
            ConfigError: saying what was got, what was expected, and what to type next.
        """
        one_of("--model", model, tuple(MODELS))
        given = {name: value for name, value in typed.items() if value is not None}
        settings = cls(
            **{"model": model, "threads": threads, **_usual(model), **given},
            styles=_styles(styles),
            peers=tuple(dict.fromkeys(_split(peers))),
        )
        settings._check()
        return settings

    def _check(self) -> None:
        info = MODELS[self.model]
        for peer in self.peers:
            one_of("--peers", peer, tuple(PEERS))
        one_of("--device", self.device, DEVICES)
        one_of("--dtype", self.dtype, DTYPES)
        for name in ("batch", "length", "rounds", "steps", "threads"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise ConfigError(f"--{name} is {number}; expected a whole number of at least 1")
        if self.memory is not None and not self.memory > 0:
            raise ConfigError(f"--memory is {self.memory:g}; expected GiB, more than 0")
        if self.length is not None and info.longest is None:
            raise ConfigError(
                f"--length is {self.length}, but {self.model} reads images: leave it out"
            )
        if info.longest is not None and not 2 <= (self.length or 0) <= info.longest:
            raise ConfigError(
                f"--length is {self.length}; expected 2 to {info.longest} tokens for {self.model}"
            )
        if self.untied and not info.head:
            raise ConfigError(
                f"--untied, but {self.model} has no output head that shares the input embedding: "
                "leave it out"
            )

    @property
    def variants(self) -> tuple[Variant, ...]:
        """Everything that a round measures, baselines first."""
        peers_untied = MODELS[self.model].head
        marked = peers_untied and not self.untied
        ours = [Variant(style, untied=self.untied) for style in self.styles]
        theirs = [Variant(p, True, untied=peers_untied, marked=marked) for p in self.peers]
        if theirs and marked:
            theirs.insert(0, Variant(BASELINE, untied=True, marked=True))
        return (*ours, *theirs)

    def baseline(self, variant: Variant) -> Variant:
        """The non-private variant that ``variant`` is divided by."""
        return Variant(BASELINE, untied=variant.untied, marked=variant.marked)

    @property
    def stem(self) -> str:
        """File name of the results, without suffix."""
        if self.name is not None:
            return self.name
        parts = [self.model, f"b{self.batch}"]
        parts += [f"t{self.length}"] if self.length else []
        parts += ["untied"] if self.untied else []
        parts += [self.dtype] if self.dtype != "float32" else []
        parts += [f"{self.memory:g}gib"] if self.memory is not None else []
        return "-".join([*parts, self.device] if self.device != "auto" else parts)

    @property
    def command(self) -> str:
        """The command that measures this, with every setting that is not the default."""
        usual = _usual(self.model) | {"styles": _split(DEFAULT_STYLES), "peers": []}
        words = ["dpft", "bench"]
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            if isinstance(value, tuple):
                value = list(value)
            # An absolute folder says nothing to anybody else.
            if (name in usual and value == usual[name]) or (name == "out" and value.is_absolute()):
                continue
            words.append(f"--{name.replace('_', '-')}")
            if not isinstance(value, bool):
                shown = f"{value:g}" if isinstance(value, float) else str(value)
                words.append(",".join(value) if isinstance(value, list) else shown)
        return shlex.join(words)

    def job(self, kind: str, variant: Variant | None = None, **more: Any) -> dict[str, Any]:
        """What a worker is told, as plain JSON data."""
        names = ("model", "batch", "length", "steps", "threads", "device", "dtype", "time_only")
        job = {"kind": kind, **{name: getattr(self, name) for name in (*names, "memory")}}
        job |= {"threshold": THRESHOLD, "seed": SEED}
        if variant is not None:
            job |= {"name": variant.name, "peer": variant.peer, "untied": variant.untied}
        return job | more


def _usual(model: str) -> dict[str, Any]:
    """Settings that nobody need type."""
    info = MODELS[model]
    return {
        **{"batch": info.batch, "length": info.length, "steps": info.steps},
        **{"rounds": DEFAULT_ROUNDS, "device": "auto", "dtype": "float32"},
        **{"out": DEFAULT_OUT, "name": None, "untied": False, "time_only": False, "memory": None},
    }


def _styles(text: str) -> tuple[str, ...]:
    """Styles in the order typed, with the baseline in front."""
    if text.strip() == "all":
        return STYLES
    given = _split(text)
    for item in given:
        name, colon, number = item.partition(":")
        one_of("--styles", name, STYLES)
        if colon and (name not in COUNTED or not number.isdecimal() or int(number) < 1):
            raise ConfigError(
                f"--styles has {item!r}; expected a style by name, and a number of at least 1 "
                f"after a colon for {' and '.join(COUNTED)} only, as in uniform:6"
            )
    return tuple(dict.fromkeys([BASELINE, *given]))


def _split(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]
