"""What is said of each series: a verdict, the commits between which it changed, the arm, and what is past. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from draftproof.gate import limit_of
from draftproof.history.changes import MIN_NIGHTS, STABLE_NIGHTS, Found, Limit, Step, examine
from draftproof.history.rows import FIGURES, Row
from draftproof.history.series import Night, Series, all_series
from draftproof.plan import is_no_sd
from draftproof.spec import Threshold

Verdict = Literal["regression", "suspicious", "no_regression", "insufficient_data"]
Arm = Literal["SD", "no-SD", "both"]
Kind = Literal["regression", "suspicious", "recovered", "improvement", "further", "no_sd_faster"]
"""Of a change. The first two are of now, the others are past or told: a recovered regression, a new best level, a
further step down while a regression went on, and a speedup that fell since no-SD rose."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A change of level and where it came from."""

    kind: Kind
    change: float
    """Relative, of the figure itself: -0.1 is a tenth less."""
    last_before: Night
    first: Night
    until: Night | None = None
    """Of what is past: the night that it was over."""
    arm: Arm | None = None
    """Whose throughput moved; None: not told apart."""

    @property
    def commits(self) -> str:
        if self.last_before.commit == self.first.commit:
            return f"{self.first.named} on both nights: look at the machine first"
        return f"{self.last_before.named} .. {self.first.named}"


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    series: Series
    verdict: Verdict
    reason: str
    gating: bool
    """Whether a regression here is one of the exit status: its limit gates, and the series has not ended."""
    limit: float
    """Relative."""
    spread: float
    """Of one night, on the log scale."""
    reference: float | None
    current: Change | None
    """Of a regression or a suspicious night."""
    past: list[Change]


class Arms(NamedTuple):
    """Throughput of both arms of a cell, night by night."""

    sd: Series | None
    no_sd: Series | None


def judge(rows: Sequence[Row], limits: dict[str, list[Threshold]]) -> list[Judged]:
    """Every series that has a limit. Raises DraftproofError where one has none.

    `limits`: thresholds by hardware, as the catalog holds them.
    """
    series = all_series(rows, limits)
    by_name = {(one.track, one.held, one.prompts): one for one in series}

    def sibling(one: Series, metric: str) -> Series | None:
        return by_name.get(((*one.track[:-1], metric), one.held, one.prompts))

    return [
        judge_series(
            one,
            limit_of(limits.get(one.cell.hardware, []), FIGURES[one.metric].limit, one.cell),
            Arms(sibling(one, "tokens_per_s"), sibling(one, "base_tokens_per_s")),
        )
        for one in series
        if FIGURES[one.metric].limit
    ]


def judge_series(series: Series, row: Threshold, arms: Arms) -> Judged:
    figure = FIGURES[series.metric]
    absolute = (row.absolute or 0.0) if figure.same_unit else 0.0
    limit = Limit(relative=row.limit, better=figure.better, absolute=absolute)
    nights, told = series.counting, list[Change]()
    found = look(nights, limit)
    current = change_now(series, nights, found, limit, arms)
    while current is not None and (series.metric, current.arm) == ("speedup", "no-SD"):
        # A faster no-SD is no regression of speculation. From there on the speedup has a new level and is judged anew:
        # it would gate for ever, and hide what comes next.
        begun = nights.index(current.first)
        told += [change for change in past_changes(nights, found, limit) if nights.index(change.first) < begun]
        told.append(msgspec.structs.replace(current, kind="no_sd_faster"))
        nights = nights[begun:]
        found = look(nights, limit)
        current = change_now(series, nights, found, limit, arms)
    explained = bool(told) and found.verdict == "insufficient_data"
    verdict: Verdict = "no_regression" if explained else found.verdict
    past = told + past_changes(nights, found, limit)
    return Judged(
        series=series,
        verdict=verdict,
        reason=reason(series, verdict, current, past, row),
        gating=row.gating and not series.ended,
        limit=row.limit,
        spread=found.spread,
        reference=None if found.reference is None else limit.value(found.reference),
        current=current,
        past=past,
    )


