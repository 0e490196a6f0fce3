"""What is claimed of the gate, counted over simulated sessions. `tools/gate_power.py` prints it, the tests bound it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
import numpy as np

from draftproof.analysis.stats import wilson
from draftproof.comparison import Compared, Finding, GateName, compare
from draftproof.gate import Verdict
from draftproof.spec import Threshold
from tests.power.sessions import CLEAN, PLAIN, VARIANTS, Fault, Noise, Order, builds, deal, run

VICTIM = VARIANTS[1]
"""The variant that a fault of one variant is planted in."""
SLOWDOWNS = (0.05, 0.075, 0.1, 0.15, 0.2)
PAIRS = (4, 8, 12, 16, 24, 48)

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

    def __str__(self) -> str:
        low, high = wilson(self.count, self.of)
        return f"{self.value:6.1%} [{low:.1%}, {high:.1%}]"


def compared(
    rows: Sequence[Threshold], sessions: int, seed: int, setting: Setting, fault: Fault = CLEAN
) -> Iterator[Compared]:
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
    verdict: Verdict, *arms: str, gate: GateName | None = None, mean: bool | None = None, place: str | None = None
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


def names_no_sd(finding: Finding) -> bool:
    """A ratio whose change is put down to no-SD."""
    return finding.arm == PLAIN and finding.gate == "system"
