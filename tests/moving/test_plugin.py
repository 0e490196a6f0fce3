"""The pytest plugin: silent for everybody else, and each verdict, gap and mistake is one clear outcome."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import draftproof.session
from draftproof.catalog import Catalog, fixtures_folder
from draftproof.engines import BlockRequest, BlockResult
from draftproof.engines.replay import ReplayArm
from draftproof.hardware import Machine
from draftproof.results import analyse
from tests.moving.running import SUITES, outcomes_of, replay_options, run_suites
from tests.toy import Bench, ToyEngine

PARTLY = "toy-partly-short-b1"
HEAVY = {"torch", "vllm", "transformers", "datasets"}


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever this machine has: two cores and no GPU."""
    monkeypatch.setattr(draftproof.session, "detect_machine", lambda: Machine("a CPU", cores=2, memory_gib=8.0))


def ids(result: pytest.RunResult) -> list[str]:
    """Collected test ids."""
    return [line for line in result.outlines if "::" in line]


# --- for everybody else -----------------------------------------------------------------------------------------------


def test_it_is_inert_in_another_project(pytester: pytest.Pytester) -> None:
    """Installed but not asked for: no output, no folder, no warning, and nothing imported beside the plugin itself."""
    pytester.makeconftest(
        """
        import sys
        from pathlib import Path

        def pytest_sessionfinish(session):
            Path("modules.txt").write_text("\\n".join(sys.modules))
        """
    )
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.parametrize("n", [1, 2])
        def test_something(n):
            assert n

        @pytest.fixture
        def sd_like():
            return 1

        def test_with_a_fixture_of_a_name_like_ours(sd_like):
            assert sd_like
        """
    )
    result = pytester.runpytest_subprocess(
        "-W", "error", "--strict-markers", "--strict-config", "-p", "no:cacheprovider"
    )
    result.assert_outcomes(passed=3)
    assert result.ret == 0
    assert "draftproof" not in "\n".join(line for line in result.outlines if not line.startswith("plugins:"))
    assert result.stderr.str() == ""
    assert not (pytester.path / "reports").exists()
    modules = set((pytester.path / "modules.txt").read_text(encoding="utf-8").split())
    ours = {name for name in modules if name.split(".")[0] == "draftproof"}
    assert ours == {"draftproof", "draftproof.plugin"}
    assert modules.isdisjoint({"msgspec", "numpy", "scipy", "pyarrow", "rich", *HEAVY})


def test_its_options_and_markers_bear_its_name(pytester: pytest.Pytester) -> None:
    """Every option begins with ``--sd-`` and is in the help; markers are registered, so strict runs accept them."""
    text = pytester.runpytest_inprocess("--help").stdout.str()
    section = text.split("speculative decoding in vLLM (draftproof):")[1].split("\n\n")[0]
    options = [word for line in section.splitlines() for word in line.split()[:1] if word.startswith("-")]
    assert len(options) >= 12
    assert all(option.startswith("--sd-") for option in options)
    markers = pytester.runpytest_inprocess("--markers").stdout.str()
    for name in ("sd_cells", "cpu", "h100", "h100x4", "h200", "nightly"):
        assert f"@pytest.mark.{name}" in markers


@pytest.mark.parametrize(
    "code",
    [
        "import draftproof.plugin",
        "import sys; sys.argv = ['draftproof', '--help']; from draftproof.cli import main; main()",
        "import draftproof.session, draftproof.engines.vllm, draftproof.engines.worker, draftproof.cli",
    ],
    ids=["the plugin", "draftproof --help", "everything but an engine"],
)
def test_neither_torch_nor_vllm_is_imported(code: str) -> None:
    """By names of modules, not by seconds."""
    script = f"import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n{code}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    modules = set(done.stderr.split())
    assert "draftproof" in modules
    assert modules.isdisjoint(HEAVY)
    if "plugin" in code:
        assert modules.isdisjoint({"msgspec", "numpy", "pyarrow", "rich", "draftproof.session"})


# --- which study, which cells -----------------------------------------------------------------------------------------


def test_an_unknown_study_is_a_usage_error(suites: pytest.Pytester) -> None:
    """One message that lists the known ones; exit status 4, as for every wrong option."""
    result = suites.runpytest_inprocess("--sd-study", "nightli")
    text = result.stdout.str() + result.stderr.str()
    assert "study must be one of the known names (got 'nightli'); known: bound-cpu, controls, default, " in text
    assert "nightly-h100" in text
    assert "Traceback" not in text
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_h100_alone_picks_the_nightly_study(suites: pytest.Pytester) -> None:
    result = suites.runpytest_inprocess("-m", "h100", "--collect-only", "-q")
    found = ids(result)
    assert result.ret == 0
    assert "tests_perf/test_throughput.py::test_speedup[llama3.1-8b-eagle3-code_edit-b64]" in found
    assert "tests_determinism/test_outputs.py::test_same_outputs_as_no_sd[qwen3-8b-draft_model-chat-b1]" in found
    assert not [name for name in found if "smollm2" in name]
    assert not (suites.path / "reports").exists()


@pytest.mark.parametrize(
    ("expression", "study"),
    [("h100", "nightly-h100"), ("h100 and nightly", "nightly-h100"), ("not h100", "default"), ("cpu", "default")],
)
def test_the_default_study_follows_the_marker(suites: pytest.Pytester, expression: str, study: str) -> None:
    found = ids(suites.runpytest_inprocess("-m", expression, "--collect-only", "-q", "tests_perf/test_throughput.py"))
    assert found
    assert all(("smollm2" in name) == (study == "default") for name in found)


def test_h200_alone_picks_its_own_study(suites: pytest.Pytester) -> None:
    """The only one that is made for it; the nightly study's cells would all be deselected."""
    found = ids(suites.runpytest_inprocess("-m", "h200", "--collect-only", "-q", "tests_perf/test_throughput.py"))
    assert "tests_perf/test_throughput.py::test_speedup[qwen3-8b-dummy-draft_model_synthetic-grade_math-b128]" in found


