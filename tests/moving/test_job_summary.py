"""GitHub's job summary: failing cells first, each with what runs it again; never too large, never a failure itself."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pynvml  # noqa: F401  (loaded before pytester takes its picture of sys.modules: what it unloads is loaded twice)
import pytest
import scipy.stats  # noqa: F401  (the same)

from draftproof import baselines
from draftproof.comparison import compare
from draftproof.gate import Judgement
from draftproof.report.ci import CUT, MOST_BYTES, FailedTest, fitting, job_summary, red_findings
from draftproof.session import Options, Session
from draftproof.snapshot import Snapshot
from tests.reporting import HOSTILE, broken, cell, markdown_tags, ratio, reference, run
from tests.snapshots import NGRAM, Arm, make_limits, make_run, make_series, make_snapshot
from tests.toy import Bench

ROOT = Path(__file__).resolve().parents[2]
LONG = "variant_of_a_name_so_long_that_a_table_of_five_thousand_cells_takes_more_than_a_mebibyte_"
MANY = f"""
LONG = {LONG!r}"""
MANY += """
from msgspec.structs import replace
from pathlib import Path
from draftproof.gate import Judgement
from draftproof.plugin import SESSION
from draftproof.session import Options, Session
from tests.reporting import cell, ratio, run

def pytest_sessionstart(session):
    one = cell(speedup=ratio(0.5, 0.4, 0.6))
    cells = []
    for n in range(5000):
        variant = LONG + str(n)
        judged = Judgement(verdict="REGRESSED" if n % 50 == 49 else "PASS", reason="r" * 300)
        cells.append(replace(one, cell=replace(one.cell, variant=variant), arm=variant, throughput=judged))
    made = Session(Options(study="default", report_dir=Path("reports")))
    made.results = run(*cells)
    session.config.stash[SESSION] = made
"""
"""A conftest of a session that measured 5,000 cells, of which one in fifty is too slow."""


@pytest.fixture
def summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the job summary, with what an earlier command of the step wrote."""
    path = tmp_path / "summary.md"
    path.write_text("# before\n", encoding="utf-8")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(path))
    return path


def places(text: str, what: str) -> list[int]:
    return [match.start() for match in re.finditer(re.escape(what), text)]


def test_five_thousand_cells_stay_below_a_mebibyte(
    pytester: pytest.Pytester, summary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All hundred failing ones are in it, before any other; what is cut off is said to be."""
    monkeypatch.syspath_prepend(ROOT)
    pytester.makeconftest(MANY)
    pytester.makepyfile("def test_nothing(): pass")
    assert pytester.runpytest_inprocess("-p", "no:cacheprovider", "-p", "no:terminal").ret == 0
    raw = summary.read_bytes()
    assert MOST_BYTES - 2000 < len(raw) <= MOST_BYTES < 1024 * 1024
    text = raw.decode()
    assert text.startswith("# before\n# draftproof: ")
    assert text.endswith(CUT)
    failing, table = text.split("## Cells")
    commands = re.findall(r"`(pytest .*)`", failing)
    assert len(commands) == 100
    for command, number in zip(commands, range(49, 5000, 50), strict=True):
        test = f"tests_perf/test_throughput.py::test_speedup[tiny-{LONG}{number}-chat-b1]"
        assert command == f'pytest --sd-study default "{test}"'
    verdicts = re.findall(r"\| (REGRESSED|PASS) \| PASS \|\n", table)
    assert verdicts[:100] == ["REGRESSED"] * 100
    assert set(verdicts[100:]) == {"PASS"}


@pytest.mark.parametrize("kind", ["a folder", "a missing folder"])
def test_a_file_that_cannot_be_written_fails_nothing(
    pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Whoever runs as root may write anything: so a folder, and a file in one that is not there."""
    path = tmp_path if kind == "a folder" else tmp_path / "none" / "summary.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(path))
    monkeypatch.syspath_prepend(ROOT)
    pytester.makeconftest(MANY.replace("range(5000)", "range(2)"))
    pytester.makepyfile("def test_nothing(): pass")
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["GITHUB_STEP_SUMMARY: not written: *"])


def test_a_session_without_draftproof_writes_nothing(pytester: pytest.Pytester, summary: Path) -> None:
    pytester.makepyfile("def test_nothing(): pass")
    assert pytester.runpytest_inprocess("-p", "no:cacheprovider").ret == 0
    assert summary.read_text(encoding="utf-8") == "# before\n"


