"""What the gate finds and what it lets pass, on simulated sessions of 36 cells: the tables behind the limits' rows.

No engine is needed. The sessions, their noise and the faults are those of ``tests/power``.
Run it from anywhere: python tools/gate_power.py [--sessions N] [--hardware NAME] [--only PART ...]
Noise of a recorded run: python tools/gate_power.py --residuals-of reports/RUN > residuals.json
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from draftproof.catalog import load_catalog  # noqa: E402
from draftproof.records import RunFolder  # noqa: E402
from draftproof.spec import Threshold  # noqa: E402
from tests.power import claims  # noqa: E402
from tests.power.claims import PAIRS, SLOWDOWNS, Setting, Share  # noqa: E402
from tests.power.residuals import Residuals, recorded_noise, residuals  # noqa: E402
from tests.power.sessions import CELLS, Noise  # noqa: E402

BASES = {1: "1 run", 3: "3 runs", 10: "10 runs", 0: "other build"}
DRIFTS = (0.0, 0.05, 0.15)


def line(label: str, shares: dict[str, Share]) -> None:
    print(f"  {label:38}" + "".join(f"  {name} {share}" for name, share in shares.items()), flush=True)


def false_alarms(rows: Sequence[Threshold], sessions: int, noise: Noise) -> None:
    for base, title in BASES.items():
        line(f"against {title}", claims.false_alarms(rows, sessions, Setting(noise=noise, base_runs=base)))


def at_the_limit(rows: Sequence[Threshold], sessions: int, noise: Noise) -> None:
    for base, title in BASES.items():
        line(f"against {title}", claims.at_the_limit(rows, sessions // 5, Setting(noise=noise, base_runs=base)))


def green(rows: Sequence[Threshold], sessions: int, noise: Noise) -> None:
    for pairs in PAIRS[2:]:
        setting = Setting(noise=noise, base_runs=3, pairs=pairs)
        line(f"{pairs} pairs against 3 runs", claims.false_alarms(rows, sessions // 10, setting))


def power(rows: Sequence[Threshold], sessions: int, noise: Noise) -> None:
    rows = [msgspec.structs.replace(row, limit=2.0) if row.metric == "pairs" else row for row in rows]
    for base in (1, 0):
        found = {
            (slowdown, pairs): claims.power(
                rows, sessions // 10, Setting(noise=noise, base_runs=base, pairs=pairs), slowdown
            )
            for slowdown in SLOWDOWNS
            for pairs in PAIRS
        }
        for what in ("found", "mean", "cell"):
            print(f"  against {BASES[base]}, {what}: slowdown x pairs {', '.join(map(str, PAIRS))}")
            for slowdown in SLOWDOWNS:
                print(f"  {slowdown:6.1%}  " + "  ".join(str(found[slowdown, pairs][what]) for pairs in PAIRS))


def slowdown(rows: Sequence[Threshold], sessions: int, noise: Noise) -> None:
    for base, title in BASES.items():
        for size in (0.1, 0.15):
            shares = claims.power(rows, sessions // 5, Setting(noise=noise, base_runs=base), size)
            line(f"+{size:.0%} against {title}", shares)


def names(rows: Sequence[Threshold], sessions: int, noise: Noise) -> None:
    for base, title in BASES.items():
        print(f"  against {title}")
        for fault in claims.NAMED:
            line(fault, claims.names(rows, sessions // 5, Setting(noise=noise, base_runs=base), fault))


def drift(rows: Sequence[Threshold], sessions: int, noise: Noise) -> None:
    for size in DRIFTS:
        for order in ("rotations", "arm after arm"):
            said = claims.drifted(rows, sessions // 5, Setting(noise=noise, order=order), size)
            print(
                f"  drift {size:3.0%}, {order:13}  bias {said.bias:+.2%}  interval misses 0 {said.misses}  "
                f"REGRESSED or IMPROVED {said.verdicts}",
                flush=True,
            )


PARTS = {
    "false-alarms": (false_alarms, "Nothing changed: sessions with any such verdict"),
    "at-the-limit": (at_the_limit, "All variants slower by just what is allowed"),
    "green": (green, "Nothing changed: how many pairs until nothing is UNSTABLE"),
    "slowdown": (slowdown, "One variant's seconds up, 12 pairs"),
    "power": (power, "Power: one variant's seconds up"),
    "names": (names, "Faults by their right and by wrong names, 12 pairs"),
    "drift": (drift, "The new run drifts from its first block to its last; geometric mean of the last arm"),
}


def recorded(path: Path) -> Residuals:
    data = RunFolder(path).read()
    cpus = {str(arm.environment.get("cpu")) for arm in data.arms}
    versions = {str(arm.environment.get("vllm")) for arm in data.arms}
    source = (
        f"study {data.header.study.name!r}, {len(data.blocks)} blocks, {', '.join(cpus)}, vLLM {', '.join(versions)}"
    )
    stretches = [[round(value, 5) for value in one] for one in residuals(data.blocks)]
    return Residuals(source=source, stretches=stretches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sessions", type=int, default=1000, help="of false alarms; a fifth or a tenth for the others")
    parser.add_argument("--hardware", default="cpu", help="whose rows of fixtures/thresholds")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--outliers", type=float, default=Noise().outlier_share, help="share of blocks")
    parser.add_argument("--recorded", action="store_true", help="block noise of a recorded run instead of the model's")
    parser.add_argument("--residuals-of", type=Path, metavar="RUN", help="print the noise of a run's folder, end")
    given = parser.parse_args()
    if given.residuals_of:
        print(msgspec.json.encode(recorded(given.residuals_of)).decode())
        return
    rows = load_catalog().thresholds[given.hardware]
    noise = recorded_noise() if given.recorded else Noise(outlier_share=given.outliers)
    print(f"{CELLS} cells, rows of {given.hardware!r}, {given.sessions} sessions; 95 % intervals of shares (Wilson)")
    for name in given.only:
        part, title = PARTS[name]
        started = time.monotonic()
        print(f"\n{title}")
        part(rows, given.sessions, noise)
        print(f"  ({time.monotonic() - started:.0f} s)")


if __name__ == "__main__":
    main()