def figure(night: Night) -> float:
    """Of a night that counts."""
    if night.compared is None:
        raise ValueError(f"run {night.run_id!r} does not count")
    return night.compared


def look(nights: Sequence[Night], limit: Limit) -> Found:
    return examine([figure(night) for night in nights], limit)


def change_now(series: Series, nights: Sequence[Night], found: Found, limit: Limit, arms: Arms) -> Change | None:
    """The regression that goes on, or the newest night where it is worse."""
    if found.current is not None:
        first, reference = found.current.first, found.current.reference
    elif found.verdict == "suspicious" and found.reference is not None:
        first, reference = len(nights) - 1, found.reference
    else:
        return None
    before, after = nights[max(0, first - STABLE_NIGHTS) : first], nights[first : first + STABLE_NIGHTS]
    return Change(
        kind="regression" if found.current is not None else "suspicious",
        change=relative(nights[first:], reference, limit),
        last_before=nights[first - 1],
        first=nights[first],
        arm=arm_of(series, before, after, arms, limit),
    )


def relative(nights: Sequence[Night], reference: float, limit: Limit) -> float:
    """Of the nights' median against a level."""
    return float(np.median([figure(night) for night in nights])) / limit.value(reference) - 1


def arm_of(series: Series, before: Sequence[Night], after: Sequence[Night], arms: Arms, limit: Limit) -> Arm | None:
    """Whose throughput moved between the nights before a change and those after it; None: not to be told."""
    if is_no_sd(series.cell.variant):
        return "no-SD"
    if series.metric == "acceptance_length":
        return "SD"
    names = [night.run_id for night in before], [night.run_id for night in after]
    sd = arms.sd.shift(*names) if arms.sd else None
    no_sd = arms.no_sd.shift(*names) if arms.no_sd else None
    if sd is None or no_sd is None:
        return None
    if series.metric == "speedup":
        return "no-SD" if -sd <= limit.log and no_sd > -sd else "SD"
    return "both" if sd < 0 and no_sd < sd / 2 else "SD"


def past_changes(nights: Sequence[Night], found: Found, limit: Limit) -> list[Change]:
    """What does not gate, in the order of time."""

    def step_change(kind: Kind, step: Step) -> Change:
        change = limit.value(step.after) / limit.value(step.before) - 1
        return Change(kind=kind, change=change, last_before=nights[step.first - 1], first=nights[step.first])

    told = [
        Change(
            kind="recovered",
            change=relative(nights[episode.first : episode.until], episode.reference, limit),
            last_before=nights[episode.first - 1],
            first=nights[episode.first],
            until=nights[episode.until],
        )
        for episode in found.episodes
        if episode.until is not None
    ]
    told += [step_change("improvement", step) for step in found.improvements]
    told += [step_change("further", step) for step in found.further]
    return sorted(told, key=lambda change: (change.first.taken, change.first.run_id))


def reason(series: Series, verdict: Verdict, current: Change | None, past: Sequence[Change], row: Threshold) -> str:
    """One sentence."""
    if current is not None:
        whose = {"SD": "the SD arm", "no-SD": "the no-SD arm", "both": "both arms: the engine or the machine"}
        arm = f"; {whose[current.arm]} moved" if current.arm else ""
        confirmed = "" if current.kind == "regression" else ", one night only"
        return (
            f"{percent(current.change)} since {current.first.date}{confirmed} "
            f"(limit {100 * row.limit:g} %); commits {current.commits}{arm}"
        )
    if verdict == "insufficient_data":
        return f"{len(series.counting)} nights count of the {MIN_NIGHTS} needed, {STABLE_NIGHTS} of them alike"
    if past and past[-1].kind == "no_sd_faster":
        last = past[-1]
        return f"{percent(last.change)} since {last.first.date} because no-SD got faster: judged anew from there"
    return f"within {100 * row.limit:g} % of its best stable level, or of its noise"


def percent(change: float) -> str:
    return f"{100 * change:+.1f} %"
