"""A run against its baseline: each verdict has a planted truth, each input that says nothing its own words."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftproof.comparison import Compared, Finding, compare
from draftproof.errors import DraftproofError
from draftproof.gate import GREEN, Verdict
from draftproof.movers import mean_place
from draftproof.quantities import GateName
from draftproof.report import compared as report
from draftproof.snapshot import Series, SetTotals, Snapshot, StageTotals
from tests.snapshots import (
    LIMITS,
    NGRAM,
    NO_SD,
    Arm,
    make_limits,
    make_run,
    make_series,
    make_snapshot,
    with_stage_gates,
)

CELL, PLAIN = "t-ngram-w-b2", "t-no_sd-w-b2"
GATES = ("drafter", "system", "end to end")


def like(arm: Arm, **changes: Any) -> Arm:
    return dataclasses.replace(arm, **changes)


def slower(arm: Arm, factor: float) -> Arm:
    """Every step of it takes `factor` times as long."""
    return like(arm, step_s=arm.step_s * factor)


def against(new: Snapshot | Arm, *base: Snapshot, no_sd: Arm = NO_SD, **changes: dict[str, Any]) -> Compared:
    """A run, or a run of that arm, against a baseline of healthy runs."""
    run = make_run(arm=new, no_sd=no_sd) if isinstance(new, Arm) else new
    return compare(list(base) or [make_run("base")], [run], make_limits(**changes))


def only(found: Compared, gate: str, place: str = CELL) -> Finding:
    (one,) = [finding for finding in found.of(place) if finding.gate == gate]
    return one


def verdicts(found: Compared, place: str = CELL) -> dict[str, tuple[str, str]]:
    """Gate -> verdict and arm."""
    return {finding.gate: (finding.verdict, finding.arm) for finding in found.of(place)}


# --- what moved -------------------------------------------------------------------------------------------------------


def test_the_same_again_is_green() -> None:
    """Other noise, nothing else: every gate of every cell passes, each names its own arm."""
    found = against(make_run())
    assert verdicts(found) == dict.fromkeys(GATES, ("PASS", "ngram"))
    assert verdicts(found, PLAIN) == {"end to end": ("PASS", "no_sd")}
    assert (found.tests, found.exit_code, found.notes) == (4, 0, [])


@pytest.mark.parametrize(
    ("arm", "red"),
    [
        (like(NGRAM, length=1.7), {"drafter", "end to end"}),
        (slower(NGRAM, 1.2), {"system", "end to end"}),
        (like(NGRAM, length=1.7, step_s=0.012 * 1.2), set(GATES)),
        (like(NGRAM, length=1.7, step_s=0.0102), {"drafter"}),
    ],
    ids=["accepts less", "dearer steps", "both", "one hides the other"],
)
def test_what_became_worse_is_red_in_its_gate(arm: Arm, red: set[str]) -> None:
    """And in no other; the arm is named, the exit status is 1."""
    found = against(arm)
    assert {gate for gate, verdict in verdicts(found).items() if verdict == ("REGRESSED", "ngram")} == red
    assert {finding.verdict for finding in found.of(CELL) if finding.gate not in red} <= GREEN
    assert verdicts(found, PLAIN) == {"end to end": ("PASS", "no_sd")}
    assert found.exit_code == 1
    judged = found.judgement(CELL)
    assert judged.verdict == "REGRESSED"
    for gate in red:
        assert f"{gate} [ngram]: " in judged.reason


def test_the_figures_of_a_finding_are_the_planted_ones() -> None:
    """Without noise: both sides' figures, the relative change, and the interval around it."""
    quiet, no_sd = like(NGRAM, sigma=0.0), like(NO_SD, sigma=0.0)
    base = make_run("base", quiet, no_sd)
    one = only(against(make_run(arm=slower(quiet, 1.25), no_sd=no_sd), base), "end to end")
    assert one.base == pytest.approx(2.0 / 1.2)
    assert one.new == pytest.approx(2.0 / 1.5)
    assert one.change == pytest.approx(-0.2)
    assert one.low is not None
    assert one.high is not None
    assert one.low < -0.2 < one.high
    assert one.reason.startswith("speedup 1.67 -> 1.33 x (-20.0% [")
    assert "12 prompt sets, limit 5%, p = " in one.reason


def test_the_stage_that_rose_most_is_named() -> None:
    """Only where the system gate is red; prefill is no stage of a step."""
    base = make_run("base", like(NGRAM, sigma=0.0))
    found = against(make_run(arm=like(NGRAM, step_s=0.015, draft_s=0.005, sigma=0.0)), base)
    said = "of the stages draft rose most: 2.00 -> 5.00 ms of a decode step"
    assert only(found, "system").reason.endswith(said)
    assert "stages" not in only(found, "end to end").reason
    assert "stages" not in only(against(make_run(), base), "system").reason


