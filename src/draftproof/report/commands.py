"""Commands as the page shows them: what each session was started with, and what runs one cell again."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from draftproof.errors import scrub
from draftproof.report.untrusted import without_homes
from draftproof.results import CellResult, RunResults

GIVEN = ("--sd-catalog", "--sd-prompts", "--sd-python", "--sd-base-python", "--sd-engine", "--sd-replay")
"""Options that decide what a cell is: whoever runs it again needs them too."""
SPEEDUP_TEST = "tests_perf/test_throughput.py::test_speedup"
OUTPUTS_TEST = "tests_determinism/test_outputs.py::test_same_outputs_as_no_sd"
RECORDS_TEST = "tests_perf/test_throughput.py::test_records_are_sound"


def homeless(text: str) -> str:
    """Without tokens and home folders, whoever's they are."""
    return without_homes(scrub(text))


def shell_line(words: Sequence[str]) -> str:
    """A line for a shell. A ``~`` in front stays outside of quotes, where the shell reads it as a home folder."""
    return " ".join(quoted(homeless(word)) for word in words)


def quoted(word: str) -> str:
    if word == "~":
        return word
    if word.startswith("~/"):
        return "~/" + (shlex.quote(word[2:]) if word[2:] else "")
    option, equals, value = word.partition("=")
    if option.startswith("--") and equals and value.startswith("~/"):
        return f"{option} {quoted(value)}"  # the same to pytest, and a shell reads no ~ behind an equals sign
    return shlex.quote(word)


def given(command: Sequence[str]) -> list[str]:
    """Of a session's command: the options that decide what a cell is, each with its value."""
    found: list[str] = []
    for place, word in enumerate(command):
        option, equals, value = word.partition("=")
        if option not in GIVEN:
            continue
        if equals:
            found += [option, value]
        elif place + 1 < len(command):
            found += [option, command[place + 1]]
    return found


def again(results: RunResults, test: str) -> str:
    """What runs one test of the run again, in a run of its own: the engines and the cell that it needs, no others."""
    options = given(results.sessions[-1].command) if results.sessions else []
    return shell_line(["pytest", "--sd-study", results.study, *options, "--sd-fresh", test])


def example(results: RunResults) -> CellResult | None:
    """The cell whose commands are shown: the first red one, else the first that speculates, else any."""

    def worth(cell: CellResult) -> int:
        red = {cell.throughput.verdict, cell.determinism.verdict} & {"REGRESSED", "FAILED"}
        return 0 if red else 1 if cell.speculative else 2

    return min(results.cells, key=worth, default=None)


def tests_of(cell: CellResult) -> list[tuple[str, str]]:
    """What can be asked of a cell -> the test's id."""
    name = f"[{cell.cell.id}]"
    if not cell.speculative:
        return [("are the records sound", RECORDS_TEST + name)]
    return [("is it faster", SPEEDUP_TEST + name), ("is it the same", OUTPUTS_TEST + name)]
