"""Where drafts are accepted and rejected: steps get places, parts add up to the whole, intervals know clusters."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.analysis.along import MAP_BINS, Along, Request
from draftproof.analysis.anatomy import (
    MAP_REQUESTS,
    LookupRule,
    anatomy_of,
    conditional,
    difference,
    heat,
    length_groups,
    request_of,
    step_sizes,
    survival,
    verify_cost,
)
from draftproof.analysis.lookup import lookup_trace
from draftproof.analysis.stats import clustered_share, wilson
from draftproof.records import Output

RULE = LookupRule(min_n=1, max_n=3, k=3)


def drafted(accepted: list[int], k: int = 3, cut: int = 0) -> Output:
    """Every step after the prefill has k drafts; the length limit cuts `cut` tokens off the last."""
    emitted = 1 + sum(count + 1 for count in accepted) - cut
    return Output(list(range(emitted)), "length", accepted=accepted, drafted=[k] * len(accepted))


def looked_up(prompt: list[int], tokens: list[int], rule: LookupRule = RULE) -> tuple[Output, list[int]]:
    """What vLLM's n-gram arm records of an output, and the sizes of its steps: step by step, the obvious way."""
    trace = lookup_trace(prompt, tokens, min_n=rule.min_n, max_n=rule.max_n, limit=rule.k)
    accepted, tried, sizes, done = [], [], [1], 1
    while done < len(tokens):
        size = int(trace.lengths[done])
        if trace.drafted[done]:
            accepted.append(size - 1)
            tried.append(int(trace.drafted[done]))
        sizes.append(min(size, len(tokens) - done))
        done += size
    return Output(tokens, "length", accepted=accepted, drafted=tried), sizes


def made(prompt_id: str, accepted: list[int], k: int = 3) -> Request:
    return request_of(prompt_id, [], drafted(accepted, k), None)


# --- where the steps were ---------------------------------------------------------------------------------------------


def test_steps_that_all_have_drafts_are_in_order() -> None:
    assert step_sizes([], drafted([0, 3, 1]), None) == [1, 1, 4, 2]


def test_what_the_length_limit_cut_off_is_not_in_the_last_step() -> None:
    assert step_sizes([], drafted([0, 3], cut=2), None) == [1, 1, 2]


def test_an_output_that_never_drafted_has_steps_of_one() -> None:
    assert step_sizes([5], Output([1, 2, 3], "length"), None) == [1, 1, 1]


texts = st.lists(st.integers(0, 3), min_size=1, max_size=40)


@given(texts, texts)
def test_an_n_gram_arm_is_placed_by_its_lookup(prompt: list[int], tokens: list[int]) -> None:
    """Steps without a draft are in no record: the replayed lookup puts them where they were."""
    output, sizes = looked_up(prompt, tokens)
    assert step_sizes(prompt, output, RULE) == sizes


def test_a_lookup_that_did_otherwise_is_not_believed() -> None:
    """Planted: one accepted token less, and another k; the records then do not tell where the steps were."""
    prompt, tokens = [1, 2, 3], [1, 2, 3, 9, 8, 1, 2, 3, 9, 8, 7, 6, 5]
    output, _ = looked_up(prompt, tokens)
    assert step_sizes(prompt, output, RULE) is not None
    less = Output(
        tokens, "length", accepted=[max(0, output.accepted[0] - 1), *output.accepted[1:]], drafted=output.drafted
    )
    assert step_sizes(prompt, less, RULE) is None
    assert step_sizes(prompt, output, LookupRule(1, 3, 2)) is None
    assert step_sizes([], output, RULE) is None
    assert step_sizes(prompt, output, None) is None


# --- parts add up -----------------------------------------------------------------------------------------------------

steps = st.lists(st.integers(0, 3), min_size=4, max_size=60)


@given(steps)
def test_the_parts_of_an_output_add_up_to_its_steps(accepted: list[int]) -> None:
    shares = Along([made("p", accepted)]).shares
    assert shares.sum() == pytest.approx(len(accepted))
    assert len(shares) == sum(accepted) + len(accepted)


