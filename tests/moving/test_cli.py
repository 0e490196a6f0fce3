"""The ``draftproof`` command: what it prints, and how it fails."""

from __future__ import annotations

import shutil
import venv
from pathlib import Path
from typing import Any

import pytest

import draftproof
import draftproof.doctor as doctor
from draftproof.hardware import Machine
from draftproof.workloads import WorkloadUnavailable
from tests.moving.running import invoke, run_main
from tests.toy import Bench

TARGETS = ("smollm2-135m", "llama3.1-8b", "qwen3-8b", "llama3-70b")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own models play no part, and the package datasets is not imported."""

    def absent() -> Any:
        raise WorkloadUnavailable("the package datasets", "none", "pip install 'draftproof[hub]'")

    monkeypatch.setenv("DRAFTPROOF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(doctor, "import_datasets", absent)
    return tmp_path / "cache"


def test_help_says_how_studies_are_run() -> None:
    code, text = invoke("--help")
    assert code == 0
    assert "pytest --sd-study NAME" in " ".join(text.split())
    for command in ("report", "models", "doctor"):
        assert command in text


def test_version() -> None:
    assert invoke("--version") == (0, f"{draftproof.__version__}\n")


def test_without_a_command_the_help_is_shown() -> None:
    assert "Usage" in invoke()[1]


@pytest.mark.parametrize("arguments", [["run"], ["report"], ["models", "list", "--no-such-option"]])
def test_a_wrong_command_is_a_usage_error(arguments: list[str]) -> None:
    assert invoke(*arguments)[0] == 2


# --- report -----------------------------------------------------------------------------------------------------------


def test_a_report_is_made_from_the_records_alone(clean_run: Bench, overlay: Path, tmp_path: Path) -> None:
    """Into the run's own folder, the same each time; the records are not touched."""
    run = tmp_path / "copy"
    shutil.copytree(clean_run.folder.path, run)
    records = (run / "records.jsonl").read_bytes()
    code, text = invoke("report", str(run), "--sd-catalog", str(overlay))
    assert code == 0
    assert text.rstrip().endswith(f"report: {run / 'index.html'}")
    assert "Faster than no speculation in 4 of 8 cells (perfect in 4: " in text
    first = {name: (run / name).read_bytes() for name in ("index.html", "summary.md", "summary.json")}
    assert all(first.values())
    assert invoke("report", str(run), "--sd-catalog", str(overlay)) == (code, text)
    assert {name: (run / name).read_bytes() for name in first} == first
    assert (run / "records.jsonl").read_bytes() == records