@pytest.mark.parametrize(("sides", "said"), [((True, False), ""), ((False, True), ""), ((True, True), "rose")])
def test_without_stages_blocks_on_both_sides_no_stage_is_named(sides: tuple[bool, bool], said: str) -> None:
    runs = []
    for run, has in zip((make_run("base"), make_run(arm=slower(NGRAM, 1.3))), sides, strict=True):
        plain, cell = run.series
        cell = cell if has else msgspec.structs.replace(cell, stages=[])
        runs.append(msgspec.structs.replace(run, series=[plain, cell]))
    reason = only(against(runs[1], runs[0]), "system").reason
    assert ("of the stages" in reason) == bool(said)


def staged(arm: Arm = NGRAM, no_sd: Arm = NO_SD, run_id: str = "new", blocks: int = 4) -> Snapshot:
    return with_stage_gates(make_run(run_id, arm, no_sd), no_sd, blocks)


STAGE_GATES = {"draft stage", "verify stage"}
"""Those that the invented engine has seconds of."""


def test_stages_of_the_same_again_are_green() -> None:
    found = against(staged(), staged(run_id="base"))
    assert verdicts(found) == dict.fromkeys([*GATES, *STAGE_GATES], ("PASS", "ngram"))
    assert (found.tests, found.exit_code) == (6, 0)


@pytest.mark.parametrize(
    ("arm", "red"),
    [
        (like(NGRAM, step_s=0.0135, draft_s=0.0035), {"draft stage", "system", "end to end"}),
        (like(NGRAM, step_s=0.0145), {"verify stage", "system", "end to end"}),
        (like(NGRAM, draft_s=0.0035), {"draft stage"}),
        (like(NGRAM, draft_s=0.0022, step_s=0.0122), set()),
    ],
    ids=["slow drafter", "slow target", "time that moved", "a tenth of little"],
)
def test_the_stage_that_became_dearer_is_red_and_no_other(arm: Arm, red: set[str]) -> None:
    """One that rises by a tenth, and by less than 3 % of a step, is none."""
    found = against(staged(arm), staged(run_id="base"))
    assert {gate for gate, verdict in verdicts(found).items() if verdict == ("REGRESSED", "ngram")} == red
    assert found.exit_code == bool(red)


def test_a_dearer_no_sd_makes_no_stage_dearer() -> None:
    slow = slower(NO_SD, 1.2)
    found = against(staged(no_sd=slow), staged(run_id="base"))
    assert not [one for one in found.findings if one.gate in STAGE_GATES and one.verdict == "REGRESSED"]


def test_a_stage_that_cannot_be_told_leaves_nothing_unjudged() -> None:
    """The limit lies inside the noise of four wild blocks: it is shown, and has no say."""
    wild = [
        msgspec.structs.replace(
            run,
            series=[
                msgspec.structs.replace(one, stages=like(NGRAM, sigma=0.3).stages(run.run_id)) if one.base_sets else one
                for one in run.series
            ],
        )
        for run in (staged(run_id="base"), staged())
    ]
    found = against(wild[1], wild[0])
    untold = [one for one in found.findings if one.gate in STAGE_GATES]
    assert {one.verdict for one in untold} == {"UNSTABLE"}
    assert found.judgement(CELL).verdict == "PASS"
    assert found.exit_code == 0


@pytest.mark.parametrize(("blocks", "gates"), [(0, set()), (1, set()), (2, STAGE_GATES)])
def test_a_stage_is_judged_from_two_blocks_on(blocks: int, gates: set[str]) -> None:
    found = against(staged(blocks=blocks), staged(run_id="base"))
    assert {one.gate for one in found.findings if one.gate.endswith("stage")} == gates


def test_stages_of_several_cells_are_judged_together() -> None:
    """In the variant's geometric mean alone: the blocks of one cell are few."""

    def two(run: Snapshot) -> Snapshot:
        again = [msgspec.structs.replace(one, batch_size=9) for one in run.series]
        return msgspec.structs.replace(run, series=[*run.series, *again])

    dear = staged(like(NGRAM, step_s=0.0135, draft_s=0.0035))
    found = against(two(dear), two(staged(run_id="base")))
    of_stages = [one for one in found.findings if one.gate in STAGE_GATES]
    assert {one.place for one in of_stages} == {mean_place("t", "ngram")}
    assert [one.gate for one in of_stages if one.verdict == "REGRESSED"] == ["draft stage"]


def test_what_became_better_is_improved() -> None:
    found = against(slower(NGRAM, 0.75))
    assert verdicts(found) == {
        "drafter": ("PASS", "ngram"),
        "system": ("IMPROVED", "ngram"),
        "end to end": ("IMPROVED", "ngram"),
    }
    assert found.exit_code == 0


# --- whose change it is -----------------------------------------------------------------------------------------------


def test_a_faster_no_sd_is_not_a_slower_variant() -> None:
    """The speedup falls by 30 %, and the reason says why nothing is red."""
    found = against(NGRAM, no_sd=slower(NO_SD, 0.7))
    assert verdicts(found) == {
        "drafter": ("PASS", "ngram"),
        "system": ("PASS", "no_sd"),
        "end to end": ("PASS", "no_sd"),
    }
    assert verdicts(found, PLAIN) == {"end to end": ("IMPROVED", "no_sd")}
    assert found.exit_code == 0
    one = only(found, "end to end")
    assert one.change == pytest.approx(-0.3, abs=0.02)
    assert "it is no-SD that moved: its own figure is 4" in one.reason
    assert "% better, ngram's 0." in one.reason


