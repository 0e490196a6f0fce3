"""From a run's records to what would have been possible: the measured oracle, and what a simulation left in the folder.

The measured oracle is a control that drafts no-SD's own tokens: each draft is right and costs next to nothing, so that
no drafter with the same k can be faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from draftproof.analysis.gainshare import GainShare, gain_share
from draftproof.analysis.stats import PairSums, Ratio
from draftproof.runview import Placed, View
from draftproof.simulator.simulate import Cell
from draftproof.simulator.validation import PREDICTED, Prediction

ORACLE = "oracle"
"""Kind of the control whose drafts are all right."""
SIMULATED = "simulated-"
"""A target's simulated speedups lie in the run's folder as ``simulated-<target>.json``: ``simulate --json``."""
LARGEST_BYTES = 50_000_000

Kept = TypeVar("Kept", Cell, Prediction)


class Reached(msgspec.Struct, frozen=True, kw_only=True):
    """A variant beside a measured oracle of the same target, workload, batch size and build."""

    target: str
    workload: str
    batch_size: int
    build: str
    variant: str
    """Empty: no variant ran beside the oracle."""
    k: int
    speedup: Ratio | None
    oracle: str
    oracle_k: int
    oracle_speedup: Ratio
    share: GainShare | None
    """Of the oracle's gain, over the prompt sets that both have; None where the oracle's own interval holds 1."""


class Simulated(msgspec.Struct, frozen=True, kw_only=True):
    """What ``draftproof simulate`` computed for a target of the run."""

    target: str
    cells: list[Cell]


class Predicted(msgspec.Struct, frozen=True, kw_only=True):
    """What ``draftproof calibrate --validate`` predicted of a target's cells from the run's own step times."""

    target: str
    cells: list[Prediction]


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    reached: list[Reached] = []
    without: list[str] = []
    """Targets with variants and no measured oracle."""
    simulated: list[Simulated] = []
    predicted: list[Predicted] = []
    notes: list[str] = []
    """Files of simulated or predicted speedups that were left out, and why."""


Measured = tuple[Placed, Ratio | None]


def bounds(view: View, measured: Sequence[Measured], folder: Path) -> Bounds:
    """`measured`: all cells, each with its speedup."""
    units: dict[tuple[str, str, int, str], list[Measured]] = {}
    for place, speedup in measured:
        if place.arm is not None and place.speculative and speedup is not None:
            cell = place.cell
            units.setdefault((cell.target, cell.workload, cell.batch_size, place.build), []).append((place, speedup))
    reached = [row for unit in units.values() for row in reached_in(view, unit)]
    targets = list(dict.fromkeys(place.cell.target for place, _ in measured))
    drafted = {place.cell.target for found in units.values() for place, _ in found if not control(place)}
    simulated, notes = read_simulated(folder, targets)
    predicted, more = read_predicted(folder, targets)
    return Bounds(
        reached=reached,
        without=[target for target in targets if target in drafted - {row.target for row in reached}],
        simulated=simulated,
        predicted=predicted,
        notes=notes + more,
    )


def control(place: Placed) -> str:
    return place.arm.control if place.arm else ""


def k_of(place: Placed) -> int:
    """Draft tokens of a step; 0: not told."""
    found = place.arm.speculative_config.get("num_speculative_tokens") if place.arm else None
    return found if isinstance(found, int) else 0


def reached_in(view: View, unit: Sequence[Measured]) -> list[Reached]:
    """Every variant beside every oracle of one unit, the oracles by their k."""
    oracles = sorted((one for one in unit if control(one[0]) == ORACLE), key=lambda one: k_of(one[0]))
    variants: list[Measured | None] = [one for one in unit if not control(one[0])]
    found = []
    for variant in variants or [None]:
        for oracle, bound in oracles:
            assert bound is not None
            cell = oracle.cell
            place, speedup = variant if variant else (None, None)
            found.append(
                Reached(
                    target=cell.target,
                    workload=cell.workload,
                    batch_size=cell.batch_size,
                    build=oracle.build,
                    variant=place.cell.variant if place else "",
                    k=k_of(place) if place else 0,
                    speedup=speedup,
                    oracle=cell.variant,
                    oracle_k=k_of(oracle),
                    oracle_speedup=bound,
                    share=share(view, place, oracle) if place and bound.low > 1 else None,
                )
            )
    return found


def share(view: View, ours: Placed, oracle: Placed) -> GainShare | None:
    """Over the rotations that both finished: prompt sets are the same in every group of arms."""
    mine, best = pairs_of(view, ours), pairs_of(view, oracle)
    common = sorted(mine.keys() & best.keys())
    return gain_share([mine[number] for number in common], [best[number] for number in common])


def pairs_of(view: View, place: Placed) -> dict[int, PairSums]:
    if place.unit is None:
        return {}
    return view.pairs(place.unit, place.key, place.base_key)


def read_simulated(folder: Path, targets: Sequence[str]) -> tuple[list[Simulated], list[str]]:
    found, notes = read_kept(folder, SIMULATED, targets, Cell)
    return [Simulated(target=target, cells=cells) for target, cells in found.items()], notes


def read_predicted(folder: Path, targets: Sequence[str]) -> tuple[list[Predicted], list[str]]:
    found, notes = read_kept(folder, PREDICTED, targets, Prediction)
    return [Predicted(target=target, cells=cells) for target, cells in found.items()], notes


def read_kept(
    folder: Path, prefix: str, targets: Sequence[str], kind: type[Kept]
) -> tuple[dict[str, list[Kept]], list[str]]:
    """Target -> the figures in ``<prefix><target>.json``, checked; a wrong file only costs its figures, and says so."""
    found, notes = {}, []
    for target in (name for name in targets if Path(name).name == name):
        path = folder / f"{prefix}{target}.json"
        try:
            if not path.is_file():
                continue
            if path.stat().st_size > LARGEST_BYTES:
                notes.append(f"{path.name} is left out: larger than {LARGEST_BYTES // 1_000_000} MB")
                continue
            rows: list[Kept] = msgspec.json.decode(path.read_bytes(), type=list[kind])  # type: ignore[valid-type]
        except (OSError, ValueError) as error:
            notes.append(f"{path.name} is left out: {error.strerror if isinstance(error, OSError) else error}")
            continue
        kept = [row for row in rows if usable(row)]
        if kept:
            found[target] = kept
        if len(kept) < len(rows):
            notes.append(f"{path.name}: {len(rows) - len(kept)} cells without a positive speedup are left out")
    return found, notes


def usable(row: Cell | Prediction) -> bool:
    speedups = [row.speedup] if isinstance(row, Cell) else [row.measured, row.predicted]
    return all(0 < speedup < 1000 for speedup in speedups) and row.batch_size >= 1
