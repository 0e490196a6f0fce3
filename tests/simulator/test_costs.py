"""Rules of the cost models: strict, every constant with its source."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.catalog import fixtures_folder
from draftproof.errors import DraftproofError
from draftproof.simulator.costs import CostModel, load_costs
from tests.simulator.reference import forward
from tests.simulator.toys import TOY_COSTS, cost_models, toy_costs

PUBLISHED = fixtures_folder() / "costs" / "llama3.1-8b-h100.toml"


def test_published_constants() -> None:
    costs = load_costs("llama3.1-8b-h100")
    assert costs.verify.fixed_s == 5.88590713e-03
    assert costs.drafters["eagle"].fixed_s == 2.13526175e-03
    assert costs.drafters["ngram"].share_of_verify == 0.005875
    assert load_costs(str(PUBLISHED)) == costs


@pytest.mark.parametrize(
    ("old", "new", "named", "says"),
    [
        (
            "fixed_s = 5.88590713e-3",
            "fixed_s = nan",
            True,
            r"fixed_s must be a finite number of at least 0 \(got nan\)",
        ),
        ("per_token_s = 8.41429603e-7", "per_token_s = nan", True, r"per_token_s must be .* \(got nan\)"),
        ("per_token_s = 8.41429603e-7", "per_token_s = -1.0", True, r"per_token_s must be a finite number"),
        ("fixed_s = 5.88590713e-3", "fixed_s = 0.0", True, r"fixed_s must be more than 0"),
        ("fixed_s = 5.88590713e-3", "fixed = 1.0", True, r".*unknown field `fixed`.*known: fixed_s"),
        ('time = "seconds"', 'time = "ms"', True, r"time must be 'seconds'"),
        ("fitted_k = 3  ", "fitted_k = 1.5", True, r"Expected `int`"),
        ("overhead_s = 1.20683946e-3", "overhead_s = ", False, r"not valid TOML.*line LINE"),
        ('"step.max_batched_tokens"', '"nothing"', False, r"given for every constant, step.max_batched_tokens too"),
        ("[units]", "[unit]", False, "unknown field"),
    ],
)
def test_bad_files_name_file_and_line(tmp_path: Path, old: str, new: str, named: bool, says: str) -> None:
    text = PUBLISHED.read_text()
    line = text[: text.index(old)].count("\n") + 1
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(DraftproofError, match=says.replace("LINE", str(line))) as caught:
        load_costs(str(path))
    assert str(caught.value).startswith(f"{path}:{line}: " if named else f"{path}:")


def test_unknown_hardware_lists_the_known() -> None:
    with pytest.raises(DraftproofError, match=r"--hardware .*got 'a100'.*known: llama3.1-8b-h100; or give the path"):
        load_costs("a100")


def test_unknown_variant_lists_the_known() -> None:
    with pytest.raises(DraftproofError, match=r"variant .*'mtp'.*known: eagle, ngram; add \[drafters.mtp\]"):
        toy_costs().drafter("mtp")


@pytest.mark.parametrize("sizes", [[], [0, 1], [4, 2]])
def test_padding_sizes_rise(sizes: list[int]) -> None:
    with pytest.raises(msgspec.ValidationError, match="sizes must be positive and rising"):
        msgspec.convert({**TOY_COSTS, "padding": {"sizes": sizes}}, type=CostModel)


@given(cost_models(), st.integers(0, 500), st.integers(1, 200))
def test_forward_is_the_plain_formula(costs: CostModel, cached: int, tokens: int) -> None:
    fast = costs.forward_s(np.array(float(cached)), np.array(float(tokens)), pad=True, floor=True)
    assert float(fast) == pytest.approx(forward(costs, cached, tokens))
