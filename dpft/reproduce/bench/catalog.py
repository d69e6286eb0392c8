"""What ``dpft bench`` measures: models, clipping styles and peers, and the checked settings."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dpft.config.errors import ConfigError, one_of


@dataclass(frozen=True)
class ModelInfo:
    """Defaults of a model, the ``longest`` text that it takes, and whether it has a tied head."""

    batch: int
    length: int | None
    longest: int | None
    head: bool
    steps: int = 5


_GPT2 = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
MODELS: Mapping[str, ModelInfo] = {
    "tiny": ModelInfo(8, 64, 256, True, steps=30),
    **dict.fromkeys(_GPT2, ModelInfo(4, 100, 1024, True)),
    "smollm2-135m": ModelInfo(4, 100, 8192, True),
    "roberta-base": ModelInfo(8, 128, 512, False),
    "vit-small": ModelInfo(8, None, None, False),
    "vit-base": ModelInfo(8, None, None, False),
    "wrn16-4": ModelInfo(32, None, None, False),
}

BASELINE = "none"
STYLES = (
    *(BASELINE, "materialised", "lee_kifer", "ghost", "bk", "per_layer", "per_param", "block_wise"),
    *("uniform", "two_group", "by_type", "per_layer_adaptive", "flat_adaptive"),
)
# Styles that take a number after a colon: the number of groups, or of blocks in the first group.
COUNTED = ("uniform", "two_group")
DEFAULT_STYLES = "none,materialised,ghost,bk,per_layer"
# ``-linear`` replaces every Conv1D by a Linear first, for which Opacus has faster rules.
PEERS = ("opacus", "opacus-linear", "opacus-ghost", "opacus-ghost-linear")
# bfloat16 means autocast: parameters, norms and sums stay in float32.
DTYPES = ("float32", "bfloat16", "float64")
DEFAULT_ROUNDS = 3
DEFAULT_OUT = Path("runs/bench")
THRESHOLD = 0.1
SEED = 0


def require_peers() -> None:
    """Raise ConfigError unless the peers are installed."""
    if find_spec("opacus") is None:
        raise ConfigError(
            "peers need Opacus, which is not installed: type pip install 'dpft[peers]'"
        )


@dataclass(frozen=True)
class Variant:
    """A clipping style, possibly with a number (``uniform:6``), or a peer that is timed.

    With ``untied`` head and embedding are separate parameters; ``marked`` ones say so in the label.
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

    Peers run untied whatever ``untied`` says, since on tied weights they refuse or are wrong, and
    are compared with an untied ``none``. ``steps`` come after those that warm up. ``memory`` is the
    GiB of the GPU that a largest batch may take; None: all of it.
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
        """Return settings as typed: commas separate lists, None means the model's default."""
        one_of("--model", model, tuple(MODELS))
        info = MODELS[model]
        usual = {
            **{"batch": info.batch, "length": info.length, "steps": info.steps},
            **{"rounds": DEFAULT_ROUNDS, "device": "auto", "dtype": "float32"},
            **{"out": DEFAULT_OUT, "name": None, "untied": False, "time_only": False},
            "memory": None,
        }
        given = {name: value for name, value in typed.items() if value is not None}
        return cls(
            **{"model": model, "threads": threads, **usual, **given},
            styles=_styles(styles),
            peers=tuple(dict.fromkeys(_split(peers))),
        )

    def __post_init__(self) -> None:
        info = MODELS[self.model]
        for peer in self.peers:
            one_of("--peers", peer, PEERS)
        one_of("--device", self.device, ("auto", "cpu", "cuda"))
        one_of("--dtype", self.dtype, DTYPES)
        for name in ("batch", "length", "rounds", "steps", "threads", "memory"):
            number = getattr(self, name)
            if number is not None and not number > 0:
                raise ConfigError(f"--{name} is {number}; expected a number above 0")
        if info.longest is None:
            if self.length is not None:
                raise ConfigError(
                    f"--length is {self.length}, but {self.model} reads images: leave it out"
                )
        elif not 2 <= (self.length or 0) <= info.longest:
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
        """Return the non-private variant that ``variant`` is divided by."""
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
        usual = BenchSettings.make(threads=self.threads, model=self.model)
        words = ["dpft", "bench"]
        for name in (field.name for field in fields(self)):
            value = getattr(self, name)
            default = name not in ("model", "threads") and value == getattr(usual, name)
            # An absolute folder exists on this machine only.
            if default or (name == "out" and value.is_absolute()):
                continue
            words.append(f"--{name.replace('_', '-')}")
            if isinstance(value, tuple):
                words.append(",".join(value))
            elif not isinstance(value, bool):
                words.append(f"{value:g}" if isinstance(value, float) else str(value))
        return shlex.join(words)

    def job(self, kind: str, variant: Variant | None = None, **more: Any) -> dict[str, Any]:
        """Return a job for a worker, as plain JSON data."""
        names = ("model", "batch", "length", "steps", "threads", "device", "dtype", "time_only")
        job = {"kind": kind, **{name: getattr(self, name) for name in (*names, "memory")}}
        job |= {"threshold": THRESHOLD, "seed": SEED}
        if variant is not None:
            job |= {"name": variant.name, "peer": variant.peer, "untied": variant.untied}
        return job | more


def _styles(text: str) -> tuple[str, ...]:
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