@given(st.lists(steps, min_size=2, max_size=6))
def test_deciles_weighed_by_their_steps_are_the_whole(several: list[list[int]]) -> None:
    """Tokens over steps, summed over the tenths, is tokens over steps of the outputs."""
    requests = [made(f"p{n}", accepted * 3) for n, accepted in enumerate(several)]
    found = anatomy_of(requests)
    assert found is not None
    assert sum(group.requests for group in found.lengths) == len(requests)
    assert found.tokens_per_step is not None
    emitted = sum(request.emitted - 1 for request in requests)
    assert found.tokens_per_step.value == pytest.approx(emitted / sum(r.steps - 1 for r in requests))
    assert found.heat is not None
    for row, request in zip(found.heat.values, requests, strict=True):
        assert len(row) == -(-(request.emitted - 1) // found.heat.tokens_per_bin) <= MAP_BINS


@given(st.lists(st.tuples(st.sampled_from("abc"), steps), min_size=1, max_size=8), st.integers(1, 7))
def test_bins_are_those_of_a_walk_from_token_to_token(several: list[tuple[str, list[int]]], width: int) -> None:
    requests = [made(prompt, accepted) for prompt, accepted in several]
    slow: dict[str, dict[int, list[float]]] = {}
    for request in requests:
        token, bins = 0, slow.setdefault(request.prompt_id, {})
        for size in (request.sizes or [])[1:]:
            for _ in range(size):
                sums = bins.setdefault(token // width, [0, 0.0])
                sums[0] += 1
                sums[1] += 1 / size
                token += 1
    found = Along(requests).bins(width)
    assert list(found) == list(slow)
    for prompt, bins in slow.items():
        assert found[prompt].tolist() == pytest.approx([tokens / parts for tokens, parts in bins.values()])


def test_acceptance_that_rises_along_the_output_shows_in_the_tenths() -> None:
    rising = [made(f"p{n}", [0] * 20 + [3] * 5) for n in range(3)]
    (group,) = length_groups(Along(rising))
    values = [ratio.value for ratio in group.deciles if ratio]
    assert values[0] == 1.0
    assert values[-1] == 4.0
    assert values == sorted(values)


def test_lengths_fall_into_groups_and_one_length_is_one_group() -> None:
    same = [made(f"p{n}", [1] * 10) for n in range(8)]
    assert [group.requests for group in length_groups(Along(same))] == [8]
    several = [made(f"p{n}", [1] * (6 + n)) for n in range(8)]
    groups = length_groups(Along(several))
    assert len(groups) == 4
    assert sum(group.requests for group in groups) == 8
    assert all(left.most_tokens < right.least_tokens for left, right in itertools.pairwise(groups))


def test_a_map_has_at_most_64_by_64() -> None:
    requests = [made(f"p{n}", [1] * 100) for n in range(MAP_REQUESTS + 6)]
    found = heat(Along(requests))
    assert found is not None
    assert (len(found.values), found.left_out) == (MAP_REQUESTS, 6)
    assert max(map(len, found.values)) <= MAP_BINS


def test_a_difference_is_of_the_same_prompts_at_the_same_places() -> None:
    first, second = [made("a", [3] * 8), made("b", [0] * 32)], [made("b", [1] * 16), made("c", [1] * 16)]
    found = difference(Along(first), Along(second))
    assert found is not None
    assert found.prompts == ["b"]
    assert {value for row in found.values for value in row} == {-1.0}
    assert (found.longer, found.shorter) == (0.0, 1.0)
    assert difference(Along(first), Along([made("c", [1])])) is None


# --- places in the draft ----------------------------------------------------------------------------------------------


def test_survival_and_conditional_by_hand() -> None:
    """Four drafts of 3, 3, 3 and 1 tokens with 3, 1, 0 and 1 accepted."""
    request = Request(prompt_id="p", emitted=10, accepted=[3, 1, 0, 1], drafted=[3, 3, 3, 1], steps=6, sizes=None)
    assert [(s.successes, s.trials) for s in survival([[request]])] == [(3, 4), (1, 4), (1, 4)]
    assert [s and (s.successes, s.trials) for s in conditional([[request]])] == [(3, 4), (1, 2), (1, 1)]


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=9), min_size=1, max_size=5))
def test_survival_is_the_product_of_the_conditional_shares(several: list[list[int]]) -> None:
    """Where all drafts have k tokens."""
    clusters = [[made(f"p{n}", accepted)] for n, accepted in enumerate(several)]
    product = 1.0
    for alive, passed in zip(survival(clusters), conditional(clusters), strict=True):
        product *= passed.value if passed else 0.0
        assert alive.value == pytest.approx(product)


def test_nothing_drafted_is_no_anatomy() -> None:
    assert anatomy_of([request_of("p", [1], Output([1, 2], "length"), None)]) is None
    assert anatomy_of([]) is None


def test_one_prompt_has_no_interval() -> None:
    found = anatomy_of([made("p", [1, 2]), made("p", [1, 2])])
    assert found is not None
    assert (found.prompts, found.requests) == (1, 2)
    assert found.acceptance_length is None


# --- intervals --------------------------------------------------------------------------------------------------------


@given(st.lists(st.booleans(), min_size=2, max_size=60))
def test_clusters_of_one_are_wilson(outcomes: list[bool]) -> None:
    """Independent trials: never narrower than Wilson's own interval, and the same up to the n - 1 of the variance."""
    found = clustered_share([(int(ok), 1) for ok in outcomes])
    assert found is not None
    low, high = wilson(sum(outcomes), len(outcomes))
    assert found.low <= low + 1e-9
    assert found.high >= high - 1e-9
    assert found.high - found.low <= (high - low) * 1.5


