"""Scenarios: batches of requests that are served with and without speculation, and what each request received. Pure.

A scenario names its stops by their place in the reference, the target's own unconstrained output: "stop at the text of
token 7" occurs in the middle of a run whatever the model. It is one line of JSON, to be pasted.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from draftproof.errors import DraftproofError
from draftproof.spec import require


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Base of what a scenario is made of: defaults are left out of its JSON."""


class Length(Part, frozen=True, kw_only=True):
    """An exact prompt length, in tokens: blocks x the cache's block size + `plus`.

    With `context` it is counted from the other end: what `max_tokens` leaves of the context, + `plus`.
    """

    blocks: int = 0
    context: bool = False
    plus: int = 0

    def tokens(self, block_tokens: int, context_tokens: int, max_tokens: int) -> int:
        """Clipped to what an engine accepts: a prompt of at least one token, with room for another one."""
        start = context_tokens - max_tokens if self.context else self.blocks * block_tokens
        return min(max(1, start + self.plus), context_tokens - 1)


class StopText(Part, frozen=True, kw_only=True):
    """A stop string: the text of `tokens` tokens of the reference from place `at` on, without its last characters."""

    at: int
    tokens: int = 1
    trim: int = 0
    """Characters left out at its end, so that it ends within a token; at least one stays."""


class Request(Part, frozen=True, kw_only=True):
    """One request of a batch."""

    prompt: int | list[int] = 0
    """Which of the workload's prompts (counted in a circle), or the token ids themselves."""
    length: Length | None = None
    """Cut at the left, or filled up there with the prompts that follow; absent: the prompt as it is."""
    max_tokens: int = 16
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_texts: list[StopText] = []
    stop_ids: list[int] = []
    """Places in the reference whose token ids end the output."""
    drafts: list[list[int]] = []
    """The plan of a scripted control (`engines/controls.py`); empty: this request gets no drafts."""

    def __post_init__(self) -> None:
        require(self.max_tokens >= 1, "max_tokens", "at least 1", self.max_tokens)
        within = 0 <= self.min_tokens <= self.max_tokens
        require(within, "min_tokens", f"from 0 to max_tokens = {self.max_tokens}", self.min_tokens)
        require(self.prompt != [], "prompt", "an index or at least one token id", self.prompt)

    @property
    def has_stops(self) -> bool:
        return bool(self.stop_texts or self.stop_ids)


class Scenario(Part, frozen=True, kw_only=True):
    """One batch."""

    requests: list[Request]

    def __post_init__(self) -> None:
        require(bool(self.requests), "requests", "at least one", self.requests)

    @property
    def json(self) -> str:
        return msgspec.json.encode(self).decode()


def parse(text: str) -> Scenario:
    """A scenario from its JSON."""
    try:
        return msgspec.json.decode(text, type=Scenario)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise DraftproofError(
            f"--sd-example must be the JSON of a scenario (got {text[:200]!r}): {error}; "
            "paste it as a failed test printed it, in single quotes"
        ) from error


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A request as an engine gets it: nothing is symbolic any more. Sampling is greedy."""

    prompt: list[int]
    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: list[str] = []
    stop_token_ids: list[int] = []


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """What one request received, and what its ids say by themselves."""

    token_ids: list[int]
    text: str
    finish_reason: str | None
    stop_reason: int | str | None
    prompt_tokens: int
    decoded: str
    """All ids decoded at once, behind the prompt, by the tokenizer alone."""
    ends: list[int]
    """Characters of `decoded` after each token; those of half a character are not counted yet."""
    accepted: list[int] = []
    drafted: list[int] = []
    """By step, those without a draft left out."""
    counted: bool = True
    """Whether the engine told these counts."""

    def first(self, count: int) -> Received:
        """As if it had ended by length after `count` tokens, at least one; its counts by step are gone."""
        ids, ends = self.token_ids[:count], self.ends[:count]
        text = self.decoded[: ends[-1]]
        fields = {"token_ids": ids, "ends": ends, "decoded": text, "text": text, "accepted": [], "drafted": []}
        return msgspec.structs.replace(self, finish_reason="length", stop_reason=None, **fields)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What bounds an output beside its own request."""

    context_tokens: int
    block_tokens: int
    """Of the KV cache."""
    vocabulary: int
    k: int
    """The most draft tokens a step."""
    eos_token_id: int | None = None
    more_stop_ids: list[int] = []
    """Further ids that end an output of this model where EOS is not ignored."""


def prompt_ids(request: Request, prompts: Sequence[list[int]], limits: Limits) -> list[int]:
    """The request's prompt at its exact length."""
    first = request.prompt if isinstance(request.prompt, int) else 0
    ids = list(prompts[first % len(prompts)] if isinstance(request.prompt, int) else request.prompt)
    wanted = min(len(ids), limits.context_tokens - 1)
    if request.length is not None:
        wanted = request.length.tokens(limits.block_tokens, limits.context_tokens, request.max_tokens)
    following = first
    while len(ids) < wanted:
        following += 1
        ids = [*prompts[following % len(prompts)], *ids]
    return ids[len(ids) - wanted :]


def unconstrained(request: Request, prompt: list[int], limits: Limits) -> Asked:
    """What the reference of a request comes from: nothing ends it, and it outlasts the last draft."""
    return Asked(prompt=prompt, max_tokens=request.max_tokens + limits.k, ignore_eos=True)


def constrained(request: Request, prompt: list[int], reference: Received | None) -> Asked:
    """The request with its stops looked up in the reference, where it has any; one without any text is left out."""
    texts, ids = [], []
    if reference is not None:
        texts = [stop_string(stop, reference) for stop in request.stop_texts]
        ids = [reference.token_ids[place % len(reference.token_ids)] for place in request.stop_ids]
    return Asked(
        prompt=prompt,
        max_tokens=request.max_tokens,
        min_tokens=request.min_tokens,
        ignore_eos=request.ignore_eos,
        stop=list(dict.fromkeys(filter(None, texts))),
        stop_token_ids=list(dict.fromkeys(ids)),
    )


def stop_string(stop: StopText, reference: Received) -> str:
    first = stop.at % len(reference.ends)
    last = min(first + max(1, stop.tokens), len(reference.ends)) - 1
    start = reference.ends[first - 1] if first else 0
    text = reference.decoded[start : reference.ends[last]]
    return text[: max(1, len(text) - stop.trim)]
