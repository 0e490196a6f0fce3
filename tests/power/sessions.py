"""Whole sessions without an engine: snapshots as a run would leave them, with noise, drift and planted faults.

A session has 36 cells: no-SD and three speculative variants, on three workloads, at three batch sizes. Its blocks lie
in the order of time in which the runner takes them, so that a drift and noise that lasts act as they do on a machine.
Prompt sets have a speed and an acceptance of their own, which both sides of a comparison share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt
from scipy.signal import lfilter

from draftproof.snapshot import Series, SetTotals, Snapshot, StageTotals

Array = npt.NDArray[np.float64]
Order = Literal["rotations", "arm after arm"]
"""What the runner does, and what a benchmark does that starts one arm, measures it, and starts the next."""

TARGET = "toy"
PLAIN = "no_sd"
VARIANTS = ("ngram", "draft_model", "eagle3")
ARMS = (PLAIN, *VARIANTS)
WORKLOADS = ("chat", "code_edit", "summarize")
BATCH_SIZES = (1, 4, 16)
UNITS = tuple((workload, size) for workload in WORKLOADS for size in BATCH_SIZES)
CELLS = len(ARMS) * len(UNITS)
PASSES = 2
OUTPUT_TOKENS = 64

ACCEPTANCE_LENGTH = np.array([1.0, 1.5, 2.6, 2.2])
"""By arm; of no-SD: one token a step."""
STEP_S = np.array([0.030, 0.034, 0.060, 0.042])
"""By arm, of a decode step at batch size 1."""
PREFILL_STEPS = 3.0
"""What the prefill step takes, in decode steps."""


STAGE_BLOCKS = 4
STAGES = ("draft", "verify", "sample", "overhead")
STAGE_SHARES = np.array(
    [[0.0, 0.88, 0.01, 0.11], [0.02, 0.86, 0.02, 0.10], [0.42, 0.48, 0.01, 0.09], [0.2, 0.69, 0.01, 0.1]]
)
"""By arm and stage, of a decode step."""
STAGE_SD = 0.02
"""Of the log of one stage's seconds in one block, beside what the whole block shares."""


class Noise(msgspec.Struct, frozen=True, kw_only=True):
    """What seconds and counts do with nothing changed. Standard deviations are of logs."""

    block_sd: float = 0.03
    rho: float = 0.5
    """Correlation of one block's noise with the next one's in time."""
    outlier_share: float = 0.02
    outlier: tuple[float, float] = (0.2, 0.6)
    """How much longer such a block takes, from and to."""
    residuals: Sequence[Sequence[float]] = ()
    """Where given, block noise is drawn from these instead: stretches of a recorded run, each in the order of time."""
    machine_sd: float = 0.03
    """Of a run, all arms together."""
    ratio_sd: float = 0.01
    """Of a run, each speculative arm by itself."""
    drift: float = 0.0
    """From the first block of a run to its last."""
    tie_share: float = 0.02
    """Requests of a run that a tie, decided otherwise by rounding, leads to another text."""
    tie_sd: float = 0.1
    """What that does to their acceptance length."""


CALM = Noise(block_sd=0, outlier_share=0, machine_sd=0, ratio_sd=0, tie_share=0)


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """What is planted in a run: factors on what is right, 1.15 for 15 % more."""

    seconds: Mapping[str, float] = {}
    """By arm: of every block."""
    acceptance: Mapping[str, float] = {}
    """By arm: of the acceptance length of every request."""
    draft: Mapping[str, float] = {}
    """By arm: of the seconds of drafting alone; what that makes of the whole is for `seconds` to say."""
    machine: float = 1.0
    """On the seconds of all arms."""
    units: Sequence[tuple[str, int]] = UNITS
    """Where `seconds` and `acceptance` hold."""


CLEAN = Fault()


class Prompts(msgspec.Struct, frozen=True, kw_only=True):
    """What both sides of a comparison share: [set, unit, arm, request], [set, unit, arm]."""

    acceptance: Array
    """Acceptance length of each request; requests beyond the batch size are never looked at."""
    step_s: Array


