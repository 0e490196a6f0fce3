"""Where drafts are accepted and where they are rejected: by place in the draft, by request, by place in the output.

Everything is counted from the steps of each request. A prompt that was run several times (two passes, copies, several
rotations) is one cluster: its runs are added before any interval is made.

Tokens per step at a place of the output are tokens / steps, where each token carries 1 / n of the step that emitted n
tokens. So every part of an output has a figure, and the whole has the request's own. The first token comes from the
prefill and is left out.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from draftproof.analysis.acceptance import engine_steps
from draftproof.analysis.along import Along, Request
from draftproof.analysis.lookup import lookup_trace
from draftproof.analysis.stats import Ratio, Share, clustered_share, jackknife, quantiles
from draftproof.records import Output

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
DECILES = 10
GROUPS = 4
"""At most so many groups of output lengths, of about equal numbers of requests."""
MAP_REQUESTS = 64
METHOD = "delete-one jackknife over prompts, t quantile"


class LookupRule(msgspec.Struct, frozen=True):
    """Settings of an n-gram arm, in tokens."""

    min_n: int
    max_n: int
    k: int


def request_of(prompt_id: str, prompt: Sequence[int], output: Output, rule: LookupRule | None) -> Request:
    sizes = step_sizes(prompt, output, rule)
    return Request(
        prompt_id=prompt_id,
        emitted=len(output.token_ids),
        accepted=output.accepted,
        drafted=output.drafted,
        steps=engine_steps(output) if sizes is None else len(sizes),
        sizes=sizes,
    )


def step_sizes(prompt: Sequence[int], output: Output, rule: LookupRule | None) -> list[int] | None:
    """Tokens of each step, in order; they add up to the output.

    The records hold the steps with a draft alone. An n-gram arm's lookup (`rule`) is replayed on the ids
    (`draftproof.analysis.lookup`), and believed only where it drafts and has accepted exactly what was recorded. The
    other methods draft at every step after the prefill: they are believed where that adds up.
    """
    emitted, accepted = len(output.token_ids), output.accepted
    if not emitted:
        return None
    if not accepted:
        return [1] * emitted
    if rule is None:
        all_drafted = engine_steps(output) == 1 + len(accepted)
        return fitted([1, *[count + 1 for count in accepted]], emitted) if all_drafted else None
    if not prompt:
        return None
    walked = looked_up(tuple(prompt), tuple(output.token_ids), rule)
    sizes = [1, *[length for length, _ in walked]]
    steps = [(length - 1, tried) for length, tried in walked if tried]
    recorded = list(zip(accepted, output.drafted, strict=True))
    # What the length limit cut off the last accepted run was counted, but is not in the ids.
    same = len(steps) == len(recorded) and steps[:-1] == recorded[:-1] and steps[-1][1] == recorded[-1][1]
    return fitted(sizes, emitted) if same and steps[-1][0] <= recorded[-1][0] else None


@functools.lru_cache(maxsize=1024)
def looked_up(prompt: tuple[int, ...], output: tuple[int, ...], rule: LookupRule) -> list[tuple[int, int]]:
    """(Tokens that it would emit, tokens that it would draft) of each step after the prefill.

    Both passes and all batch sizes mostly write the same text.
    """
    trace = lookup_trace(prompt, output, min_n=rule.min_n, max_n=rule.max_n, limit=rule.k)
    lengths, drafted = trace.lengths.tolist(), trace.drafted.tolist()
    steps, done = [], 1
    while done < len(output):
        steps.append((lengths[done], drafted[done]))
        done += lengths[done]
    return steps


def fitted(sizes: list[int], emitted: int) -> list[int] | None:
    """The last step cut to what was emitted; None where the steps do not add up to it."""
    last = emitted - sum(sizes[:-1])
    return [*sizes[:-1], last] if 0 < last <= sizes[-1] else None


# --- what is shown ----------------------------------------------------------------------------------------------------


class Box(msgspec.Struct, frozen=True, kw_only=True):
    """One figure a prompt: 5th, 25th, 50th, 75th and 95th percentile, interpolated."""

    prompts: int
    quantiles: list[float]


class LengthGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Outputs of about one length, cut into ten equal parts."""

    least_tokens: int
    most_tokens: int
    requests: int
    deciles: list[Ratio | None]
    """Tokens per step in each tenth; None: fewer than two prompts."""


