"""Policies: which variant drafts, and how many tokens, at each step.

Two kinds. A `Planned` policy decides for every position beforehand, from the trace (hindsight, as an oracle) or without
looking at it (fixed k). A `Stepwise` policy decides in order and sees only what an engine would know *before* the step.
A user's own is one class of either kind, given as ``module:Class``.
"""

from __future__ import annotations

import abc
import importlib
import sys
from pathlib import Path
from typing import ClassVar, Literal

import msgspec
import numpy as np

from draftproof.errors import DraftproofError, rule, unknown
from draftproof.simulator.clock import Clock
from draftproof.simulator.table import Ints, Table

Scope = Literal["single", "joint", "both"]


class Plan(msgspec.Struct, frozen=True):
    """A decision for every position: arrays of shape (N,)."""

    variant: Ints
    """Index into the table's variants."""
    drafts: Ints
    """Tokens to propose; 0: none."""


class Policy:
    """Base of both kinds."""

    name: ClassVar[str] = ""
    scope: ClassVar[Scope] = "both"
    """Whether it runs on each variant by itself, on all of them together, or both."""
    hindsight: ClassVar[bool] = False
    """Whether it looks at what will be accepted: no engine can run it, and a lookup never misses for it."""
    by_batch_size: ClassVar[bool] = True
    """Whether its decisions may change with the batch size; if not, they are made once."""
    all_pay: ClassVar[bool] = False
    """Whether every drafter drafts at every step, and is paid for."""
    needs_matches: ClassVar[bool] = False
    """Whether it looks at the n-gram match length."""

    @property
    def label(self) -> str:
        """How it is called in results."""
        return self.name or type(self).__name__

    @property
    def k(self) -> int | None:
        """The k that it always uses, if there is one."""
        return None

    @property
    def most_drafts(self) -> int:
        """The largest k that it asks for by itself; the trace must go that far."""
        return self.k or 0


class Planned(Policy, abc.ABC):
    @abc.abstractmethod
    def plan(self, table: Table, clock: Clock) -> Plan:
        """The decision for every position of the table."""


class Known(msgspec.Struct):
    """What is known before a step. `match` is the longest suffix of the context found earlier in it (0: none)."""

    prompt_tokens: int
    generated: int
    match: int
    batch_size: int


class Stepwise(Policy, abc.ABC):
    needs_matches = True

    def begin(self, clock: Clock, limit: int) -> None:
        """A new request: forget the last one. `limit` is the largest k that the trace can answer."""

    @abc.abstractmethod
    def choose(self, known: Known) -> tuple[int, int]:
        """Index of the variant and number of drafts (0: none) for this step."""

    def learn(self, variant: int, drafts: int, emitted: int) -> None:
        """What became of it: `drafts` were proposed (0: the lookup found nothing), `emitted` tokens came out."""


class Fixed(Planned):
    """k drafts at every step."""

    name = "fixed"
    scope = "single"
    by_batch_size = False

    def __init__(self, k: int) -> None:
        if k < 1:
            raise rule("fixed:k", "at least 1", k)
        self._k = k

    @property
    def k(self) -> int:
        return self._k

    def plan(self, table: Table, clock: Clock) -> Plan:
        return Plan(np.zeros(table.positions, dtype=np.int64), np.full(table.positions, self._k, dtype=np.int64))


class Oracle(Planned):
    """As many drafts as will be accepted: always the longest jump, none rejected."""

    name = "oracle"
    scope = "single"
    hindsight = True
    by_batch_size = False

    def plan(self, table: Table, clock: Clock) -> Plan:
        return Plan(np.zeros(table.positions, dtype=np.int64), table.lengths[0] - 1)


class Combine(Planned):
    """The oracle over several variants: at each step the one with the longest jump, the first of them where equal."""

    name = "combine"
    scope = "joint"
    hindsight = True
    by_batch_size = False

    def plan(self, table: Table, clock: Clock) -> Plan:
        winner = np.argmax(table.lengths, axis=0)
        return Plan(winner.astype(np.int64), np.max(table.lengths, axis=0) - 1)


