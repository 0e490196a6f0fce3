"""Is a drafter alive, and are its counts true? From counts to named alarms, each with its numbers and what to do.

Three questions, each of its own: do the counts of a block agree with each other (`draft_invariants`), does the
acceptance length lie where the drafter's entry expects it (`acceptance_alarms`), and are there more drafts than one
token over and over (`one_token_alarms`)?
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Literal

import msgspec

from draftproof.analysis.acceptance import Acceptance, place
from draftproof.records import BlockLine, Output
from draftproof.spec import ExpectedAcceptance

MIN_DRAFTS = 32
"""Below this many drafts an acceptance length outside of its range is shown, not judged: a drafter whose first token is
accepted in one of ten drafts has none accepted in 32 with a probability of 3 %, in 8 with 43 %."""

MIN_DRAFT_TOKENS = 16
"""Below this many draft tokens it says nothing that they are all the same one."""

NEARLY_ALL = 0.9
"""Share of accepted draft tokens from which drafts of one token are right: the text itself repeats that token."""

EPSILON = 1e-9
"""Rounding of `1 + accepted / num_drafts` where an end of the range is met exactly."""

AlarmName = Literal[
    "accepted_within_drafted",
    "positions_add_up",
    "positions_fall",
    "first_position_within_drafts",
    "k_is_kept",
    "emitted_adds_up",
    "traces_pair_up",
    "step_within_drafted",
    "drafts_agree",
    "drafted_agree",
    "accepted_agree",
    "positions_agree",
    "steps_drafted_agree",
    "steps_emitted_agree",
    "no_drafts",
    "acceptance_is_one",
    "all_accepted",
    "below_expected",
    "above_expected",
    "one_token",
]


class Alarm(msgspec.Struct, frozen=True):
    name: AlarmName
    text: str

    @property
    def line(self) -> str:
        return f"{self.name}: {self.text}"


class DraftHealth(msgspec.Struct, frozen=True, kw_only=True):
    """What a cell's records say of its drafts; its acceptance is judged apart, since that needs the catalog."""

    broken: list[Alarm]
    """Invariants that some block does not keep, each with the block."""
    one_token: list[Alarm]
    tallied_tokens: int
    """Draft tokens whose ids were counted."""
    tally_gap: str
    """Why their ids cannot be judged: ``needs ...; found ...; enable with ...``; empty where they can."""


# -- invariants --------------------------------------------------------------------------------------------------------


def draft_invariants(block: BlockLine, outputs: Sequence[Output], *, k: int) -> list[Alarm]:
    """What the counters, the requests' traces and the token ids of one block must keep, alone and between them.

    An engine that gives no traces (older releases of vLLM) is held to its counters and token ids.
    """
    traced = any(output.drafted for output in outputs)
    found = counter_invariants(block, k)
    found += trace_invariants(block, outputs, k) if traced else emitted_by_counters(block, k)
    return [Alarm(alarm.name, f"{place(block)}: {alarm.text}") for alarm in found]


def counter_invariants(block: BlockLine, k: int) -> list[Alarm]:
    """Of vLLM's counters alone (``v1/spec_decode/metrics.py``)."""
    drafts, drafted, accepted = block.num_drafts, block.num_draft_tokens, block.num_accepted_tokens
    by_position = block.num_accepted_tokens_per_pos
    rules: list[tuple[bool, AlarmName, str]] = [
        (accepted <= drafted, "accepted_within_drafted", f"{accepted} tokens accepted of {drafted} drafted"),
        (
            sum(by_position) == accepted,
            "positions_add_up",
            f"accepted by position {by_position} does not add up to {accepted}",
        ),
        (
            all(earlier >= later for earlier, later in pairwise(by_position)),
            "positions_fall",
            f"accepted by position must not grow with the position (got {by_position})",
        ),
        (
            not by_position or by_position[0] <= drafts,
            "first_position_within_drafts",
            f"{by_position[:1]} accepted at the first position of {drafts} drafts",
        ),
        (
            drafted <= k * drafts and not any(by_position[k:]),
            "k_is_kept",
            f"{drafted} tokens in {drafts} drafts, accepted by position {by_position}: more than k = {k} a draft",
        ),
    ]
    return [Alarm(name, text) for holds, name, text in rules if not holds]


def emitted_by_counters(block: BlockLine, k: int) -> list[Alarm]:
    """emitted = requests (the prefills' tokens) + drafts + accepted + steps without a draft - what ends cut off.

    An end (EOS, a length limit) cuts at most k tokens off the last step of each request, and that step emits one.
    """
    least = block.requests + block.num_drafts + block.num_accepted_tokens - k * block.requests
    if block.output_tokens >= least:
        return []
    text = f"{block.output_tokens} tokens emitted, at least {least} expected of {block.num_drafts} drafts with "
    return [Alarm("emitted_adds_up", f"{text}{block.num_accepted_tokens} accepted tokens")]