def test_outputs_of_random_weights_are_not_judged(suites: pytest.Pytester) -> None:
    """Throughput, counts, stages and acceptance of such cells are tested; what their tokens say is not."""
    found = ids(suites.runpytest_inprocess("--sd-study", "h100-synthetic", "--collect-only", "-q", *SUITES))
    tests = {name.partition("[")[0].rpartition("::")[2] for name in found}
    assert tests == {
        "test_speedup",
        "test_records_are_sound",
        "test_draft_counts_agree",
        "test_acceptance_is_as_expected",
        "test_stage_seconds",
    }
    assert not [name for name in found if name.startswith("tests_determinism")]
    real = ids(suites.runpytest_inprocess("--sd-study", "nightly-h100", "--collect-only", "-q", "tests_determinism"))
    assert "tests_determinism/test_outputs.py::test_same_outputs_as_no_sd[llama3.1-8b-eagle3-chat-b64]" in real


def test_the_paper_figure_lists_its_cells(suites: pytest.Pytester) -> None:
    """Target, variant, workload and batch size are in each id; markers choose the machine."""
    arguments = ("--sd-study", "paper-fig1", "--collect-only", "-q", "tests_perf/test_throughput.py")
    found = ids(suites.runpytest_inprocess("-m", "h100", *arguments))
    for cell in (
        "llama3.1-8b-ngram-gsm8k-b1",
        "llama3-70b-draft_model-cnndailymail-b128",
        "qwen3-8b-eagle3-sharegpt-b16",
    ):
        assert f"tests_perf/test_throughput.py::test_speedup[{cell}]" in found
    assert "tests_perf/test_throughput.py::test_speedup[llama3.1-8b-no_sd-gsm8k-b1]" not in found
    assert "tests_perf/test_throughput.py::test_records_are_sound[llama3.1-8b-no_sd-gsm8k-b1]" in found
    assert len([name for name in found if "test_speedup" in name]) == 3 * (3 * 4 * 4 + 4)
    one_gpu = ids(suites.runpytest_inprocess("-m", "h100 and not h100x4", *arguments))
    assert set(one_gpu) == {name for name in found if "llama3-70b" not in name}


def test_nightly_cells_bear_the_marker(suites: pytest.Pytester) -> None:
    arguments = ("--collect-only", "-q", "tests_perf/test_throughput.py")
    assert ids(suites.runpytest_inprocess("-m", "nightly", "--sd-study", "nightly-h100", *arguments))
    assert not ids(suites.runpytest_inprocess("-m", "nightly", "--sd-study", "default", *arguments))


