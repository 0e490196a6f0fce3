"""Rules of the advice: the fastest that is surely faster, never what did not pass, and what it costs beside it."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.analysis.decay import Point, decay_of
from draftproof.analysis.gainshare import GainShare
from draftproof.analysis.stats import Ratio, t_quantile
from draftproof.bounds import Bounds, Reached
from draftproof.catalog import load_catalog
from draftproof.gate import Judgement, Verdict
from draftproof.memorycosts import MemoryCost
from draftproof.recommendation import Choice, adjusted, recommend
from draftproof.report.markdown import render_markdown
from draftproof.report.recommended import bytes_text, cache_text, memory_text, room_text, tables, weights_text
from draftproof.results import CellResult, RunResults
from draftproof.rivals import Rival
from draftproof.spec import MatrixRow, Sampling, Study
from tests.reporting import arm, broken, cell, header, page, reference, run


def exact(value: float, error: float = 0.01, clusters: int = 12) -> Ratio:
    """A jackknife interval, as the records give it."""
    reach = t_quantile(clusters - 1) * error
    low, high = value * math.exp(-reach), value * math.exp(reach)
    return Ratio(value=value, low=low, high=high, clusters=clusters, method="jackknife", log_error=error)


def ran(variant: str, value: float, error: float = 0.01, **changes: Any) -> CellResult:
    return cell(variant, **{"speedup": exact(value, error), "tokens_per_s": 60 * value, **changes})


def arms_of(*cells: CellResult, **controls: str) -> RunResults:
    """A run of these cells in which every arm started; `controls`: variant -> kind."""
    names = dict.fromkeys(c.cell.variant for c in cells)
    return run(*cells, arms=[arm("no_sd"), *[arm(name, control=controls.get(name, "")) for name in names]])


def only(results: RunResults) -> Choice:
    (choice,) = recommend(results)
    return choice


def chosen(results: RunResults) -> str | None:
    choice = only(results)
    return choice.chosen.variant if choice.chosen else None


# -- which -------------------------------------------------------------------------------------------------------------


def test_the_fastest_is_advised_with_its_k() -> None:
    choice = only(arms_of(reference(), ran("a", 1.2), ran("b", 1.6), ran("c", 0.8)))
    assert choice.advice == "deploy"
    assert choice.chosen is not None
    assert (choice.chosen.variant, choice.chosen.k, choice.candidates) == ("b", 3, 3)
    assert choice.close == []


@pytest.mark.parametrize(
    ("speedups", "advice"),
    [
        ([(1.5, 0.01)], "deploy"),
        ([(0.9, 0.01), (0.8, 0.01)], "off"),
        ([(0.9, 0.01), (1.02, 0.05)], "undecided"),
        ([(1.05, 0.021)], "deploy"),
        ([(1.05, 0.021), (0.9, 0.01), (0.8, 0.01)], "weak"),
        ([], "none"),
    ],
)
def test_how_sure_the_advice_is(speedups: list[tuple[float, float]], advice: str) -> None:
    """One interval that is above 1 by a hair is enough alone, and no longer where it was the best of three."""
    cells = [ran(f"v{index}", value, error) for index, (value, error) in enumerate(speedups)] or [broken("v")]
    choice = only(arms_of(*cells))
    assert choice.advice == advice
    assert (choice.chosen is not None) == (advice in ("deploy", "weak"))


def test_one_that_is_surely_faster_goes_before_a_faster_guess() -> None:
    choice = only(arms_of(ran("guess", 1.9, 0.28), ran("sure", 1.4)))
    assert choice.chosen is not None
    assert choice.chosen.variant == "sure"
    assert [one.variant for one in choice.close] == ["guess"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"throughput": Judgement(verdict="UNSTABLE", reason="busy")}, "speedup UNSTABLE: busy"),
        ({"throughput": Judgement(verdict="FAILED", reason="crashed")}, "speedup FAILED: crashed"),
        ({"throughput": Judgement(verdict="INCOMPARABLE", reason="dtype")}, "speedup INCOMPARABLE: dtype"),
        ({"throughput": Judgement(verdict="REGRESSED", reason="below")}, "speedup REGRESSED: below"),
        ({"determinism": Judgement(verdict="FAILED", reason="divergent outputs")}, "outputs FAILED: divergent outputs"),
        ({"determinism": Judgement(verdict="UNSTABLE", reason="noise")}, "outputs UNSTABLE: noise"),
        ({"determinism": Judgement(verdict="REGRESSED", reason="ties")}, "outputs REGRESSED: ties"),
        ({"determinism": Judgement(verdict="INSUFFICIENT", reason="random")}, "outputs INSUFFICIENT: random"),
        ({"problems": ["5 accepted of 4"]}, "its records contradict themselves: 5 accepted of 4"),
        ({"speedup": None}, "no finite interval of the speedup"),
        ({"speedup": Ratio(value=2, low=1, high=math.inf, clusters=2, method="")}, "no finite interval of the speedup"),
    ],
)
def test_what_did_not_pass_is_never_advised(changes: dict[str, Any], why: str) -> None:
    results = arms_of(reference(), ran("fast", 3.0, **changes), ran("slow", 1.2))
    choice = only(results)
    assert choice.chosen is not None
    assert choice.chosen.variant == "slow"
    assert [(one.variant, one.why) for one in choice.excluded] == [("fast", why)]
    assert why in page(results).text


def test_a_limit_that_does_not_cover_a_cell_speaks_not_against_it() -> None:
    assert chosen(arms_of(ran("a", 1.4, throughput=Judgement(verdict="NO_BASELINE", reason="")))) == "a"


def test_a_place_where_only_unfit_variants_ran_and_were_slower_is_off() -> None:
    slow = Judgement(verdict="REGRESSED", reason="below its floor")
    assert only(arms_of(ran("a", 0.5, throughput=slow))).advice == "off"
    assert only(arms_of(ran("a", 1.5, throughput=slow))).advice == "none"


VERDICTS = st.sampled_from(["PASS", "NO_BASELINE", "REGRESSED", "FAILED", "UNSTABLE", "INSUFFICIENT", "INCOMPARABLE"])
CELLS = st.lists(
    st.tuples(st.floats(0.3, 4), st.floats(0.001, 0.5), VERDICTS, VERDICTS, st.booleans()), min_size=1, max_size=6
)


@given(CELLS)
def test_advice_is_never_red_never_a_control_and_never_slower(
    given_cells: list[tuple[float, float, Verdict, Verdict, bool]],
) -> None:
    cells, controls = [], {}
    for index, (value, error, speed, outputs, control) in enumerate(given_cells):
        name = f"v{index}"
        judged = {
            "throughput": Judgement(verdict=speed, reason=""),
            "determinism": Judgement(verdict=outputs, reason=""),
        }
        cells.append(ran(name, value, error, **judged))
        if control:
            controls[name] = "oracle"
    for choice in recommend(arms_of(*cells, **controls)):
        if choice.chosen is None:
            assert choice.advice in ("off", "undecided", "none")
            continue
        found = next(c for c in cells if c.cell.variant == choice.chosen.variant)
        assert found.cell.variant not in controls
        assert found.throughput.verdict in ("PASS", "NO_BASELINE", "INSUFFICIENT")
        assert found.determinism.verdict == "PASS"
        assert choice.chosen.net.low > 1
        assert (choice.advice == "deploy") == (choice.chosen.adjusted.low > 1)
        assert choice.candidates + len(choice.excluded) == len(cells) - len(controls)


# -- memory and ties ---------------------------------------------------------------------------------------------------


def costs(**static_bytes: int | None) -> list[MemoryCost]:
    return [
        MemoryCost(target="tiny", variant=name, build="new", static_bytes=size, kv_bytes_per_token=size)
        for name, size in static_bytes.items()
    ]


def rival(first: str, second: str, value: float, error: float) -> Rival:
    names = [f"tiny-{name}-chat-b1" for name in (first, second)]
    return Rival(first=names[0], second=names[1], build="new", ratio=exact(value, error))


def test_within_one_standard_error_less_memory_goes_first() -> None:
    """Paired: two wide intervals over no-SD say little of the two variants against each other."""
    results = arms_of(ran("heavy", 1.50, 0.1), ran("light", 1.48, 0.1))
    told = msgspec.structs.replace(
        results, memory=costs(heavy=10**9, light=0), rivals=[rival("heavy", "light", 1.014, 0.02)]
    )
    assert chosen(told) == "light"
    choice = only(told)
    assert choice.fastest is not None
    assert choice.fastest.variant == "heavy"
    assert [(one.variant, one.within_one_error) for one in choice.close] == [("light", True)]
    assert "less memory than heavy, not one standard error slower" in page(told).text
    apart = msgspec.structs.replace(told, rivals=[rival("heavy", "light", 1.014, 0.001)])
    assert chosen(apart) == "heavy"
    assert only(apart).close == []


def test_memory_that_is_not_known_is_no_reason_to_prefer() -> None:
    results = arms_of(ran("known", 1.49, 0.1), ran("unknown", 1.50, 0.1))
    rivals = [rival("unknown", "known", 1.006, 0.02)]
    told = msgspec.structs.replace(results, memory=costs(known=10**9, unknown=None), rivals=rivals)
    assert chosen(told) == "known"
    assert chosen(msgspec.structs.replace(results, rivals=rivals)) == "unknown"  # nothing is known of either


def test_not_told_apart_is_told_but_decides_nothing_beyond_one_error() -> None:
    results = arms_of(ran("heavy", 1.6, 0.02), ran("light", 1.5, 0.02))
    told = msgspec.structs.replace(
        results, memory=costs(heavy=10**9, light=0), rivals=[rival("heavy", "light", 1.067, 0.04)]
    )
    choice = only(told)
    assert choice.chosen is not None
    assert choice.chosen.variant == "heavy"
    assert [(one.variant, one.within_one_error) for one in choice.close] == [("light", False)]


def test_a_pair_may_be_recorded_the_other_way_round() -> None:
    results = arms_of(ran("a", 1.5, 0.1), ran("b", 1.45, 0.1))
    (found,) = only(msgspec.structs.replace(results, rivals=[rival("b", "a", 0.97, 0.02)])).close
    assert found.ratio.value == pytest.approx(1 / 0.97)
    assert found.ratio.low < found.ratio.value < found.ratio.high


def test_without_a_pair_both_errors_count() -> None:
    (found,) = only(arms_of(ran("a", 1.5, 0.03), ran("b", 1.45, 0.04))).close
    assert found.ratio.log_error == pytest.approx(0.05)
    assert "independent" in found.ratio.method


def test_memory_in_words() -> None:
    empty = MemoryCost(target="t", variant="v", build="new")
    assert memory_text(None) == memory_text(empty) == weights_text(empty) == cache_text(empty) == "not known"
    nothing = MemoryCost(target="t", variant="v", build="new", static_bytes=0, kv_bytes_per_token=0)
    assert memory_text(nothing) == "none"
    full = MemoryCost(
        target="t",
        variant="v",
        build="new",
        static_bytes=2**30,
        kv_bytes_per_token=4096,
        target_static_bytes=2**34,
        target_kv_bytes_per_token=2**17,
        kv_cache_tokens=900,
        base_kv_cache_tokens=1000,
    )
    assert memory_text(full) == (
        "weights 1.00 GiB (+6.2 %); KV cache 4.00 KiB a token (+3.1 %); room for 900 tokens, not 1,000 (-10.0 %)"
    )
    assert room_text(empty) == room_text(msgspec.structs.replace(full, kv_cache_tokens=1000)) == ""
    assert bytes_text(8_406_144) == "8.0 MiB"


def test_the_memory_of_the_advice_stands_in_its_row_and_leads_to_all_of_it() -> None:
    results = arms_of(ran("heavy", 1.5))
    told = msgspec.structs.replace(results, memory=costs(heavy=2**20))
    place = next(table for table in tables(told, header()) if table.name == "deploy")
    assert place.body[0][place.head.index("memory it adds")] == "weights 1.0 MiB; KV cache 1024.00 KiB a token"
    assert place.more is None
    whole = [msgspec.structs.replace(cost, target_static_bytes=2**30) for cost in told.memory]
    shown = page(msgspec.structs.replace(results, memory=whole))
    assert shown.values("href").count("#memory") == 2  # among the sections, and from the row
    assert "memory" in shown.values("id")


# -- no-SD arms with other settings ------------------------------------------------------------------------------------


def test_a_variant_that_slows_no_sd_down_is_told_over_the_faster_one() -> None:
    """Whoever turns it on gives up async scheduling too: 1.3 times 80 tokens/s is no gain over 110."""
    plain = reference()
    plain = msgspec.structs.replace(plain, tokens_per_s=110.0, base_tokens_per_s=110.0)
    forced = ran("ngram", 1.3, base_arm="no_sd[async=off]", base_tokens_per_s=80.0)
    free = ran("eagle", 1.2, base_tokens_per_s=110.0)
    results = arms_of(plain, forced, free)
    assert chosen(results) == "eagle"
    alone = only(arms_of(plain, forced))
    assert alone.advice == "off"
    assert alone.fastest is not None
    assert alone.fastest.net.value == pytest.approx(1.3 * 80 / 110)
    assert alone.fastest.speedup.value == 1.3
    assert "times the ratio of both no-SDs' tokens/s, which has no interval" in page(results).text
    assert "times the ratio of both no-SDs'" not in page(arms_of(plain, free)).text


# -- the winner's curse ------------------------------------------------------------------------------------------------


@given(st.floats(0.2, 5), st.floats(0.001, 0.5), st.integers(2, 40), st.integers(1, 30))
def test_the_widened_interval_is_bonferronis(value: float, error: float, clusters: int, among: int) -> None:
    """Against the plain formula: t quantile at 1 - 0.05 / n, times the log error."""
    found = adjusted(exact(value, error, clusters), among)
    reach = t_quantile(clusters - 1, 1 - 0.05 / among) * error
    assert found.value == value
    assert math.log(found.value / found.low) == pytest.approx(reach, rel=1e-6)
    if math.isfinite(found.high):
        assert math.log(found.high / found.value) == pytest.approx(reach, rel=1e-6)
    else:
        assert reach > 500


def test_a_skewed_interval_keeps_its_skew() -> None:
    found = adjusted(Ratio(value=1.5, low=1.4, high=1.8, clusters=20, method="BCa", log_error=0.05), 4)
    assert math.log(1.5 / found.low) / math.log(1.5 / 1.4) == pytest.approx(
        math.log(found.high / 1.5) / math.log(1.8 / 1.5)
    )


def test_of_many_that_do_nothing_the_best_is_seldom_advised() -> None:
    """2,000 places of five variants that change nothing, three prompt sets each: by their own intervals the best of
    five is told to be faster in about a tenth of the places; deployed it is in one of forty at most."""
    import numpy as np

    rng = np.random.default_rng(7)
    own = widened = 0
    places = 2000
    logs = 0.05 * rng.standard_normal((places, 5, 3))
    means = logs.mean(axis=2)
    errors = logs.std(axis=2, ddof=1) / math.sqrt(3)
    one, five = t_quantile(2), t_quantile(2, 1 - 0.05 / 5)
    own = int(((means - one * errors) > 0).any(axis=1).sum())
    widened = int(((means - five * errors) > 0).any(axis=1).sum())
    assert own / places > 0.08
    assert widened / places < 0.03
    row, column = (int(x[0]) for x in np.where((means - five * errors) > 0))
    cells = [
        ran(f"v{index}", math.exp(mean), error, speedup=exact(math.exp(mean), error, 3))
        for index, (mean, error) in enumerate(zip(means[row], errors[row], strict=True))
    ]
    assert only(arms_of(*cells)).advice == "deploy"
    assert column < 5


# -- the oracle and the break-even -------------------------------------------------------------------------------------


def beside_oracle(oracle: CellResult, oracle_k: int = 3, share: float | None = 0.25) -> RunResults:
    """n-gram lookup of k = 3 beside an oracle."""
    assert oracle.speedup is not None
    row = Reached(
        target="tiny",
        workload="chat",
        batch_size=1,
        build="new",
        variant="ngram",
        k=3,
        speedup=exact(1.5),
        oracle="oracle",
        oracle_k=oracle_k,
        oracle_speedup=oracle.speedup,
        share=None if share is None else GainShare(value=share, low=0.2, high=0.3, clusters=12),
    )
    results = arms_of(ran("ngram", 1.5), oracle, ran("wrong", 0.7), oracle="oracle", wrong="adversarial")
    return msgspec.structs.replace(results, bounds=Bounds(reached=[row]))


def test_the_oracle_is_the_bound_and_never_the_advice() -> None:
    results = beside_oracle(ran("oracle", 3.0))
    choice = only(results)
    assert choice.chosen is not None
    assert (choice.chosen.variant, choice.candidates) == ("ngram", 1)
    assert choice.reached is not None
    assert "25 % [20, 30]" in page(results).text


@pytest.mark.parametrize(
    "results",
    [
        pytest.param(beside_oracle(ran("oracle", 1.01, 0.05), share=None), id="an oracle that gains nothing"),
        pytest.param(beside_oracle(ran("oracle", 3.0), oracle_k=7), id="another k"),
        pytest.param(
            beside_oracle(ran("oracle", 3.0, throughput=Judgement(verdict="UNSTABLE", reason="busy"))), id="unstable"
        ),
    ],
)
def test_no_share_of_a_bound_that_is_none(results: RunResults) -> None:
    assert only(results).reached is None


def test_the_break_even_is_the_advised_variants() -> None:
    sizes = ((1, 1.5), (16, 0.8))
    cells = [ran("ngram", value, batch_size=size) for size, value in sizes]
    points = [Point(batch_size=size, output_tokens=64, speedup=exact(value)) for size, value in sizes]
    decay = decay_of("tiny", "ngram", "chat", "new", points)
    assert decay is not None
    results = msgspec.structs.replace(arms_of(*cells), decays=[decay])
    assert [choice.advice for choice in recommend(results)] == ["deploy", "off"]
    assert all(choice.break_even == decay for choice in recommend(results))
    (summary, *_) = tables(results, header())
    assert summary.body == [["chat", "ngram, k = 3: B = 1", "-", "B = 16", "-", "-"]]


# -- in words ----------------------------------------------------------------------------------------------------------


def test_runs_without_a_variant_have_no_section() -> None:
    for results in (run(), run(reference()), arms_of(reference(), ran("oracle", 3.0), oracle="oracle")):
        assert recommend(results) == []
        assert "Recommendation" not in page(results).text
        assert "Recommendation" not in render_markdown(results, header())


def test_targets_and_builds_are_advised_apart() -> None:
    cells = [ran("a", 1.5), ran("a", 0.8, target="other"), ran("a", 1.2, build="base")]
    choices = recommend(arms_of(*cells))
    assert [(choice.target, choice.build, choice.advice) for choice in choices] == [
        ("tiny", "new", "deploy"),
        ("other", "new", "off"),
        ("tiny", "base", "deploy"),
    ]
    text = page(arms_of(*cells)).text
    assert "chat (other, new build)" in text


def said(**study: Any) -> str:
    row = MatrixRow(target="tiny", variants=["ngram"], workloads=["chat"], batch_sizes=[1])
    given: dict[str, Any] = {"title": "", "hardware": "cpu", "output_tokens": 64, "matrix": [row]}
    made = Study(name="default", **(given | study))
    text = render_markdown(arms_of(ran("ngram", 1.5, waiting=0.07)), header(study=made))
    return text.replace("\\", "")


def test_what_the_data_cannot_say_is_said() -> None:
    text = said()
    for what in (
        "winner's curse",
        "greedy",
        "EOS ignored",
        "64 tokens",
        "12 prompt sets a cell",
        "each batch starts and ends together",
        "AMD EPYC",
        "up to 7 % of the time",
        "activations",
    ):
        assert what in text, what
    assert "temperature 0.7" in said(sampling=Sampling(temperature=0.7))
    assert "EOS ends a request" in said(ignore_eos=False)


def test_controls_are_known_even_where_they_never_started() -> None:
    """The catalog tells them: a control proposer, and a target that drafts for itself."""
    entries = load_catalog()
    known = {name for name in entries.variants if entries.is_control(name, "smollm2-135m")}
    assert {"oracle", "oracle_k7", "adversarial", "random_half", "self_draft", "scripted"} <= known
    assert not known & {"no_sd", "ngram", "draft_model", "eagle", "eagle3", "mtp"}
    assert not entries.is_control("of_an_overlay", "smollm2-135m")
    results = run(ran("ngram", 1.5), broken("oracle"), arms=[arm()], known_controls=["oracle"])
    assert only(results).excluded == []
