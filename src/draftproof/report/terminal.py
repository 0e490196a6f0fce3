"""The end of a pytest run: the closing table and what else is to be said in a line."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from draftproof.comparison import Compared, Finding
from draftproof.gate import GREEN
from draftproof.metrics import METRICS
from draftproof.report import cells, compared, view
from draftproof.report.speed import decay_lines
from draftproof.report.templates import VERDICTS
from draftproof.report.untrusted import visible
from draftproof.report.words import some
from draftproof.results import RunResults

CURVES = 40
"""Lines on curves over batch sizes that a terminal is shown."""
STYLES = {"good": "green", "bad": "bold red", "warn": "yellow", "plain": "cyan"}
"""Tone of a verdict -> its colour, where there are colours; the word is always printed."""
WHOLE_WIDTH = 140
"""What the whole table takes; where nobody looks at it on a terminal, lines may be longer than that one."""
UNLIMITED = 1_000_000
"""Columns of a line that the terminal itself may wrap."""
HEIGHT = 25
"""Of no meaning to a table, but without one rich takes 80 columns where ``TERM`` is dumb."""
PLACES_SHOWN = 3
GATES_SHOWN = 60
DROPPED = ("floor", "tokens_per_step", "tokens_per_s", "identical_share", "acceptance_length")
"""Metrics in the order in which they leave a table that is too wide for the terminal."""


def summary_lines(results: RunResults, width: int, *, terminal: bool = False, colour: bool = False) -> list[str]:
    """Everything, the verdict in one sentence last.

    `terminal`: somebody looks at it in `width` columns: what is too wide leaves the table, and is named below it. In a
    log the table is whole. `colour`: verdicts in colours, as ANSI sequences; else the lines are plain.
    """
    lines = table_lines(results, width, terminal=terminal, colour=colour)
    reasons: dict[str, list[str]] = {}
    for cell_id, reason in results.skipped.items():
        reasons.setdefault(reason, []).append(cell_id)
    told = [f"not run: {view.some(names)}: {reason}" for reason, names in reasons.items()]
    aa = view.aa_lines(results)
    if aa:
        told.append("no-SD against a second no-SD process (the run's own noise): " + "; ".join(aa))
    curves = decay_lines(results)
    if curves:
        more = [f"  and {len(curves) - CURVES:,} more, in summary.json"] if len(curves) > CURVES else []
        told += ["speedup over batch sizes:", *[f"  {line}" for line in curves[:CURVES]], *more]
    builds = view.build_lines(results)
    if builds:
        told += ["throughput, new build over base build:", *[f"  {line}" for line in builds]]
    if view.noise_line(results):
        told.append(view.noise_line(results))
    told += [f"note: {note}" for note in results.notes]
    if not results.finished:
        told.append(f"PARTIAL run: {results.partial or 'ended early'}; run the same command again to go on")
    told.append(view.headline(results))
    return lines + plain(told)


def plain(lines: Iterable[str]) -> list[str]:
    """Texts of others may not move the cursor, nor change how others are seen."""
    return [visible(line, keep="") for line in lines]


def table_lines(results: RunResults, width: int, *, terminal: bool, colour: bool) -> list[str]:
    """The closing table; on a terminal of at most `width` columns, where that is possible."""
    shown = cells.listed_rows(results)
    names = ["variant", "workload", "B", *[metric.name for metric in METRICS], "verdict", "outputs"]
    titles = ["variant", "workload", "B", *view.metric_titles(), "verdict", "outputs"]
    body = [plain([*row.name, *row.values, row.throughput, row.determinism]) for row in shown]
    left_out = too_wide(names, [titles, *body], width) if terminal else []
    kept = [index for index, name in enumerate(names) if name not in left_out]
    table = Table(box=None, padding=(0, 1) if not terminal else (0, 1, 0, 0), header_style="")
    for index in kept:
        table.add_column(titles[index], justify="left" if index < 2 else "right", overflow="fold")
    for line in body:
        table.add_row(*[Text(line[index], style=style_of(line[index])) for index in kept])
    lines = printed(table, width if terminal else max(width, WHOLE_WIDTH), colour=colour)
    if len(shown) < len(results.cells):
        lines += plain([cells.listed_note(results)])
    if left_out:
        dropped = [title for name, title in zip(names, titles, strict=True) if name in left_out]
        lines.append(f"left out for want of width, and in the report: {', '.join(dropped)}")
    return lines


def comparison_lines(found: Compared, *, colour: bool = False) -> list[str]:
    """The run against a baseline, one gate a line, the most important first; the rest is counted.

    Gates that one reason stops are one line.
    """
    alike: dict[tuple[str, str, str], list[Finding]] = {}
    for one in compared.ordered(found):
        judged = one.verdict in GREEN or one.verdict == "REGRESSED"
        alike.setdefault((one.verdict, one.reason, f"{one.place} {one.gate}" if judged else ""), []).append(one)
    lines = []
    for gates in list(alike.values())[:GATES_SHOWN]:
        verdict = gates[0].verdict
        text = Text.assemble((f"{verdict:12} ", style_of(verdict)), visible(gates_text(gates), keep=""))
        lines += printed(text, UNLIMITED, colour=colour)
    more = sum(map(len, list(alike.values())[GATES_SHOWN:]))
    told = [f"and {more:,} more gates, in the report"] if more else []
    return lines + plain([*told, *[f"note: {note}" for note in found.notes], compared.headline(found)])


def gates_text(gates: Sequence[Finding]) -> str:
    if len(gates) == 1:
        return compared.line(gates[0])
    places = list(dict.fromkeys(one.place for one in gates))
    return f"{len(gates):,} gates ({some(places, PLACES_SHOWN)}): {gates[0].reason}"


def printed(what: Table | Text, width: int, *, colour: bool) -> list[str]:
    """Lines as rich lays them out: plain, or with ANSI sequences."""
    stream = io.StringIO()
    Console(
        file=stream,
        width=width,
        height=HEIGHT,
        force_terminal=colour,
        no_color=not colour,
        color_system="standard" if colour else None,
        legacy_windows=False,
        markup=False,
        highlight=False,
    ).print(what)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def too_wide(names: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Columns that must go before the rest fits; all of `DROPPED` where it never does."""
    widths = {name: max(len(row[index]) for row in rows) + 1 for index, name in enumerate(names)}
    left_out: list[str] = []
    for name in DROPPED:
        if sum(size for column, size in widths.items() if column not in left_out) <= width:
            break
        left_out.append(name)
    return left_out


def style_of(word: str) -> str:
    """Of a verdict; of any other text none."""
    return next((STYLES[tone] for known, (_, tone, _) in VERDICTS.items() if known == word), "")