def test_the_users_prompts_replace_the_workloads(suites: pytest.Pytester) -> None:
    suites.path.joinpath("mine.jsonl").write_text('{"text": "hello"}\n', encoding="utf-8")
    found = ids(suites.runpytest_inprocess("--sd-prompts", "mine.jsonl", "--collect-only", "-q", *SUITES))
    assert "tests_perf/test_throughput.py::test_speedup[smollm2-135m-ngram-prompts-b1]" in found
    assert not [name for name in found if "code_edit" in name or "chat" in name]


def test_hardware_of_the_users_may_have_a_marker_of_its_own(suites: pytest.Pytester, tmp_path: Path) -> None:
    """Strict markers know it, and it chooses cells."""
    for kind in ("hardware", "thresholds", "studies"):
        (tmp_path / kind).mkdir()
    own = (fixtures_folder() / "hardware/cpu.toml").read_text().replace('name = "cpu"', 'name = "mine"')
    (tmp_path / "hardware/mine.toml").write_text(own.replace('markers = ["cpu"]', 'markers = ["mine"]'))
    (tmp_path / "thresholds/mine.toml").write_text((fixtures_folder() / "thresholds/cpu.toml").read_text())
    study = (fixtures_folder() / "studies/smoke.toml").read_text().replace('name = "smoke"', 'name = "my-smoke"')
    (tmp_path / "studies/my-smoke.toml").write_text(study.replace('hardware = "cpu"', 'hardware = "mine"'))
    options = ("--sd-catalog", str(tmp_path), "--sd-study", "my-smoke", "--collect-only", "-q", *SUITES)
    chosen, others = (suites.runpytest_inprocess(*options, "-m", wanted) for wanted in ("mine", "not mine"))
    assert len(ids(chosen)) > 10
    assert not [name for name in ids(others) if "smollm2" in name]


def test_the_users_catalog_is_laid_over_ours(suites: pytest.Pytester, overlay: Path) -> None:
    options = ("--sd-catalog", str(overlay), "--sd-study", "toy", "--collect-only", "-q")
    found = ids(suites.runpytest_inprocess(*options, *SUITES))
    assert "tests_perf/test_throughput.py::test_speedup[toy-perfect-short-b1]" in found
    assert {name.rpartition("[")[2] for name in found if "test_records" in name} == {
        f"toy-{variant}-{workload}-b{size}]"
        for variant in ("no_sd", "perfect", "partly")
        for workload in ("short", "long")
        for size in (1, 3)
    }


# --- without the hardware ---------------------------------------------------------------------------------------------


def test_a_control_needs_the_model_in_the_engines_own_process(tmp_path: Path) -> None:
    """With tensor parallelism each part has a process, and none of them is told what to draft."""
    for kind in ("hardware", "studies"):
        (tmp_path / kind).mkdir()
    own = (fixtures_folder() / "hardware/cpu.toml").read_text().replace('name = "cpu"', 'name = "mine"')
    (tmp_path / "hardware/mine.toml").write_text(
        own.replace('device = "cpu"', 'device = "cpu"\ntensor_parallel_size = 2')
    )
    study = (fixtures_folder() / "studies/controls.toml").read_text().replace('name = "controls"', 'name = "mine"')
    (tmp_path / "studies/mine.toml").write_text(study.replace('hardware = "cpu"', 'hardware = "mine"'))
    session = draftproof.session.Session(
        draftproof.session.Options(study="mine", overlays=[tmp_path], report_dir=tmp_path)
    )
    gaps = {cell.variant: session.hardware_gap(cell) for cell in session.cells}
    assert gaps["no_sd"] is gaps["self_draft"] is None
    for control in ("oracle", "oracle_k7", "adversarial", "random_half"):
        assert "found tensor_parallel_size = 2 of 'mine'" in (gaps[control] or "")


@pytest.mark.usefixtures("no_gpu")
def test_cells_without_their_hardware_are_skipped(suites: pytest.Pytester) -> None:
    """With what is needed, what was found, and what to do; nothing is written."""
    result = suites.runpytest_inprocess("-m", "h100", *SUITES)
    outcomes = result.parseoutcomes()
    assert set(outcomes) <= {"skipped", "deselected"}
    assert outcomes["skipped"] > 20
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["SKIPPED *needs 1 x H100 with at least 70 GiB; found no GPU (2 CPU cores, 8 GiB); enable with *"]
    )
    assert not (suites.path / "reports").exists()


