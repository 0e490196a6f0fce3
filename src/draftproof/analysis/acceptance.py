"""Acceptance from vLLM's counters and per-request steps, and what every block must keep."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from draftproof.analysis.stats import quantiles
from draftproof.records import BlockLine, Output


class PerRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Acceptance lengths request by request, each with the same weight: 1 + accepted tokens / drafted steps."""

    requests: int
    """That had a drafted step; one counts once in each block."""
    mean: float
    quartiles: tuple[float, float, float]
    """25th percentile, median, 75th percentile, interpolated."""


class Acceptance(msgspec.Struct, frozen=True, kw_only=True):
    """Pooled over blocks; definitions as in vLLM (``v1/spec_decode/metrics.py``)."""

    num_drafts: int
    """(request, verify step) pairs with at least one draft token."""
    num_draft_tokens: int
    num_accepted_tokens: int
    requests: int = 0
    """Outputs that were pooled, a request once in each block."""
    length: float | None
    """1 + accepted / num_drafts: tokens per drafted step, bonus included."""
    rate: float | None
    """Accepted / drafted tokens."""
    per_position: list[float]
    """Accepted at each position / num_drafts (survival, not conditional)."""
    tokens_per_step: float | None
    """Emitted tokens per (request, engine step), steps without a draft included: comparable across proposers. Steps are
    counted as emitted - accepted tokens, plus what the length limit cut off a last accepted run where that shows."""
    per_request: PerRequest | None = None
    """None where no request had a drafted step."""


def acceptance_of(blocks: Sequence[BlockLine], outputs: Sequence[Output]) -> Acceptance | None:
    """None without blocks. `outputs` are the same blocks' requests."""
    if not blocks:
        return None
    drafts = sum(block.num_drafts for block in blocks)
    draft_tokens = sum(block.num_draft_tokens for block in blocks)
    accepted = sum(block.num_accepted_tokens for block in blocks)
    width = max((len(block.num_accepted_tokens_per_pos) for block in blocks), default=0)
    per_position = [
        sum(block.num_accepted_tokens_per_pos[i] for block in blocks if i < len(block.num_accepted_tokens_per_pos))
        for i in range(width)
    ]
    steps = sum(map(engine_steps, outputs))
    emitted = sum(len(output.token_ids) for output in outputs)
    return Acceptance(
        num_drafts=drafts,
        num_draft_tokens=draft_tokens,
        num_accepted_tokens=accepted,
        requests=sum(block.requests for block in blocks),
        length=1 + accepted / drafts if drafts else None,
        rate=accepted / draft_tokens if draft_tokens else None,
        per_position=[count / drafts for count in per_position] if drafts else [],
        tokens_per_step=emitted / steps if steps and any(output.drafted for output in outputs) else None,
        per_request=per_request(outputs),
    )


def per_request(outputs: Iterable[Output]) -> PerRequest | None:
    """Long requests weigh no more than short ones, unlike in the pooled length."""
    lengths = [1 + sum(output.accepted) / len(output.accepted) for output in outputs if output.accepted]
    if not lengths:
        return None
    first, median, third = quantiles(lengths, (0.25, 0.5, 0.75))
    return PerRequest(
        requests=len(lengths),
        mean=sum(lengths) / len(lengths),
        quartiles=(first, median, third),
    )


def engine_steps(output: Output) -> int:
    """Engine steps that emitted something for this request, the prefill step included.

    A step emits its accepted tokens and one more, so steps = emitted - accepted; a length limit inside the last
    accepted run cuts tokens that were counted as accepted, visible where drafted steps alone would exceed the length.
    """
    emitted, accepted = len(output.token_ids), sum(output.accepted)
    cut = max(0, 1 + len(output.accepted) + accepted - emitted)
    return emitted - accepted + cut


def place(block: BlockLine) -> str:
    """Which block it is, for a message."""
    return f"{block.arm}, {block.workload} b{block.batch_size}, rotation {block.rotation}, pass {block.pass_index}"


def soundness(block: BlockLine, outputs: Sequence[Output], expected_tokens: int | None) -> list[str]:
    """What is broken in one block's seconds, requests and lengths, as sentences; empty when all hold.

    `expected_tokens`: output length of each request where EOS is ignored, else None. Counts of drafts have invariants
    of their own (`draftproof.analysis.health.draft_invariants`).
    """
    emitted = sum(len(output.token_ids) for output in outputs)
    odd = [i for i, o in enumerate(outputs) if expected_tokens is not None and len(o.token_ids) != expected_tokens]
    rules = [
        (block.seconds > 0, f"seconds must be positive (got {block.seconds})"),
        (len(outputs) == block.requests, f"{block.requests} requests but {len(outputs)} outputs"),
        (emitted == block.output_tokens, f"{block.output_tokens} output tokens recorded, {emitted} ids stored"),
        (not odd, f"requests {odd} are not {expected_tokens} tokens long though EOS is ignored"),
    ]
    return [f"{place(block)}: {text}" for holds, text in rules if not holds]


class AcceptanceRepeat(msgspec.Struct, frozen=True, kw_only=True):
    """Acceptance of the same requests in two passes, where the text is the same."""

    requests: int
    """That wrote the same token ids in both passes."""
    differing: int
    """Of these, those whose steps accepted or drafted otherwise."""
    steps: tuple[int, int]
    """Engine steps of the differing requests in each pass: what it means for throughput."""


def acceptance_repeat(pairs: Sequence[tuple[Output, Output]]) -> AcceptanceRepeat:
    """Compare a request's two outputs, pair by pair."""
    same = [(left, right) for left, right in pairs if left.token_ids == right.token_ids]
    differing = [
        (left, right) for left, right in same if (left.accepted, left.drafted) != (right.accepted, right.drafted)
    ]
    return AcceptanceRepeat(
        requests=len(same),
        differing=len(differing),
        steps=(sum(engine_steps(left) for left, _ in differing), sum(engine_steps(right) for _, right in differing)),
    )
