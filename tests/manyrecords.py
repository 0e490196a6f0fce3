"""A run folder of as many cells as asked for: small records in the shape that studies leave, with faults in some cells.

Targets x workloads x five batch sizes, each with no-SD, its A/A twin and nine variants in two rotations of two passes
and one ``stages`` rotation. Every invariant that a report checks holds, but where a fault is planted.
"""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import msgspec

from draftproof import tables
from draftproof.analysis.lookup import lookup_trace
from draftproof.plan import AA
from draftproof.records import (
    ArmLine,
    BlockLine,
    DraftTally,
    FailureLine,
    GroupLine,
    NoiseLine,
    Output,
    RotationLine,
    RunFolder,
    ScoreLine,
    SessionLine,
    UnitKey,
    WorkloadLine,
)
from draftproof.spec import Cell, MatrixRow, Study
from tests.reporting import arm, failure, header

VARIANTS = {
    "no_sd": 1.0,
    "ngram": 0.95,
    "ngram_k5": 1.05,
    "draft_model": 0.8,
    "eagle": 1.3,
    "eagle3": 1.5,
    "mtp": 1.2,
    "oracle": 2.1,
    "adversarial": 0.7,
    "self_draft": 0.6,
}
"""Variant -> its speed relative to no-SD."""
CONTROLS = ("oracle", "adversarial")
SIZES = (1, 2, 4, 8, 16)
WORKLOADS = 20
"""Of each target."""
CELLS_OF_TARGET = len(VARIANTS) * len(SIZES) * WORKLOADS
PROMPTS = 32
PROMPT_TOKENS = 48
VOCABULARY = 49152
OUTPUT_TOKENS, STAGE_TOKENS = 32, 16
K = 3
ROTATIONS = 2
TOKEN_S = 0.02


def write_run(path: Path, cells: int) -> RunFolder:
    """`cells`: a multiple of 50; every 20th fails in its second rotation, every tenth has a near tie."""
    return Writer(path, cells).write()


def k_of(variant: str) -> int:
    return 0 if variant == "no_sd" else 5 if variant == "ngram_k5" else K