def test_a_variant_that_became_slower_itself_is_not_excused_by_a_faster_no_sd() -> None:
    """No-SD moved further, and yet 25 % more seconds a step are the variant's own."""
    found = against(slower(NGRAM, 1.25), no_sd=slower(NO_SD, 0.7))
    assert verdicts(found)["system"] == ("REGRESSED", "ngram")
    assert verdicts(found)["end to end"] == ("REGRESSED", "ngram")


def test_a_slower_no_sd_is_no_better_variant() -> None:
    """Its own gate is red, and so is its step beside a variant's; the larger speedup is nobody's merit."""
    found = against(NGRAM, no_sd=slower(NO_SD, 1.4))
    assert verdicts(found, PLAIN) == {"end to end": ("REGRESSED", "no_sd")}
    assert verdicts(found)["system"] == ("REGRESSED", "no_sd")
    assert verdicts(found)["end to end"] == ("PASS", "no_sd")
    assert "it is no-SD that became slower" in only(found, "end to end").reason
    assert found.exit_code == 1


@pytest.mark.parametrize(("factor", "plain"), [(1.05, "PASS"), (0.95, "PASS"), (1.4, "REGRESSED"), (0.6, "IMPROVED")])
def test_a_machine_that_is_slower_as_a_whole_moves_no_ratio(factor: float, plain: str) -> None:
    """Within the spread between runs nothing is said at all; beyond it no-SD's own throughput shows it."""
    found = against(slower(NGRAM, factor), no_sd=slower(NO_SD, factor))
    assert verdicts(found) == dict.fromkeys(GATES, ("PASS", "ngram"))
    assert verdicts(found, PLAIN) == {"end to end": (plain, "no_sd")}


# --- drafts that are not there ----------------------------------------------------------------------------------------


def test_lookup_that_never_drafts_is_judged_by_its_seconds_alone() -> None:
    """Its acceptance length is that of a step without speculation on both sides."""
    silent = like(NGRAM, length=1.0)
    base = make_run("base", silent)
    found = against(make_run(arm=silent), base)
    assert verdicts(found) == dict.fromkeys(GATES, ("PASS", "ngram"))
    one = only(found, "drafter")
    assert (one.base, one.new) == (1.0, 1.0)
    assert only(against(make_run(arm=slower(silent, 1.2)), base), "system").verdict == "REGRESSED"


def test_a_drafter_that_stopped_drafting_is_red() -> None:
    """In all sets, or in most of them; one that starts to draft is better."""
    silent = like(NGRAM, length=1.0)
    assert only(against(silent), "drafter").verdict == "REGRESSED"
    assert only(against(make_run(), make_run("base", silent)), "drafter").verdict == "IMPROVED"
    run = make_run()
    mute = [*make_run(arm=silent).series[1].sets[:9], *run.series[1].sets[9:]]
    quiet = msgspec.structs.replace(run, series=[run.series[0], msgspec.structs.replace(run.series[1], sets=mute)])
    assert only(against(quiet), "drafter").verdict == "REGRESSED"


# --- what cannot be told ----------------------------------------------------------------------------------------------


def test_a_limit_inside_the_noise_is_unstable() -> None:
    """And says how large the noise is; acceptance has none and is judged; the exit status is 3."""
    noisy, no_sd = like(NGRAM, sigma=0.2), like(NO_SD, sigma=0.2)
    found = against(make_run(arm=noisy, no_sd=no_sd), make_run("base", noisy, no_sd))
    assert {gate: verdict for gate, (verdict, _) in verdicts(found).items()} == {
        "drafter": "PASS",
        "system": "UNSTABLE",
        "end to end": "UNSTABLE",
    }
    assert "the limit of 5% lies inside the noise of " in only(found, "system").reason
    assert found.exit_code == 3
    assert found.judgement(CELL).verdict == "UNSTABLE"


@pytest.mark.parametrize(("new", "base", "where"), [(0.4, 0.01, "this run"), (0.01, 0.4, "the baseline")])
def test_a_busy_machine_says_nothing_of_seconds(new: float, base: float, where: str) -> None:
    """A slowdown beside another process is no verdict; acceptance does not depend on the clock."""
    arms = [(like(NGRAM, waiting=share), like(NO_SD, waiting=share)) for share in (base, new)]
    arm = slower(like(arms[1][0], length=1.6), 2.0)
    found = against(make_run(arm=arm, no_sd=arms[1][1]), make_run("base", *arms[0]))
    assert verdicts(found) == {
        "drafter": ("REGRESSED", "ngram"),
        "system": ("UNSTABLE", "ngram"),
        "end to end": ("UNSTABLE", "ngram"),
    }
    assert verdicts(found, PLAIN) == {"end to end": ("UNSTABLE", "no_sd")}
    said = f"the machine was busy: in {where} the engines' threads stood without a CPU for 40% of the time, above 10%"
    assert only(found, "system").reason == said


