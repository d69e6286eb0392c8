"""The guarantee of a run: computed once, stored in its record, and only rendered elsewhere.

Whether a run is private, of what unit, at which epsilon, what voids the guarantee and what it
leaves open is decided here. Imports no torch, so that whatever shows a record answers at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from decimal import ROUND_CEILING, ROUND_FLOOR
from typing import TYPE_CHECKING, Any, Literal

from dpft.privacy.rounding import delta as shown_delta
from dpft.privacy.rounding import down, number, percent, three_digits, up
from dpft.privacy.spec import LARGE_DELTA, SMALL_DELTA

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

# Epsilons up to these are strong and reasonable (Ponomareva et al., How to DP-fy ML, 2023, 5.2).
STRONG, REASONABLE = 1.0, 10.0
# Beyond it no sentence on chances says anything.
VACUOUS = 30.0
_GRADES = ("strong", "reasonable", "weak", "none")


@dataclass(frozen=True)
class Guarantee:
    """The section ``privacy`` of a record.

    Attributes:
        noun, unit: the name of one unit of privacy, such as ``record``, and what it is in words.
        steps_taken: noisy steps that were released, repeated ones counted again.
        epsilon: by accountant, see `Mechanism.epsilons`; None without a guarantee.
        stated: the least proven upper bound, which `statement` quotes; None where it is infinite.
        accountant: that computed `stated`.
        statement: one sentence without its full stop.
        strength: of epsilon and delta together, see `strength`.
        voided_by: what makes the statement untrue, or true only for some; usually nothing.
        warnings: a sentence or more on each of these.
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
    strength: str = "none"
    meaning: str = ""
    voided_by: tuple[Void, ...] = ()
    warnings: tuple[str, ...] = ()
    caveats: tuple[str, ...] = ()
    selected: bool = False

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Guarantee:
        """Return the guarantee that a run record states."""
        section = {field.name: record["privacy"][field.name] for field in fields(cls)}
        return cls(**section | {name: tuple(section[name]) for name in _LISTS})

    def to_dict(self) -> dict[str, Any]:
        """Return the section of a record: plain lists and numbers."""
        return asdict(self) | {name: list(getattr(self, name)) for name in _LISTS}

    @property
    def private(self) -> bool:
        """True if anything is guaranteed: noise was added, or nothing was released."""
        return self.kind != "none"

    @property
    def sentence(self) -> str:
        """The statement as a sentence."""
        return f"{self.statement[:1].upper()}{self.statement[1:].removesuffix('.')}."

    @property
    def verdict(self) -> str:
        """One sentence on epsilon and delta together; empty where they guarantee nothing to all."""
        if self.voided_by or self.strength == "none" or self.delta is None:
            return ""
        return (
            f"Epsilon is at most {up(self.stated)} and delta {shown_delta(self.delta)}, 1 in "
            f"{math.floor(round(1 / self.delta, 6)):,}, for each {self.noun}: a {self.strength} "
            "bound."
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """The sentences below the statement: warnings, then caveats."""
        return (*self.warnings, *self.caveats)

    @property
    def not_covered(self) -> tuple[str, ...]:
        """The limits of the guarantee, as Markdown sentences; empty without a guarantee."""
        if not self.private:
            return ()
        return (_FURTHER_SEARCH if self.selected else _SEARCH, *_NOT_COVERED)

    def figures(self) -> list[tuple[str, str]]:
        """Return the numbers of the guarantee by name, bounds rounded to the safe side.

        PLD and PRV only where they were computed: of a selection only RDP is known.
        """
        if self.epsilon is None or self.delta is None:
            return []
        prv = self.epsilon.get("prv") or {}
        bounds = {"pld": self.epsilon.get("pld"), "rdp": self.epsilon.get("rdp")}
        bounds["prv"] = prv.get("upper")
        shuffled = "shuffled" in self.voided_by
        rows = [
            (f"Epsilon by {name.upper()} ({bound_kind(name, shuffled)})", up(value))
            for name, value in bounds.items()
            if value is not None or name == "rdp" or (name == "prv" and prv)
        ]
        if prv:
            note = f"; {prv['note']}" if prv.get("note") else ""
            between = f"bounds {down(prv.get('lower'))} to {up(prv.get('upper'))}{note}"
            rows += [
                ("Epsilon by PRV (estimate)", f"{number(prv.get('estimate'))}, {between}"),
                (f"Epsilon by GDP-CLT ({APPROXIMATION})", number(self.epsilon.get("gdp_clt"))),
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
    """Return what all steps of a mechanism guarantee.

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
        return made("none", noun, unit, mechanism.steps, statement=NONE)
    epsilon, at = mechanism.epsilons(), mechanism.delta
    if mechanism.steps == 0:
        return made("nothing released", noun, unit, 0, epsilon, at, statement=NOTHING_RELEASED)
    size = size or mechanism.dataset_size
    included, own = "", own_caveats(stated(epsilon), at, noun, size)
    if mechanism.quantiles:
        included = "the noisy counts behind the thresholds included, "
    if mechanism.max_batch is not None:
        included += f"for Poisson samples cut to {mechanism.max_batch:,} {noun}s, "
        own.append(
            f"every batch has {mechanism.max_batch:,} places, which a Poisson sample of "
            f"{mechanism.batch_size:,} {noun}s on average is cut or filled up to. That a {noun} "
            "may push another one out, which moves the sum by up to twice the threshold, is "
            "counted in epsilon: at each step with probability at most "
            f"{shown_delta(mechanism.overflow)}"
        )
    if mechanism.repeated:
        own.append(
            f"{mechanism.repeated:,} of the {mechanism.releases:,} noisy steps repeat earlier "
            "ones, since the run went on with other devices, threads or ranks: epsilon counts both "
            "releases of each. That total is proven if the run was not stopped, or moved, because "
            "of what its releases showed"
        )
    warned: dict[Void, str] = {}
    if audit is not None and audit["refuted"]:
        warned["refuted"] = (
            "An audit of this very run refutes the guarantee: at "
            f"{percent(audit['confidence'])} confidence the run spent an epsilon of at least "
            f"{down(audit['epsilon_lower'])}, more than {up(least_claim(epsilon))}. Something in "
            "the code does not do what is accounted for. Do not release this model."
        )
    warned |= warnings(mechanism.sampling, noise_seed)
    said = claim(epsilon, at, noun, unit, size, included)
    if warned.keys() & {"shuffled", "refuted"}:  # then no figure says anything
        said |= {"strength": "none", "meaning": ""}
    return made(
        *("private", noun, unit, mechanism.releases, epsilon, at),
        **said,
        voided_by=tuple(warned),
        warnings=tuple(warned.values()),
        caveats=(*own, *caveats),
    )


def stated(epsilon: Mapping[str, Any]) -> float | None:
    """Return the upper bound that a run states, the tightest proven one; None if infinite.

    Args:
        epsilon: by accountant, see `Mechanism.epsilons`.
    """
    value: float | None = epsilon[_accountant(epsilon)]
    return value if value is not None and math.isfinite(value) else None


def _accountant(epsilon: Mapping[str, Any]) -> str:
    return "rdp" if epsilon.get("pld") is None else "pld"


def least_claim(epsilon: Mapping[str, Any]) -> float:
    """Return the least epsilon that is given as an upper bound: what an audit may refute."""
    prv = epsilon.get("prv")
    bounds = (stated(epsilon), prv["upper"] if prv else None)
    return float(min((bound for bound in bounds if bound is not None), default=math.inf))


def bound_kind(name: str, shuffled: bool) -> str:
    """Return what the epsilon of an accountant, ``prv``'s upper one, is a bound for.

    Args:
        name: ``pld``, ``rdp`` or ``prv``.
        shuffled: whether batches were shuffled, so that no figure is a bound.
    """
    return "for Poisson sampling, not a bound here" if shuffled else _BOUND[name]


def made(
    kind: Kind,
    noun: str,
    unit: str,
    steps: int,
    epsilon: Mapping[str, Any] | None = None,
    delta: float | None = None,
    **further: Any,
) -> Guarantee:
    """Return a guarantee whose fields follow from these, but for ``further`` ones."""
    return Guarantee(
        kind,
        *(noun, unit, f"add or remove one {noun}", steps, delta, epsilon),
        stated=None if epsilon is None else stated(epsilon),
        accountant=None if epsilon is None else _accountant(epsilon),
        **further,
    )


def claim(
    epsilon: Mapping[str, Any], at: float, noun: str, unit: str, size: int, included: str
) -> dict[str, Any]:
    """Return statement, strength and meaning of epsilons, in which something is ``included``."""
    bound = stated(epsilon)
    figure = "infinity" if bound is None else f"{math.ceil(bound * 1000) / 1000:.12g}"
    how, said = strength(bound, at, size), meaning(bound, at, noun)
    if how == "none" and bound is not None:
        said = f"Delta is 1/N or more, so next to nothing is guaranteed to a {noun}."
    return {
        "statement": (
            f"({figure}, {shown_delta(at)})-differential privacy by {BY[_accountant(epsilon)]}, "
            f"{included}for adding or removing one {noun}; one {noun} is {unit}"
        ),
        "strength": how,
        "meaning": said,
    }


def warnings(sampling: str | None, noise_seed: int | None) -> dict[Void, str]:
    """Return what the settings of a run do to its guarantee, finished or not.

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


def weakness(epsilon: float | None) -> list[str]:
    """Return a sentence on an epsilon that bounds little; none on others."""
    if epsilon is None or epsilon <= REASONABLE:
        return []
    odds = f"by a factor of {math.exp(epsilon):.2g}" if epsilon < 100 else "beyond all measure"
    return [
        f"epsilon is {up(epsilon)}, so that odds may change {odds}: above {REASONABLE:g} a bound "
        "promises little by itself (Ponomareva et al. 2023)"
    ]


def strength(epsilon: float | None, at: float, size: int) -> str:
    """Return the weaker grade of epsilon and delta: ``strong``, ``reasonable``, ``weak``, ``none``.

    At a delta of 1/N, N units being the ``size``, publishing one random record satisfies the
    definition (Dwork & Roth 2014, 2.3). The limits below it are dpft's own.
    """
    if epsilon is None or at >= 1 / size:
        return "none"
    large = (at > SMALL_DELTA or at > 1 / (10 * size)) + (at > LARGE_DELTA)
    return _GRADES[max((epsilon > STRONG) + (epsilon > REASONABLE), large)]


def meaning(epsilon: float | None, at: float, noun: str) -> str:
    """Return what epsilon and delta mean, in two or three sentences.

    Factor and chance are rounded up, so that no digit promises more than was computed.

    Args:
        epsilon: an upper bound; None: there is none.
        at: delta.
        noun: of one unit, such as ``record``.
    """
    if epsilon is None:
        return "There is no finite epsilon, so nothing is guaranteed."
    if epsilon > VACUOUS:
        return (
            f"With an epsilon of {up(epsilon)}, the bound on what the model reveals about a {noun} "
            "is so loose that nothing follows from it."
        )
    factor, sure = odds(epsilon)
    can = "can hardly tell" if epsilon <= STRONG else "is limited in telling"
    text = (
        f"An adversary who has the trained model {can} whether any one {noun} was used: the "
        f"probabilities of any conclusion with and without that {noun} differ by a factor of at "
        f"most {factor} (e to the power of epsilon), except for a remainder of delta = "
        f"{shown_delta(at)}. Delta aside, an adversary who holds it equally likely that a certain "
        f"{noun} was used or not can become at most {sure}% sure."
    )
    if epsilon > STRONG:
        text += (
            " That is the worst case. Known attacks achieve much less than the bound allows, which "
            "is an observation and not a proof."
        )
    return text


def odds(epsilon: float) -> tuple[str, str]:
    """Return what a finite epsilon bounds, as text, rounded up.

    Args:
        epsilon: an upper bound.

    Returns:
        The factor by which any event's probabilities differ, delta aside, and how sure, in percent,
        an adversary can become who started from an even chance.
    """
    factor = math.exp(epsilon)
    unsure = three_digits(100 / (1 + factor), ROUND_FLOOR)
    return f"{three_digits(factor, ROUND_CEILING):,f}", f"{100 - float(unsure):.6g}"
