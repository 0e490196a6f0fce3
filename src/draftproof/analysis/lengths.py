"""Output lengths by variant and batch size: Table 1 of arXiv 2601.11580, with paired differences beside it.

The paper shows mean and standard deviation over prompts. Prompts differ far more from each other than a variant moves
any of them, so that a shift hides in these; the mean difference prompt by prompt shows it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from draftproof.analysis.stats import CONFIDENCE
from draftproof.analysis.tokendiff import first_few
from draftproof.errors import DraftproofError, rule, unknown

NO_SD = "no_sd"

Lengths = Mapping[tuple[str, int], Mapping[str, Sequence[int]]]
"""(variant, batch size) -> prompt id -> output tokens, one or more of each prompt."""


class LengthRow(msgspec.Struct, frozen=True, kw_only=True):
    """One cell. A prompt is one observation, however often it was answered."""

    variant: str
    batch_size: int
    prompts: int
    mean: float
    """Tokens: the mean over prompts of each prompt's mean."""
    deviation: float | None
    """Tokens, between prompts (n - 1); None below two prompts."""
    capped: int
    """Prompts with an output as long as the limit: their real length is not known, and the mean too low."""
    difference: float | None
    """Tokens: mean over prompts of this cell's length less the reference's; None: the reference, or below 2 prompts."""
    low: float | None
    high: float | None


def length_rows(lengths: Lengths, limit: int, confidence: float = CONFIDENCE) -> list[LengthRow]:
    """A row a cell, in the order given.

    Reference of the differences: no-SD at its smallest batch size, which should be 1.
    `limit`: most output tokens a request may have. Intervals: Student's t over the paired differences of prompts.
    A cell that answered other prompts than the reference is an error, since its mean would be one of other prompts.
    """
    sizes = [size for variant, size in lengths if variant == NO_SD]
    if not sizes:
        raise unknown("reference of output lengths", NO_SD, {variant for variant, _ in lengths}, "run no-SD as well")
    reference = means(lengths, (NO_SD, min(sizes)), limit)
    rows = []
    for cell, outputs in lengths.items():
        own = means(lengths, cell, limit)
        refuse_other_prompts(cell, own, reference)
        told = None if cell == (NO_SD, min(sizes)) else paired(own, reference, confidence)
        difference, low, high = told or (None, None, None)
        rows.append(
            LengthRow(
                variant=cell[0],
                batch_size=cell[1],
                prompts=len(own),
                mean=statistics.fmean(own.values()),
                deviation=statistics.stdev(own.values()) if len(own) > 1 else None,
                capped=sum(limit in tokens for tokens in outputs.values()),
                difference=difference,
                low=low,
                high=high,
            )
        )
    return rows


def means(lengths: Lengths, cell: tuple[str, int], limit: int) -> dict[str, float]:
    """Mean output tokens of each prompt of a cell."""
    outputs = lengths[cell]
    if not outputs or not all(outputs.values()):
        raise DraftproofError(f"output lengths must be given for every prompt ({place(cell)})")
    for prompt_id, tokens in outputs.items():
        for count in tokens:
            if not 1 <= count <= limit:
                raise rule(f"output tokens of {prompt_id} ({place(cell)})", f"from 1 to the limit of {limit}", count)
    return {prompt_id: statistics.fmean(tokens) for prompt_id, tokens in outputs.items()}


def refuse_other_prompts(cell: tuple[str, int], own: Mapping[str, float], reference: Mapping[str, float]) -> None:
    """Cells are compared prompt by prompt: what one of them lacks is named."""
    told = [
        f"{what} {len(names)}: {first_few(names)}"
        for what, names in [
            ("lacks", [name for name in reference if name not in own]),
            ("has besides", [name for name in own if name not in reference]),
        ]
        if names
    ]
    if told:
        raise DraftproofError(f"prompts of {place(cell)} must be the reference's (it {' and '.join(told)})")


def paired(
    own: Mapping[str, float], reference: Mapping[str, float], confidence: float
) -> tuple[float, float, float] | None:
    """Mean difference with its t interval; None below two prompts."""
    if len(reference) < 2:
        return None
    from scipy import stats

    shifts = [own[prompt_id] - length for prompt_id, length in reference.items()]
    mean = statistics.fmean(shifts)
    error = statistics.stdev(shifts) / math.sqrt(len(shifts))
    reach = float(stats.t.ppf((1 + confidence) / 2, len(shifts) - 1)) * error
    return mean, mean - reach, mean + reach


def place(cell: tuple[str, int]) -> str:
    """Which cell it is, for a message."""
    return f"{cell[0]} at B = {cell[1]}"


def layout(rows: Iterable[LengthRow]) -> tuple[list[str], list[list[str]]]:
    """Head and body of the paper's table: variants down, batch sizes across, tokens as mean ± standard deviation.

    Below each variant a line of differences from the reference with their intervals, and of prompts that met the limit.
    """
    cells = {(row.variant, row.batch_size): row for row in rows}
    sizes = sorted({size for _, size in cells})
    body = []
    for variant in dict.fromkeys(variant for variant, _ in cells):
        line = [cells.get((variant, size)) for size in sizes]
        body.append([variant, *("" if row is None else spread(row) for row in line)])
        body.append(["", *("" if row is None else shift(row) for row in line)])
    return ["variant", *(f"B = {size}" for size in sizes)], body


def spread(row: LengthRow) -> str:
    return f"{row.mean:.1f}" if row.deviation is None else f"{row.mean:.1f} ± {row.deviation:.1f}"


def shift(row: LengthRow) -> str:
    capped = f", {row.capped} of {row.prompts} at the limit" if row.capped else ""
    if row.difference is None:
        return ("no Δ of one prompt" if row.prompts < 2 else "reference") + capped
    return f"Δ {row.difference:+.1f} [{row.low:.1f}, {row.high:.1f}]{capped}"
