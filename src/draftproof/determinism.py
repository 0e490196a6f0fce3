"""From a run's records to what is said of its outputs: differences and their causes, floors, repeats, lengths."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from draftproof import gate
from draftproof.analysis import tokendiff
from draftproof.analysis.acceptance import AcceptanceRepeat, acceptance_repeat
from draftproof.analysis.garbage import garbage
from draftproof.analysis.lengths import NO_SD, LengthRow, length_rows
from draftproof.analysis.stats import wilson
from draftproof.analysis.survival import Observation, Rate, Survival, excess_p, holm, observe, rate, survival
from draftproof.analysis.tokendiff import Cause, Comparison
from draftproof.gate import Excess
from draftproof.plan import AA
from draftproof.records import Output, RotationLine, ScoreLine, UnitKey
from draftproof.runview import Placed, View
from draftproof.spec import Threshold

TIES: frozenset[Cause] = frozenset({"exact_tie", "near_tie"})

SEVERITY: tuple[Cause, ...] = ("identical", "exact_tie", "near_tie", "inconclusive", "divergent")
"""Copies of one prompt in one batch are one observation: that of the worst copy."""

FLOOR_CONTROLS = ("oracle", "adversarial")
"""Controls that are the floor of what k + 1 rows alone change, in the order of preference."""


class Floor(msgspec.Struct, frozen=True, kw_only=True):
    """What the arms of a cell do against themselves on the same prompts."""

    requests: int
    repeat_identical: int
    """no-SD's first pass against its second, one process."""
    aa_identical: int | None
    """no-SD against a second no-SD process; None without one."""
    variant_repeat_identical: int
    """The variant's first pass against its second."""


class Sameness(msgspec.Struct, frozen=True, kw_only=True):
    """Outputs of a variant against no-SD; copies of a prompt in one batch are one request."""

    requests: int
    identical: int
    prompts: int
    """Different prompts: a prompt is run more than once where there are fewer prompts than requests."""
    prompts_identical: int
    """Prompts whose outputs are identical each time."""
    share: float
    """Of the prompts."""
    share_low: float
    share_high: float
    """Wilson interval over prompts."""
    causes: dict[str, int]
    limit_nats: float
    """A first difference within this gap is a near tie."""
    differences: list[Comparison]
    rate: Rate | None
    """First differences per 1,000 tokens at risk."""
    survival: Survival | None
    """Share of requests that are still identical after so many tokens."""
    floor: Floor
    repeats: AcceptanceRepeat
    garbage: str
    """Why no-SD's own output is worth no comparison; empty where it is."""


class LengthTable(msgspec.Struct, frozen=True, kw_only=True):
    """Output lengths with EOS on, in tokens: the paper's Table 1 for one target and workload."""

    target: str
    workload: str
    limit: int
    rows: list[LengthRow]
    left_out: list[str] = []
    """Cells of a partial run that have not answered all prompts."""


# -- a variant against no-SD -------------------------------------------------------------------------------------------


