"""What kinds of claims there are, and what each means over facts. Pure.

A case is one figure, or one pair, that speaks for the claim, against it, or for neither: it speaks only where its
whole interval lies on one side. Each case has its own 95 % interval: of forty cases that lie exactly at the limit, one
falls on the wrong side by chance. A new kind of claim is a class here and its name in `PREDICATES`.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from statistics import NormalDist
from typing import ClassVar, Literal

import msgspec

from draftproof.analysis.rowsprice import Interval
from draftproof.claims.facts import FIELDS, QUANTITIES, Evidence, Fact, Where, difference
from draftproof.spec import Entry, require

Word = Literal["holds", "is contradicted", "was not tested"]
Says = Literal["for", "against", "neither"]
Of = Literal["every", "most", "some"]
"""How many cases must speak for the claim; it is contradicted by one, by most, or by all that speak against it."""

TAIL = 0.025


class Case(msgspec.Struct, frozen=True, kw_only=True):
    says: Says
    score: float
    """How far for the claim it lies; below 0: against it."""
    text: str
    """Its figures, and of what."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a claim comes to."""

    word: Word
    text: str
    """The figures that decide it, or why there are none."""
    figures: int
    """Cases that it was judged by."""


def says(value: Interval, low: float | None, high: float | None) -> Says:
    """For: the interval lies between the ends (those given); against: all of it lies beyond one of them."""
    if (low is not None and value.high < low) or (high is not None and value.low > high):
        return "against"
    inside = (low is None or value.low >= low) and (high is None or value.high <= high)
    return "for" if inside else "neither"