class Heat(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens per step, prompt by prompt along the output."""

    tokens_per_bin: int
    prompts: list[str]
    left_out: int
    """Further prompts."""
    values: list[list[float]]
    """Of each prompt, bin by bin, to two digits; shorter outputs have fewer bins."""


class VerifyCost(msgspec.Struct, frozen=True, kw_only=True):
    """What rejected tokens cost in the decode steps of the ``stages`` blocks; no intervals."""

    rejected: float
    """Draft tokens of the decode steps that were not accepted, at least 0. No whole number where some of a block's
    drafts were verified beside another request's prefill: its share accepted is then taken to be the same in both."""
    decode_s: float
    """Of all decode steps, whole."""
    s_per_row: float
    """Verify seconds (forward pass and LM head) / rows: each row bears the same."""
    extra_s_per_draft: float | None
    """What a draft token adds: verify seconds of a drafted step less those of a no-SD step, over its draft tokens; both
    of steps with the whole batch. Near 0 where memory bounds the step, and by chance below. None without such steps."""

    @property
    def mean_share(self) -> float:
        """Of the decode time, if each row bears the same; from 0 to 1, as rejected tokens are among the rows."""
        return self.rejected * self.s_per_row / self.decode_s

    @property
    def extra_share(self) -> float | None:
        """Of the decode time, by what the drafts added; 0 where they added nothing."""
        if self.extra_s_per_draft is None:
            return None
        return max(0.0, self.rejected * self.extra_s_per_draft / self.decode_s)


class Anatomy(msgspec.Struct, frozen=True, kw_only=True):
    """One variant on one workload at one batch size."""

    prompts: int
    requests: int
    unplaced: int
    """Requests whose steps have no known place: they are in no figure by position in the output."""
    acceptance_length: Ratio | None
    tokens_per_step: Ratio | None
    """Steps without a draft included, the prefill not."""
    acceptance_length_box: Box | None
    tokens_per_step_box: Box | None
    survival: list[Share]
    """Accepted at place 1, 2, ... of the draft / drafts (vLLM's per-position rate)."""
    conditional: list[Share | None]
    """The same / drafts that had a token there and whose tokens before it were accepted; None: there was none."""
    lengths: list[LengthGroup]
    heat: Heat | None
    rejected: Share | None
    """Rejected / verified draft tokens."""
    rejected_rows: float | None
    """Rejected draft tokens / rows of all steps after the prefill (drafts and one more a request and step)."""
    cost: VerifyCost | None = None


class HeatDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens per step of one variant less another's, on the same prompts at the same places."""

    tokens_per_bin: int
    prompts: list[str]
    left_out: int
    values: list[list[float]]
    longer: float
    """Share of bins where the first emits more a step."""
    shorter: float


def by_prompt(requests: Iterable[Request]) -> dict[str, list[Request]]:
    found: dict[str, list[Request]] = {}
    for request in requests:
        found.setdefault(request.prompt_id, []).append(request)
    return found


def anatomy_of(
    requests: Sequence[Request], cost: VerifyCost | None = None, along: Along | None = None
) -> Anatomy | None:
    """None where nothing was drafted. `along`: of the same requests, where it is at hand."""
    if not any(request.drafted for request in requests):
        return None
    clusters = list(by_prompt(requests).values())
    along = along or Along(requests)
    drafted = [(drafts_of(c), sum(len(r.accepted) for r in c)) for c in clusters]
    stepped = [(sum(r.emitted - 1 for r in c), sum(r.steps - 1 for r in c)) for c in clusters]
    tokens, steps = sum(sum(r.drafted) for r in requests), sum(r.steps - 1 for r in requests)
    rejected = clustered_share([(rejected_of(c), sum(sum(r.drafted) for r in c)) for c in clusters])
    return Anatomy(
        prompts=len(clusters),
        requests=len(requests),
        unplaced=sum(request.sizes is None for request in requests),
        acceptance_length=ratio_over(drafted),
        tokens_per_step=ratio_over(stepped),
        acceptance_length_box=box(drafted),
        tokens_per_step_box=box(stepped),
        survival=survival(clusters),
        conditional=conditional(clusters),
        lengths=length_groups(along),
        heat=heat(along),
        rejected=rejected,
        rejected_rows=rejected.successes / (tokens + steps) if rejected else None,
        cost=cost,
    )


def drafts_of(cluster: Sequence[Request]) -> int:
    """Tokens of drafted steps, bonus included."""
    return sum(len(request.accepted) + sum(request.accepted) for request in cluster)


def rejected_of(cluster: Sequence[Request]) -> int:
    return sum(sum(request.drafted) - sum(request.accepted) for request in cluster)


def ratio_over(counts: Sequence[tuple[float, float]]) -> Ratio | None:
    """Sum of the first over sum of the second, clusters left out one by one; None below two that count."""
    counts = [pair for pair in counts if pair[1] > 0]
    if len(counts) < 2:
        return None
    above, below = (sum(column) for column in zip(*counts, strict=True))
    left_out = [(above - first) / (below - second) for first, second in counts]
    return jackknife(above / below, left_out, METHOD)


def box(counts: Sequence[tuple[float, float]]) -> Box | None:
    values = [first / second for first, second in counts if second]
    if not values:
        return None
    return Box(prompts=len(values), quantiles=quantiles(values, QUANTILES))


# --- places in the draft ----------------------------------------------------------------------------------------------


def survival(clusters: Sequence[Sequence[Request]]) -> list[Share]:
    """A draft too short to have a token at a place counts as not accepted there."""
    accepted = [(number, count) for number, cluster in enumerate(clusters) for r in cluster for count in r.accepted]
    owners, counts = columns(accepted)
    trials = counted(owners, len(clusters))
    shares = [
        clustered_share([*zip(counted(owners[counts >= place], len(clusters)), trials, strict=True)])
        for place in range(1, widest(clusters) + 1)
    ]
    return [share for share in shares if share]


def conditional(clusters: Sequence[Sequence[Request]]) -> list[Share | None]:
    # Counts that disagree are an alarm of the health check, and no reason to show nothing.
    steps = [
        (number, *step)
        for number, cluster in enumerate(clusters)
        for r in cluster
        for step in zip(r.accepted, r.drafted, strict=False)
    ]
    owners, accepted, drafted = columns(steps, 3)
    found = []
    for place in range(1, widest(clusters) + 1):
        tried = (drafted >= place) & (accepted >= place - 1)
        trials = counted(owners[tried], len(clusters))
        passed = counted(owners[tried & (accepted >= place)], len(clusters))
        found.append(clustered_share([*zip(passed, trials, strict=True)]))
    return found


def widest(clusters: Iterable[Sequence[Request]]) -> int:
    return max((max(request.drafted, default=0) for cluster in clusters for request in cluster), default=0)


def columns(rows: Sequence[tuple[int, ...]], count: int = 2) -> NDArray[np.int64]:
    """Shape (count, rows)."""
    return np.array(rows, np.int64).reshape(-1, count).T


def counted(owners: NDArray[np.int64], count: int) -> list[int]:
    """How often each of the numbers below `count` occurs."""
    found: list[int] = np.bincount(owners, minlength=count).tolist()
    return found


# --- places in the output ---------------------------------------------------------------------------------------------


def length_groups(along: Along) -> list[LengthGroup]:
    """By quartiles of the lengths, so that one length is one group; outputs of fewer than 11 tokens are left out."""
    usable = [number for number, request in enumerate(along.requests) if request.emitted > DECILES]
    if not usable:
        return []
    emitted = [request.emitted for request in along.requests]
    ordered = sorted(emitted[number] for number in usable)
    edges = sorted({ordered[math.ceil((len(ordered) - 1) * part / GROUPS)] for part in range(1, GROUPS)})
    groups: dict[int, list[int]] = {}
    for number in usable:
        groups.setdefault(bisect.bisect_left(edges, emitted[number]), []).append(number)
    parts = along.parts(DECILES)
    found = []
    for _, members in sorted(groups.items()):
        tokens, steps = along.by_prompt(members, *parts)
        found.append(
            LengthGroup(
                least_tokens=min(emitted[number] for number in members),
                most_tokens=max(emitted[number] for number in members),
                requests=len(members),
                deciles=[
                    ratio_over([*zip(above, below, strict=True)])
                    for above, below in zip(tokens.T.tolist(), steps.T.tolist(), strict=True)
                ],
            )
        )
    return found


def heat(along: Along) -> Heat | None:
    rows = along.bins(along.width)
    if not rows:
        return None
    names = list(rows)[:MAP_REQUESTS]
    return Heat(
        tokens_per_bin=along.width,
        prompts=names,
        left_out=len(rows) - len(names),
        values=[rounded(rows[name]) for name in names],
    )


def difference(first: Along, second: Along) -> HeatDifference | None:
    """Over the bins that both have of a prompt; None without a prompt that both have placed."""
    width = max(first.width, second.width)
    left, right = first.bins(width), second.bins(width)
    rows: dict[str, NDArray[np.float64]] = {}
    for name in left:
        if name in right:
            common = min(len(left[name]), len(right[name]))
            rows[name] = left[name][:common] - right[name][:common]
    if not rows:
        return None
    values = np.concatenate(list(rows.values()))
    names = list(rows)[:MAP_REQUESTS]
    return HeatDifference(
        tokens_per_bin=width,
        prompts=names,
        left_out=len(rows) - len(names),
        values=[rounded(rows[name]) for name in names],
        longer=float(np.mean(values > 0)),
        shorter=float(np.mean(values < 0)),
    )


def rounded(values: NDArray[np.float64]) -> list[float]:
    return [*map(two_digits, values.tolist())]


@functools.lru_cache(maxsize=65536)
def two_digits(value: float) -> float:
    """One object for all equal values: the maps of thousands of cells hold millions."""
    return round(value, 2)


# --- what rejected tokens cost ----------------------------------------------------------------------------------------


def verify_cost(
    steps: Sequence[Mapping[str, Any]], accepted: int, base_steps: Sequence[Mapping[str, Any]]
) -> VerifyCost | None:
    """From an arm's step samples (keys as in ``steps.parquet``), the tokens accepted in all of them, and no-SD's.

    Steps do not say what was accepted in them, and `accepted` holds the drafts that were verified beside another
    request's prefill (kind ``mixed``), which are no decode steps: the share accepted is taken over all drafts. None
    without a decode step, and where more were accepted than drafted: counts that disagree say nothing of a cost.
    """
    decode = [step for step in steps if step["kind"] == "decode"]
    rows = sum(step["rows"] for step in decode)
    seconds = sum(step["step_s"] for step in decode)
    drafted = sum(step["draft_tokens"] for step in steps)
    if not rows or seconds <= 0 or accepted > drafted:
        return None
    base = [step for step in base_steps if step["kind"] == "decode"]
    largest = max(step["requests"] for step in decode)
    whole = [step for step in decode if step["requests"] == largest and step["draft_tokens"]]
    alone = [verify_s(step) for step in base if step["requests"] == largest]
    extra = None
    if whole and alone:
        added = sum(map(verify_s, whole)) / len(whole) - sum(alone) / len(alone)
        extra = added * len(whole) / sum(step["draft_tokens"] for step in whole)
    return VerifyCost(
        rejected=sum(step["draft_tokens"] for step in decode) * (drafted - accepted) / max(drafted, 1),
        decode_s=seconds,
        s_per_row=sum(map(verify_s, decode)) / rows,
        extra_s_per_draft=extra,
    )


def verify_s(step: Mapping[str, Any]) -> float:
    return float(step["forward_s"] + step["lm_head_s"])