@pytest.mark.usefixtures("no_gpu")
def test_required_hardware_that_is_missing_is_a_failure(suites: pytest.Pytester, any_python: str) -> None:
    """A nightly job that finds no GPU must not be green."""
    options = ("-m", "h100", "--sd-require-hardware", "--sd-python", any_python)
    result = suites.runpytest_inprocess(*options, "tests_perf/test_throughput.py")
    outcomes = result.parseoutcomes()
    assert outcomes.get("passed", 0) == outcomes.get("skipped", 0) == 0
    assert outcomes.get("failed", 0) + outcomes.get("errors", 0) > 10
    assert result.ret == 1
    result.stdout.fnmatch_lines(["*--sd-require-hardware: needs 1 x H100 with at least 70 GiB; found no GPU*"])


@pytest.mark.usefixtures("no_gpu")
def test_missing_hardware_is_told_before_a_missing_vllm(suites: pytest.Pytester, tmp_path: Path) -> None:
    """On a machine that has neither, the GPU is what the job asked for."""
    python = tmp_path / "without"
    python.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    python.chmod(0o755)
    options = ("-m", "h100", "--sd-require-hardware", "--sd-python", str(python))
    result = suites.runpytest_inprocess(*options, "tests_perf/test_throughput.py")
    assert result.ret == 1
    assert "needs 1 x H100" in result.stdout.str()


def test_nothing_ran_is_a_failure_where_hardware_is_required(
    suites: pytest.Pytester, clean_run: Bench, overlay: Path
) -> None:
    """Everything skipped, or everything deselected: neither is green."""
    options = replay_options(clean_run, overlay)
    selection = ("tests_perf/test_throughput.py", "-k", "test_speedup and long")
    assert run_suites(suites, *options, *selection).ret == 0
    result = run_suites(suites, *options, *selection, "--sd-require-hardware")
    assert set(result.parseoutcomes()) == {"skipped", "deselected"}
    assert result.ret == 1
    result.stdout.fnmatch_lines(["--sd-require-hardware: nothing ran in this session"])
    assert run_suites(suites, *options, "-k", "no_such_cell", "--sd-require-hardware").ret != 0


# --- a replayed run ---------------------------------------------------------------------------------------------------


def report_folder(suites: pytest.Pytester) -> Path:
    (folder,) = (suites.path / "reports").iterdir()
    return folder


def test_a_clean_run_passes_and_shows_what_it_did_not_judge(
    suites: pytest.Pytester, clean_run: Bench, overlay: Path
) -> None:
    """The whole of both suites over one recorded run: outcomes, benchmark file, reports and closing table."""
    result, outcomes = outcomes_of(suites, *replay_options(clean_run, overlay), "--benchmark-json", "bench.json")
    assert result.ret == 0
    assert Counter(outcomes.values()) == Counter(passed=12 * 6 + 12 + 8 + 8 + 4 * 8 + 1, skipped=7)
    judged = {name: outcome for name, outcome in outcomes.items() if name.startswith("test_speedup")}
    assert [name for name, outcome in judged.items() if outcome == "passed"] == ["test_speedup[toy-perfect-short-b1]"]
    result.stdout.fnmatch_lines(
        ["SKIPPED *not judged: NO_BASELINE: shown, not judged: no gating limit covers this cell"]
    )

    folder = report_folder(suites)
    for name in ("index.html", "summary.md", "summary.json", "records.jsonl", "run.json", "tokens.parquet"):
        assert (folder / name).stat().st_size > 0, name
    assert not list((folder / "parts").iterdir())
    text = result.stdout.str()
    assert "draftproof: a study of toys" in text
    table = text.split("draftproof: a study of toys")[1]
    assert "variant" in table
    assert "perfect" in table
    assert f"report: {folder / 'index.html'}" in table
    assert "again: pytest --sd-study toy " in table.replace("pytest -p no:cacheprovider", "pytest")
    assert "Faster than no speculation in 4 of 8 cells (perfect in 4: " in table

    check_benchmarks(json.loads((suites.path / "bench.json").read_text(encoding="utf-8")), clean_run)


