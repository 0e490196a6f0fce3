"""From a run's records to the noise floor: what no speculation does against itself with one thing changed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from draftproof.analysis.survival import Rate, observe, rate
from draftproof.determinism import differences, seen
from draftproof.plan import AA, is_no_sd
from draftproof.records import Output, UnitKey
from draftproof.runview import View

AxisName = Literal["pass", "process", "batch_size", "order", "copies"]


class FloorAxis(msgspec.Struct, frozen=True, kw_only=True):
    """no-SD against itself with one thing changed."""

    axis: AxisName
    """The second pass; a second process; the smallest batch size; another order; copies of one prompt in a batch."""
    requests: int
    identical: int
    rate: Rate | None


class UnitFloor(msgspec.Struct, frozen=True, kw_only=True):
    """The noise floor of one workload at one batch size, axis by axis."""

    target: str
    workload: str
    batch_size: int
    axes: list[FloorAxis]


class Batch(NamedTuple):
    """Two outputs of the same prompts, request by request."""

    prompt_ids: list[str]
    reference: list[Output]
    other: list[Output]


def unit_floors(view: View) -> list[UnitFloor]:
    """no-SD against itself, for each target, workload and batch size, in the first group that ran them."""
    firsts: dict[tuple[str, str, int], UnitKey] = {}
    for line in view.data.rotations:
        if line.purpose == "speed":
            firsts.setdefault((line.target, line.workload, line.batch_size), line.unit)
    smallest: dict[tuple[str, str], int] = {}
    for target, workload, size in firsts:
        smallest[target, workload] = min(size, smallest.get((target, workload), size))
    floors = []
    for (target, workload, size), unit in firsts.items():
        least = firsts[target, workload, smallest[target, workload]]
        axes = [axis_of(name, batches) for name, batches in floor_batches(view, unit, least).items()]
        found = [axis for axis in axes if axis is not None]
        if found:
            floors.append(UnitFloor(target=target, workload=workload, batch_size=size, axes=found))
    return floors


def floor_batches(view: View, unit: UnitKey, smallest: UnitKey) -> dict[AxisName, list[Batch]]:
    """The batches of each axis; `smallest`: the unit of the same workload with the fewest requests in a batch."""
    batches: dict[AxisName, list[Batch]] = {"pass": [], "process": [], "batch_size": [], "order": [], "copies": []}
    alone = by_prompt(view, smallest) if smallest != unit else {}
    parts: dict[int, list[Output]] = {}
    for line in view.rotations(unit, "speed"):
        key = line.arms[0]
        reference = view.first(line, key)
        if reference is None or not is_no_sd(key):
            continue
        parts[line.rotation] = reference
        for axis, other in (("pass", view.outputs.get((line.part, key, 1))), ("process", view.first(line, key + AA))):
            if other is not None:
                batches[axis].append(Batch(line.prompt_ids, reference, other))  # type: ignore[index]
        shared = [index for index, prompt_id in enumerate(line.prompt_ids) if prompt_id in alone]
        if shared:
            ids = [line.prompt_ids[index] for index in shared]
            batches["batch_size"].append(Batch(ids, [alone[i] for i in ids], [reference[index] for index in shared]))
    for line in view.rotations(unit, "trace"):
        other = view.first(line, line.arms[0])
        if other is None or line.axis is None:
            continue
        if line.axis == "copies":
            batches["copies"].append(Batch(line.prompt_ids, other[:1] * len(other), other))
        elif line.rotation in parts:
            batches["order"].append(Batch(line.prompt_ids, parts[line.rotation][::-1], other))
    return batches


def by_prompt(view: View, unit: UnitKey) -> dict[str, Output]:
    """no-SD's output of each prompt, the first time that it ran."""
    found: dict[str, Output] = {}
    for line in view.rotations(unit, "speed"):
        for prompt_id, output in zip(line.prompt_ids, view.first(line, line.arms[0]) or [], strict=False):
            found.setdefault(prompt_id, output)
    return found


def axis_of(axis: AxisName, batches: Sequence[Batch]) -> FloorAxis | None:
    observations = [
        observation
        for batch in batches
        for observation in observe(seen(batch.prompt_ids, differences(batch.reference, batch.other), batch.reference))
    ]
    if not observations:
        return None
    identical = sum(not observation.differs for observation in observations)
    return FloorAxis(axis=axis, requests=len(observations), identical=identical, rate=rate(observations))
