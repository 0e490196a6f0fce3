"""The closing table of a pytest run."""

from __future__ import annotations

import io

from rich.console import Console
from rich.table import Table

from draftproof.report import cells, view
from draftproof.report.speed import decay_lines
from draftproof.results import RunResults

CURVES = 40
"""Lines on curves over batch sizes that a terminal is shown."""


def summary_lines(results: RunResults, width: int) -> list[str]:
    """Plain lines of at most `width` columns where that is possible."""
    table = Table(box=None, padding=(0, 1), header_style="")
    for number, title in enumerate(["variant", "workload", "B", *view.metric_titles(), "verdict", "outputs"]):
        table.add_column(title, justify="left" if number < 2 else "right", overflow="fold")
    rows = cells.listed_rows(results)
    for row in rows:
        table.add_row(*row.name, *row.values, row.throughput, row.determinism)
    stream = io.StringIO()
    Console(file=stream, width=max(width, 140), no_color=True, color_system=None, markup=False, highlight=False).print(
        table
    )
    lines = [line.rstrip() for line in stream.getvalue().splitlines()]
    if len(rows) < len(results.cells):
        lines.append(cells.listed_note(results))
    reasons: dict[str, list[str]] = {}
    for cell_id, reason in results.skipped.items():
        reasons.setdefault(reason, []).append(cell_id)
    lines += [f"not run: {view.some(names)}: {reason}" for reason, names in reasons.items()]
    aa = view.aa_lines(results)
    if aa:
        lines.append("no-SD against a second no-SD process (the run's own noise): " + "; ".join(aa))
    curves = decay_lines(results)
    if curves:
        more = [f"  and {len(curves) - CURVES:,} more, in summary.json"] if len(curves) > CURVES else []
        lines += ["speedup over batch sizes:", *[f"  {line}" for line in curves[:CURVES]], *more]
    builds = view.build_lines(results)
    if builds:
        lines += ["throughput, new build over base build:", *[f"  {line}" for line in builds]]
    if view.noise_line(results):
        lines.append(view.noise_line(results))
    lines += [f"note: {note}" for note in results.notes]
    if not results.finished:
        lines.append(f"PARTIAL run: {results.partial or 'ended early'}; run the same command again to go on")
    lines.append(view.headline(results))
    return lines
