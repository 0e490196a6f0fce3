"""``summary.md``: the run as a table that can be posted."""

from __future__ import annotations

import re

from draftproof.metrics import METRICS, OTHER_METRICS
from draftproof.records import RunHeader
from draftproof.report import cells, determinism, outputs, partial, view
from draftproof.report.determinism import Earliest
from draftproof.report.parts import Page, Section, Table
from draftproof.report.sections import sections
from draftproof.report.templates import ROWS_MOST, cut_note
from draftproof.report.untrusted import without_homes
from draftproof.results import RunResults


def printable(text: str) -> str:
    """Without what cannot be seen, and without anybody's home folder."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in without_homes(text))


def cell_text(text: str) -> str:
    """Model output is untrusted: no table, link, HTML or control character may come of it."""
    shown = printable(text)
    for char in "\\`|[]<>*":
        shown = shown.replace(char, "\\" + char)
    return shown.replace("&", "&amp;")


def code_span(text: str) -> str:
    """Text that neither begins nor ends with a backtick: no mention and no bare address becomes a link in it."""
    shown = printable(text)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", shown)), default=0))
    return fence + shown + fence


def code_text(text: str) -> str:
    """A token, given as a Python literal, as a code span in a table."""
    return code_span(text).replace("|", "\\|")


def table(head: list[str], body: list[list[str]], code: tuple[str, ...] = ()) -> list[str]:
    """Columns whose title is in `code` are code spans."""
    shown = [
        [code_text(text) if title in code else cell_text(text) for title, text in zip(head, row, strict=True)]
        for row in body
    ]
    return ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *shown]]


TOKEN_COLUMNS = ("no-SD's token", "variant's token")
DIFFERENCE_HEAD = ["", "variant, workload, B", "prompt", "output position", *TOKEN_COLUMNS, "margin", "cause"]
TEXT_CHARS = 200


def table_lines(tables: list[Table]) -> list[str]:
    """Each table with its title and the sentence above it."""
    lines = []
    for found in tables:
        more = f" More: {cell_text(found.more[1])}." if found.more else ""
        lines += ["", f"### {cell_text(found.title)}", "", cell_text(found.note) + more]
        if len(found.body) > ROWS_MOST:
            lines += ["", cut_note(len(found.body))]
        if found.body:
            lines += ["", *table(found.head, found.body[:ROWS_MOST], found.code)]
    return lines


def differences(results: RunResults, earliest: list[Earliest]) -> list[str]:
    """A table, then for each the text around it and the command that runs it again."""
    body = [
        [
            str(found.number),
            found.label,
            found.prompt,
            str(found.difference.position),
            *([view.token_text(text) for text in found.difference.texts] if found.difference.texts else ["?", "?"]),
            found.margin,
            found.difference.cause.replace("_", " "),
        ]
        for found in earliest
    ]
    note = determinism.earliest_note(results)
    lines = ["", f"### {determinism.EARLIEST_TITLE}", "", cell_text(note), ""]
    lines += [
        *table(DIFFERENCE_HEAD, body, code=TOKEN_COLUMNS),
        "",
        "Their texts, as the model wrote them, and commands:",
        "",
    ]
    for found in earliest:
        lines.append(f"{found.number}. {cell_text(found.label)}, prompt {cell_text(found.prompt)}")
        texts = [
            ("after", view.tail_text(found.difference.before, TEXT_CHARS)),
            ("no-SD goes on", view.token_text(found.difference.after[0], TEXT_CHARS)),
            (f"{found.variant} goes on", view.token_text(found.difference.after[1], TEXT_CHARS)),
        ]
        lines += [f"   - {cell_text(what)}: {code_span(text)}" for what, text in texts if text != "''"]
        lines.append(f"   - again: {code_span(found.command)}")
    return lines


def render_markdown(results: RunResults, header: RunHeader, made: list[Section] | None = None) -> str:
    """`made`: the page's sections, where they are at hand."""
    made = sections(Page(results, header)) if made is None else made
    lines = [
        f"# draftproof: {cell_text(results.title)}",
        "",
        cell_text(view.headline(results)),
        "",
        *[f"{cell_text(section.title)}: {cell_text(section.lead)}\n" for section in made if section.lead],
        cell_text(view.environment_line(results)),
        "",
    ]
    if not results.finished:
        lines += [f"**Partial run**: {cell_text(partial.headline(results))}.", ""]
    gaps = partial.gaps(results, header)
    if gaps:
        lines += [f"**Partial results**: {cell_text('; '.join(gaps))}.", ""]
    rows = cells.listed_rows(results)
    if len(rows) < len(results.cells):
        lines += [cell_text(cells.listed_note(results)), ""]
    head = ["variant", "workload", "B", *view.metric_titles(), "verdict", "outputs"]
    lines += table(head, [[*row.name, *row.values, row.throughput, row.determinism] for row in rows])
    lines += ["", "Verdicts in words:", ""]
    lines += [
        f"- {cell_text(c.cell.id)}: {c.throughput.verdict}: {cell_text(c.throughput.reason)}; outputs "
        f"{c.determinism.verdict}: {cell_text(c.determinism.reason)}"
        for c in (row.cell for row in rows)
        if c.speculative or c.throughput.verdict == "FAILED"
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
    for section in made:
        if section.tables:
            lines += ["", f"## {cell_text(section.title)}", *table_lines(section.tables)]
        if section.id == outputs.ID:
            lines += differences(results, determinism.earliest(results))
    lines += ["", "## What the columns mean", ""]
    lines += [f"- {metric.title}: {metric.formula} ({metric.unit})" for metric in METRICS + OTHER_METRICS]
    lines += [f"- {cause.replace('_', ' ')}: {meaning}" for cause, meaning in determinism.CAUSES.items()]
    lines += [
        "",
        *[f"- {cell_text(note)}" for note in results.notes],
        f"- run {cell_text(results.run_id)}, study {cell_text(results.study)}, schema {header.schema_version}",
        "",
    ]
    return "\n".join(lines)
