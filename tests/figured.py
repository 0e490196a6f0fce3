"""Hand-made runs with everything that the figures of acceptance, time and memory draw."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from draftproof.analysis.along import Along, Request
from draftproof.analysis.anatomy import VerifyCost, anatomy_of, difference
from draftproof.analysis.eq1 import Expected
from draftproof.analysis.overlap import Point, overlap_bins
from draftproof.analysis.rowsprice import Interval, RowsPrice
from draftproof.analysis.stages import StageSums
from draftproof.analysis.stats import PairSums
from draftproof.anatomy import Anatomies, CellAnatomy, PairDifference, PairOverlap
from draftproof.memorycosts import MemoryCost
from draftproof.results import CellResult, RunResults
from draftproof.stagefindings import Explained, StageFindings, TargetPrices
from tests.reporting import cell, ratio, reference, run

COST = VerifyCost(rejected=10, decode_s=1.0, s_per_row=0.002, extra_s_per_draft=0.001)


def requests(chance: float, prompts: int = 12, steps: int = 30, seed: int = 0) -> list[Request]:
    """Each draft of three tokens goes on with this chance, which rises along the output."""
    dice = random.Random(seed)
    found = []
    for prompt in range(prompts):
        accepted = []
        for step in range(steps - prompt % 5):
            more = chance * (0.6 + 0.4 * step / steps)
            accepted.append(next((place for place in range(3) if dice.random() > more), 3))
        sizes = [1, *[count + 1 for count in accepted]]
        found.append(
            Request(
                prompt_id=f"p{prompt}",
                emitted=sum(sizes),
                accepted=accepted,
                drafted=[3] * len(accepted),
                steps=len(sizes),
                sizes=sizes,
            )
        )
    return found


CHANCES = {"ngram": 0.5, "eagle3": 0.6, "draft_model": 0.3}


def sums(draft: float = 1.0, **changes: Any) -> StageSums:
    found = StageSums(
        seconds={"draft": draft, "verify": 6.0, "sample": 0.2, "overhead": 2.0, "prefill": 1.0},
        lm_head_s=1.0,
        unattributed_s=0.25,
        decode_steps=40,
        prefill_steps=2,
    )
    return msgspec.structs.replace(found, **changes)


def explained(of: CellResult) -> Explained:
    what = of.cell
    expected = Expected(
        k=3, alpha=0.5, c=0.1, v=1.25, tokens_per_step=1.75, iid=1.44, measured_positions=1.13, whole_step=1.02
    )
    return Explained(
        cell=what.id,
        build=of.build,
        target=what.target,
        variant=what.variant,
        workload=what.workload,
        batch_size=what.batch_size,
        expected=expected,
        speedup=of.speedup,
    )


def price(batch_size: int, rows: int, one_s: float = 0.03) -> RowsPrice:
    times = 1 + 0.1 * (rows - 1) * batch_size
    return RowsPrice(
        batch_size=batch_size,
        rows=rows,
        steps=46,
        verify_s=Interval(one_s * times, 0.97 * one_s * times, 1.04 * one_s * times),
        relative=Interval(times, 0.94 * times, 1.08 * times),
    )


def memory(variant: str, drafter: int = 0, **changes: Any) -> MemoryCost:
    """`drafter`: its MiB of weights, and KV bytes a token in units of 768."""
    found = MemoryCost(
        target="tiny",
        variant=variant,
        build="new",
        static_bytes=drafter * 2**20,
        kv_bytes_per_token=768 * drafter,
        target_static_bytes=2**28,
        target_kv_bytes_per_token=23040,
        kv_cache_tokens=2**30 // (23040 + 768 * drafter) // 128 * 128,
        base_kv_cache_tokens=46592,
        kv_pool_bytes=2**30,
    )
    return msgspec.structs.replace(found, **changes)


def full(workloads: tuple[str, ...] = ("chat",), sizes: tuple[int, ...] = (1, 4), **changes: Any) -> RunResults:
    """Three variants beside no speculation, and all figures of them."""
    cells: list[CellResult] = []
    anatomies: list[CellAnatomy] = []
    differences: list[PairDifference] = []
    overlaps: list[PairOverlap] = []
    known = {name: requests(chance, seed=number) for number, (name, chance) in enumerate(CHANCES.items())}
    found = {name: anatomy_of(made, COST) for name, made in known.items()}
    points = [
        Point(number / 30, PairSums(tokens=64, seconds=1 + number % 3, base_tokens=64, base_seconds=2 - number % 2 / 4))
        for number in range(25)
    ]
    bins = overlap_bins(points)
    for workload in workloads:
        for size in sizes:
            cells.append(msgspec.structs.replace(reference(workload, size), stages=sums(0.0)))
            here = {
                name: cell(name, workload, size, stages=sums(1.0), speedup=ratio(1.1, 1.0, 1.2)) for name in CHANCES
            }
            cells += here.values()
            for name, one in here.items():
                anatomy = found[name]
                assert anatomy is not None
                anatomies.append(CellAnatomy(cell=one.cell.id, build="new", anatomy=anatomy))
            for other in ("eagle3", "draft_model"):
                ids = here["ngram"].cell.id, here[other].cell.id
                less = difference(Along(known["ngram"]), Along(known[other]))
                assert less is not None
                differences.append(PairDifference(first=ids[0], second=ids[1], build="new", map=less))
                overlaps.append(PairOverlap(first=ids[0], second=ids[1], build="new", basis="seconds", bins=bins))
    results = run(
        *cells,
        anatomies=Anatomies(cells=anatomies, differences=differences, overlaps=overlaps),
        stage_findings=StageFindings(
            explained=[explained(one) for one in cells if one.speedup],
            prices=[TargetPrices(target="tiny", build="new", prices=[price(b, r) for b in (1, 4) for r in (1, 2, 4)])],
        ),
        memory=[memory("ngram"), memory("eagle3", 1), memory("draft_model", 3)],
    )
    return msgspec.structs.replace(results, **changes)