def test_one_busy_moment_is_no_busy_machine() -> None:
    """The median over prompt sets counts; and a system that records no waiting is not called busy."""
    run = make_run(arm=like(NGRAM, waiting=0.02), no_sd=like(NO_SD, waiting=0.02))
    plain, cell = run.series
    first = msgspec.structs.replace(cell.sets[0], waiting=0.9)
    cell = msgspec.structs.replace(cell, sets=[first, *cell.sets[1:]])
    assert against(msgspec.structs.replace(run, series=[plain, cell])).exit_code == 0


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (0, "no finished pair"),
        (1, "1 prompt sets in common; a gate needs 12"),
        (11, "11 prompt sets in common; a gate needs 12"),
    ],
)
def test_too_few_prompt_sets_are_not_judged(sets: int, said: str) -> None:
    """However large the change; on either side; the exit status is 3."""
    found = against(make_run(arm=slower(NGRAM, 3), sets=sets))
    assert {(finding.verdict, finding.reason) for finding in found.findings} == {("INSUFFICIENT", said)}
    assert (found.tests, found.exit_code) == (0, 3)
    if sets:
        turned = against(make_run(arm=slower(NGRAM, 3)), make_run("base", sets=sets))
        assert {finding.reason for finding in turned.findings} == {said}


def test_what_is_too_little_to_judge_is_shown_with_its_interval() -> None:
    """Three sets are enough to see how much moved, and by how much that may be wrong; one set is not."""
    found = against(make_run(arm=slower(NGRAM, 3), sets=3), make_run("base", sets=3))
    one = only(found, "system")
    assert (one.verdict, one.sets, one.p) == ("INSUFFICIENT", 3, None)
    assert one.change == pytest.approx(2, rel=0.1)
    assert one.low is not None
    assert one.high is not None
    assert one.low < 2 < one.high
    assert one.beyond is not None
    assert one.change is not None
    assert one.beyond == pytest.approx(one.change - 0.05)
    alone = only(against(make_run(sets=1), make_run("base", sets=1)), "system")
    assert (alone.change, alone.low, alone.sets) == (None, None, 1)


def test_on_a_busy_machine_no_seconds_are_shown() -> None:
    """Acceptance is: it does not depend on them."""
    busy = [make_run(luck, like(NGRAM, waiting=0.5), like(NO_SD, waiting=0.5), sets=3) for luck in ("base", "new")]
    found = against(busy[1], busy[0])
    assert {(one.gate, one.change is None) for one in found.findings} == {
        ("drafter", False),
        ("system", True),
        ("end to end", True),
    }
    assert ["the machine was busy" in one.reason for one in found.findings if one.gate != "drafter"] == [True] * 3


def test_one_prompt_set_is_never_enough() -> None:
    """Whatever the limit says: one has no spread."""
    found = against(make_run(sets=1), pairs={"limit": 1})
    assert {finding.reason for finding in found.findings} == {"1 prompt sets in common; a gate needs 2"}


def test_the_same_prompts_twice_are_one_set() -> None:
    """Six prompts dealt twice: their figures are averaged, and six sets are not twelve."""
    run = make_run(sets=6)

    def both(sets: Sequence[SetTotals]) -> list[SetTotals]:
        """Once 10 % slower and once 10 % faster: the same in the mean of logs."""
        return [msgspec.structs.replace(one, seconds=one.seconds * by) for by in (1.1, 1 / 1.1) for one in sets]

    twice = [msgspec.structs.replace(s, sets=both(s.sets), base_sets=s.base_sets * 2) for s in run.series]
    found = against(msgspec.structs.replace(run, series=twice))
    assert {finding.reason for finding in found.findings} == {"6 prompt sets in common; a gate needs 12"}
    lenient = against(msgspec.structs.replace(run, series=twice), pairs={"limit": 6})
    plain = against(run, pairs={"limit": 6})
    for one, other in zip(lenient.findings, plain.findings, strict=True):
        assert one.change == pytest.approx(other.change)
        assert one.p == pytest.approx(other.p)


# --- what must be equal -----------------------------------------------------------------------------------------------


def with_cells(run: Snapshot, **fields: Any) -> Snapshot:
    return msgspec.structs.replace(run, series=[msgspec.structs.replace(one, **fields) for one in run.series])


def other_prompts(run: Snapshot) -> Snapshot:
    def renamed(sets: Sequence[SetTotals]) -> list[SetTotals]:
        return [msgspec.structs.replace(totals, prompts=f"q{totals.prompts}") for totals in sets]

    cells = [msgspec.structs.replace(s, sets=renamed(s.sets), base_sets=renamed(s.base_sets)) for s in run.series]
    return msgspec.structs.replace(run, series=cells)


