"""The history's verdicts for a terminal and for a program."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from draftproof.history.changes import MIN_NIGHTS, STABLE_NIGHTS
from draftproof.history.judge import Change, Judged, percent
from draftproof.history.series import Night, Series, machine_changes

ORDER = ("regression", "suspicious", "insufficient_data", "no_regression")
REGRESSION, NOT_JUDGED = 1, 3
"""Exit status; 0: neither."""
WIDTH = 160
PAST = {
    "recovered": "regression, recovered",
    "improvement": "improvement",
    "further": "a further step within a regression",
    "no_sd_faster": "no regression: no-SD got faster",
}


def exit_status(judged: Sequence[Judged]) -> int:
    if any(one.verdict == "regression" and one.gating for one in judged):
        return REGRESSION
    return NOT_JUDGED if all(one.verdict == "insufficient_data" for one in judged) else 0


def table_lines(judged: Sequence[Judged]) -> list[str]:
    table = Table(box=None, padding=(0, 1), header_style="")
    for title in ("cell", "metric", "machine", "nights", "last", "level", "newest", "verdict"):
        table.add_column(title, justify="left" if title in ("cell", "metric", "verdict") else "right", overflow="fold")
    for one in judged:
        series, counting = one.series, one.series.counting
        newest = counting[-1] if counting else None
        table.add_row(
            series.cell.id,
            series.metric,
            series.fingerprint,
            f"{len(counting)}/{len(series.nights)}",
            series.nights[-1].date,
            number(one.reference),
            number(newest.compared if newest else None),
            one.verdict + (" (ended)" if series.ended else ""),
        )
    stream = io.StringIO()
    Console(file=stream, width=WIDTH, no_color=True, color_system=None, markup=False, highlight=False).print(table)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def lines(judged: Sequence[Judged]) -> list[str]:
    """Everything, the worst last: that is where a nightly log is read."""
    told = []
    for study, hardware in sorted({one.series.track[:2] for one in judged}):
        ours = [one for one in judged if one.series.track[:2] == (study, hardware)]
        told += [f"{study} on {hardware}", *table_lines(sorted(ours, key=lambda one: -ORDER.index(one.verdict)))]
    told += machine_changes([one.series for one in judged])
    told += skipped_lines([one.series for one in judged])
    for one in judged:
        told += [f"past: {name(one)}: {past_line(change)}" for change in one.past]
    if short := sum(one.verdict == "insufficient_data" for one in judged):
        told.append(
            f"insufficient_data: {short} series have not {MIN_NIGHTS} nights that count, {STABLE_NIGHTS} of them alike"
        )
    for verdict in ("suspicious", "regression"):
        told += [verdict_line(one) for one in judged if one.verdict == verdict]
    told += reproduce_lines([one.current.first for one in judged if one.current is not None])
    counts = [(verdict, sum(one.verdict == verdict for one in judged)) for verdict in ORDER]
    return [*told, ", ".join(f"{count} {verdict}" for verdict, count in counts)]


def name(one: Judged) -> str:
    return f"{one.series.cell.id} {one.series.metric}"


def past_line(change: Change) -> str:
    until = f" to {change.until.date}" if change.until else ""
    return f"{change.first.date}{until}: {PAST[change.kind]}, {percent(change.change)}; commits {change.commits}"


def verdict_line(one: Judged) -> str:
    silent = " (the series has ended: does not gate)" * one.series.ended
    return f"{one.verdict}: {name(one)}: {one.reason}{silent}"


def reproduce_lines(nights: Sequence[Night]) -> list[str]:
    """How the first worse nights were run, once each."""
    told = {f"reproduce {night.run_id} on {night.named}: {night.command}": None for night in nights if night.command}
    return list(told)


def skipped_lines(series: Sequence[Series]) -> list[str]:
    """Nights that do not count, once for all metrics of a cell."""
    told: dict[str, None] = {}
    for one in series:
        for night in one.nights:
            if night.skipped:
                told[f"not counted: {night.date} {night.run_id}, {one.cell.id}: {night.skipped}"] = None
    return list(told)


def as_json(store: Path, judged: Sequence[Judged]) -> str:
    rows: list[dict[str, Any]] = []
    for one in judged:
        cell = one.series.cell
        rows.append(
            {
                "study": cell.study,
                "hardware": cell.hardware,
                "fingerprint": one.series.fingerprint,
                "cell": cell.id,
                "target": cell.target,
                "variant": cell.variant,
                "workload": cell.workload,
                "batch_size": cell.batch_size,
                "metric": one.series.metric,
                "ended": one.series.ended,
                "verdict": one.verdict,
                "reason": one.reason,
                "gating": one.gating,
                "limit": one.limit,
                "spread": one.spread,
                "reference": one.reference,
                "shared_sets": one.series.sets,
                "current": one.current,
                "past": one.past,
                "nights": one.series.nights,
            }
        )
    whole = {
        "history": str(store),
        "exit_status": exit_status(judged),
        "machine_changes": machine_changes([one.series for one in judged]),
        "series": rows,
    }
    return msgspec.json.format(msgspec.json.encode(whole)).decode()