def check_benchmarks(recorded: dict[str, Any], run: Bench) -> None:
    """One entry a (variant, workload, batch size, stage), whose rounds are the recorded blocks' seconds."""
    assert recorded["machine_info"]["node"] == "removed by draftproof"
    host = platform.node()
    assert len(host) < 4 or host not in json.dumps(recorded)
    cells = {cell.cell.id: cell for cell in analyse(run.folder, run.catalog.thresholds).cells}
    seen = Counter[tuple[object, ...]]()
    for entry in recorded["benchmarks"]:
        extra = entry["extra_info"]
        key = (extra["variant"], extra["workload"], extra["batch_size"], extra["stage"])
        seen[key] += 1
        cell = cells[f"{extra['target']}-{extra['variant']}-{extra['workload']}-b{extra['batch_size']}"]
        expected = [block[extra["stage"]] for block in cell.stage_rounds]
        assert entry["stats"]["rounds"] == len(expected) == 2
        assert entry["stats"]["data"] == [pytest.approx(seconds, abs=1e-12) for seconds in expected]
        assert entry["stats"]["total"] == pytest.approx(sum(expected))
        assert f"b{extra['batch_size']}" in entry["name"]
    assert len(seen) == 12 * 6
    assert set(seen.values()) == {1}


def test_stage_files_of_two_runs_can_be_compared(suites: pytest.Pytester, clean_run: Bench, overlay: Path) -> None:
    """``pytest-benchmark compare`` puts each stage of a cell of one run beside that of the other, and names no host."""
    for name in ("old", "new"):
        options = (*replay_options(clean_run, overlay), "--sd-fresh", "--benchmark-json", f"{name}.json")
        result, _ = outcomes_of(suites, *options, "tests_perf/test_stages.py")
        assert result.ret == 0
    command = (sys.executable, "-m", "pytest_benchmark", "compare", "old.json", "new.json", "--group-by", "fullname")
    compared = suites.run(*command)
    assert compared.ret == 0
    shown = compared.stdout.str()
    for name in ("old", "new"):
        named = [
            line.split("]")[0] for line in shown.splitlines() if line.startswith("test_stage_seconds[") and name in line
        ]
        assert len(named) == len(set(named)) == 12 * 6, name
    host = platform.node()
    assert len(host) < 4 or host not in shown


def test_under_gate_what_was_not_judged_fails(suites: pytest.Pytester, clean_run: Bench, overlay: Path) -> None:
    selection = ("tests_perf/test_throughput.py", "tests_determinism")
    result, outcomes = outcomes_of(suites, *replay_options(clean_run, overlay), "--sd-gate", *selection)
    assert result.ret == 1
    failed = {name for name, outcome in outcomes.items() if outcome == "failed"}
    assert failed == {name for name in outcomes if name.startswith("test_speedup")} - {
        "test_speedup[toy-perfect-short-b1]"
    }
    assert "skipped" not in outcomes.values()
    assert "NO_BASELINE: shown, not judged" in result.stdout.str()


def test_each_fault_is_its_own_outcome(suites: pytest.Pytester, faulty_run: Bench, overlay: Path) -> None:
    """Red verdicts fail, the others are skipped with the reason, green ones pass; exit status 1."""
    result, outcomes = outcomes_of(suites, *replay_options(faulty_run, overlay))
    assert result.ret == 1
    expected = {
        "test_speedup[toy-perfect-short-b1]": "failed",  # slower, though it claims to be faster
        "test_speedup[toy-perfect-long-b1]": "skipped",
        "test_speedup[toy-partly-short-b3]": "failed",  # crashed
        "test_speedup[toy-partly-short-b1]": "skipped",
        "test_records_are_sound[toy-partly-short-b3]": "failed",
        "test_records_are_sound[toy-partly-short-b1]": "passed",
        "test_same_outputs_as_no_sd[toy-perfect-long-b3]": "failed",  # divergent
        "test_same_outputs_as_no_sd[toy-partly-long-b3]": "skipped",  # no-SD does not repeat itself
        "test_same_outputs_as_no_sd[toy-perfect-short-b3]": "passed",
        "test_noise_floor_is_measured[toy-partly-long-b3]": "passed",
        "test_noise_floor_is_measured[toy-partly-short-b3]": "failed",
        "test_draft_counts_agree[toy-partly-short-b3]": "failed",
        "test_draft_counts_agree[toy-perfect-long-b3]": "passed",
        "test_drafts_are_more_than_one_token[toy-partly-long-b1]": "skipped",  # no stage clock
        "test_drafts_are_more_than_one_token[toy-perfect-long-b1]": "passed",
    }
    assert {name: outcomes[name] for name in expected} == expected
    text = result.stdout.str()
    assert "FAILED: divergent outputs: 1 divergent, 8 identical of 9" in text
    assert "REGRESSED: speedup 0." in text
    assert "not judged: UNSTABLE: no-SD does not repeat itself" in text
    assert "divergent outputs in 1 of 8 cells compared (perfect on long b3)" in text