class Claim(Entry, frozen=True, kw_only=True):
    """A row of ``claims.toml``; the keys of its predicate come on top."""

    name: str
    sentence: str
    """What is claimed, in our words."""
    source: str
    """Where the paper says it."""
    remark: str = ""
    """What a reader should know of the claim or of the figures that it is judged by."""
    predicate: str
    of: Of = "every"
    where: Where = Where()
    sides: ClassVar[tuple[str, str, str]] = ("for it", "against", "Least for it")
    """How cases on either side, and the one furthest to the second, are told."""

    def __post_init__(self) -> None:
        for field in ("name", "sentence", "source"):
            require(bool(getattr(self, field).strip()), field, "a text", getattr(self, field))

    def cases(self, evidence: Evidence) -> list[Case]:
        raise NotImplementedError

    def missing(self, evidence: Evidence) -> str:
        """Why there is no case."""
        raise NotImplementedError

    def judge(self, evidence: Evidence) -> Verdict:
        cases = self.cases(evidence)
        if not cases:
            left_out = ", with what is left out" if evidence.left_out else ""
            return Verdict(word="was not tested", text=self.missing(evidence) + left_out, figures=0)
        counts = Counter(case.says for case in cases)
        return Verdict(word=self.word(counts, cases), text=self.told(cases, counts), figures=len(cases))

    def word(self, counts: Counter[Says], cases: list[Case]) -> Word:
        total = len(cases)
        enough = {"every": total, "most": total // 2 + 1, "some": 1}[self.of]
        refuted = {"every": 1, "most": total // 2 + 1, "some": total}[self.of]
        if counts["against"] >= refuted:
            return "is contradicted"
        return "holds" if counts["for"] >= enough else "was not tested"

    def told(self, cases: list[Case], counts: Counter[Says]) -> str:
        """How many speak on which side, and the two that lie furthest apart."""
        text = "not told, " if self.word(counts, cases) == "was not tested" else ""
        text += f"{counts['for']} of {len(cases)} {self.sides[0]}, {counts['against']} {self.sides[1]}"
        text += f", {counts['neither']} neither" if counts["neither"] else ""
        ordered = sorted(cases, key=lambda case: case.score)
        if len(cases) == 1:
            return f"{text}: {cases[0].text}"
        return f"{text}. {self.sides[2]}: {ordered[0].text}. Most: {ordered[-1].text}"


class OfQuantity(Claim, frozen=True, kw_only=True):
    """A claim on figures of one kind."""

    quantity: str

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.quantity in QUANTITIES, "quantity", f"one of {', '.join(QUANTITIES)}", self.quantity)

    def facts(self, evidence: Evidence, *also: Where) -> list[Fact]:
        wanted = (self.where, *also)
        return [
            fact
            for fact in evidence.facts
            if fact.quantity == self.quantity and all(where.admits(fact) for where in wanted)
        ]

    def missing(self, evidence: Evidence) -> str:
        title = QUANTITIES[self.quantity].title
        if not any(fact.quantity == self.quantity for fact in evidence.facts):
            return f"no {title}"
        return f"no {title} of what it is about: {self.where.told()}"


class Within(OfQuantity, frozen=True, kw_only=True):
    """Figures lie between two ends, or on one side of one."""

    low: float | None = None
    high: float | None = None
    rounding: float = 0.0
    """By which the ends may be wrong, being printed with few digits."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.low is not None or self.high is not None, "low", "given where high is not", self.low)
        require(self.low is None or self.high is None or self.low <= self.high, "low", "at most high", self.low)
        require(self.rounding >= 0, "rounding", "at least 0", self.rounding)

    def cases(self, evidence: Evidence) -> list[Case]:
        low = None if self.low is None else self.low - self.rounding
        high = None if self.high is None else self.high + self.rounding
        return [
            Case(
                says=says(fact.value, low, high),
                score=room(fact.value.value, low, high),
                text=f"{evidence.text(fact)} ({evidence.place(fact)})",
            )
            for fact in self.facts(evidence)
        ]


def room(value: float, low: float | None, high: float | None) -> float:
    """How far a figure lies from the nearer end; below 0: beyond it."""
    return min(math.inf if low is None else value - low, math.inf if high is None else high - value)


Field = Literal["target", "variant", "workload", "batch_size", "part", "detail"]


class Order(OfQuantity, frozen=True, kw_only=True):
    """Figures of one kind are above those of another, wherever both were taken."""

    first: Where = Where()
    second: Where = Where()
    across: list[Field]
    """In what the two of a pair may differ; all else is the same."""
    second_larger_by: float | None = None
    """The second one's target has at least so many times the parameters of the first one's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(bool(self.across), "across", "a non-empty list", self.across)
        larger = self.second_larger_by
        require(larger is None or larger > 1, "second_larger_by", "above 1", larger)
        require(larger is None or "target" in self.across, "across", "one that holds 'target'", self.across)

    def pairs(self, evidence: Evidence) -> Iterator[tuple[Fact, Fact]]:
        same = [field for field in FIELDS if field not in self.across]
        seconds = defaultdict(list)
        for fact in self.facts(evidence, self.second):
            seconds[tuple(getattr(fact, field) for field in same)].append(fact)
        for first in self.facts(evidence, self.first):
            for second in seconds.get(tuple(getattr(first, field) for field in same), []):
                if second != first and self.sizes_fit(first, second):
                    yield first, second

    def sizes_fit(self, first: Fact, second: Fact) -> bool:
        if self.second_larger_by is None:
            return True
        if first.parameters is None or second.parameters is None:
            return False
        return second.parameters >= self.second_larger_by * first.parameters

    def cases(self, evidence: Evidence) -> list[Case]:
        same = [field for field in FIELDS if field not in self.across]
        found = []
        for first, second in self.pairs(evidence):
            apart = difference(first.value, second.value)
            sides = [f"{evidence.text(fact)} ({evidence.place(fact, self.across)})" for fact in (first, second)]
            place = evidence.place(first, same)
            text = " against ".join(sides) + (f": {place}" if place else "")
            found.append(Case(says=says(apart, 0.0, None), score=apart.value, text=text))
        return found

    def missing(self, evidence: Evidence) -> str:
        if not any(fact.quantity == self.quantity for fact in evidence.facts):
            return super().missing(evidence)
        wanted = [" beside ".join(filter(None, (self.first.told(), self.second.told())))]
        if self.second_larger_by is not None:
            wanted.append(f"a target of {self.second_larger_by:g} times the parameters of another, all else the same")
        return f"no two figures to compare: {'; '.join(filter(None, [*wanted, self.where.told()]))}"


class Varies(OfQuantity, frozen=True, kw_only=True):
    """Figures that are alike but for one thing differ from each other, by more than a margin."""

    over: Literal["part", "workload"]
    margin: float
    """Of the larger figure: what is less does not count as a difference."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.margin < 1, "margin", "a fraction from 0 to below 1", self.margin)

    def cases(self, evidence: Evidence) -> list[Case]:
        same = [field for field in FIELDS if field != self.over]
        groups = defaultdict(list)
        for fact in self.facts(evidence):
            groups[tuple(getattr(fact, field) for field in same)].append(fact)
        found = []
        for group in groups.values():
            if len(group) < 2:
                continue
            ordered = sorted(group, key=lambda fact: fact.value.value)
            least, most = ordered[0], ordered[-1]
            apart = difference(most.value, least.value, widened(len(group)))
            margin = self.margin * most.value.value
            sides = [f"{evidence.text(fact)} ({evidence.place(fact, [self.over])})" for fact in (most, least)]
            found.append(
                Case(
                    says=says(apart, margin, None),
                    score=apart.value - margin,
                    text=f"{' against '.join(sides)}: {evidence.place(most, same)}",
                )
            )
        return found

    def missing(self, evidence: Evidence) -> str:
        if not any(fact.quantity == self.quantity for fact in evidence.facts):
            return super().missing(evidence)
        what = {"part": f"{QUANTITIES[self.quantity].part.strip() or 'part'}s", "workload": "workloads"}[self.over]
        return f"no variant with figures of two {what}"


def widened(count: int) -> float:
    """Factor on an interval's arms for the most unlike two of several figures: Bonferroni over all pairs of them."""
    pairs = count * (count - 1) / 2
    return NormalDist().inv_cdf(1 - TAIL / pairs) / NormalDist().inv_cdf(1 - TAIL)


class OutputsDiffer(Claim, frozen=True, kw_only=True):
    """Outputs are not those of no speculation.

    One difference is one: it needs no interval. That there is none is told only where nearly all outputs are surely
    identical. Where outputs were not compared, mean lengths that differ over the same requests say as much.
    """

    nearly_all: float

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.nearly_all < 1, "nearly_all", "a share between 0 and 1", self.nearly_all)

    def cases(self, evidence: Evidence) -> list[Case]:
        facts = [fact for fact in evidence.facts if self.where.admits(fact)]
        found = []
        for fact in facts:
            if fact.quantity == "identical_share":
                same = fact.value
                side: Says = "for" if same.value < 1 else "against" if same.low >= self.nearly_all else "neither"
                text = f"{evidence.text(fact)} identical ({evidence.place(fact)})"
                found.append(Case(says=side, score=1 - same.value, text=text))
        if found:
            return found
        return [
            Case(
                says="for" if says(fact.value, 0.0, 0.0) == "against" else "neither",
                score=abs(fact.value.value),
                text=f"{evidence.text(fact)} in the mean ({evidence.place(fact)})",
            )
            for fact in facts
            if fact.quantity == "length_difference"
        ]

    def missing(self, evidence: Evidence) -> str:
        return f"no {QUANTITIES['identical_share'].title}"


