"""From a run's records to where its drafts were accepted and rejected, cell by cell and variant against variant."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, TypeVar

import msgspec

from draftproof.analysis.acceptance import engine_steps
from draftproof.analysis.along import Along, Request
from draftproof.analysis.anatomy import (
    Anatomy,
    HeatDifference,
    LookupRule,
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

Made = TypeVar("Made")

NGRAM = "ngram"
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


class Ran:
    """A speculative cell that ran, and all requests of its ``speed`` blocks."""

    def __init__(self, view: View, number: int, place: Placed, arm: ArmLine, prompts: Prompts) -> None:
        self.number = number
        """Of the place, in the order of the run."""
        self.place = place
        self.arm = arm
        self.outputs = [*outputs_of(view, place, place.key)]
        self.requests = [*requests_of(self.outputs, place, arm, prompts)]
        self.along = Along(self.requests)

    @functools.cached_property
    def by_prompt(self) -> dict[str, list[Output]]:
        return by_prompt(self.outputs)


def anatomies(view: View, places: Sequence[Placed], prompts: Prompts) -> Anatomies:
    """Of every speculative cell that drafted; those of one (target, workload, batch size, build) at a time."""
    cells: list[tuple[int, CellAnatomy]] = []
    differing: list[tuple[int, PairDifference]] = []
    overlapping: list[tuple[int, PairOverlap]] = []
    known: dict[tuple[str, str, str], float] = {}
    for members in together(places):
        ran = [Ran(view, number, place, arm, prompts) for number, place, arm in members]
        for one in ran:
            found = anatomy_of(one.requests, cost_of(view, one.place), one.along)
            if found is not None:
                made = CellAnatomy(cell=one.place.cell.id, build=one.place.build, anatomy=found)
                cells.append((one.number, made))
        differing += differences(ran)
        overlapping += overlaps(view, ran, prompts, known)
    return Anatomies(cells=in_order(cells), differences=in_order(differing), overlaps=in_order(overlapping))


def together(places: Sequence[Placed]) -> list[list[tuple[int, Placed, ArmLine]]]:
    """Speculative cells that ran, by what n-gram variants and learned ones share; each with its place in the run."""
    ran = [
        (number, place, place.arm)
        for number, place in enumerate(places)
        if place.speculative and place.arm is not None and place.unit is not None
    ]
    found: dict[tuple[str, str, int, str], list[tuple[int, Placed, ArmLine]]] = {}
    # In the order of their first n-gram variants: the first pair with a prompt says what its overlap is.
    for one in sorted(ran, key=lambda one: method(one[2]) != NGRAM):
        cell = one[1].cell
        found.setdefault((cell.target, cell.workload, cell.batch_size, one[1].build), []).append(one)
    return [sorted(members, key=lambda one: one[0]) for members in found.values()]


def in_order(found: Sequence[tuple[int, Made]]) -> list[Made]:
    return [made for _, made in sorted(found, key=lambda pair: pair[0])]


def method(arm: ArmLine) -> str:
    return str(arm.speculative_config.get("method", ""))


def lookup_rule(arm: ArmLine) -> LookupRule | None:
    """Of an n-gram arm whose settings the records hold."""
    config = arm.speculative_config
    names = ("prompt_lookup_min", "prompt_lookup_max", "num_speculative_tokens")
    if method(arm) != NGRAM or any(name not in config for name in names):
        return None
    return LookupRule(*[int(config[name]) for name in names])


def requests_of(
    outputs: Iterable[tuple[str, Output]], place: Placed, arm: ArmLine, prompts: Prompts
) -> Iterator[Request]:
    """Every request that emitted a token."""
    cell, rule = place.cell, lookup_rule(arm)
    for prompt_id, output in outputs:
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


def by_prompt(outputs: Iterable[tuple[str, Output]]) -> dict[str, list[Output]]:
    found: dict[str, list[Output]] = {}
    for prompt_id, output in outputs:
        found.setdefault(prompt_id, []).append(output)
    return found


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


def differences(ran: Sequence[Ran]) -> Iterator[tuple[int, PairDifference]]:
    """Each n-gram variant against each learned one on the same prompts; with the number of the first."""
    for first, second in pairs(ran):
        made = difference(first.along, second.along)
        if made is not None:
            ids = first.place.cell.id, second.place.cell.id
            yield first.number, PairDifference(first=ids[0], second=ids[1], build=first.place.build, map=made)


def pairs(ran: Sequence[Ran]) -> list[tuple[Ran, Ran]]:
    """(N-gram variant, learned one)."""
    learned = [one for one in ran if method(one.arm) in LEARNED]
    return [(first, second) for first in ran if method(first.arm) == NGRAM for second in learned]


def overlaps(
    view: View, ran: Sequence[Ran], prompts: Prompts, known: dict[tuple[str, str, str], float]
) -> Iterator[tuple[int, PairOverlap]]:
    """Each n-gram variant against each learned one, prompt by prompt; with the number of the first.

    `known`: the overlap of each prompt so far, which is added to.
    """
    bases: dict[int, dict[str, list[Output]]] = {}
    for first, second in pairs(ran):
        cell, left, right = first.place.cell, first.by_prompt, second.by_prompt
        basis: Literal["seconds", "steps"] = "seconds" if timed(left) and timed(right) else "steps"
        if first.number not in bases:
            bases[first.number] = by_prompt(outputs_of(view, first.place, first.place.base_key))
        points = []
        for name, base in bases[first.number].items():
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
            yield (
                first.number,
                PairOverlap(first=ids[0], second=ids[1], build=first.place.build, basis=basis, bins=bins),
            )


def timed(outputs: Mapping[str, Sequence[Output]]) -> bool:
    return all(o.ttft_s is not None and o.decode_s is not None for several in outputs.values() for o in several)


def cost(outputs: Sequence[Output], basis: Literal["seconds", "steps"]) -> tuple[float, float]:
    """(Output tokens, seconds or steps) of a prompt's runs together."""
    tokens = sum(len(output.token_ids) for output in outputs)
    if basis == "steps":
        return tokens, sum(engine_steps(output) for output in outputs)
    return tokens, sum((output.ttft_s or 0.0) + (output.decode_s or 0.0) for output in outputs)