@pytest.mark.parametrize(
    ("run", "said"),
    [
        (make_run(hardware="h100"), "hardware: 'cpu' -> 'h100'"),
        (make_run(held={"cpu": "another CPU", "seed": 7}), "cpu: 'a CPU' -> 'another CPU'"),
        (make_run(held={"cpu": "a CPU", "seed": 8}), "seed: 7 -> 8"),
        (with_cells(make_run(), held={"dtype": "float32", "threads": 2}), "dtype: 'bfloat16' -> 'float32'"),
        (with_cells(make_run(), held={"dtype": "bfloat16", "threads": 1}), "threads: 2 -> 1"),
        (other_prompts(make_run()), "no prompt set in common: other prompts, or dealt otherwise; prompts of the first"),
        (other_prompts(make_run()), "set: p0 -> qp0"),
    ],
    ids=["hardware", "machine", "seed", "dtype", "threads", "prompts", "which prompts"],
)
def test_unlike_is_not_compared(run: Snapshot, said: str) -> None:
    """The field and both values are told; nothing is judged; the exit status is 3."""
    found = against(run)
    assert {finding.verdict for finding in found.findings} == {"INCOMPARABLE"}
    assert len(found.findings) == 4
    assert all(said in finding.reason for finding in found.findings)
    assert (found.tests, found.exit_code) == (0, 3)


def test_what_is_under_test_may_differ() -> None:
    """Versions, commit and command are no held fields."""
    run = make_run(versions={"vllm": "2"}, git_commit="b" * 40, command=["pytest", "--sd-gate"])
    assert against(run).exit_code == 0


def test_a_run_on_either_side_that_is_unlike_the_newest_is_told() -> None:
    odd = make_run("odd", held={"cpu": "a CPU", "seed": 9})
    for base, new in (([make_run("base"), odd], [make_run()]), ([make_run("base")], [odd, make_run()])):
        found = compare(base, new, make_limits())
        assert {finding.verdict for finding in found.findings} == {"INCOMPARABLE"}
        assert "seed: 9 -> 7" in found.findings[0].reason


# --- what is not there ------------------------------------------------------------------------------------------------


def test_without_a_baseline_nothing_is_judged() -> None:
    """The note names the baseline that is missing and what makes one."""
    run = make_run()
    found = compare([], [run], make_limits())
    assert {finding.verdict for finding in found.findings} == {"NO_BASELINE"}
    assert found.exit_code == 3
    assert found.notes == [f"no run of {run.name} to compare with; save one with draftproof baseline save RUN"]
    assert run.name.startswith("cpu-s-")


def test_a_cell_that_the_baseline_lacks_is_told_and_the_others_are_judged() -> None:
    more = [*make_run().series, make_series(NGRAM, workload="x")]
    found = against(make_snapshot("new", more))
    assert {finding.verdict for finding in found.of("t-ngram-x-b2")} == {"NO_BASELINE"}
    assert verdicts(found) == dict.fromkeys(GATES, ("PASS", "ngram"))
    assert found.exit_code == 3


def test_a_cell_that_the_new_run_lacks_is_a_note() -> None:
    base = make_run("base")
    found = against(make_snapshot("new", make_run().series[:1]), base)
    assert found.notes == [f"only in the baseline: {CELL}"]
    assert found.of(CELL) == []
    assert found.judgement(CELL).verdict == "NO_BASELINE"
    assert found.exit_code == 0


@pytest.mark.parametrize("fields", [{"throughput": "FAILED"}, {"sets": [], "base_sets": []}])
def test_a_cell_without_figures_in_the_baseline_is_no_baseline(fields: dict[str, Any]) -> None:
    """But where another run of the baseline holds them, that one counts."""
    base = make_run("base")
    broken = with_cells(make_run("broken"), **fields)
    alone = against(make_run(), broken)
    assert {finding.verdict for finding in alone.findings} == {"NO_BASELINE"}
    beside, plain = against(make_run(), broken, base), against(make_run(), base)
    assert verdicts(beside) == verdicts(plain) == dict.fromkeys(GATES, ("PASS", "ngram"))


# --- what failed ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["throughput", "determinism"])
def test_a_failed_or_divergent_cell_of_the_new_run_is_red(which: str) -> None:
    """With the run's own words, however fast it was."""
    run = make_run(arm=slower(NGRAM, 0.5))
    cell = msgspec.structs.replace(run.series[1], **{which: "FAILED"}, reason="divergent outputs: 1 of 9")
    found = against(msgspec.structs.replace(run, series=[run.series[0], cell]))
    assert {(one.verdict, one.reason) for one in found.of(CELL)} == {("FAILED", "divergent outputs: 1 of 9")}
    assert verdicts(found, PLAIN) == {"end to end": ("PASS", "no_sd")}
    assert found.exit_code == 1


