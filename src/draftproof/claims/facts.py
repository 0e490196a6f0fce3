"""Figures that claims are judged by, wherever they come from: each with its interval, and of what it is one."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from draftproof.analysis.decay import Point, per_doubling
from draftproof.analysis.rowsprice import Interval
from draftproof.anatomy import LEARNED
from draftproof.spec import Entry, require


def difference(first: Interval, second: Interval, widen: float = 1.0) -> Interval:
    """First less second, with an interval made of both: square and add each side's arms (Zou and Donner 2008, MOVER).

    For independent figures; where both share blocks or prompts, what they share cancels and the interval is too wide.
    `widen`: factor on the arms, for the pair that was chosen as the most unlike of several.
    """
    value = first.value - second.value
    below = math.hypot(first.value - first.low, second.high - second.value)
    above = math.hypot(first.high - first.value, second.value - second.low)
    return Interval(value, value - widen * below, value + widen * above)


class Quantity(NamedTuple):
    """A kind of figure."""

    title: str
    """Said where there is none."""
    number: Callable[[float], str]
    unit: str = ""
    """Said behind a figure, and not again in its interval."""
    part: str = ""
    """Said before a fact's `part`."""

    def text(self, value: float) -> str:
        return self.number(value) + self.unit


def ratio(value: float) -> str:
    return f"{value:.3f}" if abs(value - 1) < 0.01 else f"{value:.2f}"


def percent(value: float) -> str:
    return f"{100 * value:.{1 if abs(value) >= 0.1 else 2}f}"


def gain(value: float) -> str:
    """Of a ratio, how much above 1 it is, in per cent."""
    return f"{100 * (value - 1):+.0f}"


QUANTITIES: dict[str, Quantity] = {
    "speedup": Quantity("speedup with an interval", ratio, "x"),
    "per_doubling": Quantity("speedup at two batch sizes of one output length", "{:.3f}".format, "x"),
    "stage_share": Quantity("stage times with an interval", percent, " %"),
    "acceptance_length": Quantity("acceptance length with an interval", "{:.2f}".format),
    "place_acceptance": Quantity("acceptance by draft position", "{:.2f}".format, part="position "),
    "step_tokens": Quantity("tokens per step along the output", "{:.2f}".format, part="tenth "),
    "request_variation": Quantity("acceptance of several requests", "{:.2f}".format),
    "identical_share": Quantity("outputs to compare", percent, " %"),
    "length_difference": Quantity("output length with EOS on", "{:+.1f}".format, " tokens"),
    "overlap_advantage": Quantity("request times of n-gram lookup beside a learned drafter", gain, " %", "overlap "),
    "simulated_speedup": Quantity("simulated speedup (they come from traces: draftproof simulate)", ratio, "x"),
}
"""Name -> how it is told.

``speedup``: throughput over no-SD's. ``per_doubling``: the factor on the speedup at each doubling of the batch size.
``stage_share``: of the decode steps' time, `part` names the stage. ``acceptance_length``: tokens per drafted step,
bonus included. ``place_acceptance``: share of draft tokens at a place that are accepted when those before them were.
``step_tokens``: tokens per step in a tenth of the output. ``request_variation``: above 1 where requests differ by more
than chance. ``identical_share``: prompts whose output equals no-SD's. ``length_difference``: mean output tokens less
no-SD's at the same batch size. ``overlap_advantage``: throughput of n-gram lookup over that of a learned drafter,
`part` names the bin of prompt-output overlap. ``simulated_speedup``: `part` names the policy.
"""


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """One figure."""

    quantity: str
    value: Interval
    """At 95 %; of a drawn figure: what reading it may be wrong by."""
    target: str
    parameters: int | None = None
    """Of the target; None: not known."""
    variant: str
    kind: str
    """vLLM's name of the variant's method."""
    workload: str
    workload_kind: str = ""
    """Empty: not known."""
    batch_size: int | None = None
    part: str = ""
    detail: str = ""
    """What else it is a figure of; facts with different ones are not compared."""