def test_a_stage_clock_that_is_missing_is_a_skip(suites: pytest.Pytester, faulty_run: Bench, overlay: Path) -> None:
    """In the suite over a replayed run as over a live one."""
    selection = ("tests_perf/test_stages.py", "-k", "long-b1")
    result, outcomes = outcomes_of(suites, *replay_options(faulty_run, overlay), *selection)
    assert len(outcomes) == 3 * 6
    assert {name for name, outcome in outcomes.items() if outcome == "skipped"} == {
        name for name in outcomes if "partly" in name
    }
    assert set(outcomes.values()) == {"skipped", "passed"}
    assert result.ret == 0


def test_a_step_that_the_clock_cannot_explain_fails(
    suites: pytest.Pytester, tmp_path: Path, catalog: Catalog, overlay: Path
) -> None:
    """A clock that misses a tenth of the steps is broken; what it does see is still shown."""
    run = Bench(tmp_path / "unclaimed", catalog)
    run.session(ToyEngine(unclaimed_s=8e-4))
    options = (*replay_options(run, overlay), "tests_perf/test_stages.py", "-k", "no_sd-short-b3")
    result, outcomes = outcomes_of(suites, *options)
    assert result.ret == 1
    assert [name for name, outcome in outcomes.items() if outcome == "failed"] == [
        "test_stage_seconds[toy-no_sd-short-b3-overhead]"
    ]
    result.stdout.fnmatch_lines(["*no part claims * % of the decode steps (at most 5 %)*"])


def test_a_sick_drafter_fails_by_name(suites: pytest.Pytester, tmp_path: Path, catalog: Catalog, overlay: Path) -> None:
    """Never right and always one token; expected to be always right and only mostly so. What is well passes beside."""
    run = Bench(tmp_path / "sick", catalog)
    run.session(ToyEngine(wrong_every={"partly": 1, "perfect": 5}, stuck=("partly",)))
    options = (*replay_options(run, overlay), "tests_perf/test_drafter_health.py", "-k", "short-b3")
    result, outcomes = outcomes_of(suites, *options)
    assert result.ret == 1
    assert outcomes == {
        "test_draft_counts_agree[toy-partly-short-b3]": "passed",
        "test_draft_counts_agree[toy-perfect-short-b3]": "passed",
        "test_acceptance_is_as_expected[toy-partly-short-b3]": "failed",
        "test_acceptance_is_as_expected[toy-perfect-short-b3]": "failed",
        "test_drafts_are_more_than_one_token[toy-partly-short-b3]": "failed",
        "test_drafts_are_more_than_one_token[toy-perfect-short-b3]": "passed",
    }
    text = result.stdout.str()
    assert "FAILED: acceptance_is_one: acceptance length exactly 1.00 over 414 drafts" in text
    assert "FAILED: below_expected: acceptance length 3.250 over 144 drafts" in text
    assert "is expected to be at least 4 (the toy's own rule)" in text
    assert "FAILED: one_token: all 72 draft tokens are token 7, and 0 of " in text


