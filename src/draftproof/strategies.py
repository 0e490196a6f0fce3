"""Invented scenarios, for hypothesis. Only tests import this module: hypothesis is no requirement of the package.

The first choice of each strategy is an interesting one, since hypothesis begins with the simplest example and a live
engine tries few: several requests, the longest drafts that are right.
"""

from __future__ import annotations

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from draftproof.scenarios import Length, Request, Scenario, StopText

K = 15
"""Of the shipped variant ``scripted``."""


def live(examples: int) -> settings:
    """For an engine that is slow and rounds: the same examples every time, none of them again, none made smaller."""
    return settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )


def drafts(k: int = K) -> st.SearchStrategy[list[int]]:
    """One draft: right, wrong from some place on, right again behind a wrong token, or anything; at most k tokens."""
    right = st.integers(0, k).map(lambda wrong: [0] * (k - wrong))
    wrong = st.tuples(st.integers(0, k - 1), st.integers(1, 60_000)).map(lambda at: [0] * at[0] + [at[1]])
    mixed = st.lists(st.sampled_from([0, 0, 0, 1]), min_size=1, max_size=k)
    anything = st.lists(st.integers(0, 60_000), max_size=k)
    return st.one_of(right, wrong, mixed, anything)


def plans(k: int = K) -> st.SearchStrategy[list[list[int]]]:
    """What one request is drafted; about one in four gets nothing."""
    return st.one_of(
        st.lists(drafts(k), min_size=1, max_size=4),
        st.lists(drafts(k), min_size=1, max_size=4),
        st.lists(drafts(k), min_size=2, max_size=4).map(lambda plan: [[], *plan]),
        st.just([]),
    )


@st.composite
def requests(
    draw: st.DrawFn,
    *,
    k: int = K,
    most_tokens: int = 40,
    lengths: st.SearchStrategy[Length] | None = None,
    stops: bool = False,
) -> Request:
    """`lengths`: of the prompt (absent: as it is); `stops`: whether anything but max_tokens may end the output."""
    length = draw(lengths) if lengths is not None else None
    # Within one draft of its context's end nothing is drafted: an output that ends there is to begin before that.
    least = min(k + 1, most_tokens) if length is not None and length.context else 2
    max_tokens = draw(st.integers(least, most_tokens).map(lambda less: most_tokens + least - less))
    places = st.integers(0, max_tokens - 1).map(lambda less: max_tokens - 1 - less)
    min_tokens = draw(st.one_of(st.just(0), places)) if stops else 0
    # Where a mask ends is where an engine may be wrong by one.
    ids = st.one_of(places, st.integers(max(0, min_tokens - 1), min(min_tokens + 2, max_tokens - 1)))
    texts = st.builds(StopText, at=places, tokens=st.integers(1, 3), trim=st.integers(0, 2))
    return Request(
        prompt=draw(st.integers(0, 7)),
        length=length,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        ignore_eos=draw(st.booleans()) if stops else True,
        stop_texts=draw(st.lists(texts, max_size=2)) if stops else [],
        stop_ids=draw(st.lists(ids, max_size=2)) if stops else [],
        drafts=draw(plans(k)),
    )


def scenarios(each: st.SearchStrategy[Request], most: int = 6) -> st.SearchStrategy[Scenario]:
    """Batches of 1 to `most` requests."""
    return st.lists(each, min_size=1, max_size=most).map(lambda chosen: Scenario(requests=chosen))


def batches(each: st.SearchStrategy[Request], most: int = 6) -> st.SearchStrategy[Scenario]:
    """The same for a live engine: no two requests with the same drafts, which the simplest examples are full of."""

    def of(size: int) -> st.SearchStrategy[list[Request]]:
        return st.lists(each, min_size=size, max_size=size, unique_by=lambda request: str(request.drafts))

    sizes = st.integers(0, most - 1).map(lambda less: most - less)
    return sizes.flatmap(of).map(lambda chosen: Scenario(requests=chosen))


def borders(most_blocks: int = 2, around: int = 1) -> st.SearchStrategy[Length]:
    """Prompt lengths at a border of the cache's blocks, or with an output that just fits or just fills the context."""
    plus = st.integers(-around, around)
    blocks = st.builds(Length, blocks=st.integers(1, most_blocks), plus=plus)
    return st.one_of(blocks, blocks, st.builds(Length, context=st.just(True), plus=plus))
