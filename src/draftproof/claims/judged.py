"""Every claim on a run and on the paper's own figures."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import msgspec

from draftproof.catalog import Catalog, load_catalog
from draftproof.claims.facts import Evidence
from draftproof.claims.load import load_claims
from draftproof.claims.ofpaper import of_paper
from draftproof.claims.ofrun import of_run
from draftproof.claims.predicates import Claim, Verdict
from draftproof.results import RunResults


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    claim: Claim
    run: Verdict | None
    """None without a run."""
    paper: Verdict


class Shipped(msgspec.Struct, frozen=True):
    """What a run is held against."""

    catalog: Catalog
    claims: list[Claim]
    paper: list[Verdict]
    """Of each claim, on the paper's own figures."""


@functools.cache
def shipped() -> Shipped:
    """Read once a process: the files do not change."""
    catalog = load_catalog()
    claims = load_claims(catalog)
    evidence = of_paper(catalog)
    return Shipped(catalog, claims, [claim.judge(evidence) for claim in claims])


def judge(results: RunResults | None, catalog: Catalog | None = None) -> tuple[list[Judged], Evidence | None]:
    """All claims in their order, and what the run gave to judge them by.

    `catalog`: tells the kinds of the run's workloads and the sizes of its targets; default: ours.
    """
    known = shipped()
    run = of_run(results, catalog or known.catalog) if results is not None else None
    found = [
        Judged(claim=claim, run=claim.judge(run) if run is not None else None, paper=paper)
        for claim, paper in zip(known.claims, known.paper, strict=True)
    ]
    return found, run


def lines(found: Iterable[Judged], run: Evidence | None) -> Iterable[str]:
    """Plain text, a few lines a claim."""
    for one in found:
        yield f"{one.claim.name}: {one.claim.sentence}"
        if one.run is not None:
            yield f"  on this run: {one.run.word}: {one.run.text}"
        yield f"  in the paper's own figures: {one.paper.word}: {one.paper.text}"
        yield f"  source: {one.claim.source}"
        if one.claim.remark:
            yield f"  {one.claim.remark}"
    if run is not None:
        yield from (f"left out, {line}" for line in run.left_out)
