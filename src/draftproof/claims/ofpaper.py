"""The published figures of arXiv 2601.11580 as what claims are judged by.

``fixtures/paper/*.toml``, and Figure 1, which the limits of its own study hold already (``fixtures/thresholds``).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from draftproof.analysis.decay import Point
from draftproof.analysis.lengths import NO_SD
from draftproof.analysis.rowsprice import Interval
from draftproof.analysis.stats import Ratio
from draftproof.catalog import Catalog, fixtures_folder, read_entry, short
from draftproof.claims.facts import QUANTITIES, Evidence, Fact, fall, span
from draftproof.errors import DraftproofError, unknown
from draftproof.gate import BY_PAPER
from draftproof.spec import Entry, require

FIGURE_1 = "paper-fig1"
"""The study whose limits are Figure 1's values."""
FIGURE_1_READING = 0.002
"""What reading a speedup off its drawing may be wrong by, as the limits' source says."""

RAW = ("tokens_per_s", "output_tokens", "acceptance_box")
"""What the paper shows in another form than claims need: `derived` makes of it speedups over no-SD, differences from
no-SD, and the median and spread of a box (parts p5 and p95)."""


class PaperRow(Entry, frozen=True, kw_only=True):
    target: str
    variant: str = ""
    workload: str = ""
    kind: str = ""
    """Of what is no variant of the catalog."""
    detail: str = ""
    values: dict[str, list[float]]
    """What the figure's `key` says -> figures along `at`; not a number: not published."""


class PaperFigure(Entry, frozen=True, kw_only=True):
    """A published figure or table."""

    figure: str
    source: str
    quantity: str
    scale: float = 1.0
    """Printed value times `scale` plus `offset` is the quantity's."""
    offset: float = 0.0
    reading: float
    """What reading it may be wrong by, in the printed value's unit; of tokens/s: as a speedup."""
    along: Literal["batch_size", "part"]
    at: list[int | str]
    key: Literal["part", "detail", "workload", "variant"]
    row: list[PaperRow]

    def __post_init__(self) -> None:
        known = (*QUANTITIES, *RAW)
        require(self.quantity in known, "quantity", f"one of {', '.join(known)}", self.quantity)
        require(bool(self.source.strip()), "source", "where the figures come from", self.source)
        require(self.reading >= 0, "reading", "at least 0", self.reading)
        for number, row in enumerate(self.row):
            for name, values in row.values.items():
                field = f"row[{number}].values.{name}"
                require(len(values) == len(self.at), field, f"as many figures as at ({len(self.at)})", len(values))


def of_paper(catalog: Catalog, folder: Path | None = None) -> Evidence:
    """`catalog`: ours, whose names the figures go by."""
    facts = [*figure_1(catalog)]
    for path in sorted((folder or fixtures_folder() / "paper").glob("*.toml")):
        figure = read_entry(path, PaperFigure)
        try:
            facts += derived(figure, [*raw(figure, catalog)])
        except DraftproofError as error:
            raise DraftproofError(f"{short(path)}: {error}") from error
    return Evidence(facts=[*facts, *falls(facts)], intervals=False)


def fact(catalog: Catalog, quantity: str, value: Interval, **about: Any) -> Fact:
    """With what the catalog knows of its target, variant and workload."""
    for field, entries in (("target", catalog.targets), ("workload", catalog.workloads)):
        if about[field] not in entries:
            raise unknown(field, about[field], entries)
    if not about.get("kind"):
        if about["variant"] not in catalog.variants:
            raise unknown("variant", about["variant"], catalog.variants)
        about["kind"] = catalog.variants[about["variant"]].method
    return Fact(
        quantity=quantity,
        value=value,
        parameters=catalog.targets[about["target"]].parameters,
        workload_kind=catalog.workloads[about["workload"]].kind,
        **about,
    )


def figure_1(catalog: Catalog) -> Iterator[Fact]:
    for rows in catalog.thresholds.values():
        for row in rows:
            if row.metric != BY_PAPER or row.studies != [FIGURE_1]:
                continue
            value = around(row.limit, FIGURE_1_READING)
            for target in row.targets:
                for variant in row.variants:
                    for workload in row.workloads:
                        for size in row.batch_sizes:
                            yield fact(
                                catalog,
                                "speedup",
                                value,
                                target=target,
                                variant=variant,
                                workload=workload,
                                batch_size=size,
                            )


def around(value: float, reading: float) -> Interval:
    return Interval(value, value - reading, value + reading)


def raw(figure: PaperFigure, catalog: Catalog) -> Iterator[Fact]:
    """Every published value."""
    for row in figure.row:
        own = {"target": row.target, "variant": row.variant, "workload": row.workload, "kind": row.kind}
        for name, values in row.values.items():
            for place, printed in zip(figure.at, values, strict=True):
                if math.isfinite(printed):
                    value = around(figure.offset + figure.scale * printed, figure.scale * figure.reading)
                    about = {**own, "detail": row.detail, figure.key: name, figure.along: place}
                    yield fact(catalog, figure.quantity, value, **about)


def derived(figure: PaperFigure, facts: Sequence[Fact]) -> Iterator[Fact]:
    """The same, as claims need it."""
    if figure.quantity == "acceptance_box":
        yield from of_boxes(facts, figure.reading)
    elif figure.quantity in RAW:
        yield from beside_no_sd(facts, figure)
    else:
        yield from facts


def of_boxes(facts: Sequence[Fact], reading: float) -> Iterator[Fact]:
    boxes: dict[tuple[str, str, str], dict[str, Fact]] = defaultdict(dict)
    for one in facts:
        boxes[one.target, one.variant, one.workload][one.part] = one
    for box in boxes.values():
        low, middle, high = (box[name].value.value for name in ("p5", "p50", "p95"))
        spread = Interval(high / low, (high - reading) / (low + reading), (high + reading) / (low - reading))
        for quantity, value in (("acceptance_length", around(middle, reading)), ("request_variation", spread)):
            yield replaced(box["p50"], quantity, value, part="")


def beside_no_sd(facts: Sequence[Fact], figure: PaperFigure) -> Iterator[Fact]:
    base = {(one.target, one.workload, one.batch_size): one.value for one in facts if one.variant == NO_SD}
    for one in facts:
        if one.variant == NO_SD:
            continue
        reference = base[one.target, one.workload, one.batch_size].value
        if figure.quantity == "tokens_per_s":
            yield replaced(one, "speedup", around(one.value.value / reference, figure.reading))
        else:
            yield replaced(one, "length_difference", around(one.value.value - reference, 2 * figure.reading))


def replaced(one: Fact, quantity: str, value: Interval, **more: Any) -> Fact:
    from msgspec.structs import replace

    return replace(one, quantity=quantity, value=value, **more)


def falls(facts: Sequence[Fact]) -> Iterator[Fact]:
    """How each drawn curve falls, as it is fitted to a run's."""
    curves: dict[tuple[str, str, str], list[Fact]] = defaultdict(list)
    for one in facts:
        if one.quantity == "speedup":
            curves[one.target, one.variant, one.workload].append(one)
    for curve in curves.values():
        points = [point(one) for one in curve]
        found = fall(points)
        if found:
            yield replaced(curve[0], "per_doubling", found, batch_size=None, detail=span(points))


def point(one: Fact) -> Point:
    value = one.value
    error = (value.high - value.low) / 4 / value.value  # reading errors are about two standard errors
    drawn = Ratio(value=value.value, low=value.low, high=value.high, clusters=1000, method="drawn", log_error=error)
    return Point(batch_size=one.batch_size or 0, output_tokens=0, speedup=drawn)