class CombineAll(Combine):
    """The same where the winner is known only after all have drafted: every step pays for all drafters.

    Each is paid for as many drafts as the winner's, which is the least that such a system could spend.
    """

    name = "combine_all"
    all_pay = True


class Bound(Planned):
    """The least total time under the rules, by dynamic programming: no policy is faster on copies of one request."""

    name = "bound"
    hindsight = True

    def plan(self, table: Table, clock: Clock) -> Plan:
        from draftproof.simulator.bound import least_time

        return least_time(table, clock)


class Schedule(Planned):
    """k by batch size, as vLLM's dynamic speculation: ``schedule:1=5,32=2,128=0`` is 2 from 32 on and none from 128."""

    name = "schedule"
    scope = "single"

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            self.k_from = {int(size): int(k) for size, k in (part.split("=") for part in text.split(","))}
        except ValueError as error:
            raise rule("schedule", "batch size=k pairs such as 1=5,32=2", text) from error
        if 1 not in self.k_from or min(self.k_from) < 1 or min(self.k_from.values()) < 0:
            raise rule("schedule", "k of at least 0 from batch size 1 on, such as 1=5,32=2", text)

    @property
    def label(self) -> str:
        return f"schedule:{self.text}"

    @property
    def most_drafts(self) -> int:
        return max(self.k_from.values())

    def plan(self, table: Table, clock: Clock) -> Plan:
        k = self.k_from[max(size for size in self.k_from if size <= clock.batch_size)]
        return Plan(np.zeros(table.positions, dtype=np.int64), np.full(table.positions, k, dtype=np.int64))


class Adaptive(Stepwise):
    """The additive rule of Hugging Face's assisted generation: start at 5, +2 when all are accepted, else -1.

    Source: paper.md 2.7. At least 1, at most what the trace can answer. A step whose lookup found nothing leaves k.
    """

    name = "adaptive"
    scope = "single"
    by_batch_size = False
    needs_matches = False

    def begin(self, clock: Clock, limit: int) -> None:
        self.limit = limit
        self.drafts = min(5, limit)

    def choose(self, known: Known) -> tuple[int, int]:
        return 0, self.drafts

    def learn(self, variant: int, drafts: int, emitted: int) -> None:
        if drafts:
            step = 2 if emitted == drafts + 1 else -1
            self.drafts = max(1, min(self.limit, self.drafts + step))


