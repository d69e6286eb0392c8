"""The page of one run."""

from __future__ import annotations

from dpft.report.html import render
from dpft.report.pages.curves import held_out, noiseless, released
from dpft.report.pages.gather import Gathered, Options
from dpft.report.pages.guarantee import brief, guarantee
from dpft.report.pages.ranking import ranked
from dpft.report.pages.result import means, of_one
from dpft.report.pages.sections import cost, provenance, samples, scores, section, summary
from dpft.report.pages.settings import configuration


def one_page(run: Gathered, options: Options, title: str) -> str:
    """The whole file for one run."""
    groups = ranked([run], None)
    sections = [
        section("means", lambda: means(groups), "What the epsilon means"),
        section("scores", lambda: scores(run), "Scores"),
        section("held_out", lambda: held_out(run, options), "Held-out records while it trained"),
        section("samples", lambda: samples([run]), "Samples"),
        section("guarantee", lambda: guarantee(run), "Guarantee"),
        section("released", lambda: released(run, options), "Curves"),
        section("summary", lambda: summary(run), "Run"),
        section("cost", lambda: cost(run), "Cost"),
        section("configuration", lambda: configuration(run), "Configuration"),
        section("provenance", lambda: provenance(run), "Provenance"),
    ]
    if options.private:
        name = "Not covered by the guarantee"
        sections.insert(6, section("noiseless", lambda: {"charts": noiseless(run, options)}, name))
    return render(
        "run.html",
        title=title,
        run=run,
        result=section("result", lambda: of_one(groups[0])),
        runs=[run],
        without=[] if run.private else [run],
        brief=brief(run),
        options=options,
        sections=[part for part in sections if part.filled],
    )