def trace_invariants(block: BlockLine, outputs: Sequence[Output], k: int) -> list[Alarm]:
    """Of the requests' own steps, and of their sums against vLLM's counters."""
    odd = [index for index, output in enumerate(outputs) if len(output.accepted) != len(output.drafted)]
    if odd:
        return [Alarm("traces_pair_up", f"requests {odd} have steps with accepted but no drafted tokens, or without")]
    steps = [step for output in outputs for step in zip(output.accepted, output.drafted, strict=True)]
    worse = [step for step in steps if step[0] > step[1]]
    longer = [step for step in steps if step[1] > k]
    short = [index for index, output in enumerate(outputs) if cut_tokens(output) > last_accepted(output)]
    positions = [sum(accepted > i for accepted, _ in steps) for i in range(len(block.num_accepted_tokens_per_pos))]
    rules: list[tuple[bool, AlarmName, str]] = [
        (not worse, "step_within_drafted", f"steps accepted more than they drafted: (accepted, drafted) {worse[:5]}"),
        (not longer, "k_is_kept", f"steps drafted more than k = {k}: (accepted, drafted) {longer[:5]}"),
        (
            not short,
            "emitted_adds_up",
            f"requests {short} emitted fewer tokens than their accepted tokens and one more a step, by more than their "
            "end can have cut off the last step",
        ),
        agree("drafts_agree", "took", len(steps), "drafted steps", block.num_drafts),
        agree("drafted_agree", "drafted", sum(d for _, d in steps), "tokens", block.num_draft_tokens),
        agree("accepted_agree", "accepted", sum(a for a, _ in steps), "tokens", block.num_accepted_tokens),
        (
            positions == block.num_accepted_tokens_per_pos,
            "positions_agree",
            f"requests accepted {positions} by position, vLLM's counter says {block.num_accepted_tokens_per_pos}",
        ),
    ]
    return [Alarm(name, text) for holds, name, text in rules if not holds]


def agree(name: AlarmName, verb: str, count: int, noun: str, counter: int) -> tuple[bool, AlarmName, str]:
    """The rule that the requests and vLLM's counter say the same."""
    return count == counter, name, f"requests {verb} {count} {noun}, vLLM's counter says {counter}"


def cut_tokens(output: Output) -> int:
    """Accepted tokens and one a step (the prefill's too) beyond what was emitted; negative: steps without a draft."""
    return 1 + len(output.accepted) + sum(output.accepted) - len(output.token_ids)


def last_accepted(output: Output) -> int:
    """Tokens that the request's end may have cut off: the last step emits at least one of its accepted + 1."""
    return output.accepted[-1] if output.accepted else 0


def step_invariants(
    block: BlockLine, outputs: Sequence[Output], steps: Sequence[dict[str, Any]], *, async_scheduling: bool
) -> list[Alarm]:
    """The same counts from the engine's steps of a ``stages`` block: draft tokens, and emitted = accepted + steps.

    A request emits in each step that it takes part in, but for steps that compute a part of its prompt only; its end
    may cut accepted tokens off the last one. With async scheduling steps are also planned for requests that have
    already ended, so that sums over steps are upper bounds there.
    """
    drafted = sum(step["draft_tokens"] for step in steps)
    pairs = sum(step["requests"] for step in steps)
    prompt_pairs = sum(step["requests"] for step in steps if step["kind"] != "decode")
    spare = pairs + block.num_accepted_tokens - block.output_tokens
    most = sum(map(last_accepted, outputs)) + max(0, prompt_pairs - block.requests)
    found = []
    if drafted < block.num_draft_tokens or (drafted > block.num_draft_tokens and not async_scheduling):
        text = f"steps scheduled {drafted} draft tokens, vLLM's counter says {block.num_draft_tokens}"
        found.append(Alarm("steps_drafted_agree", f"{place(block)}: {text}"))
    if spare < 0 or (spare > most and not async_scheduling):
        text = (
            f"{block.output_tokens} tokens emitted in {pairs} (request, step) pairs with {block.num_accepted_tokens} "
            f"accepted: {spare} are missing, where ends and parts of prompts explain 0 to {most}"
        )
        found.append(Alarm("steps_emitted_agree", f"{place(block)}: {text}"))
    return found


# -- acceptance --------------------------------------------------------------------------------------------------------


