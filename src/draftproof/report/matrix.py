"""The first table of a page: variant x workload x batch size, each cell its speedup, its interval and its verdict."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise

import msgspec

from draftproof.analysis.stats import Ratio
from draftproof.gate import Verdict
from draftproof.outcomes import speedup_of, standing
from draftproof.report import cells
from draftproof.report.partial import not_run_cells
from draftproof.report.parts import Page, Section
from draftproof.report.templates import VERDICTS, render
from draftproof.results import CellResult, RunResults

TITLE = "Speedup by variant, workload and batch size"

STEPS = (1.1, 1.25, 1.6, 2.5)
"""Factors from 1, in either direction, at which the tone gets stronger: about even steps on the log scale."""

NOT_RUN = "not run"


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """One cell of the table."""

    value: str
    interval: str = ""
    tone: str = ""
    """Class of its background; empty: none."""
    told: bool = False
    """Whether the interval lies wholly on one side of 1."""
    verdict: Verdict | None = None
    outputs: Verdict | None = None
    """Only where it is not ``PASS``."""
    link: str = ""
    """Id of its detail; empty where the page holds none."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    k: int | None
    cells: list[Shown | None]
    """A column each; None: no part of the study."""


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """Rows under one heading: the variants of a target and build, or its controls, or what no-SD itself does."""

    title: str
    rows: list[Row]


class Matrix(msgspec.Struct, frozen=True, kw_only=True):
    workloads: list[tuple[str, list[int]]]
    """Each with its batch sizes, rising."""
    groups: list[Group]
    linked: bool
    """Whether some cell has a detail on the page."""

    @property
    def columns(self) -> int:
        return sum(len(sizes) for _, sizes in self.workloads)


def tone(ratio: Ratio) -> str:
    """Class of a speedup's background: ``t-f1`` to ``t-f5`` for faster, ``t-l1`` to ``t-l5`` for slower, ``t-n``
    where the interval holds 1. It repeats what the text says."""
    found = standing(ratio)
    if found == "unclear":
        return "t-n"
    factor = math.exp(abs(math.log(ratio.value)))
    return ("t-f" if found == "faster" else "t-l") + str(1 + sum(factor >= step for step in STEPS))


def legend() -> list[tuple[str, str]]:
    """(Tone, what it stands for), from the slowest to the fastest."""
    ends = (1.0, *STEPS)
    faster = [(f"t-f{step}", f"{low:g}x to {high:g}x") for step, (low, high) in enumerate(pairwise(ends), start=1)]
    slower = [
        (f"t-l{step}", f"{1 / high:.2g}x to {1 / low:.2g}x") for step, (low, high) in enumerate(pairwise(ends), start=1)
    ]
    slower.append((f"t-l{len(ends)}", f"at most {1 / ends[-1]:.2g}x"))
    faster.append((f"t-f{len(ends)}", f"at least {ends[-1]:g}x"))
    return [*reversed(slower), ("t-n", "not told apart from 1"), *faster]


def shown(cell: CellResult, link: str) -> Shown:
    ratio, counts = cell.speedup, speedup_of(cell) is not None
    outputs = cell.determinism.verdict if cell.speculative and cell.determinism.verdict != "PASS" else None
    if not cell.speculative:
        rate = "no figure" if cell.tokens_per_s is None else f"{cell.tokens_per_s:.1f} tok/s"
        verdict: Verdict | None = "FAILED" if cell.throughput.verdict == "FAILED" else None
        return Shown(value=rate, verdict=verdict, link=link)
    if ratio is None or not math.isfinite(ratio.value):
        return Shown(value="no figure", verdict=cell.throughput.verdict, outputs=outputs, link=link)
    return Shown(
        value=f"{ratio.value:.2f}x",
        interval=f"[{ratio.low:.2f}, {ratio.high:.2f}]",
        tone=tone(ratio) if counts else "",
        told=counts and standing(ratio) != "unclear",
        verdict=cell.throughput.verdict,
        outputs=outputs,
        link=link,
    )