def test_records_from_before_the_tally_are_a_skip(
    suites: pytest.Pytester, clean_run: Bench, overlay: Path, tmp_path: Path
) -> None:
    """They are read and judged as ever; only what they do not hold is not judged."""
    old = tmp_path / "old"
    shutil.copytree(clean_run.folder.path, old)
    lines = [json.loads(line) for line in (old / "records.jsonl").read_text(encoding="utf-8").splitlines()]
    for line in lines:
        line.pop("draft_tally", None)
        line.pop("draft_tally_reason", None)
    (old / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    options = list(replay_options(clean_run, overlay))
    options[-1] = str(old)
    result, outcomes = outcomes_of(suites, *options, "tests_perf/test_drafter_health.py", "-k", "perfect-short-b3")
    assert result.ret == 0
    assert outcomes == {
        "test_draft_counts_agree[toy-perfect-short-b3]": "passed",
        "test_acceptance_is_as_expected[toy-perfect-short-b3]": "passed",
        "test_drafts_are_more_than_one_token[toy-perfect-short-b3]": "skipped",
    }
    result.stdout.fnmatch_lines(
        ["SKIPPED *needs the ids of draft tokens; found records from before they were counted*"]
    )


def test_outcomes_can_be_written_as_junit_xml(suites: pytest.Pytester, clean_run: Bench, overlay: Path) -> None:
    """What a nightly job reads: the same outcomes, with speedup and verdict as properties."""
    selection = ("-k", "perfect-short-b1 and (test_speedup or test_same_outputs)")
    result = run_suites(suites, *replay_options(clean_run, overlay), *selection, "--junitxml", "junit.xml")
    result.assert_outcomes(passed=2)
    cases = {str(c.get("name")): c for c in ElementTree.parse(suites.path / "junit.xml").iter("testcase")}
    properties = {p.get("name"): p.get("value") for p in cases["test_speedup[toy-perfect-short-b1]"].iter("property")}
    assert properties["sd_verdict"] == "PASS"
    assert 1.4 < float(str(properties["speedup"])) < 1.6


def test_every_test_of_a_cell_carries_its_figures(suites: pytest.Pytester, clean_run: Bench, overlay: Path) -> None:
    """Whatever the test asks: verdicts with reasons, speedup with interval, acceptance, throughput of both arms."""
    arguments = (*replay_options(clean_run, overlay), "-k", "partly-short-b1", "--junitxml", "junit.xml")
    assert run_suites(suites, *arguments).ret == 0
    cases = list(ElementTree.parse(suites.path / "junit.xml").iter("testcase"))
    assert len(cases) > 8
    (cell,) = [c for c in analyse(clean_run.folder, clean_run.catalog.thresholds).cells if c.cell.id == PARTLY]
    assert cell.speedup is not None
    assert cell.acceptance is not None
    for case in cases:
        found = [(p.get("name"), p.get("value")) for p in case.iter("property")]
        assert len(found) == len(dict(found)), case.get("name")
        properties = {str(name): str(value) for name, value in found}
        assert (properties["throughput_verdict"], properties["outputs_verdict"]) == ("NO_BASELINE", "PASS")
        assert properties["throughput_reason"] == cell.throughput.reason
        assert "identical" in properties["outputs_reason"]
        expected = {
            "speedup": cell.speedup.value,
            "speedup_low": cell.speedup.low,
            "speedup_high": cell.speedup.high,
            "acceptance_length": cell.acceptance.length,
            "tokens_per_s": cell.tokens_per_s,
            "base_tokens_per_s": cell.base_tokens_per_s,
        }
        assert {name: float(properties[name]) for name in expected} == pytest.approx(expected)
    settled = [case for case in cases if "test_speedup" in str(case.get("name"))]
    assert {p.get("name") for p in settled[0].iter("property")} >= {"sd_verdict", "sd_reason"}


def test_only_what_the_chosen_tests_need_is_run(suites: pytest.Pytester, clean_run: Bench, overlay: Path) -> None:
    """One cell, no stages: the run holds that unit alone, and the report says so."""
    selection = ("tests_determinism/test_outputs.py", "-k", "test_same_outputs and partly-long-b1")
    result = run_suites(suites, *replay_options(clean_run, overlay), *selection)
    assert result.ret == 0
    records = (report_folder(suites) / "records.jsonl").read_text(encoding="utf-8")
    rotations = [json.loads(line) for line in records.splitlines() if '"record":"rotation"' in line]
    assert {(r["workload"], r["batch_size"], r["purpose"]) for r in rotations} == {("long", 1, "speed")}


def test_the_report_goes_where_it_is_asked_to(
    suites: pytest.Pytester, clean_run: Bench, overlay: Path, tmp_path: Path
) -> None:
    selection = ("tests_determinism/test_outputs.py", "-k", "partly-long-b1")
    elsewhere = tmp_path / "elsewhere"
    run_suites(suites, *replay_options(clean_run, overlay), *selection, "--sd-report-dir", str(elsewhere))
    (folder,) = elsewhere.iterdir()
    assert folder.name.startswith("toy-")
    run_suites(suites, *replay_options(clean_run, overlay), *selection, "--sd-run-dir", str(tmp_path / "exactly"))
    assert (tmp_path / "exactly" / "index.html").exists()
    assert not (suites.path / "reports").exists()


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--sd-engine", "replay"),
            "--sd-engine replay and --sd-replay RUN (the folder of a recorded run) go together",
        ),
        (("--sd-replay", "run"), "--sd-engine replay and --sd-replay RUN (the folder of a recorded run) go together"),
        (("--sd-python", "python3.99"), "--sd-python must be the path of a Python interpreter (got 'python3.99')"),
        (
            ("--sd-base-python", "/no/such/python"),
            "--sd-base-python must be the path of a Python interpreter (got '/no/such/python')",
        ),
        (
            ("--sd-engine", "sglang"),
            "--sd-engine must be one of the known names (got 'sglang')",
        ),
        (("--sd-prompts", "none.jsonl"), "--sd-prompts must be a file of JSON lines (got 'none.jsonl')"),
        (("--sd-catalog", "nowhere"), "--sd-catalog must be a folder of TOML entries (got 'nowhere')"),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_a_wrong_option_is_one_clear_message(
    suites: pytest.Pytester, overlay: Path, options: tuple[str, ...], message: str
) -> None:
    """Told once, without a traceback; the exit status is not that of a green run."""
    start = ("--sd-catalog", str(overlay), "--sd-study", "toy")
    result = run_suites(suites, *start, *options, "tests_perf/test_throughput.py")
    text = result.stdout.str() + result.stderr.str()
    assert result.ret not in (0, pytest.ExitCode.INTERNAL_ERROR)
    assert message in text
    assert "Traceback" not in text
    assert "INTERNALERROR" not in text


