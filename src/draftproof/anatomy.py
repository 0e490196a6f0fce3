"""From a run's records to where its drafts were accepted and rejected, cell by cell and variant against variant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from draftproof.analysis.anatomy import (
    Anatomy,
    HeatDifference,
    LookupRule,
    Request,
    VerifyCost,
    anatomy_of,
    difference,
    request_of,
    verify_cost,
)
from draftproof.records import ArmLine, Output
from draftproof.runview import Placed, View

Prompts = Mapping[tuple[str, str, str], list[int]]
"""(Target, workload, prompt id) -> token ids."""

LEARNED = ("draft_model", "eagle", "eagle3", "mtp")
"""vLLM's methods whose drafts a model makes."""


class CellAnatomy(msgspec.Struct, frozen=True, kw_only=True):
    cell: str
    """Cell id."""
    build: str
    anatomy: Anatomy


class PairDifference(msgspec.Struct, frozen=True, kw_only=True):
    """An n-gram variant less a learned one, beside which it ran."""

    first: str
    second: str
    """Cell ids."""
    build: str
    map: HeatDifference


class Anatomies(msgspec.Struct, frozen=True, kw_only=True):
    cells: list[CellAnatomy] = []
    differences: list[PairDifference] = []


class Ran(msgspec.Struct, frozen=True):
    """A speculative cell that ran, and its requests of all ``speed`` blocks."""

    place: Placed
    arm: ArmLine
    requests: list[Request]

    @property
    def where(self) -> tuple[str, str, int, str]:
        cell = self.place.cell
        return cell.target, cell.workload, cell.batch_size, self.place.build


def anatomies(view: View, places: Sequence[Placed], prompts: Prompts) -> Anatomies:
    """Of every speculative cell that drafted."""
    ran = [
        Ran(place, place.arm, [*requests_of(view, place, place.arm, prompts)])
        for place in places
        if place.speculative and place.arm is not None and place.unit is not None
    ]
    cells = []
    for one in ran:
        found = anatomy_of(one.requests, cost_of(view, one.place))
        if found is not None:
            cells.append(CellAnatomy(cell=one.place.cell.id, build=one.place.build, anatomy=found))
    return Anatomies(cells=cells, differences=differences(ran))


def method(arm: ArmLine) -> str:
    return str(arm.speculative_config.get("method", ""))


def lookup_rule(arm: ArmLine) -> LookupRule | None:
    """Of an n-gram arm whose settings the records hold."""
    config = arm.speculative_config
    names = ("prompt_lookup_min", "prompt_lookup_max", "num_speculative_tokens")
    if method(arm) != "ngram" or any(name not in config for name in names):
        return None
    return LookupRule(*[int(config[name]) for name in names])


def requests_of(view: View, place: Placed, arm: ArmLine, prompts: Prompts) -> Iterator[Request]:
    """Every request that emitted a token, of both passes of each rotation."""
    assert place.unit is not None, "it ran"
    cell, rule = place.cell, lookup_rule(arm)
    for prompt_id, output in outputs_of(view, place):
        if output.token_ids:
            prompt = prompts.get((cell.target, cell.workload, prompt_id), [])
            yield request_of(prompt_id, prompt, output, rule)


def outputs_of(view: View, place: Placed) -> Iterator[tuple[str, Output]]:
    assert place.unit is not None, "it ran"
    lines = {line.rotation: line for line in view.rotations(place.unit, "speed")}
    for block in view.blocks(place.unit, place.key, "speed"):
        line = lines[block.rotation]
        outputs = view.outputs.get((line.part, place.key, block.pass_index), [])
        yield from zip(line.prompt_ids, outputs, strict=False)


def cost_of(view: View, place: Placed) -> VerifyCost | None:
    """From the cell's ``stages`` blocks and those of no-SD beside them; None where no stage was clocked."""
    assert place.unit is not None, "it ran"
    steps, base, accepted = [], [], 0
    for line in view.rotations(place.unit, "stages"):
        own = view.steps.get((line.part, place.key), [])
        steps += own
        base += view.steps.get((line.part, place.base_key), [])
        if own:
            accepted += sum(sum(output.accepted) for output in view.first(line, place.key) or [])
    return verify_cost(steps, accepted, base)


def differences(ran: Sequence[Ran]) -> list[PairDifference]:
    """Each n-gram variant against each learned one on the same prompts."""
    found = []
    for first, second in pairs(ran):
        made = difference(first.requests, second.requests)
        if made is not None:
            ids = first.place.cell.id, second.place.cell.id
            found.append(PairDifference(first=ids[0], second=ids[1], build=first.place.build, map=made))
    return found


def pairs(ran: Sequence[Ran]) -> Iterator[tuple[Ran, Ran]]:
    """(N-gram variant, learned one) of the same target, workload, batch size and build."""
    for first in ran:
        if method(first.arm) == "ngram":
            yield from (
                (first, second) for second in ran if second.where == first.where and method(second.arm) in LEARNED
            )
