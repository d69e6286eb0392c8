"""The settings of one benchmark: checked, and named so that a repeated command continues."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpft.config.errors import ConfigError, suggestion
from dpft.reproduce.bench.catalog import (
    BASELINE,
    COUNTED,
    DEFAULT_STYLES,
    DEVICES,
    DTYPES,
    MODELS,
    PEERS,
    STYLES,
    ModelInfo,
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
class Settings:
    """What is measured and how. Build it with `make`.

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
        untied: whether head and embedding are separate parameters.
        device: ``auto``, ``cpu`` or ``cuda``.
        dtype: ``float32``, ``bfloat16`` (autocast) or ``float64``.
        out: folder of the results.
        name: their file name without suffix; None: made from the settings.
    """

    model: str
    batch: int
    length: int | None
    styles: tuple[str, ...]
    peers: tuple[str, ...]
    rounds: int
    steps: int
    threads: int
    untied: bool
    device: str
    dtype: str
    out: Path
    name: str | None

    @classmethod
    def make(
        cls,
        *,
        threads: int,
        model: str = "tiny",
        batch: int | None = None,
        length: int | None = None,
        styles: str = DEFAULT_STYLES,
        peers: str = "",
        rounds: int = DEFAULT_ROUNDS,
        steps: int | None = None,
        untied: bool = False,
        device: str = "auto",
        dtype: str = "float32",
        out: Path = DEFAULT_OUT,
        name: str | None = None,
    ) -> Settings:
        """Settings as typed: lists are separated by commas, None means the model's usual value.

        Raises:
            ConfigError: saying what was got, what was expected, and what to type next.
        """
        _one_of("--model", model, MODELS)
        _one_of("--device", device, DEVICES)
        _one_of("--dtype", dtype, DTYPES)
        info = MODELS[model]
        numbers = {"--batch": batch, "--length": length, "--rounds": rounds, "--steps": steps}
        for option, number in (numbers | {"--threads": threads}).items():
            if number is not None and number < 1:
                raise ConfigError(f"{option} is {number}; expected a whole number of at least 1")
        if untied and not info.head:
            raise ConfigError(
                f"--untied, but {model} has no output head that shares the input embedding: leave "
                "it out"
            )
        return cls(
            model=model,
            batch=batch or info.batch,
            length=_length(model, info, length),
            styles=_styles(styles),
            peers=tuple(_listed("--peers", peers, PEERS)),
            rounds=rounds,
            steps=steps or info.steps,
            threads=threads,
            untied=untied,
            device=device,
            dtype=dtype,
            out=out,
            name=name,
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
        return "-".join([*parts, self.device] if self.device != "auto" else parts)

    @property
    def command(self) -> str:
        """The command that measures this, with every setting that is not the default."""
        usual = MODELS[self.model]
        options: list[tuple[str, object, object]] = [
            ("--model", self.model, None),
            ("--batch", self.batch, usual.batch),
            ("--length", self.length, usual.length),
            ("--styles", ",".join(self.styles), DEFAULT_STYLES),
            ("--peers", ",".join(self.peers), ""),
            ("--rounds", self.rounds, DEFAULT_ROUNDS),
            ("--steps", self.steps, usual.steps),
            ("--threads", self.threads, None),
            ("--device", self.device, "auto"),
            ("--dtype", self.dtype, "float32"),
            # An absolute folder says nothing to anybody else.
            ("--out", DEFAULT_OUT if self.out.is_absolute() else self.out, DEFAULT_OUT),
            ("--name", self.name, None),
        ]
        words = [word for option, got, usual in options if got != usual for word in (option, got)]
        words += ["--untied"] if self.untied else []
        return shlex.join(["dpft", "bench", *map(str, words)])

    def job(self, kind: str, variant: Variant | None = None, **more: Any) -> dict[str, Any]:
        """What a worker is told, as plain JSON data."""
        job: dict[str, Any] = {
            "kind": kind,
            "model": self.model,
            "batch": self.batch,
            "length": self.length,
            "steps": self.steps,
            "threads": self.threads,
            "device": self.device,
            "dtype": self.dtype,
            "threshold": THRESHOLD,
            "seed": SEED,
        }
        if variant is not None:
            job |= {"name": variant.name, "peer": variant.peer, "untied": variant.untied}
        return job | more


def _length(model: str, info: ModelInfo, length: int | None) -> int | None:
    if info.longest is None and length is not None:
        raise ConfigError(f"--length is {length}, but {model} reads images: leave it out")
    if length is not None and info.longest is not None and not 2 <= length <= info.longest:
        raise ConfigError(f"--length is {length}; expected 2 to {info.longest} tokens for {model}")
    return length or info.length


def _styles(text: str) -> tuple[str, ...]:
    """Styles in the order typed, with the baseline in front."""
    if text.strip() == "all":
        return STYLES
    given = []
    for item in _split(text):
        name, colon, number = item.partition(":")
        _one_of("--styles", name, STYLES)
        if colon and (name not in COUNTED or not number.isdecimal() or int(number) < 1):
            raise ConfigError(
                f"--styles has {item!r}; expected a style by name, and a number of at least 1 "
                f"after a colon for {' and '.join(COUNTED)} only, as in uniform:6"
            )
        given.append(item)
    return tuple(dict.fromkeys([BASELINE, *given]))


def _listed(option: str, text: str, known: Sequence[str] | Any) -> list[str]:
    items = _split(text)
    for item in items:
        _one_of(option, item, known)
    return list(dict.fromkeys(items))


def _split(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _one_of(option: str, got: str, known: Sequence[str] | Any) -> None:
    if got not in known:
        raise ConfigError(
            f"{option} has {got!r}{suggestion(got, known)}; expected one of {', '.join(known)}"
        )