class Router(Stepwise):
    """Variant and k with the most expected tokens per second, from recent acceptance, match length and batch size.

    For each variant (and, for a lookup, each match length) and each depth d it keeps how often draft d was accepted
    where draft d - 1 was, decayed by 0.98 per step that reached d; a depth that was hardly reached leans on the one
    before it. With those shares c, k drafts give ``1 + c1 + c1 c2 + ... + c1..ck`` tokens; the cost model gives the
    seconds. A lookup without a match is known to be idle before the step. Drafting nothing is one of the choices. What
    was counted fades with time and is carried to the next request at a fifth, so that nothing is given up for good.
    """

    name = "router"
    decay: ClassVar[float] = 0.98
    prior: ClassVar[tuple[float, float]] = (0.6, 2.0)
    """Accepted share of a first draft before anything is known, and how many steps it counts for."""
    carried: ClassVar[float] = 0.2
    """What a request's counts are worth to the next one."""

    def begin(self, clock: Clock, limit: int) -> None:
        if getattr(self, "clock", None) is not clock:
            self.clock = clock
            self.misses: list[bool] = clock.can_miss.tolist()
            self.ks = np.arange(limit + 1)
            self.spent: dict[tuple[int, int], list[float]] = {}
            self.hits: dict[tuple[int, int], list[float]] = {}
            self.tries: dict[tuple[int, int], list[float]] = {}
        self.best: dict[tuple[int, int], tuple[int, tuple[float, int]]] = {}
        self.fade(self.carried)
        self.match = self.step = 0

    def fade(self, factor: float) -> None:
        """Trust what was counted less, so that what looked bad once is tried again."""
        for counts in (*self.hits.values(), *self.tries.values()):
            counts[:] = [count * factor for count in counts]
        self.best.clear()

    def seconds(self, variant: int, context: int) -> list[float]:
        """Seconds of a step with 0..limit drafts, for a context rounded up to 256 tokens."""
        key = (variant, context // 256)
        if key not in self.spent:
            at = np.full(self.ks.size, (context // 256 + 1) * 256)
            self.spent[key] = self.clock.step_s(variant, at, self.ks, self.ks + 1, at).tolist()
        return self.spent[key]

    def best_k(self, key: tuple[int, int], context: int) -> tuple[float, int]:
        """Most tokens per second and the k that gives them; worked out again when something was learnt."""
        if key in self.best and self.best[key][0] == context // 256:
            return self.best[key][1]
        seconds = self.seconds(key[0], context)
        hits, tries = self.hits.get(key, []), self.tries.get(key, [])
        share, weight = self.prior
        tokens, reached, rate, k = 1.0, 1.0, 1.0 / seconds[0], 0
        for depth in range(1, len(seconds)):
            if depth <= len(hits):
                share = (hits[depth - 1] + share * weight) / (tries[depth - 1] + weight)
            reached *= share
            tokens += reached
            if tokens > rate * seconds[depth]:
                rate, k = tokens / seconds[depth], depth
        self.best[key] = (context // 256, (rate, k))
        return rate, k

    def choose(self, known: Known) -> tuple[int, int]:
        self.match = known.match
        self.step += 1
        if self.step % 32 == 0:
            self.fade(0.7)
        context = known.prompt_tokens + known.generated
        variant, drafts, most = 0, 0, -1.0
        for index, can_miss in enumerate(self.misses):
            if can_miss and known.match == 0:
                continue
            rate, k = self.best_k((index, known.match if can_miss else 0), context)
            if rate > most:
                variant, drafts, most = index, k, rate
        return variant, drafts

    def learn(self, variant: int, drafts: int, emitted: int) -> None:
        if not drafts:
            return
        key = (variant, self.match if self.misses[variant] else 0)
        hits, tries = self.hits.setdefault(key, []), self.tries.setdefault(key, [])
        # The draft after the last accepted one was tried as well, and failed; those behind it say nothing.
        for depth in range(min(drafts, emitted)):
            if depth == len(hits):
                hits.append(0.0)
                tries.append(0.0)
            hits[depth] = hits[depth] * self.decay + (depth < emitted - 1)
            tries[depth] = tries[depth] * self.decay + 1.0
        self.best.pop(key, None)


SIMPLE: dict[str, type[Policy]] = {
    policy.name: policy for policy in (Oracle, Combine, CombineAll, Bound, Adaptive, Router)
}
KNOWN = ("fixed:K,K,...", "schedule:B=K,...", *SIMPLE, "module:Class")


def policies_named(words: list[str]) -> list[Policy]:
    """The policies of the command line: ``fixed:1,3,5`` is three, ``module:Class`` is the user's own."""
    found: list[Policy] = []
    for word in words:
        head, _, tail = word.partition(":")
        if head == "fixed":
            try:
                ks = [int(k) for k in tail.split(",")]
            except ValueError as error:
                raise rule("--policies", "fixed: with k, such as fixed:1,3,5", word) from error
            found += [Fixed(k) for k in ks]
        elif head == "schedule":
            found.append(Schedule(tail))
        elif head in SIMPLE and not tail:
            found.append(SIMPLE[head]())
        elif head not in SIMPLE and tail:
            found.append(own(word, head, tail))
        else:
            raise unknown("--policies", word, KNOWN)
    return found


def own(word: str, module: str, name: str) -> Policy:
    """The user's own policy."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        made = getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError, TypeError) as error:
        raise DraftproofError(
            f"--policies {word}: {error}; it must be an importable class without arguments"
        ) from error
    if not isinstance(made, Planned | Stepwise):
        raise DraftproofError(
            f"--policies {word}: must be a subclass of Planned or Stepwise (got {type(made).__name__})"
        )
    return made
