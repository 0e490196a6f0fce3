"""Rules of what a variant is said to take beside its target: expected from the catalog, recorded by the engine."""

from __future__ import annotations

from typing import Any

import pytest

from draftproof import models
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


# --- measured bytes ---------------------------------------------------------------------------------------------------


def pooled(tokens: object = 1000, workers: int = 1, **environment: Any) -> ArmLine:
    told = {"gpus": [], "variables": {"VLLM_CPU_KVCACHE_SPACE": "1"}} | environment
    resolved = {"kv_cache_tokens": tokens, "tensor_parallel_size": workers}
    return started("eagle3", environment=told, resolved=resolved)


def test_bytes_of_a_token_are_the_pools_over_its_tokens() -> None:
    (cost,) = memory_costs([started("no_sd", 1250), pooled()], None)
    assert cost.measured_kv_bytes == 2**30 / 1000
    assert cost.measured_lost_share == pytest.approx(0.2)
    assert cost.expected_lost_share is None


def test_each_worker_has_a_pool() -> None:
    (cost,) = memory_costs([pooled(workers=2)], None)
    assert cost.kv_pool_bytes == 2 * 2**30


@pytest.mark.parametrize(
    "environment",
    [{"gpus": ["NVIDIA H100"]}, {"variables": {}}, {"variables": None}]
    + [{"variables": {"VLLM_CPU_KVCACHE_SPACE": text}} for text in ("much", "inf", "nan", "0", "-1")],
)
def test_without_a_pool_of_its_own_no_bytes_are_measured(environment: dict[str, Any]) -> None:
    (cost,) = memory_costs([pooled(**environment)], None)
    assert cost.measured_kv_bytes is None
    assert cost.kv_cache_tokens == 1000


def test_what_is_lost_is_expected_in_the_same_memory(catalog: Catalog) -> None:
    """Llama-3.1-8B and EAGLE of arXiv 2601.11580, Table 2: 128 to 132 KiB a token."""
    (cost,) = memory_costs([started("eagle", target="llama3.1-8b")], catalog)
    assert cost.expected_lost_share == pytest.approx(1 - 128 / 132)
    (cost,) = memory_costs([started("ngram")], catalog)
    assert cost.expected_lost_share == 0


@pytest.mark.parametrize("target", ["../../etc", "/etc", "~"])
def test_a_target_of_a_record_is_not_looked_for_on_the_disk(
    target: str, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "local_folder", lambda *_: pytest.fail("read"))
    (cost,) = memory_costs([started("eagle3", target=target)], catalog)
    assert "the catalog has no such target" in cost.unknown
