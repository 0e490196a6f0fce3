"""Rules of latency: time to the first token, time per output token of a request, and their spread over requests."""

from __future__ import annotations

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.analysis.latency import latency_of, spread
from draftproof.records import Output


def output(tokens: int, ttft_s: float | None = None, decode_s: float | None = None) -> Output:
    return Output(token_ids=[7] * tokens, finish_reason="length", ttft_s=ttft_s, decode_s=decode_s)


def test_time_per_output_token_is_over_the_gaps_of_a_request() -> None:
    """Planted: 1.2 s from the first of four tokens to the last are 0.4 s a token, however they were handed over."""
    found = latency_of([output(4, 0.5, 1.2), output(4, 0.7, 1.2)])
    assert found is not None
    assert found.ttft is not None
    assert found.per_token is not None
    assert found.per_token.median_s == pytest.approx(0.4)
    assert found.ttft.median_s == pytest.approx(0.6)
    assert found.ttft.p95_s == pytest.approx(0.69)


def test_a_request_of_one_token_has_a_first_token_only() -> None:
    found = latency_of([output(1, 0.5, 0.0), output(3, 0.5, 1.0)])
    assert found is not None
    assert found.ttft is not None
    assert found.per_token is not None
    assert (found.ttft.requests, found.per_token.requests) == (2, 1)
    assert found.per_token.median_s == pytest.approx(0.5)
    alone = latency_of([output(1, 0.5, 0.0)])
    assert alone is not None
    assert alone.per_token is None


def test_records_without_times_have_no_latency() -> None:
    """Zero is a time, None is none."""
    assert latency_of([]) is None
    assert latency_of([output(4), output(1)]) is None
    assert latency_of([output(4, 0.0, 0.0)]) is not None


@given(st.lists(st.floats(0, 100), min_size=2, max_size=60))
def test_the_spread_is_the_textbooks(seconds: list[float]) -> None:
    """Python's own inclusive quantiles."""
    found = spread(seconds)
    assert found is not None
    assert found.median_s == pytest.approx(statistics.median(seconds))
    assert found.p95_s == pytest.approx(statistics.quantiles(seconds, n=20, method="inclusive")[-1])
    assert found.requests == len(seconds)