class Writer:
    """One run, unit by unit; all that is random comes from one seed."""

    def __init__(self, path: Path, cells: int) -> None:
        assert cells > 0
        assert cells % (len(VARIANTS) * len(SIZES)) == 0, "whole workloads"
        self.random = random.Random(0)
        self.count = cells
        """Cells of the run."""
        workloads = cells // (len(VARIANTS) * len(SIZES))
        self.places = [(f"target_{n // WORKLOADS}", f"workload_{n % WORKLOADS}") for n in range(workloads)]
        self.targets = list(dict.fromkeys(target for target, _ in self.places))
        self.prompts = {
            (target, workload, f"{workload}-{number:03}"): self.text(PROMPT_TOKENS)
            for target, workload in self.places
            for number in range(PROMPTS)
        }
        self.texts = {key: self.answer(prompt) for key, prompt in self.prompts.items()}
        self.folder = RunFolder.create(path, header(cells=self.cells(), study=self.study()))
        self.cell = 0
        """Number of the cell that is written."""

    def study(self) -> Study:
        rows = [
            MatrixRow(
                target=target,
                variants=list(VARIANTS),
                workloads=[workload for owner, workload in self.places if owner == target],
                batch_sizes=list(SIZES),
            )
            for target in self.targets
        ]
        return msgspec.structs.replace(
            header().study, matrix=rows, output_tokens=OUTPUT_TOKENS, stage_output_tokens=STAGE_TOKENS, rotations=2
        )

    def cells(self) -> list[Cell]:
        return self.study().cells()

    def text(self, tokens: int) -> list[int]:
        return [self.random.randrange(3, VOCABULARY) for _ in range(tokens)]

    def answer(self, prompt: list[int]) -> list[int]:
        """Now and then it repeats a piece of the prompt, so that lookup finds something."""
        text: list[int] = []
        while len(text) < OUTPUT_TOKENS:
            start = self.random.randrange(len(prompt) - 10)
            text += prompt[start : start + 10] + self.text(4)
        return text[:OUTPUT_TOKENS]

    def write(self) -> RunFolder:
        self.folder.write_prompts(self.prompts)
        self.folder.append([self.session(), *self.arms(), *self.workloads()])
        for (target, workload), size in itertools.product(self.places, SIZES):
            self.unit(UnitKey(self.targets.index(target), target, workload, size))
        self.folder.append(
            GroupLine(session=0, group=group, purposes=["speed", "stages"]) for group in range(len(self.targets))
        )
        tables.compact(self.folder.path, {line.part for line in self.folder.read().rotations})
        self.folder.write_header(msgspec.structs.replace(self.folder.header(), finished=True))
        return self.folder

    def session(self) -> SessionLine:
        return SessionLine(
            session=0,
            started="2026-01-01T00:00:00Z",
            command=["pytest", "tests_perf"],
            draftproof="0",
            git_commit=None,
            git_dirty=None,
            gpu_state=[],
        )

    def arms(self) -> list[ArmLine]:
        made = []
        for group, target in enumerate(self.targets):
            for variant in VARIANTS:
                config: dict[str, Any] = {"method": variant.split("_k")[0], "num_speculative_tokens": k_of(variant)}
                if variant.startswith("ngram"):
                    config |= {"prompt_lookup_min": 2, "prompt_lookup_max": 5}
                made.append(
                    arm(
                        variant,
                        group=group,
                        target=target,
                        speculative_config={} if variant == "no_sd" else config,
                        control=variant if variant in CONTROLS else "",
                    )
                )
            made.append(arm(f"no_sd{AA}", group=group, target=target, variant="no_sd", role="aa"))
        return made

    def workloads(self) -> list[WorkloadLine]:
        return [
            WorkloadLine(
                session=0,
                target=target,
                workload=workload,
                num_prompts=PROMPTS,
                left_out=0,
                revision=None,
                prompts_sha256="ab" * 32,
                tokenizer_sha256="cd" * 32,
            )
            for target, workload in self.places
        ]

    # -- one unit ------------------------------------------------------------------------------------------------------

    def unit(self, unit: UnitKey) -> None:
        numbers = {variant: self.cell + place for place, variant in enumerate(VARIANTS)}
        self.cell += len(VARIANTS)
        failing = {variant for variant, number in numbers.items() if number % 20 == 3}
        tied = {variant for variant, number in numbers.items() if number % 10 == 4}
        for rotation in range(ROTATIONS):
            arms = [name for name in [*VARIANTS, f"no_sd{AA}"] if rotation == 0 or name not in failing]
            ids = [f"{unit.workload}-{n:03}" for n in self.random.sample(range(PROMPTS), unit.batch_size)]
            self.rotation(unit, rotation, arms, ids, tied if rotation == 0 else set())
        self.stages(unit, [name for name in VARIANTS if name not in failing])
        self.folder.append(self.failed(unit, variant) for variant in VARIANTS if variant in failing)
        self.folder.append([self.noise(unit)])

    def rotation(self, unit: UnitKey, rotation: int, arms: list[str], ids: list[str], tied: set[str]) -> None:
        blocks, outputs = [], []
        for pass_index in (0, 1):
            for order, name in enumerate(arms if pass_index == 0 else reversed(arms)):
                made = self.outputs(unit, name, ids, OUTPUT_TOKENS, tied=name in tied)
                place = (rotation, pass_index, order + pass_index * len(arms))
                blocks.append(self.block(unit, place, name, made, "speed"))
                outputs.append(made)
        closing = self.closing(unit, rotation, arms, ids, "speed")
        self.folder.add_rotation(closing, blocks, outputs, [[] for _ in blocks])
        for variant in sorted(tied & set(arms)):
            shared = outputs[0][0].token_ids, outputs[arms.index(variant)][0].token_ids
            self.folder.append(self.scores(unit, rotation, variant, shared))

    def stages(self, unit: UnitKey, arms: list[str]) -> None:
        ids = [f"{unit.workload}-{n:03}" for n in self.random.sample(range(PROMPTS), unit.batch_size)]
        outputs = [self.outputs(unit, name, ids, STAGE_TOKENS) for name in arms]
        blocks = [self.block(unit, (0, 0, n), arms[n], made, "stages") for n, made in enumerate(outputs)]
        steps = [self.steps(arms[n], made) for n, made in enumerate(outputs)]
        self.folder.add_rotation(self.closing(unit, 0, arms, ids, "stages"), blocks, outputs, steps)

    def outputs(self, unit: UnitKey, name: str, ids: list[str], tokens: int, *, tied: bool = False) -> list[Output]:
        return [
            self.output(unit, name.removesuffix(AA), prompt_id, tokens, tied=tied and index == 0)
            for index, prompt_id in enumerate(ids)
        ]

    def output(self, unit: UnitKey, variant: str, prompt_id: str, tokens: int, *, tied: bool) -> Output:
        key = (unit.target, unit.workload, prompt_id)
        text = self.texts[key][:tokens]
        if tied:
            text = [*text[:20], *[token - 1 for token in text[20:]]]
        accepted, drafted = self.traces(variant, self.prompts[key], text)
        noise = self.random.uniform(0.95, 1.05) / VARIANTS[variant]
        return Output(text, "length", accepted, drafted, 0.05 * noise, TOKEN_S * noise * (tokens - 1))

    def traces(self, variant: str, prompt: list[int], text: list[int]) -> tuple[list[int], list[int]]:
        """Accepted and drafted tokens of each drafted step."""
        k = k_of(variant)
        if not k:
            return [], []
        lookup = lookup_trace(prompt, text, min_n=2, max_n=5, limit=k) if variant.startswith("ngram") else None
        accepted, drafted, emitted = [], [], 1
        while emitted < len(text):
            if lookup is not None:
                good, tried = int(lookup.lengths[emitted]) - 1, int(lookup.drafted[emitted])
            else:
                tried = k
                good = k if variant == "oracle" else 0 if variant == "adversarial" else self.random.randrange(k + 1)
            if tried:
                accepted.append(good)
                drafted.append(tried)
            emitted += good + 1
        return accepted, drafted

    def block(
        self, unit: UnitKey, place: tuple[int, int, int], name: str, outputs: list[Output], purpose: Any
    ) -> BlockLine:
        """`place`: rotation, pass, order."""
        variant = name.removesuffix(AA)
        steps = [step for output in outputs for step in zip(output.accepted, output.drafted, strict=True)]
        tokens = sum(len(output.token_ids) for output in outputs)
        tally = DraftTally(tokens=40, distinct=20, top_token=7, top_count=5)
        return BlockLine(
            session=0,
            **unit._asdict(),
            rotation=place[0],
            pass_index=place[1],
            order=place[2],
            arm=name,
            purpose=purpose,
            seconds=TOKEN_S * tokens / VARIANTS[variant] * self.random.lognormvariate(0.0, 0.03),
            requests=len(outputs),
            prompt_tokens=PROMPT_TOKENS * len(outputs),
            output_tokens=tokens,
            num_drafts=len(steps),
            num_draft_tokens=sum(tried for _, tried in steps),
            num_accepted_tokens=sum(good for good, _ in steps),
            num_accepted_tokens_per_pos=[sum(good > at for good, _ in steps) for at in range(k_of(variant))],
            draft_tally=tally if variant != "no_sd" and purpose == "stages" else None,
            waited_s=0.001,
            stolen_s=0.0,
        )

    def closing(self, unit: UnitKey, rotation: int, arms: list[str], ids: list[str], purpose: Any) -> RotationLine:
        part = f"g{unit.group}-{unit.workload}-b{unit.batch_size}-r{rotation:04}-{purpose}"
        return RotationLine(
            session=0,
            **unit._asdict(),
            rotation=rotation,
            purpose=purpose,
            arms=arms,
            prompt_ids=ids,
            part=part,
        )

    def steps(self, name: str, outputs: list[Output]) -> list[dict[str, Any]]:
        """A prefill step, then decode steps in which requests take part until their outputs end."""
        k = k_of(name)
        rows = []
        sizes = [self.emitted(output) for output in outputs]
        for number in range(max(map(len, sizes))):
            alive = sum(len(size) > number for size in sizes)
            drafts = sum(size[number][1] for size in sizes if len(size) > number)
            parts = {
                "draft_s": 1e-3 * self.random.random() if k and number else 0.0,
                "forward_s": 1e-2 * (1 + 0.2 * self.random.random()),
                "lm_head_s": 2e-3 * self.random.random(),
                "sample_s": 2e-4 * self.random.random(),
                "schedule_s": 1e-4 * self.random.random(),
                "prepare_s": 9e-4 * self.random.random(),
                "bookkeep_s": 1e-4 * self.random.random(),
                "update_s": 1e-4 * self.random.random(),
                "output_s": 1e-4 * self.random.random(),
            }
            rows.append(
                {
                    "kind": "decode" if number else "prefill",
                    "requests": alive,
                    "rows": alive + drafts if number else alive * PROMPT_TOKENS,
                    "draft_tokens": drafts,
                    "kv_tokens": alive * (PROMPT_TOKENS + number),
                    "step_s": sum(parts.values()) + 1e-5,
                    **parts,
                    "outside_s": 0.0,
                    "workers": 1,
                    "spread_s": 0.0,
                    "device_busy_s": None,
                    "device_idle_s": None,
                    "clock": "named scopes, host seconds",
                }
            )
        return rows

    def emitted(self, output: Output) -> list[tuple[int, int]]:
        """(Tokens, drafts) of each step; steps without a draft come last, wherever they were."""
        drafted = [(good + 1, tried) for good, tried in zip(output.accepted, output.drafted, strict=True)]
        alone = len(output.token_ids) - 1 - sum(tokens for tokens, _ in drafted)
        return [(1, 0), *drafted, *[(1, 0)] * max(0, alone)]

    def failed(self, unit: UnitKey, variant: str) -> FailureLine:
        return failure(
            group=unit.group,
            target=unit.target,
            arm=variant,
            workload=unit.workload,
            batch_size=unit.batch_size,
            message=f"arm {variant!r} ended during 'run' (signal SIGKILL)",
            log_tail="a line of the engine's log\n" * 100,
        )

    def noise(self, unit: UnitKey) -> NoiseLine:
        return NoiseLine(
            session=0,
            **unit._asdict(),
            rotation=0,
            arm="no_sd",
            positions=OUTPUT_TOKENS * unit.batch_size,
            width_nats=0.02,
            largest_nats=[0.02 / n for n in range(1, 11)],
        )

    def scores(self, unit: UnitKey, rotation: int, variant: str, texts: tuple[list[int], list[int]]) -> list[ScoreLine]:
        position = next(n for n, (left, right) in enumerate(zip(*texts, strict=True)) if left != right)
        return [
            ScoreLine(
                session=0,
                **unit._asdict(),
                rotation=rotation,
                arm=variant,
                request=0,
                position=position,
                tokens=(texts[0][position], texts[1][position]),
                texts=(" help", " provide"),
                best_logprob=-2.12,
                logprobs=(-2.12, -2.13),
                before="the end of the text before this",
                after=(" help you with it", " provide you with it"),
                by=by,
            )
            for by in ("engine", "referee")
        ]