def test_each_failing_test_is_told_with_its_own_command(
    pytester: pytest.Pytester, faulty_run: Bench, overlay: Path, summary: Path
) -> None:
    """Of a real session: all that failed, of both suites, and the command given runs just that test."""
    for name in ("tests_perf", "tests_determinism"):
        shutil.copytree(ROOT / name, pytester.path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", pytester.path / "pyproject.toml")
    given = ["--sd-study", "toy", "--sd-catalog", str(overlay), "--sd-engine", "replay"]
    given += ["--sd-replay", str(faulty_run.folder.path)]
    suites = ("tests_perf/test_throughput.py", "tests_determinism/test_outputs.py")
    first = pytester.runpytest_inprocess("-p", "no:cacheprovider", *given, *suites)
    text = summary.read_text(encoding="utf-8")
    failed = first.parseoutcomes()["failed"]
    commands = re.findall(r"again: `(pytest .*)`", text)
    assert len(commands) == failed > 3
    assert f"## Failing: {failed}" in text
    assert max(places(text, "again: ")) < min(places(text, "| variant |"))
    (regressed,) = [c for c in commands if "test_speedup[toy-perfect-short-b1]" in c]
    program, *arguments = shlex.split(regressed)
    assert program == "pytest"
    again = pytester.runpytest_inprocess("-p", "no:cacheprovider", *arguments)
    again.assert_outcomes(failed=1)


def command(test: str) -> str:
    return f'pytest "{test}"'


def test_cells_that_no_test_asked_about_are_told_all_the_same() -> None:
    """Red ones, each once: a test that failed is not repeated."""
    results = run(
        reference(),
        cell("eagle", verdict="REGRESSED", reason="too slow", speedup=ratio(0.5, 0.4, 0.6)),
        broken(determinism=Judgement(verdict="FAILED", reason="arm did not start")),
        cell("ngram", verdict="NO_BASELINE"),
        cell("mtp", determinism=Judgement(verdict="FAILED", reason="1 divergent")),
    )
    known = FailedTest(test="tests_perf/test_throughput.py::test_speedup[tiny-eagle-chat-b1]", reason="too slow")
    text = job_summary(results, [known], command)
    assert len(places(text, "test_speedup[tiny-eagle-chat-b1]")) == 1, "in its command alone: elsewhere it is escaped"
    assert 'pytest "tests_perf/test_throughput.py::test_speedup[tiny-draft_model-chat-b1]"' in text
    assert 'pytest "tests_determinism/test_outputs.py::test_same_outputs_as_no_sd[tiny-mtp-chat-b1]"' in text
    assert "tiny-ngram" not in text
    assert "## Failing: 3" in text


def test_a_command_of_the_summary_names_no_home_folder() -> None:
    text = job_summary(
        None,
        [FailedTest(test="x.py::test_x[a]", reason="in /home/alice/vllm")],
        lambda test: f'pytest --sd-catalog /home/alice/entries "{test}"',
        problem="/root/x is full",
    )
    assert 'again: `pytest --sd-catalog ~/entries "x.py::test_x[a]"`' in text
    assert "alice" not in text
    assert "/root" not in text


def test_what_regressed_is_told_though_no_test_asked() -> None:
    """Cells one by one, geometric means together; a test that failed is not repeated."""
    slow = Arm(step_s=0.0156, length=2.0)

    def night(luck: str, arm: Arm) -> Snapshot:
        return make_snapshot(luck, [make_series(arm, luck=luck, workload=f"w{n}") for n in range(3)])

    found = compare([night("base", NGRAM)], [night("new", slow)], make_limits())
    cells = [f"tests_perf/test_regression.py::test_regression[t-ngram-w{n}-b2]" for n in range(3)]
    told = [test.test for test in red_findings(found, [])]
    assert sorted(told) == sorted(["tests_perf/test_regression.py", *cells])
    means = "tests_perf/test_regression.py::test_regression_of_means[t-ngram-w0-b2]"
    known = [FailedTest(test=name, reason="") for name in (means, *cells[:2])]
    assert [test.test for test in red_findings(found, known)] == cells[2:]
    text = job_summary(run(cell()), [], command, compared=found)
    assert "## Failing: 4" in text
    assert text.index("## Failing") < text.index("## Against base")
    assert red_findings(compare([night("base", NGRAM)], [night("new", NGRAM)], make_limits()), []) == []


def test_a_geometric_mean_is_run_again_with_its_cells_baseline_and_gate(tmp_path: Path) -> None:
    """One cell alone has none; without the baseline, or the gate, the test would be skipped."""
    path = baselines.save(make_run("before"), tmp_path)
    session = Session(Options(study="default", report_dir=tmp_path, baseline=path, gate=True))
    cells = [one for one in session.cells if one.variant == "ngram"]
    assert len(cells) > 1
    means = f"tests_perf/test_regression.py::test_regression_of_means[{cells[0].id}]"
    given = ["--sd-study", "default", "--sd-baseline", str(path), "--sd-gate"]
    members = [f"tests_perf/test_regression.py::test_regression[{one.id}]" for one in cells]
    assert shlex.split(session.test_command(means)) == ["pytest", *given, means, *members]
    assert shlex.split(session.test_command(members[0])) == ["pytest", *given, members[0]]


def test_a_session_whose_run_could_not_be_made_says_why() -> None:
    text = job_summary(None, [], command, problem="needs vLLM; found none")
    assert "needs vLLM; found none" in text


@pytest.mark.parametrize("hostile", HOSTILE)
def test_untrusted_text_stays_text(hostile: str) -> None:
    results = run(cell("eagle", verdict="FAILED", reason=hostile), title=hostile, partial=hostile, finished=False)
    text = job_summary(results, [FailedTest(test="x.py::test_x[a]", reason=hostile)], command, problem=hostile)
    assert not {"html_inline", "html_block", "link_open", "image", "fence"} & markdown_tags(text)
    text.encode()


@pytest.mark.parametrize("room", [0, 10, len(CUT.encode()), len(CUT.encode()) + 5, 200, 10_000])
def test_what_is_cut_fits_by_bytes(room: int) -> None:
    """Not by characters; whole lines only, and the note where there is room for it."""
    lines = [f"{n} \N{GREEK SMALL LETTER ALPHA}\N{GREEK SMALL LETTER BETA}" for n in range(100)]
    text = fitting(lines, room)
    assert len(text.encode()) <= room
    assert text.removesuffix(CUT) == "".join(f"{line}\n" for line in lines[: text.removesuffix(CUT).count("\n")])
    assert text.endswith(CUT) == (len(CUT.encode()) <= room < 10_000)
