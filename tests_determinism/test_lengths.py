"""Are answers as long as without speculation? Table 1 of the paper, where EOS ends a request."""

from __future__ import annotations

import pytest

from draftproof.gate import Judgement, failed
from draftproof.plugin import Settle
from draftproof.results import CellResult, RunResults


@pytest.mark.sd_cells("speed", eos=True, meaningful=True)
def test_output_lengths(sd_result: CellResult, sd_run: RunResults, sd_settle: Settle) -> None:
    """Mean, deviation and paired difference of each cell; told, not judged: no direction is expected of rounding."""
    broken = failed(sd_result.failures)
    if broken:
        sd_settle(broken)
    cell = sd_result.cell
    found = [
        row
        for table in sd_run.lengths
        if (table.target, table.workload) == (cell.target, cell.workload)
        for row in table.rows
        if (row.variant, row.batch_size) == (cell.variant, cell.batch_size)
    ]
    if not found:
        sd_settle(Judgement(verdict="INSUFFICIENT", reason="the cell has not answered all prompts that no-SD has"))
    (row,) = found
    shown = {"length_mean": row.mean, "length_deviation": row.deviation, "length_difference": row.difference}
    told = {name: value for name, value in shown.items() if value is not None}
    sd_settle(Judgement(verdict="PASS", reason=f"{row.prompts} prompts"), **told)
