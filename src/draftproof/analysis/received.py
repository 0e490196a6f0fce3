"""What users receive with and without speculation: what each answer promises by itself, and where two answers part.

Pure. The reading of an output is the slow and obvious one, token after token, as if there were no speculation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import msgspec

from draftproof.analysis.tokendiff import first_difference
from draftproof.scenarios import Asked, Limits, Received

ProblemName = Literal[
    "prompt_tokens",
    "too_many_tokens",
    "too_few_tokens",
    "tokens_after_stop",
    "lost_stop_token",
    "ends_early",
    "finish_reason",
    "stop_reason",
    "text",
    "drafts",
    "ends_elsewhere",
    "late_mask",
    "missed_stop",
    "early_stop",
    "swapped",
    "shifted",
    "divergent",
]
"""``missed_stop`` and ``early_stop``: one arm goes on where the other one ended by a stop id. ``late_mask``: as `KNOWN`
has it. ``swapped``: it is the output of another request. ``shifted``: the same tokens, one place earlier or later.
``divergent``: any other first difference that is no tie."""

KNOWN: dict[ProblemName, str] = {
    "late_mask": "vLLM masks stop ids and EOS for a step's last token if the output was shorter than min_tokens when "
    "the step began, even where its accepted drafts have led beyond min_tokens (found with 0.32.0)"
}
"""Faults of released engines: shown as expected failures, so that they neither hide others nor pass for sameness."""

SHIFTED_TOKENS = 3
"""So many tokens must fit one place further for a difference to be a shift; what follows from it is another text."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Something that no user should receive."""

    request: int
    arm: str
    name: ProblemName
    detail: str

    @property
    def line(self) -> str:
        return f"request {self.request} on {self.arm}: {self.name}: {self.detail}"


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """The first place where two arms emitted different tokens: a tie, or a problem. A referee has to tell."""

    request: int
    position: int
    prefix: list[int]
    """Prompt and common output."""
    pair: tuple[int, int]
    """The no-SD arm's token, the other arm's."""
    stops_masked: bool
    """Before min_tokens no stop id may be emitted: the best token of all may be one of them."""


class End(NamedTuple):
    """Where an output has to end."""

    tokens: int
    finish_reason: str
    stop_reason: int | str | None
    characters: int
    """Of the text that the user gets."""


def expected_end(asked: Asked, got: Received, limits: Limits) -> End | None:
    """The first token at which these ids end the output; None: nothing ends them.

    As vLLM documents it: a stop id belongs to the ids and not to the text; a stop string counts from the token after
    min_tokens on, is cut off, and goes before the length; the string that is complete first wins.
    """
    eos = None if asked.ignore_eos else limits.eos_token_id
    stop_ids = {*asked.stop_token_ids, *([] if asked.ignore_eos else limits.more_stop_ids)}
    before = 0
    for count, (token, end) in enumerate(zip(got.token_ids, got.ends, strict=True), start=1):
        if token == eos:
            return End(count, "stop", None, before)
        if token in stop_ids:
            return End(count, "stop", token, before)
        found = stop_within(got.decoded[:end], before, asked.stop) if count > asked.min_tokens else None
        if found:
            return End(count, "stop", found[0], found[1])
        if count >= asked.max_tokens or len(asked.prompt) + count >= limits.context_tokens:
            return End(count, "length", None, end)
        before = end
    return None


def stop_within(text: str, before: int, stops: Sequence[str]) -> tuple[str, int] | None:
    """(Stop string, where it begins) of the one that is complete first behind character `before`; then list order."""
    found: list[tuple[int, int, str, int]] = []
    for order, stop in enumerate(stops):
        start = text.find(stop, max(0, before - len(stop) + 1))
        if start >= 0:
            found.append((start + len(stop), order, stop, start))
    return min(found)[2:] if found else None


def broken_promises(request: int, arm: str, asked: Asked, got: Received, limits: Limits) -> list[Problem]:
    """What is wrong with one answer, whatever another arm says."""
    problems: list[Problem] = []

    def found(name: ProblemName, detail: str) -> None:
        problems.append(Problem(request=request, arm=arm, name=name, detail=detail))

    count, end = len(got.token_ids), expected_end(asked, got, limits)
    if got.prompt_tokens != len(asked.prompt):
        found("prompt_tokens", f"{got.prompt_tokens} are told of a prompt of {len(asked.prompt)}")
    if count < asked.min_tokens and len(asked.prompt) + count < limits.context_tokens:
        found("too_few_tokens", f"{count} tokens with min_tokens = {asked.min_tokens}")
    elif end is None:
        ends_by_id = got.finish_reason == "stop" and not isinstance(got.stop_reason, str)
        where = f"after {count} tokens as {got.finish_reason!r}, {got.stop_reason!r}"
        found("lost_stop_token" if ends_by_id else "ends_early", f"it ended {where}; nothing in its ids ends it")
    elif end.tokens < count:
        what = f"{count} tokens, and {end.finish_reason!r} ({end.stop_reason!r}) ends it at {end.tokens}"
        found("too_many_tokens" if end.finish_reason == "length" else "tokens_after_stop", what)
    else:
        if got.finish_reason != end.finish_reason:
            found("finish_reason", f"{got.finish_reason!r} where its ids end as {end.finish_reason!r}")
        elif got.stop_reason != end.stop_reason:
            found("stop_reason", f"{got.stop_reason!r} where its ids end by {end.stop_reason!r}")
        if got.text != got.decoded[: end.characters]:
            found("text", f"{got.text!r} where its ids decode to {got.decoded[: end.characters]!r}")
    return problems


Draft = Callable[[list[int]], list[int]]
"""Prompt and output so far -> what was drafted there, untrimmed."""