def compare(
    view: View, unit: UnitKey, key: str, base_key: str, limit_nats: float, *, noise_is_told: bool
) -> Sameness | None:
    """Every request of every rotation: the variant's first pass against no-SD's first pass.

    `noise_is_told`: False where the measured noise is so wide that no difference can be told from a tie.
    """
    scores = Scores(view.scores(unit, key))
    found: list[Comparison] = []
    observations: list[Observation] = []
    pairs: list[tuple[Output, Output]] = []
    floor = {"repeat": 0, "aa": 0, "variant": 0}
    has_aa = False
    for line in view.rotations(unit, "speed"):
        reference, other = view.first(line, base_key), view.first(line, key)
        if reference is None or other is None:
            continue
        positions = differences(reference, other)
        again = differences(reference, view.outputs[line.part, base_key, 1])
        own = differences(other, view.outputs[line.part, key, 1])
        twin = view.first(line, base_key + AA)
        twins = differences(reference, twin) if twin else again
        has_aa |= twin is not None
        comparisons = [
            Comparison(
                rotation=line.rotation,
                request=index,
                prompt_id=line.prompt_ids[index],
                position=position,
                tokens_at_risk=at_risk(position, reference[index]),
                cause=tokendiff.cause_of(
                    position,
                    scores.gap(line, index),
                    limit_nats=limit_nats,
                    reference_repeats=again[index] is None and twins[index] is None and noise_is_told,
                    scored=scores.judged(line, index) or ends_early(position, reference[index], other[index]),
                    engine_tie=scores.engine_tie(line, index),
                ),
                gap_nats=scores.gap(line, index),
                texts=shown.texts if shown else None,
                before=shown.before if shown else "",
                after=shown.after if shown else ("", ""),
            )
            for index, position in enumerate(positions)
            for shown in [scores.shown(line, index)]
        ]
        kept = worst_of_copies(comparisons)
        found += kept
        observations += observe(seen(line.prompt_ids, positions, reference))
        for comparison in kept:
            index = comparison.request
            floor["repeat"] += again[index] is None
            floor["aa"] += twins[index] is None
            floor["variant"] += own[index] is None
            pairs.append((other[index], view.outputs[line.part, key, 1][index]))
    if not found:
        return None
    causes: dict[str, int] = {}
    prompts: dict[str, bool] = {}
    for comparison in found:
        causes[comparison.cause] = causes.get(comparison.cause, 0) + 1
        same = comparison.position is None
        prompts[comparison.prompt_id] = prompts.get(comparison.prompt_id, True) and same
    low, high = wilson(sum(prompts.values()), len(prompts))
    return Sameness(
        requests=len(found),
        identical=sum(comparison.position is None for comparison in found),
        prompts=len(prompts),
        prompts_identical=sum(prompts.values()),
        share=sum(prompts.values()) / len(prompts),
        share_low=low,
        share_high=high,
        causes=causes,
        limit_nats=limit_nats,
        differences=[comparison for comparison in found if comparison.position is not None],
        rate=rate(observations),
        survival=survival(observations),
        floor=Floor(
            requests=len(found),
            repeat_identical=floor["repeat"],
            aa_identical=floor["aa"] if has_aa else None,
            variant_repeat_identical=floor["variant"],
        ),
        repeats=acceptance_repeat(pairs),
        garbage=garbage_of(view, unit, base_key),
    )


class Scores:
    """What the two scorers found at the first differences of one arm."""

    def __init__(self, lines: Iterable[ScoreLine]) -> None:
        lines = list(lines)
        self._engine = {(s.rotation, s.request): s for s in lines if s.by == "engine"}
        self._referee = {(s.rotation, s.request): s for s in lines if s.by == "referee"}

    def shown(self, line: RotationLine, index: int) -> ScoreLine | None:
        """Either one: both have the same texts."""
        place = (line.rotation, index)
        return self._referee.get(place) or self._engine.get(place)

    def gap(self, line: RotationLine, index: int) -> float | None:
        """Nats from the float32 referee's best token to the worse of the two."""
        score = self._referee.get((line.rotation, index))
        return tokendiff.gap_to_best(score.best_logprob, score.logprobs) if score else None

    def engine_tie(self, line: RotationLine, index: int) -> bool:
        score = self._engine.get((line.rotation, index))
        return score is not None and tokendiff.engine_tie(score.best_logprob, score.logprobs)

    def judged(self, line: RotationLine, index: int) -> bool:
        return (line.rotation, index) in self._referee or self.engine_tie(line, index)


