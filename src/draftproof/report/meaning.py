"""What the columns of the tables and the words in them mean."""

from __future__ import annotations

from draftproof.metrics import METRICS, OTHER_METRICS
from draftproof.report.determinism import CAUSES
from draftproof.report.parts import Page, Section
from draftproof.report.templates import render


def section(_: Page) -> Section:
    return Section(
        id="meaning",
        title="What the columns mean",
        extra=render("meaning.html.j2", metrics=METRICS, other_metrics=OTHER_METRICS, causes=CAUSES),
    )
