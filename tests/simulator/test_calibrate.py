"""Rules of calibration: known constants come back, nothing is negative, and no order or unit matters."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import draftproof.cli as cli
from draftproof.errors import DraftproofError
from draftproof.records import Output, RunFolder
from draftproof.simulator.calibrate import MIN_STEPS, Sample, StepModel, errors, fit_steps
from draftproof.simulator.calibration import calibrate_run
from draftproof.simulator.costfile import as_toml, cost_model
from draftproof.simulator.costs import constants, load_costs
from draftproof.simulator.recorded import Measured, read_targets
from draftproof.simulator.validation import Prediction, predict, replay, request_steps
from tests.simulator.runs import TRUE, write_run


def read(folder: RunFolder) -> Measured:
    (found,) = read_targets(folder, None, lambda line: None)
    return found


def calibrate(folder: Path, *arguments: str) -> str:
    result = CliRunner().invoke(cli.app, ["calibrate", str(folder), *arguments])
    if result.exception is not None:
        raise result.exception
    return result.output


def predictions(folder: RunFolder) -> list[Prediction]:
    found = read(folder)
    rows, reasons = predict(folder, found, cost_model(found, fit_steps(found.samples, found.k), []))
    assert reasons == []
    return rows


# --- the fit ----------------------------------------------------------------------------------------------------------


def test_known_constants_come_back_and_simulate_runs_with_them(tmp_path: Path) -> None:
    """Steps -> calibrate -> file -> simulate."""
    run = write_run(tmp_path / "run", variants=["no_sd", "eagle3", "ngram"], sizes=[1, 4, 8]).path
    text = calibrate(run)
    file = run / "costs-t.toml"
    assert text.endswith(f"cost model: {file}\n")
    costs = load_costs(str(file))
    for name in ("fixed_s", "per_token_s", "per_kv_token_s"):
        assert getattr(costs.verify, name) == pytest.approx(TRUE["verify"][name], rel=1e-3)
    beside = {
        name: sum(TRUE[stage].get(name, 0.0) for stage in ("sample", "overhead", "verify"))
        for name in ("per_request_s", "per_draft_token_s")
    }
    assert costs.step.overhead_s == pytest.approx(1.7e-3, rel=1e-3)
    assert costs.step.per_request_s == pytest.approx(beside["per_request_s"], rel=1e-2)
    assert costs.step.per_draft_token_s == pytest.approx(beside["per_draft_token_s"], rel=1e-3)
    assert costs.prefill is not None
    assert msgspec.to_builtins(costs.prefill) == pytest.approx(TRUE["prefill"], rel=1e-3)
    for name in ("eagle3", "ngram"):
        drafter = msgspec.to_builtins(costs.drafters[name])
        assert {field: drafter[field] for field in TRUE[name]} == pytest.approx(TRUE[name], rel=1e-2)
    assert (costs.drafters["eagle3"].fitted_k, costs.drafters["eagle3"].can_miss) == (3, False)
    assert (costs.drafters["ngram"].fitted_k, costs.drafters["ngram"].can_miss) == (0, True)
    assert costs.step.max_batched_tokens == 4096
    assert all(row.median < 1e-3 and (row.held_out_median or 0) < 1e-3 for row in costs.fit.errors)

    lengths = {"ngram": [1, 1, 2, 1, 3, 1], "eagle3": [1, 2, 2, 3, 1, 2]}
    rows = [
        {"schema": 1, "dataset": "chat", "id": str(n), "limit": 5, "prompt_tokens": 9 + n}
        | {"variants": {name: {"lengths": values} for name, values in lengths.items()}}
        for n in range(3)
    ]
    traces = tmp_path / "x_chat.jsonl"
    traces.write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "cells.json"
    result = CliRunner().invoke(
        cli.app, ["simulate", "--traces", str(traces), "--hardware", str(file), "--json", str(out)]
    )
    assert result.exit_code == 0
    assert all(cell["speedup"] > 0 for cell in json.loads(out.read_text()))


def test_noise_and_slow_steps_move_the_constants_little(tmp_path: Path) -> None:
    """2 % noise on every part, and one step in twenty five times as slow."""
    folder = write_run(tmp_path / "run", sizes=[1, 4, 8], rotations=6, speed_tokens=0, sigma=0.02, slow=0.05)
    fit = fit_steps(read(folder).samples, {"eagle3": 3})
    for name in ("fixed_s", "per_token_s", "per_kv_token_s"):
        assert fit.verify.seconds[name] == pytest.approx(TRUE["verify"][name], rel=0.04)
        assert fit.drafts["eagle3"].seconds[name] == pytest.approx(TRUE["eagle3"][name], rel=0.06)
    assert fit.prefill.seconds["per_token_s"] == pytest.approx(1e-4, rel=0.06)
    assert fit.beside_s("fixed_s") == pytest.approx(1.7e-3, rel=0.04)
    assert fit.beside_s("per_draft_token_s") == pytest.approx(1.2e-4, rel=0.04)
    spread = {row.stage: row for row in errors(read(folder).samples, {"eagle3": 3}, fit)}
    assert 0.005 < spread["verify"].median < 0.03
    assert spread["verify"].held_out_median == pytest.approx(spread["verify"].median, abs=0.01)


def make_sample(**fields: Any) -> Sample:
    given_: dict[str, Any] = {"workload": "w", "rotation": "r", "drafter": "", "prefill": False, "requests": 1}
    given_ |= {"tokens": 1, "drafts": 0, "cached_tokens": 10}
    given_ |= {"draft_s": 0.0, "verify_s": 1e-2, "sample_s": 1e-3, "overhead_s": 2e-3}
    return Sample(**(given_ | fields))


SECONDS = st.floats(1e-4, 1e-1)


@st.composite
def sample_lists(draw: st.DrawFn) -> list[Sample]:
    """Steps of any times, not those of a linear model; two prefills and both arms among them."""
    found = []
    for number in range(draw(st.integers(8, 24))):
        drafter, prefill = ("", "eagle3")[number % 2], number < 4
        requests = draw(st.integers(1, 8))
        drafts = 3 * requests if drafter and not prefill else 0
        found.append(
            make_sample(
                workload=draw(st.sampled_from(["a", "b"])),
                drafter=drafter,
                prefill=prefill,
                requests=requests,
                tokens=draw(st.integers(5, 500)) if prefill else requests + drafts,
                drafts=drafts,
                cached_tokens=0 if prefill else draw(st.integers(10, 4000)),
                draft_s=draw(SECONDS) if drafter else 0.0,
                verify_s=draw(SECONDS),
                sample_s=draw(SECONDS),
                overhead_s=draw(SECONDS),
            )
        )
    return found


def stages(model: StepModel) -> dict[str, dict[str, float]]:
    named = {name: getattr(model, name) for name in ("verify", "sample", "overhead", "prefill")}
    named |= {f"draft {name}": fit for name, fit in model.drafts.items()}
    return {name: fit.seconds for name, fit in (named | model.prompts).items()}


def fitted(model: StepModel, samples: list[Sample]) -> dict[str, list[float]]:
    return {name: stage.fitted.tolist() for name, stage in model.stages(samples).items()}


@settings(max_examples=25)
@given(sample_lists())
def test_no_constant_is_negative(samples: list[Sample]) -> None:
    model = fit_steps(samples, {"eagle3": 3})
    assert all(value >= 0.0 for seconds in stages(model).values() for value in seconds.values())
    assert all(0.0 <= row.median <= row.p90 for row in errors(samples, {"eagle3": 3}, model))


@settings(max_examples=20)
@given(sample_lists(), st.randoms(use_true_random=False))
def test_the_order_of_steps_changes_nothing(samples: list[Sample], dice: random.Random) -> None:
    before = fitted(fit_steps(samples, {"eagle3": 3}), samples)
    mixed = list(samples)
    dice.shuffle(mixed)
    after = fitted(fit_steps(mixed, {"eagle3": 3}), samples)
    assert all(after[name] == pytest.approx(values, rel=1e-5) for name, values in before.items())


@settings(max_examples=20)
@given(sample_lists(), st.sampled_from([1e-3, 0.25, 8.0, 1e3]))
def test_times_that_are_longer_make_constants_that_are_larger(samples: list[Sample], factor: float) -> None:
    """Seconds times c give constants times c."""
    names = ("draft_s", "verify_s", "sample_s", "overhead_s")
    longer = [msgspec.structs.replace(s, **{name: getattr(s, name) * factor for name in names}) for s in samples]
    before = fitted(fit_steps(samples, {"eagle3": 3}), samples)
    after = fitted(fit_steps(longer, {"eagle3": 3}), longer)
    for name, values in before.items():
        assert after[name] == pytest.approx([value * factor for value in values], rel=1e-5)


def test_terms_that_the_run_cannot_tell_are_named(tmp_path: Path) -> None:
    """At batch size 1 requests are always 1, and an EAGLE draft's tokens always 4."""
    run = write_run(tmp_path / "run", sizes=[1])
    found = read(run)
    fit = fit_steps(found.samples, found.k)
    assert fit.verify.untold == ["per_request_s"]
    assert fit.drafts["eagle3"].untold == ["per_token_s"]
    costs = cost_model(found, fit, [])
    assert "cannot tell apart, and 0 stands for: verify per_request_s" in costs.fit.caution
    assert all(abs(row.error) < 1e-3 for row in predictions(run)), "what the run can tell is still right"


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "left-out workloads"),
        ({"workloads": ["chat"]}, "left-out rotations"),
        ({"workloads": ["chat"], "sizes": [4], "rotations": 1}, "nothing held out: there is one block"),
    ],
)
def test_what_is_held_out_is_said(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    run = write_run(tmp_path / "run", **changes).path
    calibrate(run)
    fit = load_costs(str(run / "costs-t.toml")).fit
    assert says in fit.error
    assert all((row.held_out_median is None) == ("nothing" in says) for row in fit.errors)


# --- the file ---------------------------------------------------------------------------------------------------------


def test_file_and_model_are_the_same(tmp_path: Path) -> None:
    found = read(
        write_run(tmp_path / "run", arms={"no_sd": {"environment": {"cpu": f'{Path.home()} "x"', "gpus": []}}})
    )
    fit = fit_steps(found.samples, found.k)
    model = cost_model(found, fit, errors(found.samples, found.k, fit))
    file = tmp_path / "costs.toml"
    file.write_text(as_toml(model))
    assert load_costs(str(file)) == model
    assert str(Path.home()) not in file.read_text()
    assert str(tmp_path) not in file.read_text()
    named = {constant for row in model.provenance for constant in row.constants}
    assert set(constants(model)) <= named
    assert all("run toyrun of 2026-01-02" in row.source for row in model.provenance)


def test_sources_say_versions_and_machine(tmp_path: Path) -> None:
    found = read(write_run(tmp_path / "run"))
    source = cost_model(found, fit_steps(found.samples, found.k), []).provenance[0].source
    assert "vLLM 9.9, torch 8.8, a processor, 2 threads" in source


def test_one_file_a_target(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", targets=["t", "u"]).path
    calibrate(run)
    assert [load_costs(str(run / f"costs-{name}.toml")).target for name in "tu"] == ["t", "u"]
    with pytest.raises(DraftproofError, match="--out must be left out for a run with several targets"):
        calibrate(run, "--out", str(tmp_path / "c.toml"))
    calibrate(run, "--target", "u", "--out", str(tmp_path / "c.toml"))
    assert load_costs(str(tmp_path / "c.toml")).target == "u"


# --- what cannot be calibrated ----------------------------------------------------------------------------------------


def broken(field: str, value: Any) -> Any:
    return lambda variant, number, one: {**one, field: value} if (variant, number) == ("eagle3", 3) else one


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"stage_tokens": 0}, r"stages records of target t must be at least one block \(got 0\); run the study with"),
        (
            {"variants": ["no_sd"]},
            r"arms of .* must be no_sd and at least one that speculates \(got \['no_sd'\]\); run",
        ),
        ({"variants": ["eagle3"]}, r"arms of .* must be no_sd and at least one that speculates \(got \['eagle3'\]\)"),
        (
            {"stage_tokens": 4, "workloads": ["chat"], "sizes": [1]},
            rf"decode steps of arm no_sd must be at least {MIN_STEPS} \(got 6\); run the study again with more",
        ),
        ({"edit": broken("draft_s", float("nan"))}, r"arm eagle3, step 3: draft_s must be a finite number .*got nan"),
        ({"edit": broken("step_s", 0.0)}, r"part g0-chat-b1-r0000-stages, .* step_s must be more than 0 \(got 0.0\)"),
        ({"edit": broken("kv_tokens", -1)}, r"kv_tokens must be at least 0 \(got -1\); the records are damaged"),
    ],
)
def test_what_is_missing_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    says: str,
) -> None:
    run = write_run(tmp_path / "run", **changes).path
    with pytest.raises(DraftproofError, match=says):
        calibrate(run)
    assert not (run / "costs-t.toml").exists()
    monkeypatch.setattr("sys.argv", ["draftproof", "calibrate", str(run)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("draftproof: ")


def test_unknown_targets_and_folders(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run").path
    with pytest.raises(DraftproofError, match=r"--target must be one of the known names \(got 'x'\); known: t"):
        calibrate(run, "--target", "x")
    with pytest.raises(DraftproofError, match=r"no run\.json"):
        calibrate(tmp_path)


def test_an_unfinished_run_is_used_and_said(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", finished=False).path
    assert "the run is not finished: its finished rotations are used" in calibrate(run)


def test_steps_of_prompts_and_decoding_together_are_left_out(tmp_path: Path) -> None:
    said: list[str] = []
    edit = lambda variant, number, one: {**one, "kind": "mixed", "forward_s": 9.0} if number == 2 else one  # noqa: E731
    run = write_run(tmp_path / "run", edit=edit, speed_tokens=0).path
    calibrate_run(run, None, None, validate=False, say=said.append)
    costs = load_costs(str(run / "costs-t.toml"))
    assert "16 steps of prompts and decoding together are left out" in costs.fit.data
    assert costs.verify.fixed_s == pytest.approx(8e-3, rel=1e-3)


# --- prediction -------------------------------------------------------------------------------------------------------


def test_a_request_step_by_step() -> None:
    """Five tokens after the prefill's: 2 + 1, a step without a draft, and a last draft cut off by the end."""
    output = Output(token_ids=[1] * 6, finish_reason="length", accepted=[2, 3], drafted=[3, 3])
    assert request_steps(output) == [(3, 3), (3, 2)]
    output = Output(token_ids=[1] * 6, finish_reason="length", accepted=[1, 1], drafted=[3, 3])
    assert request_steps(output) == [(0, 1), (3, 2), (3, 2)]
    assert request_steps(Output(token_ids=[1] * 3, finish_reason="length")) == [(0, 1), (0, 1)]
    assert request_steps(Output(token_ids=[1], finish_reason="length")) == []


def test_a_batch_step_by_step() -> None:
    """Two requests of which one ends first: the cache holds those that still run."""
    outputs = [
        Output(token_ids=[1] * 4, finish_reason="length", accepted=[2], drafted=[3]),
        Output(token_ids=[1] * 3, finish_reason="length", accepted=[0, 0], drafted=[3, 3]),
    ]
    found = replay([10, 20], outputs)
    assert found.step_requests.tolist() == [2, 1]
    assert found.step_drafts.tolist() == [6, 3]
    assert found.step_cached.tolist() == [11 + 21, 22]


@pytest.mark.parametrize("workloads", [["chat"], ["chat", "code"]])
def test_speedups_of_known_costs_are_predicted(tmp_path: Path, workloads: list[str]) -> None:
    """The blocks took what their steps say, so that nothing is left to miss; held out only where there are others."""
    run = write_run(tmp_path / "run", workloads=workloads, sizes=[1, 4, 8])
    rows = predictions(run)
    assert len(rows) == 3 * len(workloads)
    assert all(abs(row.error) < 1e-3 for row in rows)
    assert all((row.held_out is None) == (len(workloads) == 1) for row in rows)
    assert all(abs(row.held_out_error or 0.0) < 1e-2 for row in rows)
    text = calibrate(run.path, "--validate")
    assert f"median absolute error: 0.0% of {len(rows)} cells" in text
    assert ("held out" in text.split("median absolute error")[1]) == (len(workloads) > 1)


def test_steps_without_a_draft_are_spread(tmp_path: Path) -> None:
    """Where a lookup missed is not recorded; how often is, up to a step or two at the end of each request."""
    run = write_run(tmp_path / "run", variants=["no_sd", "ngram"], sizes=[1, 4], speed_tokens=160)
    assert all(abs(row.error) < 0.02 for row in predictions(run))


def test_a_block_that_its_steps_do_not_explain_shows(tmp_path: Path) -> None:
    """Planted: something outside of the engine's steps halves the speed of the speculative arm."""
    run = write_run(tmp_path / "run", speeds={"eagle3": 0.5})
    assert all(row.error == pytest.approx(1.0, abs=0.01) for row in predictions(run))


def test_cells_that_cannot_be_predicted_are_named(tmp_path: Path) -> None:
    text = calibrate(write_run(tmp_path / "run", speed_tokens=0).path, "--validate")
    assert "t-eagle3-chat-b1: needs paired speed blocks; found none" in text
    assert "no cell could be predicted" in text