def test_copies_of_a_cluster_say_nothing_new() -> None:
    """Planted: each trial ten times over must not narrow the interval as ten times the trials would."""
    once = [(1, 1), (0, 1)] * 20
    single, copied = clustered_share(once), clustered_share([(10 * s, 10 * n) for s, n in once])
    assert single is not None
    assert copied is not None
    assert copied.high - copied.low == pytest.approx(single.high - single.low, rel=0.02)


def test_where_all_ended_alike_each_cluster_is_one_trial() -> None:
    found = clustered_share([(500, 500)] * 3)
    assert found is not None
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(wilson(3, 3)[0], abs=1e-9)
    assert clustered_share([(0, 0)]) is None


def test_the_interval_of_clusters_holds_its_level() -> None:
    """300 planted runs of 20 prompts, whose own shares differ: about 95 % of the intervals hold the true share."""
    rng = np.random.default_rng(1)
    held = 0
    for _ in range(300):
        counts = [(int(rng.binomial(30, rng.beta(6, 4))), 30) for _ in range(20)]
        found = clustered_share(counts)
        assert found is not None
        held += found.low <= 0.6 <= found.high
    assert held / 300 > 0.90


# --- what rejected tokens cost ----------------------------------------------------------------------------------------


def step(requests: int, drafts: int, verify: float, kind: str = "decode") -> dict[str, Any]:
    return {
        "kind": kind,
        "requests": requests,
        "rows": requests + drafts,
        "draft_tokens": drafts,
        "step_s": verify + 0.001,
        "forward_s": verify * 0.75,
        "lm_head_s": verify * 0.25,
    }


def test_rejected_tokens_by_rows_and_by_what_drafts_add() -> None:
    """Two drafted steps of 2 requests and 6 drafts, 4 accepted of 12; no-SD's steps take 4 ms, drafted ones 7 ms."""
    own = [step(2, 0, 0.5, "prefill"), step(2, 6, 0.007), step(2, 6, 0.007)]
    found = verify_cost(own, 4, [step(2, 0, 0.004), step(1, 0, 0.1)])
    assert found is not None
    assert found.rejected == 8
    assert found.s_per_row == pytest.approx(0.014 / 16)
    assert found.extra_s_per_draft == pytest.approx(0.003 / 6)
    assert found.mean_share == pytest.approx(8 * 0.014 / 16 / 0.016)
    assert found.extra_share == pytest.approx(8 * 0.0005 / 0.016)


def test_without_samples_there_is_no_cost() -> None:
    assert verify_cost([], 0, []) is None
    alone = verify_cost([step(2, 6, 0.007)], 4, [])
    assert alone is not None
    assert alone.extra_s_per_draft is None
    assert alone.extra_share is None


@given(
    st.lists(st.tuples(st.sampled_from(["decode", "mixed"]), st.integers(1, 8), st.integers(0, 24)), min_size=1),
    st.data(),
)
def test_what_is_lost_is_a_share(found: list[tuple[str, int, int]], data: st.DataObject) -> None:
    """However many drafts were verified in mixed steps, and whatever no-SD's steps took."""
    steps = [step(requests, drafts, 0.004, kind) for kind, requests, drafts in found]
    accepted = data.draw(st.integers(0, sum(drafts for _, _, drafts in found)))
    largest = max((requests for kind, requests, _ in found if kind == "decode"), default=1)
    cost = verify_cost(steps, accepted, [step(largest, 0, data.draw(st.sampled_from([0.001, 0.004, 0.1])))])
    if cost is None:
        assert all(kind == "mixed" for kind, _, _ in found)
        return
    assert 0 <= cost.rejected <= sum(drafts for kind, _, drafts in found if kind == "decode") + 1e-9
    assert 0 <= cost.mean_share <= 1
    assert cost.extra_share is None or cost.extra_share >= 0


def test_drafts_beside_a_prefill_are_no_decode_steps_and_take_their_accepted_tokens_along() -> None:
    """64 requests of an oracle, taken in by and by: all 90 drafts are accepted, 60 of them in mixed steps."""
    cost = verify_cost([step(4, 60, 0.02, "mixed"), step(8, 30, 0.01)], 90, [])
    assert cost is not None
    assert (cost.rejected, cost.mean_share) == (0, 0)


def test_the_share_rejected_of_all_drafts_goes_to_the_decode_steps() -> None:
    cost = verify_cost([step(4, 60, 0.02, "mixed"), step(8, 30, 0.01)], 60, [])
    assert cost is not None
    assert cost.rejected == pytest.approx(10)


def test_counts_that_disagree_have_no_cost() -> None:
    assert verify_cost([step(2, 6, 0.007)], 7, []) is None


def test_drafts_that_add_nothing_lose_nothing() -> None:
    cost = verify_cost([step(2, 6, 0.003)], 0, [step(2, 0, 0.004)])
    assert cost is not None
    assert cost.extra_s_per_draft is not None
    assert cost.extra_s_per_draft < 0
    assert cost.extra_share == 0
