"""From a run's records to where its drafts were accepted and rejected, cell by cell and variant against variant."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from draftproof.analysis.acceptance import engine_steps
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
from draftproof.analysis.overlap import OverlapBin, Point, bleu4, bleu_metric, overlap_bins
from draftproof.analysis.stats import PairSums
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


class PairOverlap(msgspec.Struct, frozen=True, kw_only=True):
    """What an n-gram variant gains over a learned one, by the overlap of prompt and output."""

    first: str
    second: str
    """Cell ids."""
    build: str
    basis: Literal["seconds", "steps"]
    """Output tokens / (time to the first token + decode time) of each request; where a time lacks, tokens / steps."""
    bins: list[OverlapBin]


class Anatomies(msgspec.Struct, frozen=True, kw_only=True):
    cells: list[CellAnatomy] = []
    differences: list[PairDifference] = []
    overlaps: list[PairOverlap] = []


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
    return Anatomies(cells=cells, differences=differences(ran), overlaps=overlaps(view, ran, prompts))


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
    for prompt_id, output in outputs_of(view, place, place.key):
        if output.token_ids:
            prompt = prompts.get((cell.target, cell.workload, prompt_id), [])
            yield request_of(prompt_id, prompt, output, rule)


def outputs_of(view: View, place: Placed, key: str) -> Iterator[tuple[str, Output]]:
    """Every request of an arm beside or of the cell, of both passes of each rotation."""
    assert place.unit is not None, "it ran"
    lines = {line.rotation: line for line in view.rotations(place.unit, "speed")}
    for block in view.blocks(place.unit, key, "speed"):
        line = lines[block.rotation]
        outputs = view.outputs.get((line.part, key, block.pass_index), [])
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
    learned: dict[tuple[str, str, int, str], list[Ran]] = {}
    for second in ran:
        if method(second.arm) in LEARNED:
            learned.setdefault(second.where, []).append(second)
    for first in ran:
        if method(first.arm) == "ngram":
            yield from ((first, second) for second in learned.get(first.where, []))


def overlaps(view: View, ran: Sequence[Ran], prompts: Prompts) -> list[PairOverlap]:
    """Each n-gram variant against each learned one, prompt by prompt."""
    found = []
    known: dict[tuple[str, str, str], float] = {}
    for first, second in pairs(ran):
        cell = first.place.cell
        left, right = [outputs_by_prompt(view, one.place, one.place.key) for one in (first, second)]
        basis: Literal["seconds", "steps"] = "seconds" if timed(left) and timed(right) else "steps"
        points = []
        for name, base in outputs_by_prompt(view, first.place, first.place.base_key).items():
            key = (cell.target, cell.workload, name)
            if name in left and name in right and key in prompts:
                if key not in known:
                    known[key] = bleu4(bleu_metric(), prompts[key], base[0].token_ids)
                (tokens, taken), (base_tokens, base_taken) = cost(left[name], basis), cost(right[name], basis)
                if min(tokens, taken, base_tokens, base_taken) > 0:
                    sums = PairSums(tokens=tokens, seconds=taken, base_tokens=base_tokens, base_seconds=base_taken)
                    points.append(Point(known[key], sums))
        if points:
            ids = cell.id, second.place.cell.id
            bins = overlap_bins(points)
            found.append(PairOverlap(first=ids[0], second=ids[1], build=first.place.build, basis=basis, bins=bins))
    return found


def outputs_by_prompt(view: View, place: Placed, key: str) -> dict[str, list[Output]]:
    found: dict[str, list[Output]] = {}
    for prompt_id, output in outputs_of(view, place, key):
        found.setdefault(prompt_id, []).append(output)
    return found


def timed(outputs: Mapping[str, Sequence[Output]]) -> bool:
    return all(o.ttft_s is not None and o.decode_s is not None for several in outputs.values() for o in several)


def cost(outputs: Sequence[Output], basis: Literal["seconds", "steps"]) -> tuple[float, float]:
    """(Output tokens, seconds or steps) of a prompt's runs together."""
    tokens = sum(len(output.token_ids) for output in outputs)
    if basis == "steps":
        return tokens, sum(engine_steps(output) for output in outputs)
    return tokens, sum((output.ttft_s or 0.0) + (output.decode_s or 0.0) for output in outputs)
