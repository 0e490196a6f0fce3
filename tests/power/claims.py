"""What is claimed of the gate, counted over simulated sessions. `tools/gate_power.py` prints it, the tests bound it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
import numpy as np

from draftproof.analysis.stats import wilson
from draftproof.comparison import Compared, Finding, compare
from draftproof.gate import GREEN, Verdict
from draftproof.movers import mean_place
from draftproof.spec import Threshold
from tests.power.sessions import (
    ARMS,
    CLEAN,
    PLAIN,
    STAGE_SHARES,
    TARGET,
    VARIANTS,
    Fault,
    Noise,
    Order,
    builds,
    deal,
    run,
)

VICTIM = VARIANTS[1]
"""The variant that a fault of one variant is planted in."""
DRAFT_SHARE = float(STAGE_SHARES[ARMS.index(VICTIM), 0])
"""Of a decode step."""
CELL = f"{TARGET}-{VICTIM}-chat-b4"
SLOWDOWNS = (0.05, 0.075, 0.1, 0.15, 0.2)
PAIRS = (4, 8, 12, 16, 24, 48)

Rows = Sequence[Threshold]
Seen = Callable[[Finding], bool]


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """How a session is compared with what came before."""

    noise: Noise = Noise()
    base_runs: int = 1
    """0: with the other build of the same rotations."""
    pairs: int = 12
    order: Order = "rotations"


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """Sessions in which something was seen."""

    count: int
    of: int

    @property
    def value(self) -> float:
        return self.count / self.of

    @property
    def low(self) -> float:
        return wilson(self.count, self.of)[0]

    @property
    def high(self) -> float:
        return wilson(self.count, self.of)[1]

    def __str__(self) -> str:
        return f"{self.value:6.1%} [{self.low:.1%}, {self.high:.1%}]"


def compared(rows: Rows, sessions: int, seed: int, setting: Setting, fault: Fault = CLEAN) -> Iterator[Compared]:
    """Sessions with `fault` against clean ones, each pair with prompts of its own."""
    for number in range(sessions):
        rng = np.random.default_rng([seed, number])
        prompts = deal(rng, setting.pairs)
        if setting.base_runs:
            base = [
                run(rng, prompts, setting.noise, order=setting.order, run_id=f"base{index}")
                for index in range(setting.base_runs)
            ]
            new = run(rng, prompts, setting.noise, fault, order=setting.order)
            yield compare(base, [new], rows)
        else:
            old, new = builds(rng, prompts, setting.noise, {"base": CLEAN, "new": fault}, order=setting.order)
            yield compare([old], [new], rows, same_run=True)


def tally(sessions: Iterable[Compared], **seen: Seen) -> dict[str, Share]:
    """In how many sessions any finding is one of those asked for."""
    counts = dict.fromkeys(seen, 0)
    total = 0
    for session in sessions:
        total += 1
        for name, asked in seen.items():
            counts[name] += any(map(asked, session.findings))
    return {name: Share(count=count, of=total) for name, count in counts.items()}


def says(
    verdict: Verdict, *arms: str, gate: str | None = None, mean: bool | None = None, place: str | None = None
) -> Seen:
    """A finding with this verdict on any of these arms, at this gate; `mean`: of all cells, or of one."""

    def asked(finding: Finding) -> bool:
        return (
            finding.verdict == verdict
            and (not arms or finding.arm in arms)
            and (gate is None or finding.gate == gate)
            and (mean is None or finding.place.endswith("geometric mean") == mean)
            and (place is None or finding.place == place)
        )

    return asked


def put_down_to_no_sd(finding: Finding) -> bool:
    """A ratio whose change is said to be no-SD's."""
    return finding.arm == PLAIN and finding.gate == "system"


def not_green(finding: Finding) -> bool:
    return finding.counts and finding.verdict not in GREEN


def false_alarms(rows: Rows, sessions: int, setting: Setting, seed: int = 1) -> dict[str, Share]:
    """Nothing was changed."""
    return tally(
        compared(rows, sessions, seed, setting),
        regressed=says("REGRESSED"),
        improved=says("IMPROVED"),
        not_green=not_green,
    )


def at_the_limit(rows: Rows, sessions: int, setting: Setting, seed: int = 2) -> dict[str, Share]:
    """All variants are slower by as much as is allowed: where the test errs most often."""
    limit = next(row.limit for row in rows if row.metric == "system_cost_rise")
    fault = Fault(seconds=dict.fromkeys(VARIANTS, 1 + limit))
    return tally(compared(rows, sessions, seed, setting, fault), regressed=says("REGRESSED"))


