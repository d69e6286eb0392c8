"""The guarantee of a run as the section of its page, and in one sentence."""

from __future__ import annotations

from dataclasses import dataclass

from dpft.privacy.guarantee import BY, NONE, warnings
from dpft.privacy.meaning import verdict
from dpft.privacy.rounding import delta, up
from dpft.report.guarantee import Rows, audit_rows, mechanism_rows
from dpft.report.pages.gather import Gathered
from dpft.report.pages.values import section

UNKNOWN = (
    "Whether this run has a privacy guarantee is not known: there is neither a record nor a ledger "
    "of it. Take it for one without."
)


@dataclass(frozen=True)
class GuaranteeSection:
    """The section in the order of the page, most important first.

    Attributes:
        warnings: on what voids the guarantee.
        headline: the verdict; empty where it says nothing, or not against everybody.
        paragraphs: the formal statement; `dpft.report.pages.result` has what it means.
        caveats: what this run's guarantee leaves open.
        rows: all figures, with sampling, noise and clipping.
        not_covered: what every guarantee leaves out, as Markdown.
    """

    paragraphs: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    headline: str = ""
    caveats: tuple[str, ...] = ()
    rows: Rows | None = None
    not_covered: tuple[str, ...] = ()


def guarantee(run: Gathered) -> GuaranteeSection:
    """The section; for an unfinished run, of the steps that were planned and are in its ledger."""
    given = run.guarantee
    if run.record is None and run.private:
        return _so_far(run)
    if run.record is None or given is None or not given.private:
        return GuaranteeSection((brief(run),))
    rows = None
    if given.steps_taken:
        seed = run.record["seeds"].get("noise")
        mechanism = mechanism_rows(run.mechanism, run.config, seed)
        rows = [*given.figures(), *audit_rows(run.record), *mechanism]
    return GuaranteeSection(
        warnings=given.warnings,
        headline=verdict(given),
        paragraphs=(given.sentence,),
        caveats=given.caveats,
        rows=rows,
        not_covered=given.not_covered,
    )


def brief(run: Gathered) -> str:
    """The guarantee in one sentence."""
    if run.guarantee is not None:
        return run.guarantee.sentence
    if run.ledger is None:
        return UNKNOWN
    if not run.private:
        return f"{NONE[0].upper()}{NONE[1:]}."
    steps, spent = run.ledger.steps_spent, up(run.ledger.epsilon)
    if not steps:
        return f"So far 0 steps have spent epsilon {spent} by Renyi accounting."
    from dpft.report.cost import planned

    whole = up(planned(run.ledger))
    repeated = f" and {run.ledger.repeated:,} repeated ones" if run.ledger.repeated else ""
    text = (
        f"Releasing the weights as they are now costs epsilon {whole} by Renyi accounting, that of "
        f"all {run.mechanism.get('steps')} planned steps{repeated}."
    )
    if spent == whole:
        return text
    return (
        f"{text} That of the {steps} steps so far, {spent}, holds only if the run was stopped for "
        "a reason that does not depend on the records; that it diverged does depend on them."
    )


def _so_far(run: Gathered) -> GuaranteeSection:
    mechanism = run.mechanism
    of = f" of {mechanism['steps']:,}" if "steps" in mechanism else ""
    rows = [("Steps in the ledger", f"{run.next_step:,}{of}")]
    repeated = (run.ledger.steps_spent if run.ledger else 0) - run.next_step
    if repeated:
        rows.append(("Further releases of repeated steps", f"{repeated:,}"))
    if "delta" in mechanism:
        rows.append(("Delta", delta(mechanism["delta"])))
    # A run that repeats steps ends above its target; so may one whose accountant proves less.
    proven = mechanism.get("accountant") in BY and mechanism.get("sampling") != "shuffle"
    if mechanism.get("target_epsilon") is not None and proven and not repeated:
        rows.append(("Epsilon in the end, at most", up(mechanism["target_epsilon"])))
    if run.header.get("unit"):
        rows.append(("Unit of privacy", run.header["unit"]))
    text = f"The run is not finished. {brief(run)}"
    seed = section(run.config, "privacy").get("noise_seed")
    warned = tuple(warnings(mechanism.get("sampling"), seed).values())
    return GuaranteeSection((text,), warned, rows=rows)