@pytest.mark.parametrize(
    ("some", "code"),
    [
        (["PASS", "IMPROVED"], 0),
        (["PASS", "REGRESSED", "UNSTABLE"], 1),
        (["FAILED", "NO_BASELINE"], 1),
        (["PASS", "INSUFFICIENT"], 3),
        (["INCOMPARABLE"], 3),
        ([], 3),
    ],
)
def test_the_exit_status(some: list[Verdict], code: int) -> None:
    """Red goes before what was not judged, and that before green; nothing compared is not green."""
    one = against(make_run()).findings[0]
    findings = [msgspec.structs.replace(one, verdict=verdict) for verdict in some]
    found = Compared(base=[], new=[], same_run=False, tests=0, findings=findings, notes=[])
    assert found.exit_code == code


# --- limits -----------------------------------------------------------------------------------------------------------


def test_a_cell_in_the_noise_is_answered_by_its_variants_green_mean_and_by_nothing_else() -> None:
    """Only of the same gate, and only where the cell is part of that figure: a busy or unlike cell stays open."""

    one = msgspec.structs.replace(against(make_run()).findings[0], place="m", gate="system", mean="")

    def found(cell: Verdict, mean: Verdict, gate: GateName = "system", part_of: str = "m") -> int:
        findings = [
            msgspec.structs.replace(one, place="c", verdict=cell, mean=part_of),
            msgspec.structs.replace(one, gate=gate, verdict=mean),
        ]
        return Compared(base=[], new=[], same_run=False, tests=2, findings=findings, notes=[]).exit_code

    assert found("UNSTABLE", "PASS") == found("UNSTABLE", "IMPROVED") == 0
    assert found("UNSTABLE", "UNSTABLE") == found("INCOMPARABLE", "PASS") == found("INSUFFICIENT", "PASS") == 3
    assert found("UNSTABLE", "PASS", part_of="") == found("UNSTABLE", "PASS", "end to end") == 3
    assert found("REGRESSED", "PASS") == found("UNSTABLE", "REGRESSED") == 1


@pytest.mark.parametrize("metric", LIMITS)
@pytest.mark.parametrize("absent", [True, False], ids=["absent", "informs only"])
def test_a_missing_limit_is_an_error_that_names_it(metric: str, absent: bool) -> None:
    rows = [row for row in make_limits(**{metric: {"gating": False}}) if row.gating or not absent]
    with pytest.raises(DraftproofError) as caught:
        compare([staged(run_id="base")], [staged()], rows)
    said = f"thresholds of 'cpu' hold no row for metric '{metric}' that covers t-"
    assert str(caught.value).startswith(said)
    assert str(caught.value).endswith("fixtures/thresholds/cpu.toml")


def test_the_last_row_that_covers_a_cell_counts() -> None:
    """A row of its own for one variant; the others keep the general one."""
    rows = make_limits()
    wide = [msgspec.structs.replace(row, limit=0.5, variants=["ngram"]) for row in rows if row.metric != "pairs"]
    new = [make_run(arm=slower(NGRAM, 1.3), no_sd=NO_SD)]
    assert compare([make_run("base")], new, rows).exit_code == 1
    assert compare([make_run("base")], new, [*rows, *wide]).exit_code == 0


def test_a_change_must_also_exceed_the_absolute_limit() -> None:
    """15 % of the acceptance length are 0.3 tokens."""
    arm = like(NGRAM, length=1.7)
    assert only(against(arm, acceptance_drop={"absolute": 0.25}), "drafter").verdict == "REGRESSED"
    assert only(against(arm, acceptance_drop={"absolute": 0.35}), "drafter").verdict == "PASS"
    better = like(NGRAM, length=2.3)
    assert only(against(better, acceptance_drop={"absolute": 0.25}), "drafter").verdict == "IMPROVED"
    assert only(against(better, acceptance_drop={"absolute": 0.35}), "drafter").verdict == "PASS"


def test_a_limit_without_an_absolute_part_is_relative_alone() -> None:
    assert only(against(like(NGRAM, length=1.9), acceptance_drop={"absolute": None}), "drafter").verdict == "REGRESSED"


# --- totals that make no sense ----------------------------------------------------------------------------------------

GOOD: dict[str, Any] = {"prompts": "p", "tokens": 10, "seconds": 1.0, "steps": 5}


