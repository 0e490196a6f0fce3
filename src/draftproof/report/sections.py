"""The sections of a report, in order; a new one is a function of the page and its line here."""

from __future__ import annotations

from collections.abc import Callable

from draftproof.report import (
    against,
    anatomy,
    bound,
    cells,
    claims,
    endtoend,
    limits,
    matrix,
    meaning,
    memory,
    outputs,
    partial,
    recommended,
    simple,
    speed,
    stages,
    surroundings,
)
from draftproof.report.parts import Page, Section

SECTIONS: tuple[Callable[[Page], Section | None], ...] = (
    matrix.section,
    partial.section,
    recommended.section,
    cells.section,
    endtoend.section,
    cells.failures_section,
    against.section,
    simple.builds,
    claims.section,
    speed.section,
    anatomy.section,
    outputs.section,
    bound.section,
    stages.section,
    memory.section,
    simple.positions,
    simple.notes,
    limits.section,
    meaning.section,
    surroundings.section,
)


def sections(page: Page) -> list[Section]:
    """Those that the run has something for."""
    made = [section(page) for section in SECTIONS]
    return [section for section in made if section is not None]
