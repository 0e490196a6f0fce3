"""A toy engine that serves unlike requests: without speculation token by token, with it run by run, and with faults.

The two ways share the toy's next token and little else, so that agreeing is an achievement. The speculating one ends an
output as vLLM does: the core cuts an accepted run at a stop id or at the length, then the text is searched for strings.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal

from draftproof.engines import Answers, ServeRequest
from draftproof.engines.controls import Script
from draftproof.scenarios import Asked, Limits, Received

VOCABULARY = 31
EOS = 0
TEXTS = ["", *("abcdeab abc d  e"[place : place + 1 + place % 3] for place in range(13)), *"abcdefghijklmnop", ""]
"""Short and alike, so that strings are found across tokens; EOS and one other token have no text."""
LIMITS = Limits(context_tokens=64, block_tokens=8, vocabulary=VOCABULARY, k=7, eos_token_id=EOS)

Fault = Literal[
    "swallows a stop id",
    "loses a stop id",
    "keeps what is behind a stop id",
    "keeps what is behind a stop string",
    "ignores min_tokens",
    "masks the bonus token",
    "overruns max_tokens",
    "swaps two outputs",
    "slips by one position",
    "flips a token",
    "garbles the text",
    "gives another reason",
    "gives no stop reason",
    "counts one more",
    "drafts nothing",
    "tells of another prompt",
]


def next_token(ids: Sequence[int], banned: set[int]) -> int:
    a, b, c = [0, 0, *ids][-3:]
    first = (a * 31 + b * 17 + c * 7 + 5) % VOCABULARY
    return next(token % VOCABULARY for token in range(first, first + VOCABULARY) if token % VOCABULARY not in banned)


def decoded(ids: Sequence[int]) -> tuple[str, list[int]]:
    pieces = [TEXTS[token] for token in ids]
    return "".join(pieces), list(itertools.accumulate(map(len, pieces)))


def stops_of(asked: Asked) -> set[int]:
    return {*asked.stop_token_ids, *([] if asked.ignore_eos else [EOS])}


def masked(asked: Asked, done: int) -> set[int]:
    return {*asked.stop_token_ids, EOS} if done < asked.min_tokens else set()


def found_in(asked: Asked, ids: list[int]) -> str | None:
    """The stop string that the newest token completes; the earliest, then the first of the list."""
    if not asked.stop or len(ids) <= asked.min_tokens:
        return None
    text, ends = decoded(ids)
    before = ends[-2] if len(ends) > 1 else 0
    places = []
    for order, stop in enumerate(asked.stop):
        start = text.find(stop, max(0, before + 1 - len(stop)))
        if start >= 0:
            places.append((start + len(stop), order, stop))
    return min(places)[2] if places else None


def answer(
    asked: Asked, ids: list[int], finish: str, reason: int | str | None, steps: list[tuple[int, int]]
) -> Received:
    whole, ends = decoded(ids)
    text = whole
    if isinstance(reason, str):
        before = ends[-2] if len(ends) > 1 else 0
        text = whole[: whole.find(reason, max(0, before + 1 - len(reason)))]
    elif finish == "stop":
        text = decoded(ids[:-1])[0]
    return Received(
        token_ids=ids,
        text=text,
        finish_reason=finish,
        stop_reason=reason,
        prompt_tokens=len(asked.prompt),
        decoded=whole,
        ends=ends,
        drafted=[drafted for drafted, _ in steps if not isinstance(reason, str)],
        accepted=[accepted for _, accepted in steps if not isinstance(reason, str)],
        counted=not isinstance(reason, str),
    )


def one_by_one(asked: Asked, limits: Limits) -> Received:
    """Without speculation: one token, then everything that may end the output."""
    ids: list[int] = []
    while True:
        ids.append(next_token([*asked.prompt, *ids], masked(asked, len(ids))))
        if ids[-1] in stops_of(asked):
            reason = None if ids[-1] == EOS and not asked.ignore_eos else ids[-1]
            return answer(asked, ids, "stop", reason, [])
        found = found_in(asked, ids)
        if found:
            return answer(asked, ids, "stop", found, [])
        if len(ids) == asked.max_tokens or len(asked.prompt) + len(ids) == limits.context_tokens:
            return answer(asked, ids, "length", None, [])


class RunByRun:
    """One speculated output: each step verifies a whole draft and emits what it accepts and one token more."""

    def __init__(self, asked: Asked, script: Script, limits: Limits, fault: Fault | None) -> None:
        self.asked = asked
        self.script = script
        self.limits = limits
        self.fault = fault
        self.ids: list[int] = []
        self.steps: list[tuple[int, int]] = []
        self.swallowed = False

    def run(self) -> Received:
        while True:
            drafted = len(self.steps)
            before = len(self.ids)
            self.ids += self.emitted()
            ended = self.ended(before, len(self.steps) > drafted)
            if ended is not None:
                return ended

    def emitted(self) -> list[int]:
        asked, known = self.asked, [*self.asked.prompt, *self.ids]
        room = self.limits.context_tokens - len(known) - 1
        draft = self.script.draft(known, self.limits.k, self.limits.vocabulary)[: max(0, room)] if self.ids else []
        if self.fault == "drafts nothing":
            draft = []
        run: list[int] = []
        for place in range(len(draft) + 1):
            done = len(self.ids) + (0 if self.fault == "masks the bonus token" and place == len(draft) else place)
            banned = set() if self.fault == "ignores min_tokens" else masked(asked, done)
            token = next_token([*known, *run], banned)
            if self.fault == "flips a token" and draft and len(self.ids) + place == 6:
                token = (token + 1) % VOCABULARY
            run.append(token)
            if place == len(draft) or token != draft[place]:
                break
        if draft:
            self.steps.append((len(draft), len(run) - 1 + (self.fault == "counts one more")))
        if self.fault == "slips by one position" and len(run) > 4 and len(self.ids) < 9:
            run = run[1:]
        return run

    def ended(self, before: int, drafted: bool) -> Received | None:
        asked, ids, fault = self.asked, self.ids, self.fault
        most = asked.max_tokens + 2 * (fault == "overruns max_tokens" and drafted)
        finish: str | None = None
        reason: int | str | None = None
        count = before
        while count < len(ids) and finish is None:
            count += 1
            if ids[count - 1] in stops_of(asked):
                if fault == "swallows a stop id" and drafted and not self.swallowed:
                    self.swallowed = True  # once: the toy would emit it again and again
                    del ids[count - 1]
                    count -= 1
                    continue
                finish, reason = "stop", None if ids[count - 1] == EOS and not asked.ignore_eos else ids[count - 1]
            elif count == most or len(asked.prompt) + count == self.limits.context_tokens:
                finish = "length"
        beyond = ids[count:]
        del ids[count:]
        string_at = next(
            (n for n in range(before + 1, len(ids) + 1 - (finish == "stop")) if found_in(asked, ids[:n])), 0
        )
        if string_at:
            finish, reason = "stop", found_in(asked, ids[:string_at])
            if fault != "keeps what is behind a stop string":
                beyond = ids[string_at:]
                del ids[string_at:]
        if finish is None:
            return None
        given = answer(asked, list(ids), finish, reason, self.steps)
        return self.spoilt(given, beyond)

    def spoilt(self, given: Received, beyond: list[int]) -> Received:
        """The answer with the faults that concern its end."""
        asked, by_id = self.asked, given.finish_reason == "stop" and not isinstance(given.stop_reason, str)
        ids, fields = list(given.token_ids), {name: getattr(given, name) for name in given.__struct_fields__}
        if self.fault == "loses a stop id" and by_id and self.steps:
            ids = ids[:-1]
        if self.fault == "keeps what is behind a stop id" and by_id:
            ids += beyond
        fields |= {"token_ids": ids, "decoded": decoded(ids)[0], "ends": decoded(ids)[1]}
        if self.fault == "garbles the text" and self.steps:
            fields["text"] += "!"
        if self.fault == "gives another reason" and self.steps:
            fields["finish_reason"] = {"stop": "length", "length": "stop"}[fields["finish_reason"]]
        if self.fault == "gives no stop reason":
            fields["stop_reason"] = None
        if self.fault == "tells of another prompt":
            fields["prompt_tokens"] = len(asked.prompt) + 1
        return Received(**fields)


class ToyServer:
    """Serves as an arm does; `k` = 0: without speculation."""

    def __init__(self, k: int = LIMITS.k, *, fault: Fault | None = None, limits: Limits = LIMITS) -> None:
        self.k = k
        self.fault = fault
        self.limits = limits

    def serve(self, request: ServeRequest) -> Answers:
        script = Script()
        script.kind = "scripted"
        entries = request.script
        script.load([e.prompt for e in entries], [e.reference for e in entries], [e.plan for e in entries])
        received = [
            RunByRun(asked, script, self.limits, self.fault).run() if self.k else one_by_one(asked, self.limits)
            for asked in request.requests
        ]
        if self.fault == "swaps two outputs" and len(received) > 1:
            received[:2] = received[1::-1]
        return Answers(received=received, eos_token_id=EOS, more_stop_ids=[])
