"""Did anything become worse? The run against its baseline (`--sd-baseline`) or another build (`--sd-base-python`)."""

from __future__ import annotations

import pytest

from draftproof.comparison import Compared
from draftproof.movers import mean_place
from draftproof.plugin import Settle
from draftproof.spec import Cell


@pytest.mark.sd_cells("speed", "stages", against=True)
def test_regression(sd_cell: Cell, sd_against: Compared, sd_settle: Settle) -> None:
    """Acceptance, seconds of a step and throughput of a cell, each against its limit; Holm over the whole run."""
    sd_settle(sd_against.judgement(sd_cell.id))


@pytest.mark.sd_cells("speed", "stages", against=True, first_of_variant=True)
def test_regression_of_means(sd_cell: Cell, sd_against: Compared, sd_settle: Settle) -> None:
    """The primary figure of each variant: the geometric mean over all of its cells, gate by gate."""
    place = mean_place(sd_cell.target, sd_cell.variant)
    if not sd_against.of(place):
        pytest.skip("needs two cells of the variant that can be compared; see test_regression of each")
    sd_settle(sd_against.judgement(place))