def worst_of_copies(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """One comparison a prompt of one batch: the worst cause, then the earliest position."""
    worst: dict[str, Comparison] = {}

    def weight(comparison: Comparison) -> tuple[int, int]:
        return SEVERITY.index(comparison.cause), -(comparison.position or 0)

    for comparison in comparisons:
        known = worst.get(comparison.prompt_id)
        if known is None or weight(comparison) > weight(known):
            worst[comparison.prompt_id] = comparison
    return list(worst.values())


def differences(reference: list[Output], other: list[Output]) -> list[int | None]:
    return tokendiff.first_differences([o.token_ids for o in reference], [o.token_ids for o in other])


def at_risk(position: int | None, reference: Output) -> int:
    """Positions compared up to and including the first difference."""
    return len(reference.token_ids) if position is None else position + 1


def seen(
    prompt_ids: Sequence[str], positions: Sequence[int | None], reference: list[Output]
) -> list[tuple[str, int | None, int]]:
    """(prompt, first difference, tokens of the reference) of one batch."""
    return [
        (prompt_id, position, len(output.token_ids))
        for prompt_id, position, output in zip(prompt_ids, positions, reference, strict=True)
    ]


def ends_early(position: int | None, left: Output, right: Output) -> bool:
    """Whether one output merely stops where the other goes on: there is no second token to score."""
    return position is not None and position >= min(len(left.token_ids), len(right.token_ids))


def garbage_of(view: View, unit: UnitKey, base_key: str) -> str:
    """Why a unit's reference says nothing: its text is one token over and over, or its scores are no numbers."""
    broken = sum(line.not_finite for line in view.noise(unit.target))
    if broken:
        return f"the target's log-probabilities are not finite at {broken} positions: check its weights and dtype"
    return garbage([(prompt_id, output.token_ids) for prompt_id, output in view.answers(unit, base_key)])


# -- near ties against those of a control ------------------------------------------------------------------------------


def near_tie_excesses(
    compared: Sequence[tuple[Placed, Sameness | None]], limits: dict[str, list[Threshold]]
) -> dict[tuple[str, str], Excess]:
    """Name of the place -> near ties of each cell against the control of the same k, workload, batch size and build.

    Drafts of a control are known to change nothing but the number of rows that are computed together. Cells without
    such a control in the run, and the controls themselves, are not in the result.
    """
    controls: dict[tuple[object, ...], tuple[int, Placed, Sameness]] = {}
    for place, same in compared:
        if same is not None and place.arm is not None and place.arm.control in FLOOR_CONTROLS:
            rank = FLOOR_CONTROLS.index(place.arm.control)
            if axis_place(place) not in controls or rank < controls[axis_place(place)][0]:
                controls[axis_place(place)] = (rank, place, same)
    tested = []
    for place, same in compared:
        known = controls.get(axis_place(place))
        if same is None or same.rate is None or known is None or place.arm is None or place.arm.control:
            continue
        _, control, floor = known
        if floor.rate is None:
            continue
        ratio = gate.limit_of(limits.get(place.cell.hardware, []), "near_tie_ratio", place.cell).limit
        mine, theirs = (ties(same), same.rate.tokens), (ties(floor), floor.rate.tokens)
        tested.append((place, control, mine, theirs, excess_p(*mine, *theirs, ratio=ratio)))
    adjusted = holm([p for *_, p in tested])
    return {
        place.name: Excess(
            control=control.cell.variant,
            p=p,
            per_1000=1000 * mine[0] / mine[1],
            control_per_1000=1000 * theirs[0] / theirs[1],
        )
        for (place, control, mine, theirs, _), p in zip(tested, adjusted, strict=True)
    }


def axis_place(place: Placed) -> tuple[object, ...]:
    """What a cell shares with its control."""
    k = place.arm.speculative_config.get("num_speculative_tokens") if place.arm else None
    return place.cell.target, place.cell.workload, place.cell.batch_size, place.build, k


def ties(same: Sameness) -> int:
    return sum(count for cause, count in same.causes.items() if cause in TIES)


# -- output lengths ----------------------------------------------------------------------------------------------------


def length_tables(view: View, places: Iterable[Placed]) -> list[LengthTable]:
    """Lengths of all cells, where EOS ended the requests; one table for each target and workload that no-SD ran."""
    if view.data.header.study.ignore_eos:
        return []
    found: dict[tuple[str, str], dict[tuple[str, int], dict[str, list[int]]]] = {}
    limits: dict[tuple[str, str], int] = {}
    for place in places:
        if place.unit is None or place.build != "new":
            continue
        table = (place.cell.target, place.cell.workload)
        limits[table] = max(place.cell.output_tokens, limits.get(table, 0))
        lengths: dict[str, list[int]] = {}
        for prompt_id, output in view.answers(place.unit, place.key):
            lengths.setdefault(prompt_id, []).append(len(output.token_ids))
        found.setdefault(table, {})[place.cell.variant, place.cell.batch_size] = lengths
    tables = []
    for (target, workload), cells in found.items():
        reference = min((size for variant, size in cells if variant == NO_SD), default=None)
        if reference is None or not cells[NO_SD, reference]:
            continue
        prompts = set(cells[NO_SD, reference])
        whole = {cell: lengths for cell, lengths in cells.items() if set(lengths) == prompts}
        tables.append(
            LengthTable(
                target=target,
                workload=workload,
                limit=limits[target, workload],
                rows=length_rows(whole, limits[target, workload]),
                left_out=[f"{variant} b{size}" for variant, size in cells if (variant, size) not in whole],
            )
        )
    return tables
