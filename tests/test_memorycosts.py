"""Rules of what a variant is said to take beside its target: expected from the catalog, recorded by the engine."""

from __future__ import annotations

from typing import Any

import pytest

from draftproof.catalog import Catalog, load_catalog
from draftproof.memory import expect
from draftproof.memorycosts import memory_costs
from draftproof.records import ArmLine
from tests.reporting import arm


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load_catalog()


def started(name: str, tokens: object = 1000, **changes: Any) -> ArmLine:
    given = {"target": "qwen3-8b", "resolved": {"kv_cache_tokens": tokens}}
    return arm(name, **(given | changes))


def test_it_is_what_the_memory_command_says(catalog: Catalog) -> None:
    (cost,) = memory_costs([started("no_sd", 1000), started("eagle3", 900)], catalog)
    drafter = expect("qwen3-8b", "eagle3", catalog).drafter
    assert drafter is not None
    assert (cost.target, cost.variant, cost.build) == ("qwen3-8b", "eagle3", "new")
    assert (cost.static_bytes, cost.kv_bytes_per_token) == (drafter.static_bytes, drafter.kv_bytes_per_token)
    assert (cost.kv_cache_tokens, cost.base_kv_cache_tokens) == (900, 1000)
    assert cost.unknown == ""


def test_a_lookup_and_a_control_take_nothing(catalog: Catalog) -> None:
    for cost in memory_costs([started("ngram"), started("oracle")], catalog):
        assert (cost.static_bytes, cost.kv_bytes_per_token) == (0, 0)
        assert cost.target_static_bytes


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"target": "nowhere"}, "target must be one of the known names"),
        ({"variant": "of_an_overlay"}, "the catalog has no such variant"),
        ({"variant": "mtp"}, "one that variant 'mtp' has a drafter for"),
    ],
)
def test_what_the_catalog_does_not_know_is_not_known(catalog: Catalog, changes: dict[str, str], why: str) -> None:
    """A run on entries of the user's own is rendered without them all the same."""
    (cost,) = memory_costs([started("eagle3", **changes)], catalog)
    assert cost.static_bytes is None
    assert why in cost.unknown
    assert cost.order > (10**12, 10**12)


def test_without_a_catalog_what_was_recorded_remains() -> None:
    (cost,) = memory_costs([started("no_sd", 1000), started("eagle3", 900)], None)
    assert (cost.kv_cache_tokens, cost.base_kv_cache_tokens) == (900, 1000)
    assert cost.static_bytes is None


@pytest.mark.parametrize("tokens", [None, 0, "many"])
def test_a_cache_that_was_not_recorded_is_none(tokens: object) -> None:
    (cost,) = memory_costs([started("eagle3", tokens)], None)
    assert cost.kv_cache_tokens is None
    assert cost.base_kv_cache_tokens is None


def test_each_variant_once_and_beside_its_own_no_sd() -> None:
    """Loaded again by a later session, with an A/A twin, in two groups and two builds."""
    arms = [
        started("no_sd", 1000),
        started("no_sd", 1, role="aa"),
        started("ngram", 990),
        started("ngram", 980),
        started("no_sd", 800, group=1),
        started("eagle", 700, group=1),
        started("ngram", 970, build="base"),
    ]
    found = [(c.variant, c.build, c.kv_cache_tokens, c.base_kv_cache_tokens) for c in memory_costs(arms, None)]
    assert found == [("ngram", "new", 990, 1000), ("eagle", "new", 700, 800), ("ngram", "base", 970, None)]
