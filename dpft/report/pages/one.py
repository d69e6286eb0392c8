"""The page of one run."""

from __future__ import annotations

from collections.abc import Callable

from dpft.report.pages import svg
from dpft.report.pages.curves import noiseless, released
from dpft.report.pages.frame import Html, joined, listed, page, paragraph, text
from dpft.report.pages.gather import Gathered, Options
from dpft.report.pages.guarantee import brief, guarantee
from dpft.report.pages.sections import cost, provenance, samples, scores, summary
from dpft.report.pages.settings import configuration

STYLE = (
    svg.STYLE
    + """
body { max-width: 62rem; }
h2 { font-size: 1.1rem; margin-top: 2rem; border-bottom: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.5rem 0 .3rem; }
a { color: var(--better); }
nav { margin: .5rem 0; } nav a { margin-right: .9rem; }
.banner { border: 2px solid var(--worse); border-left-width: 8px; padding: .5rem .8rem;
  font-weight: 600; }
.note { border-left: 4px solid var(--line); padding: .3rem .8rem; }
.problems { color: var(--worse); }
.facts th { font-weight: 400; color: var(--quiet); } .facts td { overflow-wrap: anywhere; }
td a { white-space: nowrap; }
.samples td { white-space: pre-wrap; overflow-wrap: anywhere; max-width: 24rem; }
.samples td div + div { margin-top: .4rem; }
summary { cursor: pointer; color: var(--quiet); margin: .4rem 0; }
code { overflow-wrap: anywhere; }
@media print {
  :root { color-scheme: light; --text: #000; --paper: #fff; --line: #bbb; --quiet: #444; }
  body { margin: 0; max-width: none; font-size: 10pt; } nav { display: none; }
  .wide { overflow: visible; } tr { break-inside: avoid; } h2, h3 { break-after: avoid; }
  details::details-content { content-visibility: visible; block-size: auto; }
}
"""
)

PRIVATE = (
    "Not covered by the guarantee: do not publish. This page shows losses, clipped fractions, "
    "gradient norms or batch sizes, which are computed from the training records without noise."
)
PUBLIC = (
    "Losses, gradient norms, clipped fractions and batch sizes are not on this page: they are "
    "computed from the training records without noise, and no guarantee covers them. "
    "Scores are computed from the records of their split, test or dev, as they are."
)
NO_METRICS = (
    "There is no private/metrics.jsonl here, so no curves of losses or norms: the folder private/ "
    "was deleted, left out, or the run has not begun."
)


def one_page(run: Gathered, options: Options, title: str) -> str:
    """The whole file for one run."""
    parts: list[str] = [Html(f"<h1>{text(title)}</h1>"), *banners([run], options)]
    parts.append(problems(run.problems))
    sections: list[tuple[str, Callable[[], Html]]] = [
        ("Run", lambda: summary(run)),
        ("Guarantee", lambda: guarantee(run)),
        ("Scores", lambda: scores(run)),
        ("Curves", lambda: released(run, options)),
        ("Samples", lambda: samples(run)),
        ("Cost", lambda: cost(run)),
        ("Configuration", lambda: configuration(run)),
        ("Provenance", lambda: provenance(run)),
    ]
    if options.private:
        sections.insert(4, ("Not covered by the guarantee", lambda: uncovered(run, options)))
    bodies = [(name, shown(make)) for name, make in sections]
    filled = [(name, body) for name, body in bodies if body]
    links = [
        Html(f"<a href='#s{place}'>{text(name)}</a>") for place, (name, _) in enumerate(filled)
    ]
    parts.append(Html(f"<nav>{' '.join(links)}</nav>"))
    for place, (name, body) in enumerate(filled):
        parts.append(Html(f"<h2 id='s{place}'>{text(name)}</h2>\n{body}"))
    return page(f"{title} – dpft report", joined(parts), STYLE)


def banners(runs: list[Gathered], options: Options) -> list[Html]:
    """What must be seen before anything else."""
    without = [run for run in runs if not run.private]
    said = [paragraph(PRIVATE, "banner")] if options.private else []
    if len(runs) == 1 and without:
        said.append(paragraph(brief(without[0]), "banner"))
    elif without:
        named = ", ".join(run.name for run in without[:8]) + (", …" if len(without) > 8 else "")
        said.append(
            paragraph(
                f"{len(without)} of {len(runs)} runs have no privacy guarantee ({named}). Nothing "
                "on this page that comes of them is covered; publish none of it if their records "
                "are private.",
                "banner",
            )
        )
    if len(without) < len(runs) and not options.private:
        said.append(paragraph(PUBLIC, "note"))
    unfinished = [run for run in runs if not run.finished]
    if len(runs) == 1 and unfinished:
        said.append(paragraph(f"This run is {unfinished[0].stage}.", "note"))
    return said


def problems(found: tuple[str, ...]) -> Html:
    """What could not be read."""
    if not found:
        return Html("")
    said = paragraph("Some of this is damaged or does not agree:")
    return Html(f"<div class='problems'>{said}{listed(found)}</div>")


def uncovered(run: Gathered, options: Options) -> Html:
    """The curves of the private metrics."""
    drawn = noiseless(run, options)
    return joined([paragraph(PRIVATE, "banner"), drawn]) if drawn else paragraph(NO_METRICS)


def shown(make: Callable[[], Html]) -> Html:
    """A section; if the record lacks what it needs, that is said in its place."""
    try:
        return make()
    except (AttributeError, ArithmeticError, LookupError, TypeError, ValueError) as error:
        said = f"{type(error).__name__}: {error}"[:200]
        return paragraph(f"The record is damaged here and cannot be shown ({said}).", "problems")