def acceptance_alarms(found: Acceptance, *, k: int, expected: ExpectedAcceptance | None) -> list[Alarm]:
    """Whether the acceptance length of a cell's pooled paired blocks lies where it is expected; at most one alarm.

    Exactly 1 and exactly k + 1 are counted in whole tokens: nothing accepted, k accepted in every draft. Where an
    output ends, the last draft of its request may be shorter than k (an oracle has nothing more to draft): up to
    k - 1 tokens a request count as accepted before an acceptance length is called too low.
    """
    drafts, accepted = found.num_drafts, found.num_accepted_tokens
    low = expected.at_least if expected else None
    high = expected.at_most if expected else None
    one_is_expected = low <= 1 if low is not None else high is not None and high <= 1
    full_is_expected = high >= k + 1 if high is not None else low is not None and low >= k + 1
    if not drafts:
        return [] if low is not None and low <= 1 else [no_drafts(found)]
    length = 1 + accepted / drafts
    undrafted = max(0, min(k * drafts - found.num_draft_tokens, (k - 1) * found.requests))
    where = f"{drafts} drafts ({accepted} of {found.num_draft_tokens} draft tokens accepted)"
    because = f" ({expected.source})" if expected else ""
    if not accepted and not one_is_expected:
        text = (
            f"acceptance length exactly 1.00 over {where}: the drafter never agrees with the target; check that all of "
            "its tensors were loaded (names, d2t), that it was made for this target, its tokenizer and its layers, and "
            "that its positions are right; where it is right, set expected_acceptance in the variant's entry"
        )
        return [Alarm("acceptance_is_one", text)]
    if accepted == k * drafts and not full_is_expected:
        text = (
            f"acceptance length exactly {k + 1}.00 over {where}: nothing was ever rejected; check that drafts are "
            "verified at all (no synthetic acceptance), and that the drafter is not the target itself; where it is "
            "right, set expected_acceptance in the variant's entry"
        )
        return [Alarm("all_accepted", text)]
    if low is not None and length + undrafted / drafts < low - EPSILON:
        text = (
            f"acceptance length {length:.3f} over {where} is expected to be at least {low:g}{because}; "
            "check the drafter's weights and what it is fed, or correct the entry with its source"
        )
        return [Alarm("below_expected", text)]
    if high is not None and length > high + EPSILON:
        text = (
            f"acceptance length {length:.3f} over {where} is expected to be at most {high:g}{because}; "
            "check that rejected drafts are rejected, or correct the entry with its source"
        )
        return [Alarm("above_expected", text)]
    return []


def no_drafts(found: Acceptance) -> Alarm:
    return Alarm(
        "no_drafts",
        f"no draft in {found.requests} requests: the drafter was never asked or never answered; check the method and "
        "its limits (context length, batch size) in the resolved configuration; where it is right, set "
        "expected_acceptance.at_least = 1 in the variant's entry",
    )


# -- one token over and over -------------------------------------------------------------------------------------------


def one_token_alarms(blocks: Sequence[BlockLine]) -> list[Alarm]:
    """All draft tokens of a cell's ``stages`` blocks are one token, and the target mostly did not agree.

    Weights that were not loaded, a head without its token map or zeros in place of drafts show as one token. A text
    that repeats one token ("write 'a' a hundred times") makes a good drafter do the same: its drafts are then accepted,
    so that drafts of which nine in ten tokens are accepted raise no alarm.
    """
    tallies = [block.draft_tally for block in blocks if block.draft_tally is not None and block.draft_tally.tokens]
    tokens = sum(tally.tokens for tally in tallies)
    tops = {tally.top_token for tally in tallies}
    if tokens < MIN_DRAFT_TOKENS or len(tops) != 1 or any(tally.distinct != 1 for tally in tallies):
        return []
    accepted, drafted = (sum(getattr(b, f"num_{kind}_tokens") for b in blocks) for kind in ("accepted", "draft"))
    if accepted >= NEARLY_ALL * drafted > 0:
        return []
    text = (
        f"all {tokens} draft tokens are token {tops.pop()}, and {accepted} of {drafted} verified ones were accepted: "
        "the drafter does not read the text; check that all of its tensors were loaded (LM head, d2t) and that its "
        "hidden states are not constant"
    )
    return [Alarm("one_token", text)]


def tally_gap(blocks: Sequence[BlockLine], unavailable: Sequence[str]) -> str:
    """Why the ids of a cell's draft tokens cannot be judged; empty where they can.

    `unavailable`: messages of failures of ``stages`` blocks.
    """
    needs = "needs the ids of draft tokens"
    if not blocks:
        why = "; ".join(unavailable) or "no stages block in the records"
        return f"{needs}; found that there is none: {why}; enable with a run that has stages blocks"
    reasons = list(dict.fromkeys(block.draft_tally_reason for block in blocks if block.draft_tally_reason))
    if reasons:
        return reasons[0]
    if any(block.draft_tally is None for block in blocks):
        return f"{needs}; found records from before they were counted; enable with a new run (--sd-fresh)"
    tokens = sum(block.draft_tally.tokens for block in blocks if block.draft_tally is not None)
    if tokens < MIN_DRAFT_TOKENS:
        counted = sum(block.num_draft_tokens for block in blocks)
        return (
            f"needs the ids of at least {MIN_DRAFT_TOKENS} draft tokens; found {tokens} (vLLM's counter: {counted}) in "
            f"{len(blocks)} stages blocks; enable with a longer stage_output_tokens or more stage_blocks"
        )
    return ""
