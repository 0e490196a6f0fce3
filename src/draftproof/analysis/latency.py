"""Latency as a user of one request meets it: time to the first token, then time per output token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from draftproof.analysis.stats import quantiles
from draftproof.records import Output


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds over requests. Quantiles are interpolated: of fewer than 20 requests the 95th percentile is little more
    than the slowest one."""

    requests: int
    median_s: float
    p95_s: float


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Of one arm, over its requests: one counts once in each pass, a copy as a request of its own."""

    ttft: Spread | None
    """Time to first token: from the request's arrival, so that waiting for its turn is in it."""
    per_token: Spread | None
    """Time per output token: seconds from the first token to the last / (tokens - 1). A verify step hands over several
    tokens at once, so that the gap between two chunks is another figure. Requests of one token have none."""


def latency_of(outputs: Iterable[Output]) -> Latency | None:
    """None where the engine told no times (records from before they were kept)."""
    ttft: list[float] = []
    per_token: list[float] = []
    for output in outputs:
        if output.ttft_s is not None:
            ttft.append(output.ttft_s)
        if output.decode_s is not None and len(output.token_ids) > 1:
            per_token.append(output.decode_s / (len(output.token_ids) - 1))
    if not ttft and not per_token:
        return None
    return Latency(ttft=spread(ttft), per_token=spread(per_token))


def spread(seconds: Sequence[float]) -> Spread | None:
    """None without requests."""
    if not seconds:
        return None
    median_s, p95_s = quantiles(seconds, (0.5, 0.95))
    return Spread(requests=len(seconds), median_s=median_s, p95_s=p95_s)
