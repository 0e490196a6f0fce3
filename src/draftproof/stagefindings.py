"""From a run's step samples to its stage tables: shares, expected speedups, the price of rows. Pure but for reading."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import msgspec

from draftproof.analysis.acceptance import Acceptance
from draftproof.analysis.eq1 import Expected, expected, step_costs, tokens_per_decode_step
from draftproof.analysis.rowsprice import RowsPrice, rows_prices, verify_seconds
from draftproof.analysis.stats import Ratio
from draftproof.records import UnitKey
from draftproof.runview import Placed, View


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """A cell's speedup as its stages explain it, and as it was measured."""

    cell: str
    build: str
    target: str
    variant: str
    workload: str
    batch_size: int
    expected: Expected
    speedup: Ratio | None


class TargetPrices(msgspec.Struct, frozen=True, kw_only=True):
    """Verify time by batch size and rows a request, over all arms of one target and build."""

    target: str
    build: str
    prices: list[RowsPrice]


class StageFindings(msgspec.Struct, frozen=True, kw_only=True):
    explained: list[Explained] = []
    prices: list[TargetPrices] = []


def stage_findings(view: View, cells: Iterable[tuple[Placed, Acceptance | None, Ratio | None]]) -> StageFindings:
    """`cells`: each with its measured acceptance and speedup. Cells without step samples are in neither table."""
    explained = []
    seconds: dict[tuple[str, str], dict[int, dict[int, list[float]]]] = {}
    for place, acceptance, speedup in cells:
        cell, unit = place.cell, place.unit
        ours = steps_of(view, unit, place.key)
        if unit is None or not ours:
            continue
        by_size = seconds.setdefault((cell.target, place.build), defaultdict(lambda: defaultdict(list)))
        for rows, values in verify_seconds(ours, cell.batch_size).items():
            by_size[cell.batch_size][rows] += values
        costs = step_costs(ours, cell.batch_size)
        base = step_costs(steps_of(view, unit, place.base_key), cell.batch_size)
        if not place.speculative or place.arm is None or acceptance is None or costs is None or base is None:
            continue
        k = int(place.arm.speculative_config.get("num_speculative_tokens", 0))
        outputs = (
            output
            for line in view.rotations(unit, "speed")
            for pass_index in (0, 1)
            for output in view.outputs.get((line.part, place.key, pass_index), [])
        )
        found = expected(acceptance, tokens_per_decode_step(outputs), k, costs, base) if k else None
        if found is not None:
            explained.append(
                Explained(
                    cell=cell.id,
                    build=place.build,
                    target=cell.target,
                    variant=cell.variant,
                    workload=cell.workload,
                    batch_size=cell.batch_size,
                    expected=found,
                    speedup=speedup,
                )
            )
    prices = [
        TargetPrices(target=target, build=build, prices=rows_prices(by_size))
        for (target, build), by_size in seconds.items()
        if any(rows > 1 for by_rows in by_size.values() for rows in by_rows)
    ]
    return StageFindings(explained=explained, prices=[found for found in prices if found.prices])


def steps_of(view: View, unit: UnitKey | None, key: str) -> list[dict[str, Any]]:
    """Step samples of an arm's ``stages`` blocks."""
    if unit is None:
        return []
    return [step for line in view.rotations(unit, "stages") for step in view.steps.get((line.part, key), [])]
