"""Rows of the history as series of nights that may be compared with each other. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from draftproof.analysis.held import differences
from draftproof.gate import limit_of
from draftproof.history.rows import Row
from draftproof.spec import Cell, Threshold

ENDED_AFTER = 7
"""Runs of its study on its hardware, none of them in a series: the series has ended, and no longer gates."""
NOT_COUNTED = ("FAILED", "INCOMPARABLE")

Track = tuple[str, str, str, str, str, int, str]
"""Study, hardware, the cell's four parts, metric."""


class Night(msgspec.Struct, frozen=True, kw_only=True):
    """One run in a series."""

    run_id: str
    taken: str
    commit: str
    ref: str
    command: str
    value: float | None
    """As the run's report shows it."""
    compared: float | None
    """Geometric mean over the prompt sets that all counting nights have; None: the night does not count."""
    low: float | None
    high: float | None
    skipped: str
    """Why the night does not count; empty where it does."""

    @property
    def date(self) -> str:
        return self.taken[:10]

    @property
    def named(self) -> str:
        return f"{self.commit} ({self.ref})" if self.ref else self.commit


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of one cell on one machine, in the order of time."""

    track: Track
    fingerprint: str
    held: str
    prompts: str
    """Digest of the first prompt set."""
    nights: list[Night]
    sets: int
    """Prompt sets that all counting nights have."""
    ended: bool

    @property
    def cell(self) -> Cell:
        study, hardware, target, variant, workload, batch_size, _ = self.track
        return Cell(
            study=study,
            hardware=hardware,
            target=target,
            variant=variant,
            workload=workload,
            batch_size=batch_size,
            batching="",
            output_tokens=0,
            num_prompts=None,
        )

    @property
    def metric(self) -> str:
        return self.track[-1]

    @property
    def counting(self) -> list[Night]:
        return [night for night in self.nights if night.compared is not None]

    def shift(self, before: Iterable[str], after: Iterable[str]) -> float | None:
        """Change of the logarithm between the medians of two lists of run ids; None: no night of one of them counts."""
        values = {night.run_id: night.compared for night in self.nights}
        sides = [[math.log(found) for name in names if (found := values.get(name))] for names in (before, after)]
        return float(np.median(sides[1]) - np.median(sides[0])) if all(sides) else None


def all_series(rows: Sequence[Row], limits: dict[str, list[Threshold]]) -> list[Series]:
    """Tracks in their order of name; of a track its machines in the order of their first night."""
    tracks: dict[Track, list[Row]] = {}
    runs: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for row in sorted(rows, key=lambda row: (row.taken, row.run_id)):
        tracks.setdefault(track_of(row), []).append(row)
        runs.setdefault((row.study, row.hardware), set()).add((row.taken, row.run_id))
    found = []
    for track, ours in sorted(tracks.items()):
        recent = {run_id for _, run_id in sorted(runs[track[0], track[1]])[-ENDED_AFTER:]}
        for alike in split(ours):
            found.append(series_of(track, alike, limits.get(track[1], []), recent))
    return found


def track_of(row: Row) -> Track:
    return (row.study, row.hardware, row.target, row.variant, row.workload, row.batch_size, row.metric)


def split(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows of one track, by what is held and by prompts; a night without a figure goes with the night before it."""
    series: dict[tuple[str, str], list[Row]] = {}
    waiting: list[Row] = []
    last: list[Row] | None = None
    for row in rows:
        if row.sets:
            last = series.setdefault((row.held, row.sets[0]), waiting)
            last.append(row)
            waiting = []
        elif last is not None:
            last.append(row)
        else:
            waiting.append(row)
    return list(series.values()) or [waiting]


def series_of(track: Track, rows: Sequence[Row], limits: list[Threshold], recent: set[str]) -> Series:
    named = next((row for row in rows if row.sets), rows[0])
    bare = Series(
        track=track,
        fingerprint=named.fingerprint,
        held=named.held,
        prompts=named.sets[0] if named.sets else "",
        nights=[],
        sets=0,
        ended=not any(row.run_id in recent for row in rows),
    )
    skipped = [why_skipped(row, limits, bare.cell) for row in rows]
    counting = [row for row, why in zip(rows, skipped, strict=True) if not why]
    shared = set.intersection(*(set(row.sets) for row in counting)) if counting else set()
    nights = [
        Night(
            run_id=row.run_id,
            taken=row.taken,
            commit=row.commit_under_test,
            ref=row.ref,
            command=row.command,
            value=row.value,
            compared=None if why else geometric_mean(row, shared),
            low=row.low,
            high=row.high,
            skipped=why,
        )
        for row, why in zip(rows, skipped, strict=True)
    ]
    return msgspec.structs.replace(bare, nights=nights, sets=len(shared))


def geometric_mean(row: Row, shared: set[str]) -> float:
    """Each prompt set counts once, however often it was dealt."""
    logs: dict[str, list[float]] = {}
    for prompts, value in zip(row.sets, row.by_set, strict=True):
        if prompts in shared:
            logs.setdefault(prompts, []).append(math.log(value))
    return math.exp(sum(sum(found) / len(found) for found in logs.values()) / len(logs))


def why_skipped(row: Row, limits: list[Threshold], cell: Cell) -> str:
    """Why a night does not count; empty where it does. Raises DraftproofError without a limit to what it waited."""
    if row.throughput in NOT_COUNTED:
        return f"{row.throughput}: {row.reason}" if row.reason else row.throughput
    if row.value is None or not row.sets:
        return "no figure"
    if row.waiting is not None and row.waiting > limit_of(limits, "waiting_share", cell).limit:
        return f"busy machine: {100 * row.waiting:.0f} % of its threads' time without a CPU"
    return ""


def machine_changes(series: Sequence[Series]) -> list[str]:
    """Where a track goes on under another fingerprint or with other prompts, a sentence once."""
    told: dict[str, None] = {}
    for earlier, later in itertools.pairwise(series):
        if earlier.track != later.track:
            continue
        old, new = (msgspec.json.decode(one.held) for one in (earlier, later))
        what = "; ".join(differences(old, new)) or "other prompts"
        told[
            f"{later.track[0]} on {later.track[1]}: {later.fingerprint} from {later.nights[0].date} on is a series of "
            f"its own beside {earlier.fingerprint}: {what}"
        ] = None
    return list(told)