def power(rows: Rows, sessions: int, setting: Setting, slowdown: float, seed: int = 3) -> dict[str, Share]:
    """One variant is slower, in all its cells: is it found at all, in its geometric mean, in one given cell?"""
    fault = Fault(seconds={VICTIM: 1 + slowdown})
    return tally(
        compared(rows, sessions, seed, setting, fault),
        found=says("REGRESSED", VICTIM),
        mean=says("REGRESSED", VICTIM, mean=True),
        cell=says("REGRESSED", VICTIM, place=CELL),
        others=says("REGRESSED", *(variant for variant in VARIANTS if variant != VICTIM)),
        drafter=says("REGRESSED", gate="drafter"),
        put_down_to_no_sd=put_down_to_no_sd,
    )


class Named(msgspec.Struct, frozen=True, kw_only=True):
    """A fault, and the findings that call it by its right name and by wrong ones."""

    fault: Fault
    right: Seen
    wrong: Seen


NAMED = {
    "one variant's seconds +15 %": Named(
        fault=Fault(seconds={VICTIM: 1.15}),
        right=says("REGRESSED", VICTIM, gate="system"),
        wrong=says("REGRESSED", gate="drafter"),
    ),
    "one variant's acceptance length -15 %": Named(
        fault=Fault(acceptance={VICTIM: 0.85}),
        right=says("REGRESSED", VICTIM, gate="drafter"),
        wrong=says("REGRESSED", gate="system"),
    ),
    "one variant's drafting +40 %": Named(
        fault=Fault(draft={VICTIM: 1.4}, seconds={VICTIM: 1 + 0.4 * DRAFT_SHARE}),
        right=says("REGRESSED", VICTIM, gate="draft stage"),
        wrong=says("REGRESSED", gate="verify stage"),
    ),
    "all variants' seconds +15 %": Named(
        fault=Fault(seconds=dict.fromkeys(VARIANTS, 1.15)),
        right=says("REGRESSED", *VARIANTS, gate="system"),
        wrong=put_down_to_no_sd,
    ),
    "no-SD 15 % faster": Named(
        fault=Fault(seconds={PLAIN: 1 / 1.15}),
        right=put_down_to_no_sd,
        wrong=says("REGRESSED", *VARIANTS),
    ),
    "no-SD's seconds +15 %": Named(
        fault=Fault(seconds={PLAIN: 1.15}),
        right=says("REGRESSED", PLAIN),
        wrong=says("IMPROVED"),
    ),
    "all arms' seconds +10 %": Named(
        fault=Fault(machine=1.1),
        right=says("REGRESSED", PLAIN),
        wrong=says("REGRESSED", *VARIANTS),
    ),
}


def names(rows: Rows, sessions: int, setting: Setting, fault: str, seed: int = 4) -> dict[str, Share]:
    """How often a fault goes by its right name, by a wrong one, and is put down to no-SD."""
    named = NAMED[fault]
    found = compared(rows, sessions, seed, setting, named.fault)
    return tally(found, right=named.right, wrong=named.wrong, put_down_to_no_sd=put_down_to_no_sd)


class Drifted(msgspec.Struct, frozen=True, kw_only=True):
    """What a drift during the new run does to the geometric mean of the last arm's step over no-SD's."""

    bias: float
    """Mean of the estimated change; nothing was changed."""
    misses: Share
    """Sessions whose 95 % interval does not hold 0."""
    verdicts: Share
    """Sessions in which anything is REGRESSED or IMPROVED."""


def drifted(rows: Rows, sessions: int, setting: Setting, drift: float, seed: int = 5) -> Drifted:
    """The new run drifts, the baseline did not."""
    changes, misses, verdicts = [], 0, 0
    for number in range(sessions):
        rng = np.random.default_rng([seed, number])
        prompts = deal(rng, setting.pairs)
        base = run(rng, prompts, setting.noise, order=setting.order, run_id="base")
        drifting = msgspec.structs.replace(setting.noise, drift=drift)
        said = compare([base], [run(rng, prompts, drifting, order=setting.order)], rows)
        [mean] = [one for one in said.of(mean_place(TARGET, ARMS[-1])) if one.gate == "system"]
        assert mean.change is not None
        assert mean.low is not None
        assert mean.high is not None
        changes.append(mean.change)
        misses += not mean.low <= 0 <= mean.high
        verdicts += any(one.verdict in ("REGRESSED", "IMPROVED") for one in said.findings)
    return Drifted(
        bias=float(np.mean(changes)),
        misses=Share(count=misses, of=sessions),
        verdicts=Share(count=verdicts, of=sessions),
    )
