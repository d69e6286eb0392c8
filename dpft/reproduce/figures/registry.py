"""Every figure of the three papers: what kind it is, what it is made from, and who builds it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

from dpft.config.errors import ConfigError, suggestion
from dpft.reproduce.figures import computed, from_bench, heat, memory, points, private, tradeoff
from dpft.reproduce.figures.content import Axis, Content
from dpft.reproduce.figures.lists import Part, Rows
from dpft.reproduce.figures.materials import Materials
from dpft.reproduce.figures.points import Lines, by_label


class Kind(StrEnum):
    """What a figure is made from."""

    COMPUTED = "computed"
    RUNS = "runs"
    BENCH = "bench"
    PRIVATE = "private"
    NONE = "none"


@dataclass(frozen=True)
class Figure:
    """One figure.

    Attributes:
        name: as it is typed.
        title: in our words.
        source: in the paper.
        kind: see `Kind`; ``private`` is made from a run's noiseless files.
        build: from what is at hand; None: it cannot be made.
        parts: tables and lists that it needs.
        why: why it cannot be made.
    """

    name: str
    title: str
    source: str
    kind: Kind
    build: Callable[[str, str, str, Materials], Content] | None
    parts: tuple[Part, ...] = ()
    why: str = ""

    def content(self, at_hand: Materials) -> Content:
        """What it shows.

        Raises:
            ConfigError: if it cannot be made, or what it needs is not at hand.
        """
        if self.build is None:
            raise ConfigError(f"{self.name} cannot be made: {self.why}")
        return self.build(self.name, self.title, self.source, at_hand)


_MILLIONS = Axis("parameters without embeddings (millions)", "log")
_INFILLED: Rows = {"method": ("full + infilling",), "epsilon": (3, 8)}
_FULL: Rows = {"method": ("full",), "epsilon": (3, 8)}
_SIZES = (
    "Sizes without a printed number come from this figure's own list of runs. Parameters are "
    "counted in the blocks: of the paper's model for printed numbers, of the model that ran for "
    "ours."
)


def _sized(title: str, column: str, y: str, parts: tuple[int, ...]) -> Lines:
    return Lines(
        title, column, points.parameters, _MILLIONS, y, ("epsilon",), {}, parts, "points", "model"
    )


def _points(
    *panels: Lines, says: tuple[str, ...] = (), columns: int | None = None
) -> Callable[[str, str, str, Materials], Content]:
    def build(name: str, title: str, source: str, at_hand: Materials) -> Content:
        return points.points(name, title, source, at_hand, panels, says, columns)

    return build


def _curves(title: str, noise: str) -> Lines:
    return Lines(
        *(title, "cifar10_acc", points.epochs, Axis("epochs"), "accuracy (%)"),
        *(("clipping",), {"noise": noise}),
    )


def _timed(column: str, label: str) -> Lines:
    axis = Axis("minutes of training", from_zero=True)
    return Lines(label, column, points.wall_time, axis, label, ("clipping",))


def _computed(
    build: Callable[..., Content],
) -> Callable[[str, str, str, Materials], Content]:
    return lambda name, title, source, at_hand: build(name, title, source, at_hand.tell)


_STOPPED = "Each point is a run of its own that stops there, with the noise of the whole run."

FIGURES = (
    Figure(
        "li2022/1",
        "Scores by model size",
        "Li et al. 2022, Figure 1",
        Kind.RUNS,
        _points(
            _sized("MNLI", "mnli_m_acc", "matched accuracy (%)", (0, 2)),
            _sized("E2E", "bleu", "BLEU", (1, 2)),
            says=(_SIZES,),
        ),
        (
            Part("li2022/1", ("mnli_m_acc",), _INFILLED),
            Part("li2022/2", ("bleu",), _FULL),
            Part("li2022/1", own=True),
        ),
    ),
    Figure(
        "li2022/2",
        "E2E by learning rate and batch size",
        "Li et al. 2022, Figure 2",
        Kind.RUNS,
        heat.heat_maps,
        (Part("li2022/figure-2"),),
    ),
    Figure(
        "li2022/3a",
        "Larger batches need less noise for their size",
        "Li et al. 2022, Figure 3 (left)",
        Kind.COMPUTED,
        _computed(computed.effective_noise),
    ),
    Figure(
        "li2022/3b",
        "Score by the signal-to-noise ratio of the first steps",
        "Li et al. 2022, Figure 3 (right)",
        Kind.NONE,
        None,
        why=(
            "no run records the norm of the clipped mean gradient before noise, without which the "
            "ratio of its first 30 steps is not known; type dpft figure li2022/3a for the noise"
        ),
    ),
    Figure(
        "li2022/4",
        "Memory and throughput by model size",
        "Li et al. 2022, Figure 4",
        Kind.BENCH,
        partial(from_bench.model_sizes, styles=from_bench.LI),
    ),
    Figure(
        "li2022/5",
        "Scores by model size on five more tasks",
        "Li et al. 2022, Figure 5",
        Kind.RUNS,
        _points(
            _sized("MNLI", "mnli_mm_acc", "mismatched accuracy (%)", (0, 2)),
            _sized("SST-2", "sst2_acc", "accuracy (%)", (0, 2)),
            _sized("QQP", "qqp_acc", "accuracy (%)", (0, 2)),
            _sized("QNLI", "qnli_acc", "accuracy (%)", (0, 2)),
            _sized("DART", "bleu", "BLEU", (1, 2)),
            says=(_SIZES,),
        ),
        (
            Part("li2022/1", ("mnli_mm_acc", "sst2_acc", "qqp_acc", "qnli_acc"), _INFILLED),
            Part("li2022/8", ("bleu",), _FULL),
            Part("li2022/5", own=True),
        ),
    ),
    Figure(
        "li2022/6",
        "The square-root rule asks for too little noise at small batches",
        "Li et al. 2022, Figure 6",
        Kind.COMPUTED,
        _computed(computed.noise_by_rate),
    ),
    Figure(
        "li2022/7",
        "SST-2 by label words",
        "Li et al. 2022, Figure 7",
        Kind.RUNS,
        points.label_words,
        (Part("li2022/7", own=True),),
    ),
    Figure(
        "li2022/8",
        "E2E by learning rate and batch size, and by clipping threshold",
        "Li et al. 2022, Figure 8",
        Kind.RUNS,
        heat.heat_maps,
        (Part("li2022/figure-8a"), Part("li2022/figure-8b")),
    ),
    Figure(
        "li2022/9",
        "E2E by delta and by epsilon",
        "Li et al. 2022, Figure 9",
        Kind.RUNS,
        _points(
            Lines(
                *("ε = 3", "bleu", by_label("delta"), Axis("δ", "log"), "BLEU"),
                where={"varied": "delta"},
            ),
            Lines(
                *("δ = 1e-5", "bleu", by_label("epsilon"), Axis("ε"), "BLEU"),
                where={"varied": "epsilon"},
            ),
        ),
        (Part("li2022/9", own=True),),
    ),
    Figure(
        "he2022/1",
        "Memory and throughput of per-layer clipping by model size",
        "He et al. 2022, Figure 1",
        Kind.BENCH,
        partial(from_bench.model_sizes, styles=from_bench.HE),
    ),
    Figure(
        "he2022/2",
        "Norms of records' gradients by layer",
        "He et al. 2022, Figure 2",
        Kind.PRIVATE,
        private.norms_by_layer,
        (Part("he2022/2", own=True),),
    ),
    Figure(
        "he2022/3",
        "CIFAR-10 in the course of training",
        "He et al. 2022, Figure 3",
        Kind.RUNS,
        _points(
            _curves("with noise", "with noise"),
            _curves("without noise", "without noise"),
            says=(_STOPPED,),
        ),
        (Part("he2022/3", own=True),),
    ),
    Figure(
        "he2022/4",
        "Histograms of records' gradient norms",
        "He et al. 2022, Figure 4",
        Kind.PRIVATE,
        private.histograms,
        (Part("he2022/4", own=True),),
    ),
    Figure(
        "he2022/5",
        "Accuracy by target quantile",
        "He et al. 2022, Figure 5",
        Kind.RUNS,
        _points(
            Lines(
                *("CIFAR-10", "cifar10_acc", by_label("quantile")),
                *(Axis("target quantile"), "accuracy (%)", ("epsilon",)),
            ),
            Lines(
                *("SST-2", "sst2_acc", by_label("quantile")),
                *(Axis("target quantile"), "accuracy (%)", ("epsilon",)),
            ),
        ),
        (Part("he2022/5", own=True),),
    ),
    Figure(
        "he2022/6",
        "SST-2 by the share of the budget that quantiles get",
        "He et al. 2022, Figure 6",
        Kind.RUNS,
        _points(
            Lines(
                *("SST-2", "sst2_acc", by_label("share"), Axis("share of the budget (%)", "log")),
                *("accuracy (%)", ("epsilon",)),
            ),
        ),
        (Part("he2022/6", own=True),),
    ),
    Figure(
        "he2022/7",
        "Loss on E2E by wall time",
        "He et al. 2022, Figure 7",
        Kind.PRIVATE,
        private.losses_by_time,
        (Part("he2022/8", ("bleu",), {"epochs": (10,)}, own=True),),
    ),
    Figure(
        "he2022/8",
        "Scores on E2E by wall time",
        "He et al. 2022, Figure 8",
        Kind.RUNS,
        _points(_timed("bleu", "BLEU"), _timed("rouge_l", "ROUGE-L"), says=(_STOPPED,)),
        (Part("he2022/8", own=True),),
    ),
    Figure(
        "he2022/9",
        "Memory and throughput of per-layer clipping on another device",
        "He et al. 2022, Figure 9",
        Kind.BENCH,
        partial(from_bench.model_sizes, styles=from_bench.HE, place=1),
    ),
    Figure(
        "bu2023/1",
        "Accuracy by memory, for clipping groups from one to one a parameter",
        "Bu et al. 2023, Figure 1",
        Kind.RUNS,
        tradeoff.styles_by_memory,
        (
            Part("bu2023/4", ("cifar100_acc",), {"epsilon": (2,)}),
            Part(
                "bu2023/7",
                ("qnli_acc",),
                {
                    "epsilon": (3,),
                    "clipping": ("all-layer (AUTO)", "block-wise", "layer-wise", "param-wise"),
                },
            ),
        ),
    ),
    Figure(
        "bu2023/2",
        "Order of the backward's parts",
        "Bu et al. 2023, Figure 2",
        Kind.NONE,
        None,
        why="it is a drawing of an algorithm and has no data; docs/reference/clipping.md describes "
        "the plans",
    ),
    Figure(
        "bu2023/3",
        "Accuracy, memory and time by clipping groups, ViT-large",
        "Bu et al. 2023, Figure 3",
        Kind.RUNS,
        tradeoff.styles_side_by_side,
        (Part("bu2023/4", ("cifar100_acc",), {"epsilon": (2,), "model": ("ViT-large",)}),),
    ),
    Figure(
        "bu2023/4",
        "Memory along one step, by clipping groups (Fact 6.1)",
        "Bu et al. 2023, Figure 4",
        Kind.COMPUTED,
        lambda name, title, source, at_hand: memory.profile(name, title, source),
    ),
    Figure(
        "bu2023/5",
        "Memory and throughput by the number of groups",
        "Bu et al. 2023, Figure 5",
        Kind.BENCH,
        from_bench.number_of_groups,
    ),
    Figure(
        "bu2023/6",
        "Accuracy by memory: where two groups are cut",
        "Bu et al. 2023, Figure 6",
        Kind.RUNS,
        tradeoff.boundaries_by_memory,
        (Part("bu2023/3"),),
    ),
)


def names() -> list[str]:
    """Every figure as it is typed."""
    return [figure.name for figure in FIGURES]


def load(name: str) -> Figure:
    """The figure of a name.

    Raises:
        ConfigError: if there is none.
    """
    for figure in FIGURES:
        if figure.name == name:
            return figure
    halves = [known for known in names() if known.startswith(name) and known != name]
    meant = f"; did you mean {' or '.join(halves)}?" if halves else suggestion(name, names())
    raise ConfigError(f"there is no figure {name!r}{meant}; type dpft figure for all of them")