def test_a_folder_of_another_plan_is_refused(
    suites: pytest.Pytester, clean_run: Bench, overlay: Path, tmp_path: Path
) -> None:
    """Nothing is added to it."""
    options = (*replay_options(clean_run, overlay), "--sd-run-dir", str(tmp_path / "run"))
    assert run_suites(suites, *options, "-k", "test_same_outputs and long-b1").ret == 0
    before = (tmp_path / "run" / "records.jsonl").read_bytes()
    result = run_suites(suites, *options, "-k", "test_same_outputs and short-b1")
    assert result.ret == 1
    assert "--sd-run-dir 'run' holds a run of another plan" in result.stdout.str()
    assert (tmp_path / "run" / "records.jsonl").read_bytes() == before


def test_without_vllm_the_message_says_how_to_install_it(
    suites: pytest.Pytester, tmp_path: Path, overlay: Path
) -> None:
    """Before a model is built for it."""
    python = tmp_path / "without"
    python.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    python.chmod(0o755)
    options = ("--sd-catalog", str(overlay), "--sd-study", "toy", "--sd-python", str(python))
    result = run_suites(suites, *options, "tests_perf/test_throughput.py")
    assert result.ret == 1
    assert "needs vLLM under the interpreter of --sd-python; found none in " in result.stdout.str()
    assert "pip install 'draftproof[cpu]'" in result.stdout.str()
    assert not (suites.path / "reports").exists()


def test_an_interrupted_run_is_reported_and_gone_on_with(
    suites: pytest.Pytester, clean_run: Bench, overlay: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in the middle: what is recorded is shown as partial; the same command finishes the same folder."""
    real = ReplayArm.run

    def interrupted(self: ReplayArm, request: BlockRequest) -> BlockResult:
        if (request.purpose, request.rotation) == ("speed", 2):
            raise KeyboardInterrupt
        return real(self, request)

    options = (*replay_options(clean_run, overlay), "-k", "test_same_outputs")
    with monkeypatch.context() as patch:
        patch.setattr(ReplayArm, "run", interrupted)
        result = run_suites(suites, *options)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert "PARTIAL run" in result.stdout.str()
    folder = report_folder(suites)
    assert not json.loads((folder / "summary.json").read_text(encoding="utf-8"))["finished"]
    assert run_suites(suites, *options).ret == 0
    assert report_folder(suites) == folder
    assert json.loads((folder / "summary.json").read_text(encoding="utf-8"))["finished"]
