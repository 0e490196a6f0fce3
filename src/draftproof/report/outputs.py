"""What the page is given for its section on outputs."""

from __future__ import annotations

from typing import Any

from draftproof.report import curves, determinism
from draftproof.results import RunResults

PANELS_SHOWN = 6
ROWS_SHOWN = 60
ROWS_BESIDE_FIGURES = 12
"""A longer table is folded."""


def outputs(results: RunResults) -> dict[str, Any]:
    earliest = determinism.earliest(results)
    return {
        "outputs": determinism.tables(results),
        "outputs_title": determinism.TITLE,
        "survival": curves.survivals(results),
        "frame": curves,
        "earliest": earliest,
        "earliest_title": determinism.EARLIEST_TITLE,
        "earliest_note": determinism.earliest_note(results),
        "causes": determinism.CAUSES,
        "panels_shown": PANELS_SHOWN,
        "rows_shown": ROWS_SHOWN,
        "rows_beside_figures": ROWS_BESIDE_FIGURES,
    }
