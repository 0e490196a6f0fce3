"""Predicts the measured speedups of a run from its step times and its own acceptance.

Each recorded request of a ``speed`` block is replayed through the fitted costs: a prefill of the whole batch, then step
after step with the drafts that it verified and the tokens that it got, until its output ends, in the batch that it ran
in. The no-SD blocks are replayed the same way with one token a step. The ratio is formed as the measured one is.

This is a prediction from stage times and acceptance, not a simulation from traces: what would be accepted is taken from
the run, at the run's own k. The constants come from ``stages`` blocks, so that no second of a ``speed`` block was
fitted. What lies between the engine's steps is not in it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from draftproof import tables
from draftproof.analysis.acceptance import engine_steps
from draftproof.analysis.stats import PairSums, paired_ratio, ratio_of_totals
from draftproof.errors import rule
from draftproof.records import Output, RunFolder, UnitKey
from draftproof.runview import View
from draftproof.simulator.calibrate import MIN_STEPS, fit_steps
from draftproof.simulator.costfile import cost_model
from draftproof.simulator.costs import CostModel, Floats
from draftproof.simulator.recorded import Measured

PREDICTED = "predicted-"
"""A target's predictions lie in the run's folder as ``predicted-<target>.json``."""


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """A block in engine steps; arrays have one entry per decode step of the batch."""

    requests: int
    prompt_tokens: int
    output_tokens: int
    step_requests: Floats
    step_drafts: Floats
    step_cached: Floats
    """Prompt and committed tokens of the requests that are still running."""

    def seconds(self, costs: CostModel, drafter: str | None, k: int = 0) -> float:
        """Seconds of the block; `drafter` None: no speculation. A prefill ends with a draft, as every step does."""
        tokens = self.step_requests + self.step_drafts
        verify = costs.forward_s(self.step_cached, tokens, pad=True, floor=True)
        total = float((verify + costs.step.beside_s(self.step_requests, self.step_drafts)).sum())
        total += costs.step.per_request_s * self.requests
        for start in range(0, self.prompt_tokens, costs.step.max_batched_tokens):
            chunk = np.array(float(min(self.prompt_tokens - start, costs.step.max_batched_tokens)))
            forward = costs.forward_s(np.array(float(start)), chunk, pad=True, floor=True, prompt=chunk)
            total += float(forward) + costs.step.overhead_s
        if drafter is not None:
            price = costs.drafter(drafter)
            cached = np.append(self.step_cached, self.prompt_tokens)
            rows = np.append(tokens, self.requests * (1 + k))
            drafts = price.fixed_s + price.per_kv_token_s * cached + price.per_token_s * rows
            total += float(drafts.sum()) + price.share_of_verify * float(verify.sum())
            total += price.per_prompt_token_s * self.prompt_tokens
        return total


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """One speculative cell."""

    workload: str
    batch_size: int
    variant: str
    measured: float
    low: float | None
    high: float | None
    """95 % interval of the measured speedup; None below two prompt sets."""
    predicted: float
    held_out: float | None
    """Predicted by a fit to the steps of the other workloads; None: there is none to fit."""

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1

    @property
    def held_out_error(self) -> float | None:
        return None if self.held_out is None else self.held_out / self.measured - 1


def request_steps(output: Output) -> list[tuple[int, int]]:
    """Drafted and emitted tokens of each decode step of a request.

    Steps without a draft (a lookup that found nothing) are not in the records. Their number follows from the output's
    length, up to the tokens that its end cut off the last draft, at most k a request; they are spread evenly.
    """
    drafted = list(zip(output.drafted, output.accepted, strict=True))
    total = max(engine_steps(output) - 1, len(drafted))
    left = len(output.token_ids) - 1
    steps = []
    for number in range(total):
        index, following = number * len(drafted) // total, (number + 1) * len(drafted) // total
        drafts, accepted = drafted[index] if following > index else (0, 0)
        emitted = min(accepted + 1, left)
        left -= emitted
        steps.append((drafts, emitted))
    return steps


def replay(prompts: Sequence[int], outputs: Sequence[Output]) -> Replay:
    """All requests from the first step on, each until its output ends; `prompts` are lengths in tokens."""
    steps = [request_steps(output) for output in outputs]
    count = max(map(len, steps), default=0)
    running, drafts, cached = np.zeros(count), np.zeros(count), np.zeros(count)
    for prompt, mine in zip(prompts, steps, strict=True):
        committed = prompt + 1
        for number, (drafted, emitted) in enumerate(mine):
            running[number] += 1
            drafts[number] += drafted
            cached[number] += committed
            committed += emitted
    return Replay(
        requests=len(outputs),
        prompt_tokens=sum(prompts),
        output_tokens=sum(len(output.token_ids) for output in outputs),
        step_requests=running,
        step_drafts=drafts,
        step_cached=cached,
    )


def predict(folder: RunFolder, found: Measured, model: CostModel) -> tuple[list[Prediction], list[str]]:
    """Every speculative cell of the target that was measured, and why others are left out."""
    parts = {line.part for line in found.run.rotations if line.purpose == "speed" and line.target == found.target}
    view = View(found.run, tables.read_outputs(folder.path, parts), {})
    lengths = {key: len(ids) for key, ids in folder.prompts().items()}
    others: dict[str, CostModel | None] = {}
    predictions, reasons = [], []
    for cell in found.run.header.cells:
        if cell.target != found.target or cell.variant == "no_sd":
            continue
        place = view.place(cell, "new")
        arm, base, unit = place.arm, place.base, place.unit
        if arm is None or base is None or unit is None or cell.variant not in found.arms:
            reasons.append(f"{cell.id}: needs stages records of the variant and its no-SD arm; found none")
            continue
        pairs = [*view.pairs(unit, arm.arm, base.arm).values()]
        blocks = block_pairs(view, unit, arm.arm, base.arm, lengths) if pairs else []
        if not blocks:
            reasons.append(f"{cell.id}: needs paired speed blocks; found none")
            continue
        drafted = any(block.num_drafts for block in view.blocks(unit, arm.arm, "speed"))
        if drafted and not any(ours.step_drafts.any() for ours, _ in blocks):
            reasons.append(f"{cell.id}: needs the accepted tokens of each step; found counters alone (an older vLLM)")
            continue
        try:
            interval = paired_ratio(pairs)
        except ValueError as error:
            reasons.append(f"{cell.id}: {error}")
            continue
        if cell.workload not in others:
            others[cell.workload] = without_workload(found, cell.workload)
        other, k = others[cell.workload], found.k[cell.variant]
        if other is not None and not fits_without(found, cell.workload, cell.variant):
            other = None
        predictions.append(
            Prediction(
                workload=cell.workload,
                batch_size=cell.batch_size,
                variant=cell.variant,
                measured=ratio_of_totals(pairs),
                low=interval.low if interval else None,
                high=interval.high if interval else None,
                predicted=speedup(blocks, model, cell.variant, k),
                held_out=speedup(blocks, other, cell.variant, k) if other else None,
            )
        )
    return predictions, reasons


def block_pairs(
    view: View, unit: UnitKey, arm: str, base: str, lengths: dict[tuple[str, str, str], int]
) -> list[tuple[Replay, Replay]]:
    """The blocks of a cell and of its no-SD arm on the same prompts, in engine steps."""
    found = []
    for line in view.rotations(unit, "speed"):
        for pass_index in (0, 1):
            ours = view.outputs.get((line.part, arm, pass_index))
            theirs = view.outputs.get((line.part, base, pass_index))
            if ours and theirs:
                keys = [(unit.target, unit.workload, name) for name in line.prompt_ids]
                for key in keys:
                    if key not in lengths:
                        raise rule("prompts.jsonl", "the prompts of every rotation", key[2], do="is it cut off?")
                prompts = [lengths[key] for key in keys]
                found.append((replay(prompts, ours), replay(prompts, theirs)))
    return found


def speedup(blocks: Sequence[tuple[Replay, Replay]], costs: CostModel, variant: str, k: int) -> float:
    """Tokens per predicted second over those without speculation, all blocks added."""
    return ratio_of_totals(
        [
            PairSums(
                tokens=ours.output_tokens,
                seconds=ours.seconds(costs, variant, k),
                base_tokens=theirs.output_tokens,
                base_seconds=theirs.seconds(costs, None),
            )
            for ours, theirs in blocks
        ]
    )


def fits_without(found: Measured, workload: str, variant: str) -> bool:
    """Whether the other workloads hold enough steps of this variant and of no SD, and a prefill."""
    rest = [s for s in found.samples if s.workload != workload]
    counts = [sum(s.drafter == name and not s.prefill for s in rest) for name in ("", variant)]
    return min(counts) >= MIN_STEPS and any(s.prefill and s.drafter == variant for s in rest)


def without_workload(found: Measured, workload: str) -> CostModel | None:
    """The cost model of the other workloads' steps."""
    rest = [s for s in found.samples if s.workload != workload]
    if not any(s.prefill for s in rest) or all(s.prefill for s in rest):
        return None
    kept = msgspec.structs.replace(found, samples=rest)
    return cost_model(kept, fit_steps(rest, found.k), [])


