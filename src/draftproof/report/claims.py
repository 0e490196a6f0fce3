"""The paper's claims, each judged on this run and on the paper's own figures."""

from __future__ import annotations

from typing import get_args

from markupsafe import Markup

from draftproof.claims.judged import Judged, judge
from draftproof.claims.predicates import Word
from draftproof.report.parts import Page, Section, Table
from draftproof.report.templates import render
from draftproof.report.words import counted

TITLE = "The paper's claims"
NOTE = (
    "What arXiv 2601.11580 says, in our words. A figure, or a pair of them, speaks for a claim or against it only "
    "where its whole 95 % interval does. A claim holds where every one speaks for it and is contradicted by one "
    "against it; that acceptance differs holds or not by most of them, that outputs differ by one. Not tested: there "
    "is nothing to judge by, or it is not told, the intervals being too wide. Only what ran is judged, at the batch "
    "sizes that ran. Each interval is judged alone: of forty figures exactly at a limit one lies beyond it by chance. "
    "The two of a pair are taken as independent. Controls are no variants. The paper's figures have no intervals: "
    "there a figure speaks where it lies further from the limit than reading it may be wrong."
)


HEAD = ["claim", "on this run", "in the paper's own figures", "source"]


def section(page: Page) -> Section | None:
    """None where nothing was to run. Claims that the run has no figures for are on the page alone."""
    if not page.results.cells:
        return None
    found, run = judge(page.results)
    with_figures = [one for one in found if one.run and one.run.figures]
    left_out = f" Left out: {'; '.join(run.left_out)}." if run and run.left_out else ""
    shown = Table(
        name="claims-judged",
        title="Claims that this run has figures for",
        note=f"{tally(found)} {NOTE}{left_out}",
        head=HEAD,
        body=[row(one) for one in with_figures],
        names=4,
    )
    others = Table(
        name="claims-not-tested",
        title="Claims that this run has no figures for",
        note="What is missing, and what they come to in the paper's own figures.",
        head=HEAD,
        body=[row(one) for one in found if one not in with_figures],
        names=4,
    )
    extra = render("tables.html.j2", tables=[others]) if others.body else Markup("")
    return Section(id="claims", title=TITLE, tables=[shown], extra=extra)


def row(one: Judged) -> list[str]:
    claim = one.claim
    source = f"{claim.source}. {claim.remark}" if claim.remark else claim.source
    return [
        claim.sentence,
        *(f"{found.word}: {found.text}" if found else "-" for found in (one.run, one.paper)),
        source,
    ]


def tally(found: list[Judged]) -> str:
    """How many claims came to what, on the run and in the paper's own figures."""
    told = []
    for where, verdicts in (
        ("On this run", [one.run for one in found if one.run]),
        ("in the paper's own figures", [one.paper for one in found]),
    ):
        words = [verdict.word for verdict in verdicts]
        hold, against, open_ = (words.count(word) for word in get_args(Word))
        told.append(
            f"{where}, of {counted(len(words), 'claim')}: {hold} hold, {against} contradicted, {open_} not tested"
        )
    return "; ".join(told) + "."