def deal(rng: np.random.Generator, sets: int) -> Prompts:
    """Prompt sets, each with a speed and an acceptance of its own."""
    units, arms, most = len(UNITS), len(ARMS), max(BATCH_SIZES)
    sizes = np.array([size for _, size in UNITS], dtype=float)
    of_unit = rng.normal(0, 0.1, (1, units, arms, 1))
    of_set = rng.normal(0, 0.06, (sets, units, arms, 1))
    of_request = rng.normal(0, 0.15, (sets, units, arms, most))
    speculating = (np.arange(arms) > 0)[:, None]
    acceptance = ACCEPTANCE_LENGTH[:, None] * np.exp(speculating * (of_unit + of_set + of_request))
    speed = rng.normal(0, 0.05, (sets, units, 1)) + rng.normal(0, 0.03, (sets, units, arms))
    return Prompts(
        acceptance=np.maximum(1.0, acceptance),
        step_s=STEP_S * (1 + 0.03 * (sizes - 1))[:, None] * np.exp(speed),
    )


def run(
    rng: np.random.Generator,
    prompts: Prompts,
    noise: Noise,
    fault: Fault = CLEAN,
    *,
    order: Order = "rotations",
    run_id: str = "run",
) -> Snapshot:
    """One run of all prompt sets."""
    [snapshot] = builds(rng, prompts, noise, {run_id: fault}, order=order)
    return snapshot


def builds(
    rng: np.random.Generator,
    prompts: Prompts,
    noise: Noise,
    faults: Mapping[str, Fault],
    *,
    order: Order = "rotations",
) -> list[Snapshot]:
    """One run of several builds, all of them in the same rotations: run id -> what is planted in it."""
    sets, units, arms, _ = prompts.acceptance.shape
    block_noise = in_time(rng, noise, (sets, units, PASSES, arms * len(faults)), order) + rng.normal(
        0, noise.machine_sd
    )
    snapshots = []
    for index, (run_id, fault) in enumerate(faults.items()):
        ours = block_noise[..., index * arms : (index + 1) * arms]
        drafts, accepted, steps = counts(rng, prompts, noise, fault)
        once = prompts.step_s * (PREFILL_STEPS + steps - 1) * factors(fault.seconds, fault.units) * fault.machine
        processes = rng.normal(0, noise.ratio_sd, arms) * (np.arange(arms) > 0)
        seconds = once * np.exp(ours).sum(axis=2) * np.exp(processes)
        stages = stage_seconds(rng.spawn(1)[0], prompts, noise, fault) * np.exp(processes)[:, None]
        snapshots.append(snapshot_of(run_id, seconds, PASSES * steps, PASSES * drafts, PASSES * accepted, stages))
    return snapshots


def in_time(rng: np.random.Generator, noise: Noise, shape: tuple[int, int, int, int], order: Order) -> Array:
    """Noise and drift of every block, [set, unit, pass, arm], from one stretch of time.

    The runner's order: rotation after rotation, in each unit after unit, every arm and then every arm in reverse.
    """
    sets, units, passes, arms = shape
    count = sets * units * passes * arms
    line: Array = series_of_noise(rng, noise, count) + np.log1p(noise.drift) * np.linspace(-0.5, 0.5, count)
    if order == "arm after arm":
        apart: Array = np.moveaxis(line.reshape(arms, sets, units, passes), 0, -1)
        return apart
    found = line.reshape(shape).copy()
    found[:, :, 1] = found[:, :, 1, ::-1]
    return found


def series_of_noise(rng: np.random.Generator, noise: Noise, count: int) -> Array:
    """Log noise of blocks in the order of time."""
    if noise.residuals:
        stretches: list[float] = []
        while len(stretches) < count:
            stretches += noise.residuals[int(rng.integers(len(noise.residuals)))]
        return np.array(stretches[:count])
    shocks = rng.normal(0, 1, count)
    shocks[1:] *= np.sqrt(1 - noise.rho**2)
    lasting = noise.block_sd * lfilter([1.0], [1.0, -noise.rho], shocks)
    outliers = (rng.random(count) < noise.outlier_share) * np.log1p(rng.uniform(*noise.outlier, count))
    return np.asarray(lasting + outliers)