def prediction_lines(predictions: Sequence[Prediction], reasons: Sequence[str]) -> list[str]:
    """The table, what is left out, and the median absolute errors."""
    held = any(row.held_out is not None for row in predictions)
    lines = [
        "speedups predicted from the fitted stage times and the run's own acceptance (recorded steps replayed, no",
        "traces simulated), against the measured ones"
        + ("; right: by a fit to the steps of the other workloads" if held else ""),
        f"{'workload':18}{'batch':>6}  {'variant':14}{'measured':>9}{'':18}{'predicted':>10}{'error':>9}"
        + (f"{'held out':>10}{'error':>9}" if held else ""),
    ]
    for row in predictions:
        interval = f"[{row.low:.3f}, {row.high:.3f}]" if row.low is not None and row.high is not None else ""
        line = f"{row.workload:18}{row.batch_size:>6}  {row.variant:14}{row.measured:>9.3f} {interval:17}"
        line += f"{row.predicted:>10.3f}{row.error:>+9.1%}"
        if row.held_out is not None and row.held_out_error is not None:
            line += f"{row.held_out:>10.3f}{row.held_out_error:>+9.1%}"
        lines.append(line)
    lines += reasons
    if not predictions:
        return [*lines, "no cell could be predicted"]
    summary = (
        f"median absolute error: {median_error([row.error for row in predictions]):.1%} of {len(predictions)} cells"
    )
    unseen = [row.held_out_error for row in predictions if row.held_out_error is not None]
    if unseen:
        summary += f"; held out: {median_error(unseen):.1%} of {len(unseen)}"
    return [*lines, summary]


def median_error(errors: Sequence[float]) -> float:
    return float(np.median(np.abs(errors)))