FIELDS = ("target", "variant", "workload", "batch_size", "part", "detail")
"""What tells facts of one quantity apart."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """All that claims are judged by."""

    facts: Sequence[Fact]
    intervals: bool = True
    """Whether intervals are measured, and printed; else they are errors of reading a drawing."""
    left_out: Sequence[str] = ()
    """Sentences on cells whose figures do not count, and why."""

    @functools.cached_property
    def several_targets(self) -> bool:
        return len({fact.target for fact in self.facts}) > 1

    def text(self, fact: Fact) -> str:
        """The figure, with its interval where it has one."""
        told, value = QUANTITIES[fact.quantity], fact.value
        ends = f" [{told.number(value.low)}, {told.number(value.high)}]" if self.intervals else ""
        return told.text(value.value) + ends

    def place(self, fact: Fact, fields: Iterable[str] = FIELDS) -> str:
        """What it is a figure of."""
        told = []
        for field in fields:
            value: Any = getattr(fact, field)
            if value is None or value == "" or (field == "target" and not self.several_targets):
                continue
            before = {"batch_size": "B = ", "part": QUANTITIES[fact.quantity].part}.get(field, "")
            told.append(f"{before}{value}")
        return ", ".join(told)


KINDS = ("ngram", *LEARNED)
"""Methods that a claim may name."""


class Where(Entry, frozen=True, kw_only=True):
    """Which facts a claim is about; what is not given admits all, and a fact that does not tell is not admitted."""

    kinds: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    workload_kinds: tuple[str, ...] = ()
    other_workload_kinds: tuple[str, ...] = ()
    """All workloads but those of these kinds."""
    parts: tuple[str, ...] = ()
    batch_from: int | None = None
    batch_to: int | None = None
    parameters_from: int | None = None
    parameters_below: int | None = None

    def __post_init__(self) -> None:
        for kind in self.kinds:
            require(kind in KINDS, "kinds", f"among {', '.join(KINDS)}", kind)
        for least, most in (("batch_from", "batch_to"), ("parameters_from", "parameters_below")):
            low, high = getattr(self, least), getattr(self, most)
            require(low is None or high is None or low <= high, least, f"at most {most} = {high}", low)

    def admits(self, fact: Fact) -> bool:
        return (
            (not self.kinds or fact.kind in self.kinds)
            and (not self.targets or fact.target in self.targets)
            and (not self.workload_kinds or fact.workload_kind in self.workload_kinds)
            and (not self.other_workload_kinds or fact.workload_kind not in ("", *self.other_workload_kinds))
            and (not self.parts or fact.part in self.parts)
            and within_ends(fact.batch_size, self.batch_from, self.batch_to)
            and within_ends(fact.parameters, self.parameters_from, self.parameters_below)
        )

    def told(self) -> str:
        """In words; empty where it admits all."""
        words = [
            ("variants of kind", self.kinds),
            ("target", self.targets),
            ("workloads of kind", self.workload_kinds),
            ("workloads of another kind than", self.other_workload_kinds),
            ("of", self.parts),
        ]
        told = [f"{what} {' or '.join(names)}" for what, names in words if names]
        one_size = self.batch_from is not None and self.batch_from == self.batch_to
        ends = [
            ("batch size {}" if one_size else "batch sizes from {}", self.batch_from),
            ("batch sizes up to {}", None if one_size else self.batch_to),
            ("targets from {} parameters", self.parameters_from),
            ("targets below {} parameters", self.parameters_below),
        ]
        told += [text.format(f"{end:,}") for text, end in ends if end is not None]
        return ", ".join(told)


def within_ends(value: int | None, low: int | None, high: int | None) -> bool:
    if value is None:
        return low is None and high is None
    return (low is None or value >= low) and (high is None or value <= high)


def fall(points: Sequence[Point]) -> Interval | None:
    """The factor on a curve's speedup at each doubling of the batch size; None below two batch sizes."""
    usable = [point for point in points if point.usable]
    if len({point.batch_size for point in usable}) < 2:
        return None
    found = per_doubling(usable)
    return Interval(found.value, found.low, found.high)


def span(points: Sequence[Point]) -> str:
    """The batch sizes of a curve: curves over other ones fall otherwise, and are not compared."""
    return "B = " + ", ".join(map(str, sorted({point.batch_size for point in points if point.usable})))