def counts(rng: np.random.Generator, prompts: Prompts, noise: Noise, fault: Fault) -> tuple[Array, Array, Array]:
    """Of one pass, [set, unit, arm]: drafts, accepted tokens, engine steps. Greedy: both passes count the same."""
    shape = prompts.acceptance.shape
    ties = (rng.random(shape) < noise.tie_share) * rng.normal(0, noise.tie_sd, shape)
    lengths = prompts.acceptance * np.exp(ties) * factors(fault.acceptance, fault.units)[..., None]
    decode = np.ceil((OUTPUT_TOKENS - 1) / np.maximum(1.0, lengths))
    decode[:, :, 0] = OUTPUT_TOKENS - 1
    there = np.arange(shape[-1]) < np.array([size for _, size in UNITS])[:, None, None]
    drafts = (decode * there).sum(axis=-1)
    accepted = ((OUTPUT_TOKENS - 1 - decode) * there).sum(axis=-1)
    return drafts, accepted, 1 + (decode * there).max(axis=-1)


def stage_seconds(rng: np.random.Generator, prompts: Prompts, noise: Noise, fault: Fault) -> Array:
    """Of one decode step, [block, unit, arm, stage]; the stage clock's blocks are blocks of their own."""
    calm = noise == CALM
    blocks = prompts.step_s[:STAGE_BLOCKS, ..., None] * factors(fault.seconds, fault.units)[..., None] * fault.machine
    found = blocks * STAGE_SHARES
    of_drafts = factors(fault.draft, fault.units)
    # `seconds` of the same fault holds for all stages: what is meant for drafting alone is taken off again.
    found /= np.where(of_drafts > 1, factors(fault.seconds, fault.units), 1.0)[..., None]
    found[..., 0] *= of_drafts
    own = rng.normal(0, 0.0 if calm else STAGE_SD, found.shape)
    return np.asarray(found * np.exp(own + rng.normal(0, noise.block_sd, blocks.shape)))


def factors(by_arm: Mapping[str, float], where: Sequence[tuple[str, int]]) -> Array:
    """[unit, arm]: what a fault multiplies by."""
    return np.array([[by_arm.get(arm, 1.0) if unit in where else 1.0 for arm in ARMS] for unit in UNITS])


def snapshot_of(run_id: str, seconds: Array, steps: Array, drafts: Array, accepted: Array, stage_s: Array) -> Snapshot:
    """All [set, unit, arm], both passes added; `stage_s`: [block, unit, arm, stage] of one decode step."""
    series = []
    for number, (workload, size) in enumerate(UNITS):
        tokens = PASSES * size * OUTPUT_TOKENS
        by_arm = {}
        clocked = {}
        for place, arm in enumerate(ARMS):
            clocked[arm] = [
                StageTotals(
                    prompts=f"{workload}-{size}-{index}",
                    decode_steps=OUTPUT_TOKENS,
                    seconds={stage: OUTPUT_TOKENS * value for stage, value in zip(STAGES, block.tolist(), strict=True)},
                )
                for index, block in enumerate(stage_s[:, number, place])
            ]
            columns = (array[:, number, place].tolist() for array in (seconds, steps, drafts, accepted))
            by_arm[arm] = [
                SetTotals(
                    prompts=f"{workload}-{size}-{index}",
                    tokens=tokens,
                    seconds=taken,
                    steps=int(stepped),
                    num_drafts=0 if arm == PLAIN else int(drafted),
                    num_accepted_tokens=0 if arm == PLAIN else int(kept),
                )
                for index, (taken, stepped, drafted, kept) in enumerate(zip(*columns, strict=True))
            ]
        series += [
            Series(
                target=TARGET,
                variant=arm,
                workload=workload,
                batch_size=size,
                held={"dtype": "bfloat16"},
                sets=by_arm[arm],
                base_sets=[] if arm == PLAIN else by_arm[PLAIN],
                stages=clocked[arm],
                base_stages=[] if arm == PLAIN else clocked[PLAIN],
                throughput="PASS",
                determinism="PASS",
            )
            for arm in ARMS
        ]
    return Snapshot(
        run_id=run_id,
        study="toy",
        hardware="cpu",
        taken="2026-01-01T00:00:00+00:00",
        command=["pytest"],
        git_commit=None,
        git_dirty=None,
        versions={},
        held={"threads": 2},
        series=series,
    )
