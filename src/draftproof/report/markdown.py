"""``summary.md``: the run as a table that can be posted."""

from __future__ import annotations

import re

from draftproof.metrics import METRICS, ratio_text
from draftproof.records import RunHeader
from draftproof.report import view
from draftproof.results import RunResults


def cell_text(text: str) -> str:
    """Model output is untrusted: no table, link, HTML or control character may come of it."""
    shown = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    for char in "\\`|[]<>*":
        shown = shown.replace(char, "\\" + char)
    return shown.replace("&", "&amp;")


def code_text(text: str) -> str:
    """A token, given as a Python literal, as a code span: no mention and no bare address becomes a link in one."""
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return fence + text.replace("|", "\\|") + fence


def table(head: list[str], body: list[list[str]], code: tuple[str, ...] = ()) -> list[str]:
    """Columns whose title is in `code` are code spans."""
    shown = [
        [code_text(text) if title in code else cell_text(text) for title, text in zip(head, row, strict=True)]
        for row in body
    ]
    return ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *shown]]


def render_markdown(results: RunResults, header: RunHeader) -> str:
    lines = [
        f"# draftproof: {cell_text(results.title)}",
        "",
        cell_text(view.headline(results)),
        "",
        cell_text(view.environment_line(results)),
        "",
    ]
    if not results.finished:
        lines += [f"**Partial run**: {cell_text(results.partial or 'ended early')}.", ""]
    head = ["variant", "workload", "B", *view.metric_titles(), "verdict", "outputs"]
    lines += table(head, [[*row.name, *row.values, row.throughput, row.determinism] for row in view.rows(results)])
    lines += ["", "Verdicts in words:", ""]
    lines += [
        f"- {cell_text(c.cell.id)}: {c.throughput.verdict}: {cell_text(c.throughput.reason)}; outputs "
        f"{c.determinism.verdict}: {cell_text(c.determinism.reason)}"
        for c in results.cells
        if c.arm != c.base_arm or c.throughput.verdict == "FAILED"
    ]
    aa = view.aa_lines(results)
    if aa:
        lines += [
            "",
            "No-SD against a second no-SD process in the same rotations (the run's own noise): "
            + cell_text("; ".join(aa)),
        ]
    noise = view.noise_line(results)
    if noise:
        lines += ["", noise[0].upper() + noise[1:] + "."]
    builds = [(c, c.build_ratio) for c in results.cells if c.build_ratio is not None]
    if builds:
        lines += ["", "## New build against base build", ""]
        lines += table(
            ["variant", "workload", "B", "build ratio (throughput new / base)"],
            [[c.cell.variant, c.cell.workload, str(c.cell.batch_size), ratio_text(r)] for c, r in builds],
        )
    stage_head, stage_body = view.stage_table(results)
    if stage_body:
        lines += ["", "## Time (share of decode steps)", "", *table(stage_head, stage_body)]
    positions = view.position_table(results)
    if positions:
        lines += [
            "",
            "## Acceptance by position",
            "",
            *table(
                ["variant", "workload", "B", "accepted at positions 1, 2, ... / drafts", "tokens accepted"], positions
            ),
        ]
    differences = view.difference_table(results)
    if differences:
        lines += [
            "",
            "## First differences from no-SD",
            "",
            *table(view.DIFFERENCE_HEAD, differences, code=view.TOKEN_COLUMNS),
        ]
    if results.skipped:
        lines += [
            "",
            "## Not run",
            "",
            *[f"- {cell_text(name)}: {cell_text(why)}" for name, why in results.skipped.items()],
        ]
    lines += ["", "## What the columns mean", ""]
    lines += [f"- {metric.title}: {metric.formula} ({metric.unit})" for metric in METRICS]
    lines += [
        "",
        *[f"- {cell_text(note)}" for note in results.notes],
        f"- run {cell_text(results.run_id)}, study {cell_text(results.study)}, schema {header.schema_version}",
        "",
    ]
    return "\n".join(lines)