@pytest.mark.parametrize("content", [None, "not JSON", '{"schema_version": 999}', "{}"])
def test_a_folder_that_is_no_run_is_one_line_on_standard_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], content: str | None
) -> None:
    folder = tmp_path / "no-run"
    folder.mkdir()
    if content is not None:
        (folder / "run.json").write_text(content, encoding="utf-8")
    assert run_main(monkeypatch, "report", str(folder)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("draftproof: no-run")
    assert err.count("\n") == 1
    assert str(tmp_path) not in err


def test_a_report_needs_the_catalog_of_its_hardware(
    clean_run: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the overlay there is no limit for a near tie: the message says which row is missing."""
    assert run_main(monkeypatch, "report", str(clean_run.folder.path)) == 2
    assert "divergence_gap_nats" in capsys.readouterr().err


# --- claims -----------------------------------------------------------------------------------------------------------


def test_claims_of_the_papers_own_figures_and_of_a_run(clean_run: Bench, overlay: Path) -> None:
    code, alone = invoke("claims")
    assert code == 0
    assert "in the paper's own figures: is contradicted: 209 of 212 for it, 3 against" in alone
    assert "on this run" not in alone
    code, text = invoke("claims", str(clean_run.folder.path), "--sd-catalog", str(overlay))
    assert code == 0
    assert "on this run: is contradicted" in text.partition("faster-at-every-batch")[2].splitlines()[1]


# --- models -----------------------------------------------------------------------------------------------------------


def test_models_list_has_every_target(overlay: Path) -> None:
    code, text = invoke("models", "list", "--sd-catalog", str(overlay))
    assert code == 0
    lines = {line.split()[0]: line for line in text.splitlines()}
    assert set(TARGETS) <= set(lines)
    assert "not built" in lines["smollm2-135m"]
    assert "present" in lines["toy"]


def test_the_path_of_a_model_is_the_only_output(overlay: Path) -> None:
    assert invoke("models", "path", "toy", "--sd-catalog", str(overlay)) == (0, f"{overlay / 'targets' / 'model'}\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["path", "toys"], "target must be one of the known names (got 'toys'); known: "),
        (["build", "toys"], "name must be a target or drafter that is built (got 'toys'); known: "),
        (["build", "qwen3-8b"], "name must be a target or drafter that is built (got 'qwen3-8b'); known: "),
        (["list", "--sd-catalog", "nowhere"], "--sd-catalog must be a folder of TOML entries (got 'nowhere')"),
    ],
)
def test_a_model_that_is_not_known_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert run_main(monkeypatch, "models", *arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"draftproof: {message}")
    assert err.count("\n") == 1


# --- doctor -----------------------------------------------------------------------------------------------------------


def findings(text: str) -> dict[str, tuple[bool, str]]:
    """What -> (ok, text)."""
    found = {}
    for line in text.splitlines():
        what, _, said = line[3:].strip().partition(": ")
        assert line[:3] in ("ok ", "NO ")
        found[what] = (line.startswith("ok"), said)
    return found


def test_doctor_names_what_is_missing_and_how_to_get_it(tmp_path: Path) -> None:
    """An interpreter without vLLM: no study can run, each says why; the exit status is 1."""
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    code, text = invoke("doctor", "--sd-python", str(tmp_path / "bare" / "bin" / "python"))
    found = findings(text)
    assert code == 1
    assert found["machine"][0]
    ok, said = found["engine"]
    assert not ok
    assert said.startswith("no vLLM under Python 3.")
    assert "pip install 'draftproof[cpu]'" in said
    assert "'draftproof[gpu]'" in said
    assert not found["data sets"][0]
    studies = {what: ok for what, (ok, _) in found.items() if what.startswith("study ")}
    assert {"study default", "study smoke", "study nightly-h100", "study paper-fig1"} <= set(studies)
    assert not any(studies.values())
    assert "no vLLM under" in found["study default"][1]
    assert "model smollm2-135m" in found


def test_doctor_with_an_interpreter_that_has_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says is what the interpreter answers; the CPU studies can run, the GPU's need one."""
    python = tmp_path / "python"
    answer = '{"python": "3.12.1", "vllm": "0.99.0", "torch": "9.9", "gguf": null, "accelerate": null}'
    python.write_text(f"#!/bin/sh\necho '{answer}'\n", encoding="utf-8")
    python.chmod(0o755)
    monkeypatch.setattr(doctor, "detect_machine", lambda: Machine("a CPU", cores=2, memory_gib=8.0))
    code, text = invoke("doctor", "--sd-python", str(python))
    found = findings(text)
    assert code == 0
    assert found["engine"] == (True, "vLLM 0.99.0, torch 9.9, Python 3.12.1; worker worker.py")
    assert found["study default"][0]
    ok, said = found["study nightly-h100"]
    assert not ok
    assert said.startswith("needs 1 x H100 with at least 70 GiB; found no GPU")


@pytest.mark.parametrize("content", [None, "#!/bin/sh\nexit 3\n"])
def test_doctor_with_an_interpreter_that_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    """The home folder stays out of what is printed."""
    monkeypatch.setenv("HOME", str(tmp_path))
    python = tmp_path / "python"
    if content is not None:
        python.write_text(content, encoding="utf-8")
        python.chmod(0o755)
    code, text = invoke("doctor", "--sd-python", str(python))
    ok, said = findings(text)["engine"]
    assert code == 1
    assert not ok
    assert said.startswith("~/python does not run")
    assert str(tmp_path) not in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "names must be drafters, or --all for every one (got [])"),
        (("--all", "smollm2-135m-eagle"), "names must be drafters, or --all for every one"),
        (("nobody",), "drafter must be one of the known names (got 'nobody')"),
        (("smollm2-135m-eagle", "--hardware", "abacus"), "hardware"),
    ],
)
def test_drafters_train_refuses_before_any_work(
    arguments: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_main(monkeypatch, "drafters", "train", *arguments) == 2
    message = capsys.readouterr().err
    assert said in message
    assert "known: " in message