def matrix(page: Page) -> Matrix | None:
    """None for a run without cells."""
    results = page.results
    if not results.cells:
        return None
    sizes: dict[str, set[int]] = {}
    for cell in results.cells:
        sizes.setdefault(cell.cell.workload, set()).add(cell.cell.batch_size)
    workloads = [(workload, sorted(found)) for workload, found in sizes.items()]
    columns = [(workload, size) for workload, found in workloads for size in found]
    missing = not_run_cells(results, page.header)
    anchors = cells.anchors(results)
    groups = []
    blocks: dict[tuple[str, str], list[CellResult]] = {}
    for cell in results.cells:
        blocks.setdefault((cell.cell.target, cell.build), []).append(cell)
    for (target, build), members in blocks.items():
        place = ", ".join([target] * results.several_targets + [f"{build} build"] * results.several_builds)
        variants = [cell for cell in members if cell.speculative and cell.cell.variant not in results.controls]
        controls = [cell for cell in members if cell.speculative and cell.cell.variant in results.controls]
        plain = [cell for cell in members if not cell.speculative]
        for title, some in (("", variants), ("controls, not to be deployed", controls)):
            if some:
                heading = ": ".join(part for part in (place, title) if part)
                groups.append(Group(title=heading, rows=rows(some, columns, missing, anchors, results)))
        noise = [*rows(plain, columns, missing, anchors, results), *twin(results, target, build, columns)]
        if noise:
            heading = ": ".join(part for part in (place, "no speculation, and what is noise") if part)
            groups.append(Group(title=heading, rows=noise))
    return Matrix(workloads=workloads, groups=groups, linked=bool(anchors))


def rows(
    members: Iterable[CellResult],
    columns: list[tuple[str, int]],
    missing: dict[str, str],
    anchors: dict[tuple[str, str], str],
    results: RunResults,
) -> list[Row]:
    """A row for each variant, in the order of the study."""
    found: dict[str, dict[tuple[str, int], CellResult]] = {}
    for cell in members:
        found.setdefault(cell.cell.variant, {})[cell.cell.workload, cell.cell.batch_size] = cell
    made = []
    for variant, at in found.items():
        first = next(iter(at.values()))
        arm = results.arm_of(first)
        k = arm.speculative_config.get("num_speculative_tokens") if arm and first.speculative else None
        line: list[Shown | None] = []
        for workload, size in columns:
            here = at.get((workload, size))
            if here is not None and here.cell.id not in missing:
                line.append(shown(here, anchors.get((here.cell.id, here.build), "")))
            else:
                name = msgspec.structs.replace(first.cell, workload=workload, batch_size=size).id
                line.append(Shown(value=NOT_RUN) if name in missing else None)
        made.append(Row(name=variant, k=k if isinstance(k, int) else None, cells=line))
    return made


def twin(results: RunResults, target: str, build: str, columns: list[tuple[str, int]]) -> list[Row]:
    """The second no-SD process against the first: what no speculation at all shows as a speedup."""
    if build != "new":
        return []
    at = {(aa.workload, aa.batch_size): aa.ratio for aa in results.aa if aa.target == target and aa.ratio is not None}
    if not at:
        return []
    line: list[Shown | None] = []
    for column in columns:
        ratio = at.get(column)
        line.append(
            Shown(
                value=f"{ratio.value:.2f}x",
                interval=f"[{ratio.low:.2f}, {ratio.high:.2f}]",
                tone=tone(ratio),
                told=standing(ratio) != "unclear",
            )
            if ratio
            else None
        )
    return [Row(name="no_sd against itself", k=None, cells=line)]


def section(page: Page) -> Section | None:
    found = matrix(page)
    if found is None:
        return None
    used = {one.tone for group in found.groups for row in group.rows for one in row.cells if one}
    seen = {
        v
        for group in found.groups
        for row in group.rows
        for one in row.cells
        if one
        for v in (one.verdict, one.outputs)
    }
    return Section(
        id="matrix",
        title=TITLE,
        extra=render(
            "matrix.html.j2",
            matrix=found,
            legend=[(name, text) for name, text in legend() if name in used],
            seen=[word for word in VERDICTS if word in seen],
        ),
    )