@pytest.mark.parametrize("name", ["tokens", "seconds", "steps"])
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, -math.inf])
def test_totals_that_are_no_positive_number_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be positive and finite \\(got "):
        SetTotals(**(GOOD | {name: value}))


@pytest.mark.parametrize("name", ["num_drafts", "num_accepted_tokens", "waiting"])
def test_negative_counts_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be at least 0"):
        SetTotals(**(GOOD | {name: -1}))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_waiting_share_is_a_number(value: float) -> None:
    with pytest.raises(ValueError, match=r"^waiting must be at least 0, finite \(got "):
        SetTotals(**(GOOD | {"waiting": value}))


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_stage_seconds_are_numbers(value: float) -> None:
    with pytest.raises(ValueError, match=r"^seconds of draft must be at least 0 and finite \(got "):
        StageTotals(prompts="p", decode_steps=1, seconds={"draft": value})


def test_no_sd_of_other_prompts_is_refused() -> None:
    """What is divided by each other ran the same prompts."""
    cell = make_series(NGRAM)
    for base_sets in (cell.base_sets[:-1], cell.base_sets[::-1]):
        with pytest.raises(ValueError, match=r"^base_sets must be empty or of the same prompts as sets \(got "):
            msgspec.structs.replace(cell, base_sets=base_sets)


# --- several runs -----------------------------------------------------------------------------------------------------


def width(found: Compared, gate: str = "end to end") -> float:
    one = only(found, gate)
    assert one.low is not None
    assert one.high is not None
    return one.high - one.low


def test_more_runs_of_the_baseline_tell_more() -> None:
    """Quiet ones make the interval narrower; all ids are listed."""
    few = against(make_run(), make_run("b0"))
    many = against(make_run(), *(make_run(f"b{number}") for number in range(8)))
    assert many.base == [f"b{number}" for number in range(8)]
    assert width(many) < width(few)
    assert many.exit_code == 0


def test_runs_of_a_baseline_that_disagree_widen_the_noise() -> None:
    """A slowdown that one quiet run would show is not red beside runs that differ by as much among themselves."""
    arm = slower(NGRAM, 1.15)
    assert only(against(arm, make_run("b0")), "system").verdict == "REGRESSED"
    wild = [make_run(f"b{number}", slower(NGRAM, 0.85 if number % 2 else 1.15)) for number in range(4)]
    found = against(arm, *wild)
    assert only(found, "system").verdict == "UNSTABLE"


def test_the_mean_of_a_baselines_runs_counts() -> None:
    quiet, no_sd = like(NGRAM, sigma=0.0), like(NO_SD, sigma=0.0)
    base = [make_run("b0", slower(quiet, 0.98), no_sd), make_run("b1", slower(quiet, 1 / 0.98), no_sd)]
    one = only(against(make_run(arm=quiet, no_sd=no_sd), *base), "system")
    assert one.base == one.new == pytest.approx(1.2)


def test_several_new_runs_count_as_their_mean() -> None:
    new = [make_run(f"n{number}", slower(NGRAM, 1.2)) for number in range(4)]
    found = compare([make_run("base")], new, make_limits())
    assert found.new == ["n0", "n1", "n2", "n3"]
    assert width(found) < width(against(slower(NGRAM, 1.2)))
    assert found.exit_code == 1


def test_two_builds_of_one_run_have_no_spread_between_runs() -> None:
    """5 % are lost between two nights and plain in the same rotations."""
    arm, rows = slower(NGRAM, 1.08), make_limits(system_cost_rise={"limit": 0.04, "between_run_sd": 0.02})
    base, new = [make_run("run", build="base")], [make_run("run2", arm)]
    assert only(compare(base, new, rows), "system").verdict != "REGRESSED"
    assert only(compare(base, new, rows, same_run=True), "system").verdict == "REGRESSED"


# --- many tests -------------------------------------------------------------------------------------------------------


def crowd(luck: str, arm: Arm, others: int) -> Snapshot:
    """One cell of `arm` among healthy ones, of which each is a variant of its own: no means."""
    cells = [make_series(arm, luck=luck)]
    cells += [make_series(NGRAM, luck=luck, variant=f"v{number}", workload=f"w{number}") for number in range(others)]
    return make_snapshot(luck, cells)


def test_a_p_value_that_is_small_alone_is_not_among_many() -> None:
    """Holm over all gates of all cells: their number is told, and a borderline slowdown is no regression there."""
    arm = slower(NGRAM, 1.105)
    alone, among = (
        compare([crowd("base", NGRAM, others)], [crowd("new", arm, others)], make_limits()) for others in (0, 40)
    )
    assert (alone.tests, among.tests) == (3, 3 * 41)
    first, same = only(alone, "system"), only(among, "system")
    assert first.change == same.change
    assert first.p is not None
    assert same.p is not None
    assert first.p < 0.05 < same.p
    assert same.p == pytest.approx(min(1, first.p * 41), rel=0.5)
    assert (first.verdict, same.verdict) == ("REGRESSED", "PASS")
    assert "(123 tests, Holm)" in report.headline(among)
    large = compare([crowd("base", NGRAM, 40)], [crowd("new", slower(NGRAM, 1.3), 40)], make_limits())
    assert only(large, "system").verdict == "REGRESSED"


def matrix(luck: str, arm: Arm, no_sd: Arm = NO_SD) -> Snapshot:
    """One variant on eight workloads."""
    return make_snapshot(luck, [make_series(arm, no_sd, luck=luck, workload=f"w{number}") for number in range(8)])


def test_what_no_cell_shows_alone_the_geometric_mean_does() -> None:
    """The primary figure: noisy cells, each slower by as much as the limit and a little; first in the list."""
    arm, no_sd = like(NGRAM, sigma=0.06), like(NO_SD, sigma=0.06)
    rows = make_limits(system_cost_rise={"between_run_sd": 0.0}, speedup_drop={"between_run_sd": 0.0})
    found = compare([matrix("base", arm, no_sd)], [matrix("new", slower(arm, 1.12), no_sd)], rows)
    place = mean_place("t", "ngram")
    assert verdicts(found, place)["system"] == ("REGRESSED", "ngram")
    assert verdicts(found, place)["drafter"] == ("PASS", "ngram")
    red = [one for one in found.findings if one.gate == "system" and one.verdict == "REGRESSED"]
    assert len(red) < 1 + 8
    assert [one.place for one in found.findings[:3]] == [place] * 3
    assert found.tests == 3 * 8 + 3


def test_a_mean_follows_no_sd_where_no_sd_moved() -> None:
    found = compare([matrix("base", NGRAM)], [matrix("new", NGRAM, slower(NO_SD, 0.7))], make_limits())
    assert verdicts(found, mean_place("t", "ngram"))["end to end"] == ("PASS", "no_sd")


def test_one_cell_has_no_mean() -> None:
    assert against(make_run()).of(mean_place("t", "ngram")) == []


@settings(max_examples=20)
@given(st.permutations(range(12)))
def test_the_order_of_prompt_sets_does_not_matter(order: list[int]) -> None:
    run = make_run(arm=slower(NGRAM, 1.1))
    cells = [
        msgspec.structs.replace(
            one, sets=[one.sets[i] for i in order], base_sets=[one.base_sets[i] for i in order if one.base_sets]
        )
        for one in run.series
    ]
    for here, there in zip(
        against(run).findings, against(msgspec.structs.replace(run, series=cells)).findings, strict=True
    ):
        assert here.verdict == there.verdict
        assert here.p == pytest.approx(there.p)
        assert here.change == pytest.approx(there.change)


@settings(max_examples=30)
@given(st.floats(1.0, 2.0), st.floats(1.0, 3.0), st.integers(0, 1000))
def test_a_run_is_like_itself(factor: float, length: float, luck: int) -> None:
    """Whatever was measured, compared with itself nothing moved and nothing is red."""
    run = make_run(f"run{luck}", like(slower(NGRAM, factor), length=length, sigma=0.005))
    found = compare([run], [run], make_limits())
    assert found.exit_code == 0
    assert all(one.change == pytest.approx(0, abs=1e-9) for one in found.findings)


# --- words ------------------------------------------------------------------------------------------------------------


def test_the_headline_says_what_moved() -> None:
    red = report.headline(against(slower(NGRAM, 1.3)))
    assert red == f"red against 1 run: regressed: {CELL} (system), {CELL} (end to end) (4 tests, Holm)"
    assert report.headline(against(make_run())) == (
        "green against 1 run: nothing moved beyond its limit (4 tests, Holm)"
    )
    assert "better: t-ngram-w-b2 (system)" in report.headline(against(slower(NGRAM, 0.75)))
    none = report.headline(compare([], [make_run()], make_limits()))
    assert none == "not judged against 0 runs: 4 of 4 gates not judged (0 tests, Holm)"
    builds = compare([make_run("base")], [make_run()], make_limits(), same_run=True)
    assert report.headline(builds).startswith("green against the other build in the same rotations: ")


def test_lines_begin_with_what_is_red() -> None:
    """Then what was not judged, then green; notes and the headline close."""
    base = make_snapshot("base", [*make_run("base").series, make_series(NGRAM, workload="gone")])
    new = make_snapshot("new", [*make_run(arm=slower(NGRAM, 1.3)).series, make_series(NGRAM, workload="x")])
    lines = report.lines(against(new, base))
    words = [line.split()[0] for line in lines]
    assert words == ["REGRESSED"] * 2 + ["NO_BASELINE"] * 3 + ["PASS"] * 2 + ["note:", "red"]
    assert lines[0].startswith("REGRESSED    t-ngram-w-b2, system [ngram]: seconds of a step over no-SD's ")
    assert lines[-2] == "note: only in the baseline: t-ngram-gone-b2"


def test_markdown_is_a_table_whatever_a_reason_holds() -> None:
    """Pipes and line breaks of an error message stay inside their cell."""
    run = make_run()
    cell = msgspec.structs.replace(run.series[1], throughput="FAILED", reason="cat a | b\nthen fell", workload="a|b")
    lines = report.markdown_lines(against(msgspec.structs.replace(run, series=[run.series[0], cell])))
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) == 2 + 4
    assert all(line.replace("\\|", "").count("|") == 6 for line in rows)
    assert all("\n" not in line for line in rows)
    assert "cat a \\| b then fell" in rows[2]
    assert lines[0].startswith("**red against 1 run: failed: t-ngram-a\\|b-b2 ")


def test_json_holds_all_of_it() -> None:
    """And reads back as the same findings."""
    for found in (against(slower(NGRAM, 1.3)), compare([], [make_run()], make_limits())):
        assert msgspec.json.decode(report.as_json(found), type=Compared) == found


def test_a_snapshot_is_the_same_after_a_file() -> None:
    run = make_run()
    assert msgspec.json.decode(msgspec.json.encode(run), type=Snapshot) == run
    assert isinstance(run.series[0], Series)
