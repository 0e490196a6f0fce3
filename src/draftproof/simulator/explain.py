"""What each mend does by itself: the same cells under the paper's rules, with one switch at a time, and corrected."""

from __future__ import annotations

import math
from collections.abc import Iterable

from draftproof.simulator.costs import CostModel
from draftproof.simulator.policies import Policy
from draftproof.simulator.rules import CORRECTED, MENDS, PAPER_MATCH_PROBABILITY, PAPER_REQUESTS, Rules, rules_named
from draftproof.simulator.simulate import Cell, simulate
from draftproof.simulator.traces import TraceFile

Series = tuple[str, str, int | None]


def base_mends(files: list[TraceFile]) -> list[str]:
    """What must be mended before the paper's rules can run on these files at all."""
    known = all(next(file.read()).dataset in PAPER_MATCH_PROBABILITY for file in files)
    enough = all(file.count() >= PAPER_REQUESTS for file in files)
    return ([] if known else ["trace_misses"]) + ([] if enough else ["every_request"])


def rows(base: list[str]) -> list[tuple[str, Rules, str]]:
    """Label, rules and what is mended, in the table's order."""
    start = rules_named("paper", base, [])
    alone = [(m, rules_named("paper", [*base, m], []), text) for m, text in MENDS.items() if m not in base]
    why = f"as published, but for {' and '.join(base)}, without which these files cannot be run"
    return [
        ("paper", start, why if base else "as published"),
        *alone,
        ("corrected", CORRECTED, "all but mixed"),
        ("corrected+mixed", rules_named("corrected", ["mixed"], []), "all"),
    ]


def explain(
    files: list[TraceFile],
    costs: CostModel,
    policies: list[Policy],
    variants: list[str],
    batch_sizes: list[int],
    sample: int | None = None,
) -> tuple[list[Cell], list[str]]:
    """Every cell under every row's rules, and the table: geometric means over data sets, change from the paper."""
    copies_only = [policy for policy in policies if policy.name != "bound" and not policy.all_pay]
    table = rows(base_mends(files))
    cells: dict[str, list[Cell]] = {}
    for label, rules, _ in table:
        chosen = copies_only if rules.mixed else policies
        cells[label] = [
            cell for file in files for cell in simulate(file, costs, rules, chosen, variants, batch_sizes, sample)
        ]
    lines: list[str] = []
    series = list(dict.fromkeys(series_of(cell) for cell in cells["paper"]))
    width = max(map(len, cells))
    for batch_size in batch_sizes:
        lines += ["", f"batch size {batch_size}: speedup, geometric mean over {len(files)} data sets"]
        lines.append(" " * (width + 2) + "".join(f"{title(one):>20}" for one in series))
        base = [mean(cells["paper"], one, batch_size) for one in series]
        for label, _, _ in table:
            values = [mean(cells[label], one, batch_size) for one in series]
            shown = [cell_text(value, start, label) for value, start in zip(values, base, strict=True)]
            lines.append(f"{label:{width}}  " + "".join(f"{text:>20}" for text in shown))
    lines.append("")
    for label, _, text in table:
        absent = {"graph_padding": costs.padding, "roofline": costs.roofline}.get(label, costs) is None
        lines.append(f"{label:{width}}  {text}{'; this cost model has none' if absent else ''}")
    return [cell for row in cells.values() for cell in row], lines


def series_of(cell: Cell) -> Series:
    return cell.variant, cell.policy, cell.k


def title(series: Series) -> str:
    variant, policy, k = series
    return policy if "+" in variant else f"{variant} {f'k={k}' if policy == 'fixed' else policy}"


def mean(cells: Iterable[Cell], series: Series, batch_size: int) -> float | None:
    """Geometric mean over data sets."""
    logs = [math.log(cell.speedup) for cell in cells if series_of(cell) == series and cell.batch_size == batch_size]
    return math.exp(math.fsum(logs) / len(logs)) if logs else None


def cell_text(value: float | None, base: float | None, label: str) -> str:
    if value is None or base is None:
        return "-"
    change = "" if label == "paper" else f" ({(value / base - 1) * 100:+.1f} %)"
    return f"{value:.3f}{change}"