class NoDirection(OfQuantity, frozen=True, kw_only=True):
    """Figures lie on both sides of 0.

    Contradicted where most lie on one side and none, not even the middle of an interval, on the other, and there are at
    least `least` of them: variants at one batch size have no-SD in common, and move together where it is off.
    """

    least: int
    sides: ClassVar[tuple[str, str, str]] = ("above 0", "below", "Least")

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.least >= 2, "least", "at least 2", self.least)

    def cases(self, evidence: Evidence) -> list[Case]:
        """Those above 0 are on the first side."""
        return [
            Case(
                says=says(fact.value, 0.0, None),
                score=fact.value.value,
                text=f"{evidence.text(fact)} ({evidence.place(fact)})",
            )
            for fact in self.facts(evidence)
        ]

    def word(self, counts: Counter[Says], cases: list[Case]) -> Word:
        if counts["for"] and counts["against"]:
            return "holds"
        one_side = all(case.score > 0 for case in cases) or all(case.score < 0 for case in cases)
        most = max(counts["for"], counts["against"]) > len(cases) / 2
        return "is contradicted" if most and one_side and len(cases) >= self.least else "was not tested"


PREDICATES: dict[str, type[Claim]] = {
    "within": Within,
    "order": Order,
    "varies": Varies,
    "outputs_differ": OutputsDiffer,
    "no_direction": NoDirection,
}
