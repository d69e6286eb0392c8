"""The choices of ``dpft bench``: models, clipping styles and peers, and the checked settings."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from dpft.config.errors import ConfigError, one_of


@dataclass(frozen=True)
class ModelInfo:
    """Defaults of a model, the ``longest`` text that it takes, and whether it has a tied head."""

    batch: int
    length: int | None = None
    longest: int | None = None
    head: bool = False
    steps: int = 5


_GPT2 = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
MODELS: Mapping[str, ModelInfo] = {
    "tiny": ModelInfo(8, 64, 256, True, steps=30),
    **dict.fromkeys(_GPT2, ModelInfo(4, 100, 1024, True)),
    "smollm2-135m": ModelInfo(4, 100, 8192, True),
    "roberta-base": ModelInfo(8, 128, 512),
    "vit-small": ModelInfo(8),
    "vit-base": ModelInfo(8),
    "wrn16-4": ModelInfo(32),
}
BASELINE = "none"
STYLES = (
    *(BASELINE, "materialised", "lee_kifer", "ghost", "bk", "per_layer", "per_param", "block_wise"),
    *("uniform", "two_group", "by_type", "per_layer_adaptive", "flat_adaptive"),
)
# Styles that take a number after a colon: the number of groups, or of blocks in the first group.
COUNTED = ("uniform", "two_group")
DEFAULT_STYLES = "none,materialised,ghost,bk,per_layer"
PEERS = ("opacus", "opacus-ghost")
# bfloat16 means autocast: parameters, norms and sums stay in float32.
DTYPES = ("float32", "bfloat16", "float64")
DEFAULT_ROUNDS = 3
DEFAULT_OUT = Path("runs/bench")


@dataclass(frozen=True)
class BenchSettings:
    """The variants to measure. Build it with `make`.

    A style may have a number: ``uniform:6``. With ``untied`` head and embedding are separate
    parameters; with ``peers`` they are, since these do not support tied weights or clip them
    wrongly. ``steps`` follow those that warm up.
    """

    model: str
    batch: int
    length: int | None
    styles: tuple[str, ...]
    peers: tuple[str, ...]
    rounds: int
    steps: int
    threads: int
    device: str = "auto"
    dtype: str = "float32"
    out: Path = DEFAULT_OUT
    untied: bool = False

    @classmethod
    def make(cls, *, threads: int, model: str = "tiny", **typed: Any) -> BenchSettings:
        """Return settings as typed: commas separate lists, None means the model's default."""
        one_of("--model", model, tuple(MODELS))
        info = MODELS[model]
        usual: dict[str, Any] = {"batch": info.batch, "length": info.length}
        usual |= {"steps": info.steps, "rounds": DEFAULT_ROUNDS}
        usual |= {"styles": DEFAULT_STYLES, "peers": ""}
        given = usual | {name: value for name, value in typed.items() if value is not None}
        styles, peers = (
            [item.strip() for item in given.pop(name).split(",") if item.strip()]
            for name in ("styles", "peers")
        )
        chosen = STYLES if styles == ["all"] else dict.fromkeys([BASELINE, *styles])
        given |= {"styles": tuple(chosen), "peers": tuple(dict.fromkeys(peers))}
        given["untied"] = given.get("untied", False) or bool(peers and info.head)
        return cls(model=model, threads=threads, **given)

    def __post_init__(self) -> None:
        info = MODELS[self.model]
        for item in self.styles:
            name, colon, number = item.partition(":")
            one_of("--styles", name, STYLES)
            if colon and (name not in COUNTED or not number.isdecimal() or int(number) < 1):
                raise ConfigError(
                    f"--styles has {item!r}; expected a style by name, and a number of at least 1 "
                    f"after a colon for {' and '.join(COUNTED)} only, as in uniform:6"
                )
        for peer in self.peers:
            one_of("--peers", peer, PEERS)
        one_of("--device", self.device, ("auto", "cpu", "cuda"))
        one_of("--dtype", self.dtype, DTYPES)
        for name in ("batch", "length", "rounds", "steps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"--{name} is {value}; expected a number above 0")
        if info.longest is None and self.length is not None:
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
    def variants(self) -> tuple[str, ...]:
        """The styles and peers that a round measures, the baseline first."""
        return (*self.styles, *self.peers)

    @property
    def stem(self) -> str:
        """File name of the results, without suffix."""
        parts = [self.model, f"b{self.batch}"]
        parts += [f"t{self.length}"] if self.length else []
        parts += ["untied"] if self.untied else []
        parts += [self.dtype] if self.dtype != "float32" else []
        parts += [self.device] if self.device != "auto" else []
        return "-".join(parts)

    @property
    def command(self) -> str:
        """The command that measures this, without the folder of the results."""
        words = ["dpft", "bench"]
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("threads", "out") or value in (None, (), False):
                continue
            words.append(f"--{field.name}")
            if value is not True:
                words.append(",".join(value) if isinstance(value, tuple) else str(value))
        return f"OMP_NUM_THREADS={self.threads} {shlex.join(words)}"

    def job(self, kind: str, name: str | None = None) -> dict[str, Any]:
        """Return a job for a worker, of the variant of that name, as plain JSON data."""
        names = ("model", "batch", "length", "steps", "threads", "device", "dtype", "untied")
        job = {"kind": kind, "name": name, "threshold": 0.1, "seed": 0}
        return job | {name: getattr(self, name) for name in names}
