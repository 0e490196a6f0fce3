"""Rules of the paper's stage shares: the published figures as they are, named as its own, and held against nothing."""

from __future__ import annotations

import msgspec
import pytest

from draftproof.report import paperstages, stages
from draftproof.report.markdown import render_markdown
from draftproof.report.parts import Table
from draftproof.results import CellResult, RunResults
from tests.figures import axes_of
from tests.reporting import arm, cell, header, page, run
from tests.test_report_stages import SUMS

ARMS = [arm("no_sd"), arm("ngram"), arm("eagle3"), arm("oracle", control="oracle")]


def shown(*cells: CellResult) -> Table | None:
    targets = dict.fromkeys(cell.cell.target for cell in cells)
    arms = [msgspec.structs.replace(arm, target=target) for target in targets for arm in ARMS]
    return paperstages.table(run(*cells, arms=arms))


def clocked(variant: str = "ngram", size: int = 1, target: str = "tiny", hardware: str = "cpu") -> CellResult:
    made = cell(variant, "cnndailymail", size, target=target, stages=SUMS)
    return msgspec.structs.replace(made, cell=msgspec.structs.replace(made.cell, hardware=hardware))


def rows(table: Table | None) -> list[dict[str, str]]:
    assert table is not None
    return [dict(zip(table.head, line, strict=True)) for line in table.body]


def test_ours_come_first_and_theirs_are_what_was_published() -> None:
    found = rows(shown(clocked(), clocked(size=64)))
    assert [row["whose"] for row in found] == [paperstages.OURS, *[paperstages.THEIRS] * 3]
    assert (found[0]["B = 1"], found[0]["B = 128"]) == ("10.0 / 60.0 / 10.0 / 20.0", "-")
    theirs = {row["target"]: row for row in found[1:]}
    assert theirs["llama3.1-8b"]["B = 1"] == "0.2 / 84.8 / 0.9 / 14.1"
    assert theirs["llama3-70b"]["B = 512"] == "0.7 / 95.5 / 0.1 / 3.8"
    assert {row["variant"] for row in found} == {"ngram"}


def test_published_shares_add_up() -> None:
    for _, row in paperstages.published().rows:
        for at in range(len(paperstages.published().sizes)):
            assert sum(row.values[stage][at] for stage in paperstages.STAGES) == pytest.approx(100, abs=0.25)


def test_the_same_machine_and_target_is_said_to_be_that() -> None:
    found = rows(shown(clocked(target="llama3.1-8b", hardware="h100")))
    assert [(row["whose"], row["target"]) for row in found[1:]] == [
        (paperstages.ALIKE, "llama3.1-8b"),
        (paperstages.THEIRS, "llama3-70b"),
        (paperstages.THEIRS, "qwen3-8b"),
    ]
    other = rows(shown(clocked(target="llama3.1-8b")))
    assert {row["whose"] for row in other[1:]} == {paperstages.THEIRS}


@pytest.mark.parametrize("cells", [[], [cell(stages=None)], [clocked("oracle")]], ids=["none", "no clock", "a control"])
def test_without_a_clocked_variant_of_its_methods_nothing_is_shown(cells: list[CellResult]) -> None:
    assert shown(*cells) is None


def test_each_of_the_papers_targets_is_drawn_and_named_as_its_own() -> None:
    table = shown(clocked(), clocked("eagle3"))
    assert table is not None
    titles = [figure.title for figure in table.figures]
    assert titles == [f"{name} in the paper (H100)" for name in ("llama3.1-8b", "llama3-70b", "qwen3-8b")]
    assert all(figure.description.startswith("Published, not of this run.") for figure in table.figures)
    axes = axes_of(table.figures[0])
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert names == ["ngram", "eagle3"] * 4


def test_the_source_is_on_the_page_and_in_markdown() -> None:
    results: RunResults = run(clocked(), arms=ARMS)
    assert [table.name for table in stages.tables(results)] == ["shares", paperstages.NAME]
    for text in (page(results).text, render_markdown(results, header()).replace("\\", "")):
        assert paperstages.published().source in text
        assert "0.2 / 84.8 / 0.9 / 14.1" in text
