"""What a run guarantees: computed once, stored in its record, and only rendered elsewhere.

Whether a run is private, of what unit, at which epsilon, what voids the guarantee and what it
leaves open is decided here. Imports no torch, so that whatever shows a record answers at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from dpft.privacy.meaning import meaning, strength, weakness
from dpft.privacy.rounding import delta as shown_delta
from dpft.privacy.rounding import down, number, percent, up
from dpft.privacy.spec import LARGE_DELTA

if TYPE_CHECKING:
    from dpft.privacy.mechanism import Mechanism

Kind = Literal["private", "nothing released", "none"]
Void = Literal["shuffled", "known seed", "refuted"]
VOIDS: Mapping[Void, str] = {
    "shuffled": "not proven for shuffled batches",
    "known seed": "to those who do not know the seed",
    "refuted": "refuted by an audit",
}
_LISTS = ("voided_by", "warnings", "caveats")

SHUFFLED = "Epsilon computed for Poisson sampling, run with shuffled batches."
NONE = (
    "no privacy guarantee: trained without noise, so that model, scores and texts may reveal "
    "training records, word for word"
)
NOTHING_RELEASED = "no training step was taken: the weights are those that it began with"

# PRV is composed for one direction, removing a record (docs/reference/accounting.md, Limits).
_BOUND = {
    "pld": "upper bound",
    "rdp": "upper bound",
    "prv": "upper bound for removal; for addition unproven",
}
# It is 0.967 where PLD proves 3.000, and 102.2 where PLD proves 8.000, in runs of few steps.
APPROXIMATION = "approximation for comparison with papers, no bound: may be far too small or large"
BY = {"pld": "privacy loss distributions", "rdp": "Renyi accounting"}

# What the guarantee of every private run leaves out, as Markdown sentences.
_SEARCH = (
    "**Hyperparameter search.** Each run on the same records spends its own budget, also those "
    "that were thrown away. Epsilon above is this run's alone."
)
_FURTHER_SEARCH = (
    "**Further search.** Epsilon above includes the choice among the candidates of one selection. "
    "Other runs on the same records spend their own budgets, also those that were thrown away."
)
_NOT_COVERED = (
    "**Other releases from the same data**: other models, statistics, earlier attempts. Their "
    "costs add up.",
    "**Copies.** What k records (or users, where those are the unit) say is covered by k times "
    "epsilon, and delta grows faster. How many copies there are is not stated, since exact counts "
    "are a release of their own: `dpft data check` counts those in a file for its owner.",
    "**The number of training records, or of users where those are the unit, N** is treated as "
    "public, and so are the choices that depend on it (sampling rate, delta, steps).",
    "**Floating-point noise.** The analysis is for real numbers; noise and sums have finitely many "
    "digits, which attacks on exact bit patterns can exploit.",
    "**The pseudo-random generator.** The guarantee holds against those who cannot break ChaCha20, "
    "which sampling and noise come from; or, in runs whose ledger states no `noise_version`, a "
    "statistical generator.",
    "**The `private/` folder** of the run holds noiseless statistics and the noise key. It is no "
    "part of this release and must not be published.",
    "**Validation and test records.** Scores are computed from them without noise, and generated "
    "texts may repeat their prompts or references.",
    "**Running time and memory use**, which depend on how many records a batch drew.",
)


@dataclass(frozen=True)
class Guarantee:
    """The section ``privacy`` of a record.

    Attributes:
        kind: ``private``; ``nothing released`` where no step was taken; ``none`` without noise.
        noun: of one unit of privacy, such as ``record`` or ``user``.
        unit: what one unit is, in words.
        neighbouring: how neighbouring data sets differ.
        steps_taken: noisy steps that were released, each time that one was.
        delta: None without a guarantee.
        epsilon: by accountant, see `Mechanism.epsilons`; None without a guarantee.
        stated: the least proven upper bound, which `statement` quotes; None where it is infinite.
        accountant: that computed `stated`.
        statement: one sentence without its full stop.
        strength: of epsilon and delta together, see `dpft.privacy.meaning.strength`.
        meaning: what epsilon and delta say, for people who have never read a paper on privacy.
        voided_by: what makes the statement untrue, or true only for some; usually nothing.
        warnings: a sentence or more on each of these. They stand above the figures.
        caveats: what this run's guarantee leaves open.
        selected: whether the guarantee includes the choice among several runs.
    """

    kind: Kind
    noun: str
    unit: str
    neighbouring: str
    steps_taken: int
    delta: float | None
    epsilon: Mapping[str, Any] | None
    stated: float | None
    accountant: str | None
    statement: str
    strength: str
    meaning: str
    voided_by: tuple[Void, ...]
    warnings: tuple[str, ...]
    caveats: tuple[str, ...]
    selected: bool

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Guarantee:
        """The guarantee that a run record states."""
        section = {field.name: record["privacy"][field.name] for field in fields(cls)}
        return cls(**section | {name: tuple(section[name]) for name in _LISTS})

    def to_dict(self) -> dict[str, Any]:
        """For a record: plain lists and numbers."""
        return asdict(self) | {name: list(getattr(self, name)) for name in _LISTS}

    @property
    def private(self) -> bool:
        """Whether anything is guaranteed: noise was added, or nothing was released."""
        return self.kind != "none"

    @property
    def sentence(self) -> str:
        """The statement as a sentence."""
        return f"{self.statement[:1].upper()}{self.statement[1:].removesuffix('.')}."

    @property
    def notes(self) -> tuple[str, ...]:
        """All that must be said below the statement: warnings, then caveats."""
        return (*self.warnings, *self.caveats)

    @property
    def not_covered(self) -> tuple[str, ...]:
        """What the guarantee of a run leaves out, as Markdown sentences; empty without one."""
        if not self.private:
            return ()
        return (_FURTHER_SEARCH if self.selected else _SEARCH, *_NOT_COVERED)

    def bounds(self) -> list[tuple[str, str]]:
        """Epsilon by each accountant that bounds it, as name and figure.

        PLD and PRV only where they were computed: of a selection only RDP is known.
        """
        if self.epsilon is None:
            return []
        epsilon, shuffled = self.epsilon, "shuffled" in self.voided_by
        rows = [("RDP", "rdp", epsilon.get("rdp"))]
        if epsilon.get("pld") is not None:
            rows.insert(0, ("PLD", "pld", epsilon["pld"]))
        if epsilon.get("prv"):
            rows.append(("PRV", "prv", epsilon["prv"].get("upper")))
        return [
            (f"Epsilon by {name} ({bound_kind(key, shuffled)})", up(value))
            for name, key, value in rows
        ]

    def figures(self) -> list[tuple[str, str]]:
        """All numbers of the guarantee, as name and figure; bounds are rounded to the safe side."""
        if self.epsilon is None or self.delta is None:
            return []
        rows = self.bounds()
        if prv := self.epsilon.get("prv"):
            note = f"; {prv['note']}" if prv.get("note") else ""
            between = f"bounds {down(prv.get('lower'))} to {up(prv.get('upper'))}{note}"
            rows += [
                ("Epsilon by PRV (estimate)", f"{number(prv.get('estimate'))}, {between}"),
                (
                    f"Epsilon by GDP-CLT ({APPROXIMATION})",
                    number(self.epsilon.get("gdp_clt")),
                ),
            ]
        return [
            *rows,
            ("Delta", shown_delta(self.delta)),
            ("Unit of privacy", self.unit),
            ("Neighbouring relation", self.neighbouring),
            ("Steps", f"{self.steps_taken:,}"),
        ]


def guarantee(
    mechanism: Mechanism,
    *,
    noun: str,
    unit: str,
    size: int | None = None,
    noise_seed: int | None = None,
    audit: Mapping[str, Any] | None = None,
    caveats: Sequence[str] = (),
) -> Guarantee:
    """What all steps of a mechanism guarantee.

    Args:
        mechanism: what ran.
        noun: of one unit, such as ``record``.
        unit: what one unit is, in words.
        size: how many units delta is compared with; None: the mechanism's. Canaries are no units.
        noise_seed: the explicit seed of the noise, if there was one.
        audit: what an audit of the run found: ``epsilon_lower``, ``confidence``, ``refuted``.
        caveats: what task, audit and base model add, where there is a guarantee.
    """
    if not mechanism.private:
        return _made("none", noun, unit, mechanism.steps, NONE)
    epsilon, at = mechanism.epsilons(), mechanism.delta
    if mechanism.steps == 0:
        return _made("nothing released", noun, unit, 0, NOTHING_RELEASED, epsilon, at)
    bound, size = stated(epsilon), size or mechanism.dataset_size
    warned = {**_refuted(audit, epsilon), **warnings(mechanism.sampling, noise_seed)}
    included = "the noisy counts behind the thresholds included, " if mechanism.quantiles else ""
    if mechanism.max_batch is not None:
        included += f"for Poisson samples cut to {mechanism.max_batch:,} {noun}s, "
    made = _made(
        "private",
        noun,
        unit,
        mechanism.releases,
        _statement(bound, at, accountant(epsilon), noun, unit, included),
        epsilon,
        at,
        size,
    )
    if "shuffled" in warned or "refuted" in warned:  # then no figure says anything
        made = replace(made, strength="none", meaning="")
    return replace(
        made,
        voided_by=tuple(warned),
        warnings=tuple(warned.values()),
        caveats=(
            *own_caveats(bound, at, noun, size),
            *_cut(mechanism, noun),
            *_repeated(mechanism),
            *caveats,
        ),
    )


def of_selection(
    trial: Guarantee, *, epsilon: float, delta: float, size: int, caveats: Sequence[str]
) -> Guarantee:
    """The guarantee of the best of several runs, in place of the trial's own.

    Args:
        trial: of the run that was chosen. Its epsilons, by whichever accountant, hold no longer.
        epsilon: of the whole selection, by Renyi DP.
        delta: at which it holds.
        size: how many units delta is compared with, as in the trial's own guarantee.
        caveats: on what the choice leaves open.
    """
    choice = "the choice of the best of a random number of runs included, "
    epsilons = {"pld": None, "rdp": epsilon, "gdp_clt": None, "prv": None}
    made = _made(
        "private",
        trial.noun,
        trial.unit,
        trial.steps_taken,
        _statement(stated(epsilons), delta, "rdp", trial.noun, trial.unit, choice),
        epsilons,
        delta,
        size,
    )
    # What was said of the trial's own epsilon and delta is said of these.
    said = own_caveats(trial.stated, trial.delta or delta, trial.noun, size)
    kept = [caveat for caveat in trial.caveats if caveat not in said]
    return replace(
        made,
        voided_by=trial.voided_by,
        warnings=trial.warnings,
        strength=made.strength if trial.strength != "none" else "none",
        meaning=made.meaning if trial.meaning else "",
        caveats=(*own_caveats(made.stated, delta, trial.noun, size), *kept, *caveats),
        selected=True,
    )


def stated(epsilon: Mapping[str, Any]) -> float | None:
    """The upper bound that a run states: the tightest proven one; None where it is infinite.

    Args:
        epsilon: by accountant, see `Mechanism.epsilons`.
    """
    value: float | None = epsilon[accountant(epsilon)]
    return value if value is not None and math.isfinite(value) else None


def accountant(epsilon: Mapping[str, Any]) -> str:
    """Which accountant computed `stated`."""
    return "rdp" if epsilon.get("pld") is None else "pld"


def least_claim(epsilon: Mapping[str, Any]) -> float:
    """The least epsilon that is given anywhere as an upper bound: what an audit may refute.

    Args:
        epsilon: by accountant, see `Mechanism.epsilons`.
    """
    prv = epsilon.get("prv")
    bounds = (stated(epsilon), prv["upper"] if prv else None)
    return float(min((bound for bound in bounds if bound is not None), default=math.inf))


def bound_kind(name: str, shuffled: bool) -> str:
    """What the epsilon of an accountant, ``prv``'s upper one, is a bound for.

    Args:
        name: ``pld``, ``rdp`` or ``prv``.
        shuffled: whether batches were shuffled, so that no figure is a bound.
    """
    return "for Poisson sampling, not a bound here" if shuffled else _BOUND[name]


def _made(
    kind: Kind,
    noun: str,
    unit: str,
    steps: int,
    statement: str,
    epsilon: Mapping[str, Any] | None = None,
    delta: float | None = None,
    size: int = 1,
) -> Guarantee:
    bound = None if epsilon is None else stated(epsilon)
    how, said = "none", ""
    if kind == "private" and delta is not None:
        how, said = strength(bound, delta, size), meaning(bound, delta, noun)
        if how == "none" and bound is not None:
            said = f"Delta is 1/N or more, so next to nothing is guaranteed to a {noun}."
    return Guarantee(
        kind=kind,
        noun=noun,
        unit=unit,
        neighbouring=f"add or remove one {noun}",
        steps_taken=steps,
        delta=delta,
        epsilon=epsilon,
        stated=bound,
        accountant=None if epsilon is None else accountant(epsilon),
        statement=statement,
        strength=how,
        meaning=said,
        voided_by=(),
        warnings=(),
        caveats=(),
        selected=False,
    )


def _statement(bound: float | None, at: float, by: str, noun: str, unit: str, included: str) -> str:
    figure = "infinity" if bound is None else f"{math.ceil(bound * 1000) / 1000:.12g}"
    return (
        f"({figure}, {shown_delta(at)})-differential privacy by {BY[by]}, {included}for adding or "
        f"removing one {noun}; one {noun} is {unit}"
    )


def warnings(sampling: str | None, noise_seed: int | None) -> dict[Void, str]:
    """What the settings of a run do to its guarantee, finished or not.

    Args:
        sampling: one of `dpft.privacy.spec.SAMPLINGS`.
        noise_seed: the explicit seed of the noise, if there is one.
    """
    warned: dict[Void, str] = {}
    if sampling == "shuffle":
        warned["shuffled"] = f"{SHUFFLED} The figures are not proven for this run."
    if noise_seed is not None:
        warned["known seed"] = (
            f"The noise came from the explicit seed {noise_seed}. Anyone who knows the seed, the "
            "code and the parts that do not depend on the data can recompute the noise and remove "
            "it. That is fine for research on public data, not for a release of private data: "
            "train again without a noise seed."
        )
    return warned


def marked(epsilon: float | None, voided_by: Iterable[Void]) -> str:
    """Return an epsilon for where it has no sentence: rounded up, with what voids it."""
    return ", ".join([up(epsilon), *(VOIDS[reason] for reason in voided_by)])


def _refuted(audit: Mapping[str, Any] | None, epsilon: Mapping[str, Any]) -> dict[Void, str]:
    if audit is None or not audit["refuted"]:
        return {}
    return {
        "refuted": "An audit of this very run refutes the guarantee: at "
        f"{percent(audit['confidence'])} confidence the run spent an epsilon of at least "
        f"{down(audit['epsilon_lower'])}, more than {up(least_claim(epsilon))}. Something in the "
        "code does not do what is accounted for. Do not release this model."
    }


def _cut(mechanism: Mechanism, noun: str) -> list[str]:
    if mechanism.max_batch is None:
        return []
    return [
        f"every batch has {mechanism.max_batch:,} places, which a Poisson sample of "
        f"{mechanism.batch_size:,} {noun}s on average is cut or filled up to. That a {noun} may "
        "push another one out, which moves the sum by up to twice the threshold, is counted in "
        f"epsilon: at each step with probability at most {shown_delta(mechanism.overflow)}"
    ]


def _repeated(mechanism: Mechanism) -> list[str]:
    if not mechanism.repeated:
        return []
    many = f"{mechanism.repeated:,} of the {mechanism.releases:,} noisy steps repeat earlier ones"
    return [
        f"{many}, since the run went on with other devices, threads or ranks: epsilon counts both "
        "releases of each. That total is proven if the run was not stopped, or moved, because of "
        "what its releases showed"
    ]


def own_caveats(bound: float | None, at: float, noun: str, size: int) -> list[str]:
    """Return what must be said of an epsilon and a delta of ``size`` units; usually nothing."""
    caveats = weakness(bound)
    if at >= 1 / size:
        caveats.append(
            f"delta is {shown_delta(at)} for {size:,} {noun}s: at 1/N and above, publishing a "
            f"random {noun} would pass; the guarantee says next to nothing"
        )
    elif at > LARGE_DELTA:
        caveats.append(
            f"delta is {shown_delta(at)} for {size:,} {noun}s: above {LARGE_DELTA:g} that is large "
            "for a chance of failure, and the bound is weak whatever epsilon is"
        )
    return caveats
