"""Acceptance from vLLM's counters and per-request steps, and the invariants that both must keep."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from draftproof.records import BlockLine, Output


class Acceptance(msgspec.Struct, frozen=True, kw_only=True):
    """Pooled over blocks; definitions as in vLLM (``v1/spec_decode/metrics.py``)."""

    num_drafts: int
    """(request, verify step) pairs with at least one draft token."""
    num_draft_tokens: int
    num_accepted_tokens: int
    length: float | None
    """1 + accepted / num_drafts: tokens per drafted step, bonus included."""
    rate: float | None
    """Accepted / drafted tokens."""
    per_position: list[float]
    """Accepted at each position / num_drafts (survival, not conditional)."""
    tokens_per_step: float | None
    """Emitted tokens per (request, engine step), steps without a draft included: comparable across proposers. Steps are
    counted as emitted - accepted tokens, plus what the length limit cut off a last accepted run where that shows."""


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
        length=1 + accepted / drafts if drafts else None,
        rate=accepted / draft_tokens if draft_tokens else None,
        per_position=[count / drafts for count in per_position] if drafts else [],
        tokens_per_step=emitted / steps if steps and any(output.drafted for output in outputs) else None,
    )


def engine_steps(output: Output) -> int:
    """Engine steps that emitted something for this request, the prefill step included.

    A step emits its accepted tokens and one more, so steps = emitted - accepted; a length limit inside the last
    accepted run cuts tokens that were counted as accepted, visible where drafted steps alone would exceed the length.
    """
    emitted, accepted = len(output.token_ids), sum(output.accepted)
    cut = max(0, 1 + len(output.accepted) + accepted - emitted)
    return emitted - accepted + cut


def soundness(block: BlockLine, outputs: Sequence[Output], expected_tokens: int | None) -> list[str]:
    """Broken invariants of one block, as sentences; empty when all hold.

    `expected_tokens`: output length of each request where EOS is ignored, else None.
    """
    where = f"{block.arm}, {block.workload} b{block.batch_size}, rotation {block.rotation}, pass {block.pass_index}"
    problems = []

    def hold(condition: bool, text: str) -> None:
        if not condition:
            problems.append(f"{where}: {text}")

    hold(block.seconds > 0, f"seconds must be positive (got {block.seconds})")
    hold(len(outputs) == block.requests, f"{block.requests} requests but {len(outputs)} outputs")
    emitted = sum(len(output.token_ids) for output in outputs)
    hold(emitted == block.output_tokens, f"{block.output_tokens} output tokens recorded, {emitted} ids stored")
    if expected_tokens is not None:
        odd = [index for index, output in enumerate(outputs) if len(output.token_ids) != expected_tokens]
        hold(not odd, f"requests {odd} are not {expected_tokens} tokens long though EOS is ignored")
    hold(
        block.num_accepted_tokens <= block.num_draft_tokens,
        f"{block.num_accepted_tokens} tokens accepted of {block.num_draft_tokens} drafted",
    )
    by_position = block.num_accepted_tokens_per_pos
    hold(
        sum(by_position) == block.num_accepted_tokens,
        f"accepted by position {by_position} does not add up to {block.num_accepted_tokens}",
    )
    hold(
        all(a >= b for a, b in pairwise(by_position)),
        f"accepted by position must not grow with the position (got {by_position})",
    )
    hold(
        not by_position or by_position[0] <= block.num_drafts,
        f"{by_position[:1]} accepted at the first position of {block.num_drafts} drafts",
    )
    if any(output.drafted for output in outputs):
        steps = [(a, d) for o in outputs for a, d in zip(o.accepted, o.drafted, strict=False)]
        worse = [step for step in steps if step[0] > step[1]]
        hold(not worse, f"steps accepted more than they drafted: (accepted, drafted) {worse[:5]}")
        hold(
            len(steps) == block.num_drafts,
            f"requests took {len(steps)} drafted steps, vLLM's counter says {block.num_drafts}",
        )
        accepted, drafted = sum(sum(o.accepted) for o in outputs), sum(sum(o.drafted) for o in outputs)
        hold(
            accepted == block.num_accepted_tokens,
            f"requests accepted {accepted} tokens, vLLM's counter says {block.num_accepted_tokens}",
        )
        hold(
            drafted == block.num_draft_tokens,
            f"requests drafted {drafted} tokens, vLLM's counter says {block.num_draft_tokens}",
        )
    return problems
