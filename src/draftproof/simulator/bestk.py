"""What to deploy: the variant and fixed k with the highest expected speedup, by data set and batch size."""

from __future__ import annotations

import msgspec

from draftproof.simulator.costs import CostModel
from draftproof.simulator.policies import Fixed, Policy
from draftproof.simulator.rules import Rules
from draftproof.simulator.simulate import Cell, simulate
from draftproof.simulator.traces import TraceFile

WORTH_IT = 1.02
"""Below this expected speedup speculation is not advised: less than the cost model's error at batch size 1 (4 %)."""


class Advice(msgspec.Struct, frozen=True):
    dataset: str
    batch_size: int
    best: Cell
    """The fastest fixed k."""

    @property
    def worth_it(self) -> bool:
        return self.best.speedup >= WORTH_IT


def best_k(
    file: TraceFile,
    costs: CostModel,
    rules: Rules,
    variants: list[str],
    batch_sizes: list[int],
    most: int,
    sample: int | None = None,
) -> list[Advice]:
    """The best of k = 1..most for each batch size."""
    ks: list[Policy] = [Fixed(k) for k in range(1, most + 1)]
    cells = list(simulate(file, costs, rules, ks, variants, batch_sizes, sample))
    return [
        Advice(cells[0].dataset, size, max((c for c in cells if c.batch_size == size), key=lambda c: c.speedup))
        for size in batch_sizes
    ]


def advice_lines(advice: list[Advice]) -> list[str]:
    """The table, and from which batch size on speculation does not pay."""
    lines = [f"{'data set':16}{'batch size':>12}  {'deploy':14}{'k':>4}{'speedup':>10}"]
    for row in advice:
        variant, k = (row.best.variant, str(row.best.k)) if row.worth_it else ("none", "-")
        lines.append(f"{row.dataset:16}{row.batch_size:>12}  {variant:14}{k:>4}{row.best.speedup:>10.3f}")
    for dataset in dict.fromkeys(row.dataset for row in advice):
        idle = [row.batch_size for row in advice if row.dataset == dataset and not row.worth_it]
        text = f"not worth it at batch size {', '.join(map(str, idle))}" if idle else "worth it at every batch size"
        lines.append(f"{dataset}: speculation is {text} (expected speedup {WORTH_IT} or more)")
    return lines