def draft_problems(
    request: int, arm: str, asked: Asked, got: Received, limits: Limits, draft: Draft, *, zeroed: bool
) -> list[Problem]:
    """The counts by step against the script: greedy, a draft is accepted as far as it agrees with what was emitted.

    Without this check an engine that never drafts would pass everything. `zeroed`: steps may verify k zeros instead
    (`near_context`). What is not counted is not checked: an older vLLM tells no counts, and none comes with an output
    that ended by a stop string, which is found behind the engine's core.
    """
    if not got.counted:
        return []
    told = list(zip(got.drafted, got.accepted, strict=False))
    ids, last = got.token_ids, len(got.token_ids)
    found = {(1, 0)}  # (tokens emitted, steps told of) that the script and the counts can both have come to
    while found:
        done, step = min(found)
        found.remove((done, step))
        if done >= last and step == len(told):
            return []
        if done >= last:
            continue
        room = max(0, limits.context_tokens - len(asked.prompt) - done - 1)  # one more token is emitted behind them
        known = [*asked.prompt, *ids[:done]]
        for proposed in (draft(known), *([[0] * limits.k] if zeroed else [])):
            proposed = proposed[: min(room, limits.k)]
            good = first_difference(proposed, ids[done : done + len(proposed)])
            good = len(proposed) if good is None else good
            if not proposed:
                found.add((done + 1, step))
            elif step < len(told) and told[step][0] == len(proposed):
                accepted = told[step][1]
                # What an end within the last accepted run cut off was accepted all the same.
                if accepted == good or (accepted > good and done + good >= last):
                    found.add((done + good + 1, step + 1))
    detail = f"(drafted, accepted) by step: {told}; that is not what its script gives"
    return [Problem(request=request, arm=arm, name="drafts", detail=detail)]


def near_context(asked: Sequence[Asked], others: Sequence[Received], limits: Limits) -> bool:
    """Whether a request of the batch came within two drafts of the context's end.

    Within one draft of it vLLM's V1 runner asks no proposer: for that step it gives every request of the batch k times
    token 0, those without drafts as well (``_input_fits_in_drafter``). That costs speed, not sameness.
    """
    ends = [len(request.prompt) + len(got.token_ids) for request, got in zip(asked, others, strict=True)]
    return max(ends) + 2 * limits.k + 1 > limits.context_tokens


def difference(request: int, arm: str, asked: Asked, base: Received, other: Received) -> Difference | list[Problem]:
    """Where two arms part: a difference to be scored, or what is unlike although the ids are the same."""
    position = first_difference(base.token_ids, other.token_ids)
    if position is None:
        pairs: list[tuple[ProblemName, object, object]] = [
            ("text", base.text, other.text),
            ("finish_reason", base.finish_reason, other.finish_reason),
            ("stop_reason", base.stop_reason, other.stop_reason),
            ("prompt_tokens", base.prompt_tokens, other.prompt_tokens),
        ]
        return [
            Problem(request=request, arm=arm, name=name, detail=f"{right!r} where no-SD has {left!r} with the same ids")
            for name, left, right in pairs
            if left != right
        ]
    if position >= min(len(base.token_ids), len(other.token_ids)):
        detail = (
            f"{len(other.token_ids)} tokens where no-SD has {len(base.token_ids)}, and the {position} in common are "
            "the same"
        )
        return [Problem(request=request, arm=arm, name="ends_elsewhere", detail=detail)]
    return Difference(
        request=request,
        position=position,
        prefix=[*asked.prompt, *base.token_ids[:position]],
        pair=(base.token_ids[position], other.token_ids[position]),
        stops_masked=position < asked.min_tokens,
    )


def name_of(
    found: Difference,
    asked: Asked,
    bases: Sequence[Received],
    others: Sequence[Received],
    limits: Limits,
    draft: Draft,
) -> ProblemName:
    """What kind of fault makes a difference that is no tie."""
    base, other = bases[found.request], others[found.request]
    if any(other.token_ids == wrong.token_ids for wrong in bases):
        return "swapped"
    stops = {limits.eos_token_id, *limits.more_stop_ids, *asked.stop_token_ids}
    begun = begun_at(found.position, asked, other, limits, draft)
    if found.pair[0] in stops and begun is not None and begun < asked.min_tokens <= found.position:
        return "late_mask"
    if stops_at(base, found.position):
        return "missed_stop"
    if stops_at(other, found.position):
        return "early_stop"
    left, right = base.token_ids[found.position :], other.token_ids[found.position :]
    if fits_shifted(left, right) or fits_shifted(right, left):
        return "shifted"
    return "divergent"


def begun_at(position: int, asked: Asked, got: Received, limits: Limits, draft: Draft) -> int | None:
    """Where the step began whose drafts were all accepted and whose own token is at `position`; None: no such step."""
    done = 1
    while done < position:
        room = max(0, limits.context_tokens - len(asked.prompt) - done - 1)
        proposed = draft([*asked.prompt, *got.token_ids[:done]])[: min(room, limits.k)]
        good = first_difference(proposed, got.token_ids[done : done + len(proposed)])
        if good is None and done + len(proposed) == position:
            return done
        done += 1 + (len(proposed) if good is None else good)
    return None


def stops_at(got: Received, position: int) -> bool:
    """Whether the token at `position` is a stop id that ended the output."""
    by_id = got.finish_reason == "stop" and not isinstance(got.stop_reason, str)
    return by_id and position == len(got.token_ids) - 1


def fits_shifted(left: Sequence[int], right: Sequence[int]) -> bool:
    """Whether `right` begins like `left` without its first token."""
    beginning = list(right[:SHIFTED_TOKENS])
    return len(beginning) == SHIFTED_TOKENS and list(left[1 : 1 + SHIFTED_TOKENS]) == beginning
