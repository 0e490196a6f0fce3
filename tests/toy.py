"""A toy engine for tests: a deterministic language model, drafters of known quality, planted speeds and planted faults.

Its next token is a pure function of the last three ids, so every arm gives the same outputs unless a fault is planted.
Nothing sleeps: a block's seconds are computed from its tokens, the arm's planted speed and seeded log-normal noise.
"""

from __future__ import annotations

import json
import math
import random
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from draftproof.catalog import Catalog, load_catalog
from draftproof.engines import (
    Answers,
    ArmFacts,
    BlockRequest,
    BlockResult,
    Continuation,
    NoiseRequest,
    Score,
    ScoreRequest,
    ServeRequest,
    StartRequest,
    Tokenized,
    TokenizeRequest,
    Traced,
    TraceRequest,
)
from draftproof.errors import EngineError
from draftproof.plan import REFEREE, Plan, build_plan
from draftproof.records import SCHEMA_VERSION, DraftTally, Output, RunFolder, RunHeader, SessionLine
from draftproof.resolve import CatalogResolver
from draftproof.runner import Runner
from draftproof.spec import Hardware, MatrixRow, Purpose, Study
from draftproof.tables import PARTS_S
from tests import toy_server
from tests.snapshots import LIMITS

VOCABULARY = 101
EOS, BOS, FIRST = 0, 1, 2
"""Ids below `FIRST` are never emitted but for EOS where it is not ignored."""
TOKEN_S = 0.01
"""Seconds of one output token on an arm of speed 1 and without noise."""
LOAD_S = 1.5
WAITED_S, STOLEN_S = 0.004, 0.001
"""Of every block."""
PROMPTS = {
    "short": [f"tell me {n} things about item {n} please" for n in range(6)],
    "long": [*(f"write down {'every ' * n}line of part {n}" for n in range(4)), "much too long " * 20],
}
"""``long`` holds one prompt of more words than the study's limit."""
ALL: tuple[Purpose, ...] = ("speed", "stages", "trace")


# --- the model and its drafters ---------------------------------------------------------------------------------------


def tokens_of(text: str) -> list[int]:
    """One id a word, after one BOS."""
    return [BOS, *(FIRST + zlib.crc32(word.encode()) % (VOCABULARY - FIRST) for word in text.split())]


def next_token(ids: Sequence[int]) -> int:
    a, b, c = [0, 0, *ids][-3:]
    return FIRST + (a * 31 + b * 17 + c * 7 + 5) % (VOCABULARY - FIRST)


def generate(prompt: Sequence[int], count: int, *, flip_at: int | None = None, eos_at: int | None = None) -> list[int]:
    """`count` tokens; the one at `flip_at` is wrong and the rest follows from it; `eos_at` ends the output early."""
    ids = list(prompt)
    for index in range(count):
        token = next_token(ids)
        if index == flip_at:
            token = FIRST + (token - FIRST + 1) % (VOCABULARY - FIRST)
        if index == eos_at:
            return [*ids[len(prompt) :], EOS]
        ids.append(token)
    return ids[len(prompt) :]


def speculate(length: int, k: int, wrong: Callable[[int], bool]) -> tuple[list[int], list[int]]:
    """Accepted and drafted tokens of each drafted step of an output of `length` tokens.

    The prefill step emits one token without a draft; each later step its accepted run and one more. As in vLLM, what
    the length limit cuts off the last accepted run still counts as accepted.
    """
    accepted: list[int] = []
    emitted = 1
    while emitted < length:
        good = 0
        while good < k and not wrong(emitted + good):
            good += 1
        accepted.append(good)
        emitted += good + 1
    return accepted, [k] * len(accepted)


def is_wrong(place: int, every: int) -> bool:
    """Whether a draft is wrong there: one of `every` places, without a period; 0: nowhere."""
    return bool(every) and zlib.crc32(b"%d" % place) % every == 0


# --- planted faults ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Where:
    """Blocks by arm, workload, batch size, rotation, pass and purpose; None: any."""

    arm: str | None = None
    workload: str | None = None
    batch_size: int | None = None
    rotation: int | None = None
    pass_index: int | None = None
    purpose: Purpose | None = "speed"

    def fits(self, arm: str, request: BlockRequest) -> bool:
        unit = request.unit
        wanted = (self.arm, self.workload, self.batch_size, self.rotation, self.pass_index, self.purpose)
        found = (arm, unit.workload, unit.batch_size, request.rotation, request.pass_index, request.purpose)
        return all(want is None or want == have for want, have in zip(wanted, found, strict=True))


@dataclass(frozen=True, kw_only=True)
class Flip(Where):
    """One wrong token in one request of the fitting blocks."""

    request: int = 0
    position: int = 6


@dataclass(frozen=True, kw_only=True)
class Spoil(Where):
    """The outputs of the fitting blocks are not what the model wrote."""

    change: Callable[[list[Output]], list[Output]]


@dataclass(frozen=True, kw_only=True)
class Call:
    """A block that an arm was asked for."""

    arm: str
    workload: str
    batch_size: int
    rotation: int
    pass_index: int
    purpose: Purpose
    output_tokens: int
    prompts: tuple[tuple[int, ...], ...]
    references: tuple[tuple[int, ...], ...]


@dataclass
class ToyEngine:
    """Starts toy arms, plants the given faults in them and remembers what it was asked for."""

    speeds: dict[str, float] = field(default_factory=dict)
    """Arm key -> speed relative to an arm that is not named."""
    sigma: float = 0.0
    """Spread of the log-normal noise of a block's seconds."""
    seed: int = 0
    slow: tuple[Where, ...] = ()
    """Blocks that take half as long again."""
    drift: float = 0.0
    """By how much of itself a block gets longer with each second of the engine's clock that went before its middle."""
    now_s: float = 0.0
    """The clock: loads and blocks, one after the other."""
    wrong_every: dict[str, int] = field(default_factory=lambda: {"partly": 3})
    """Variant -> one of how many positions its draft is wrong at; a variant that is not named is always right."""
    stuck: tuple[str, ...] = ()
    unclaimed_s: float = 1e-4
    """Seconds of each step that belong to no part."""
    """Keys of arms that draft one token over and over."""
    crashes: tuple[Where, ...] = ()
    interrupts: tuple[Where, ...] = ()
    """Where a KeyboardInterrupt arrives."""
    flips: tuple[Flip, ...] = ()
    spoils: tuple[Spoil, ...] = ()
    refuses: dict[str, BaseException] = field(default_factory=dict)
    """Arm key -> what its start raises."""
    no_stages: dict[str, str] = field(default_factory=dict)
    """Arm key -> why it has no stage clock."""
    gap_nats: float | None = 3.0
    """Distance of the second token of a pair to the referee's best one; None: not among the 20 best."""
    engine_gap_nats: float | None = None
    """The same in the engine's own precision; None: as the referee's, but never 0, which would be an exact tie."""
    noise_nats: float = 0.0
    """Largest distance of an engine's gap from the referee's, once a batch."""
    nan_gaps: bool = False
    """The model's log-probabilities are no numbers."""
    resolved: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Arm key -> what its vLLM made of the configuration otherwise than the others."""
    tokenize_error: EngineError | None = None
    score_error: EngineError | None = None
    serves: dict[str, toy_server.Fault | EngineError] = field(default_factory=dict)
    """Arm key -> the fault of what it serves, or why it does not answer."""
    second_bos: bool = False
    eos_at: int | None = None
    """Output position of EOS, where it is not ignored."""
    watch: Callable[[Call], None] = lambda call: None
    """Called before each block."""
    calls: list[Call] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    scored: list[ScoreRequest] = field(default_factory=list)
    """By no-SD arms."""
    refereed: list[ScoreRequest] = field(default_factory=list)
    measured: list[NoiseRequest] = field(default_factory=list)
    live: set[ToyArm] = field(default_factory=set)
    most_live: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self, request: StartRequest) -> ToyArm:
        key = request.spec.key
        with self.lock:
            self.started.append(key)
            self.now_s += LOAD_S
        if key in self.refuses:
            raise self.refuses[key]
        arm = ToyArm(self, request)
        with self.lock:
            self.live.add(arm)
            self.most_live = max(self.most_live, len(self.live))
        return arm

    def seconds(self, key: str, request: BlockRequest, tokens: int) -> float:
        """Of one block; the clock goes on by as much."""
        place = f"{self.seed}-{key}-{request.unit}-{request.rotation}-{request.pass_index}-{request.purpose}"
        noise = random.Random(place).gauss(0.0, self.sigma)
        seconds = tokens * TOKEN_S / self.speeds.get(key, 1.0) * math.exp(noise)
        seconds *= 1.5 if any(where.fits(key, request) for where in self.slow) else 1.0
        seconds *= 1 + self.drift * (self.now_s + seconds / 2)
        self.now_s += seconds
        return seconds

    def timed(self, purpose: Purpose = "speed") -> list[Call]:
        """The blocks of one purpose, in order."""
        return [call for call in self.calls if call.purpose == purpose]


class ToyArm:
    """A live toy arm; using it after its end is an error of the test."""

    def __init__(self, engine: ToyEngine, request: StartRequest) -> None:
        spec, config = request.spec, request.speculative_config
        self.engine = engine
        self.key = spec.key
        self.gone = False
        """It has crashed, and is still to be closed."""
        self.k = int(config["num_speculative_tokens"]) if config else 0
        self.wrong_every = engine.wrong_every.get(spec.variant, 0)
        lookup = [config.get(f"prompt_lookup_{end}") for end in ("min", "max")] if config else []
        self.lookup: list[int] = [int(length) for length in lookup if length is not None]
        """Shortest and longest suffix that it looks up; else it drafts from the model itself."""
        self.facts = ArmFacts(
            load_s=LOAD_S,
            environment={
                "python": "3.11.0",
                "vllm": "toy",
                "torch": "toy",
                "cpu": "toy processor",
                "cores": 2,
                "threads": 2,
                "gpus": [],
                "preloads": [],
            },
            resolved={
                "max_model_len": spec.engine.get("max_model_len"),
                "seed": spec.engine.get("seed"),
                "block_size": toy_server.LIMITS.block_tokens,
                "vocab_size": toy_server.VOCABULARY,
                **engine.resolved.get(spec.key, {}),
            },
            stages_reason=engine.no_stages.get(spec.key, ""),
        )

    def check(self) -> None:
        assert self in self.engine.live, f"{self.key} is used after it was closed"
        assert not self.gone, f"{self.key} is used after its crash"

    def run(self, request: BlockRequest) -> BlockResult:
        engine, unit = self.engine, request.unit
        self.check()
        call = Call(
            arm=self.key,
            workload=unit.workload,
            batch_size=unit.batch_size,
            rotation=request.rotation,
            pass_index=request.pass_index,
            purpose=request.purpose,
            output_tokens=request.output_tokens,
            prompts=tuple(map(tuple, request.prompts)),
            references=tuple(map(tuple, request.references)),
        )
        engine.watch(call)
        engine.calls.append(call)
        if any(where.fits(self.key, request) for where in engine.interrupts):
            raise KeyboardInterrupt
        if any(where.fits(self.key, request) for where in engine.crashes):
            self.gone = True
            raise EngineError("crash", f"arm {self.key!r} ended during 'run' (signal SIGKILL)", "the toy's last words")
        if request.purpose == "stages" and self.facts.stages_reason:
            return BlockResult(seconds=0.0, outputs=[], counters={}, stages_reason=self.facts.stages_reason)
        outputs = [self.output(request, index) for index in range(len(request.prompts))]
        for spoil in engine.spoils:
            outputs = spoil.change(outputs) if spoil.fits(self.key, request) else outputs
        return BlockResult(
            seconds=engine.seconds(self.key, request, sum(len(output.token_ids) for output in outputs)),
            outputs=outputs,
            counters=self.counters(outputs),
            steps=self.steps(request, outputs) if request.purpose == "stages" else [],
            draft_tally=self.tally(outputs) if self.k and request.purpose == "stages" else None,
            waited_s=WAITED_S,
            stolen_s=STOLEN_S,
        )

    def output(self, request: BlockRequest, index: int) -> Output:
        prompt = request.prompts[index]
        flips = [flip for flip in self.engine.flips if flip.request == index and flip.fits(self.key, request)]
        eos_at = None if request.ignore_eos else self.engine.eos_at
        flip_at = flips[0].position if flips else None
        tokens = generate(prompt, request.output_tokens, flip_at=flip_at, eos_at=eos_at)
        every, offset = self.wrong_every, len(prompt)
        accepted: list[int] = []
        drafted: list[int] = []
        if self.k:
            accepted, drafted = speculate(len(tokens), self.k, lambda position: is_wrong(position + offset, every))
        reason = "stop" if tokens[-1] == EOS else "length"
        decode_s = TOKEN_S * (len(tokens) - 1)
        return Output(tokens, reason, accepted=accepted, drafted=drafted, ttft_s=TOKEN_S, decode_s=decode_s)

    def counters(self, outputs: Iterable[Output]) -> dict[str, Any]:
        if not self.k:
            return {}
        steps = [step for output in outputs for step in output.accepted]
        return {
            "num_drafts": len(steps),
            "num_draft_tokens": self.k * len(steps),
            "num_accepted_tokens": sum(steps),
            "num_accepted_tokens_per_pos": [sum(step > place for step in steps) for place in range(self.k)],
        }

    def tally(self, outputs: Iterable[Output]) -> DraftTally:
        """As if each output token had been drafted once; a stuck drafter writes token 7 alone."""
        tokens = [7 if self.key in self.engine.stuck else token for output in outputs for token in output.token_ids]
        ((top, count),) = Counter(tokens).most_common(1)
        return DraftTally(tokens=len(tokens), distinct=len(set(tokens)), top_token=top, top_count=count)

    def steps(self, request: BlockRequest, outputs: Sequence[Output]) -> list[dict[str, Any]]:
        """A prefill step, then decode steps of plain numbers."""
        rows = []
        count = max(len(output.drafted) if self.k else len(output.token_ids) - 1 for output in outputs)
        for number in range(1 + count):
            prefill = number == 0
            alive = sum((1 + len(o.drafted) if self.k else len(o.token_ids)) > number for o in outputs)
            parts = dict.fromkeys(PARTS_S, 0.0)
            parts |= {
                "forward_s": 5e-3 * (1 + request.rotation),
                "lm_head_s": 1e-3,
                "sample_s": 5e-4,
                "schedule_s": 2e-4,
            }
            parts["draft_s"] = 7e-4 if self.k and not prefill else 0.0
            parts["step_s"] = sum(parts.values()) + self.engine.unclaimed_s
            rows.append(
                {
                    "kind": "prefill" if prefill else "decode",
                    "requests": alive,
                    "rows": alive * (1 + self.k),
                    "draft_tokens": 0 if prefill else alive * self.k,
                    "kv_tokens": 100 + number,
                    **parts,
                }
            )
        return rows

    def tokenize(self, request: TokenizeRequest) -> Tokenized:
        self.check()
        if self.engine.tokenize_error is not None:
            raise self.engine.tokenize_error
        texts = [
            prompt if isinstance(prompt, str) else " ".join(turn["content"] for turn in prompt)
            for prompt in request.prompts
        ]
        extra = [BOS] if self.engine.second_bos else []
        return Tokenized(
            token_ids=[extra + tokens_of(text) for text in texts], bos_token_id=BOS, tokenizer_sha256="toy"
        )

    def score(self, requests: list[ScoreRequest]) -> list[Score]:
        self.check()
        if self.engine.score_error is not None:
            raise self.engine.score_error
        if self.key == REFEREE:
            self.engine.refereed += requests
        else:
            self.engine.scored += requests
        best, gap = -0.125, self.engine.gap_nats
        if self.key != REFEREE:
            own = self.engine.engine_gap_nats
            gap = own if own is not None else 0.0625 if gap == 0 else gap
        return [
            Score(
                best=best,
                pair=(best, None if gap is None else best - gap),
                texts=(f"<{request.pair[0]}>", f"<{request.pair[1]}>"),
                before="so far",
                after=("so", "otherwise"),
            )
            for request in requests
        ]

    def decode_gaps(self, request: NoiseRequest) -> list[Continuation]:
        self.check()
        self.engine.measured.append(request)
        count = request.output_tokens
        widest = math.nan if self.engine.nan_gaps else self.engine.noise_nats
        return [
            Continuation(
                prompt=prompt,
                output=generate(prompt, count),
                pairs=[(FIRST, FIRST + 1)] * count,
                gaps_nats=[0.0 if number else widest, *[0.0] * (count - 1)],
            )
            for number, prompt in enumerate(request.prompts)
        ]

    def forced_gaps(self, texts: list[Continuation]) -> list[list[float | None]]:
        self.check()
        return [[0.0] * len(text.pairs) if self.key == REFEREE else [*text.gaps_nats] for text in texts]

    def serve(self, request: ServeRequest) -> Answers:
        self.check()
        fault = self.engine.serves.get(self.key)
        if isinstance(fault, EngineError):
            self.gone = True
            raise fault
        context_tokens = self.facts.resolved["max_model_len"]
        limits = msgspec.structs.replace(toy_server.LIMITS, context_tokens=context_tokens, k=self.k)
        return toy_server.ToyServer(self.k, fault=fault, limits=limits).serve(request)

    def trace(self, request: TraceRequest) -> list[Traced]:
        self.check()
        traced = []
        for index, prompt in enumerate(request.prompts):
            flips = [flip.position for flip in self.engine.flips if (flip.arm, flip.request) == (self.key, index)]
            output = generate(
                prompt, request.output_tokens, flip_at=flips[0] if flips else None, eos_at=self.engine.eos_at
            )
            drafts = [self.draft(prompt, output[:place]) for place in range(1, len(output))]
            traced.append(Traced(output=output, proposals=[[], *drafts]))
        return traced

    def draft(self, prompt: list[int], committed: list[int]) -> list[int]:
        """Up to k tokens: what followed the first earlier occurrence of the longest suffix, else its own model's."""
        text, place = [*prompt, *committed], len(prompt) + len(committed)
        if self.lookup:
            shortest, longest = self.lookup
            for n in range(longest, shortest - 1, -1):
                for begin in range(len(text) - n):
                    if text[begin : begin + n] == text[-n:]:
                        return text[begin + n : begin + n + self.k]
            return []
        right = generate(text, self.k)
        return [1 if is_wrong(place + at, self.wrong_every) else token for at, token in enumerate(right)]

    def close(self) -> None:
        with self.engine.lock:
            self.engine.live.discard(self)


# --- a catalog of toys ------------------------------------------------------------------------------------------------


def against_a_baseline() -> str:
    """Rows of the limits that a comparison needs, as TOML."""
    said = {"estimator": "'of a comparison'", "gating": "true", "source": '"the toy\'s own rule"'}
    tables = [{"metric": f"'{metric}'", **row, **said} for metric, row in LIMITS.items()]
    return "".join("\n[[threshold]]\n" + "".join(f"{key} = {value}\n" for key, value in row.items()) for row in tables)


ENTRIES = {
    "targets/toy.toml": """
        name = "toy"
        title = "a toy model"
        source = "path"
        model = "model"
        dtype = "float32"
        engine = { max_model_len = 256 }
    """,
    "targets/model/config.json": "{}",
    "variants/perfect.toml": """
        name = "perfect"
        title = "a drafter that is always right"
        method = "ngram"
        k = 3
        expected_acceptance = { at_least = 4.0, source = "the toy's own rule" }
    """,
    "variants/partly.toml": """
        name = "partly"
        title = "a drafter that is right in two of three positions"
        method = "ngram"
        k = 2
    """,
    "variants/wise.toml": """
        name = "wise"
        title = "a control that knows the output"
        method = "custom_class"
        k = 3
        control = { kind = "oracle" }
    """,
    "workloads/short.toml": """
        name = "short"
        kind = "toy"
        title = "short prompts"
        source = "file"
        path = "short.jsonl"
    """,
    "workloads/long.toml": """
        name = "long"
        kind = "toy"
        title = "longer prompts, one of them too long"
        source = "file"
        path = "long.jsonl"
    """,
    "hardware/toy.toml": """
        name = "toy"
        title = "no machine at all"
        markers = ["cpu"]
        device = "cpu"
        max_live_arms = 6
        engine = { max_num_seqs = 64 }
    """,
    "thresholds/toy.toml": """
        [[threshold]]
        metric = "speedup"
        limit = 1.0
        estimator = "ratio of totals"
        gating = true
        claims_speedup = true
        source = "the toy's own rule"

        [[threshold]]
        metric = "divergence_gap_nats"
        limit = 0.25
        estimator = "larger gap to the best token"
        gating = true
        source = "the toy's own rule"

        [[threshold]]
        metric = "noise_width_nats"
        limit = 1.0
        estimator = "largest distance of a gap from the referee's"
        gating = true
        source = "the toy's own rule"

        [[threshold]]
        metric = "divergent_share"
        limit = 0.0
        estimator = "divergent requests / requests"
        gating = true
        source = "the toy's own rule"

        [[threshold]]
        metric = "inconclusive_share"
        limit = 0.0
        estimator = "inconclusive requests / requests"
        gating = true
        source = "the toy's own rule"

        [[threshold]]
        metric = "near_tie_ratio"
        limit = 1.0
        estimator = "one-sided E-test"
        gating = true
        source = "the toy's own rule"
    """
    + against_a_baseline(),
    "studies/toy.toml": """
        name = "toy"
        title = "a study of toys"
        hardware = "toy"
        max_prompt_tokens = 40
        output_tokens = 24
        rotations = 3
        max_rotations = 3
        stage_output_tokens = 12
        stage_blocks = 2
        seed = 7

        [[matrix]]
        target = "toy"
        variants = ["perfect"]
        workloads = ["short"]
        batch_sizes = [1]
        claims_speedup = true

        [[matrix]]
        target = "toy"
        variants = ["no_sd", "perfect", "partly"]
        workloads = ["short", "long"]
        batch_sizes = [1, 3]
    """,
}

GATE_STUDY = """
name = "toy"
title = "a study of toys"
hardware = "toy"
max_prompt_tokens = 40
output_tokens = 24
rotations = 12
max_rotations = 12
stage_output_tokens = 12
stage_blocks = 2
seed = 7

[[matrix]]
target = "toy"
variants = ["no_sd", "perfect"]
workloads = ["short"]
batch_sizes = [5]
"""
"""Twelve rotations of five of the six prompts, each in an order of its own: enough for a gate."""


def write_catalog(folder: Path) -> Path:
    """The toys as an overlay for ``--sd-catalog``."""
    for name, content in ENTRIES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    for name, texts in PROMPTS.items():
        rows = [json.dumps({"id": f"{name}-{number}", "text": text}) + "\n" for number, text in enumerate(texts)]
        (folder / "workloads" / f"{name}.jsonl").write_text("".join(rows), encoding="utf-8")
    return folder


def write_gate_catalog(folder: Path) -> Path:
    """The same, with a study that is long enough for a gate."""
    write_catalog(folder)
    (folder / "studies" / "toy.toml").write_text(GATE_STUDY, encoding="utf-8")
    return folder


def toy_catalog(folder: Path) -> Catalog:
    return load_catalog(write_catalog(folder))


def with_study(catalog: Catalog, **changes: Any) -> Catalog:
    """The catalog with another toy study; ``hardware=`` takes a changed `Hardware` of the same name."""
    hardware = changes.pop("hardware", None)
    study = msgspec.structs.replace(catalog.studies["toy"], **changes)
    entries: dict[str, Any] = {"studies": {**catalog.studies, "toy": study}}
    if isinstance(hardware, Hardware):
        entries["hardware"] = {**catalog.hardware, "toy": hardware}
    return msgspec.structs.replace(catalog, **entries)


def rows(
    variants: Iterable[str], workloads: Iterable[str] = ("short",), sizes: Iterable[int] = (2,)
) -> list[MatrixRow]:
    """A matrix of one row."""
    return [MatrixRow(target="toy", variants=list(variants), workloads=list(workloads), batch_sizes=list(sizes))]


# --- a run of toys ----------------------------------------------------------------------------------------------------


class Silent:
    """Progress that is kept, not shown."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def block(self, done: int, total: int, left_s: float | None, what: str) -> None:
        assert 1 <= done <= total, f"block {done} of {total}"
        assert left_s is None or left_s >= 0


class Bench:
    """A run folder of the toy study; each `session` is a new Runner on it, as a new pytest session would make."""

    def __init__(self, path: Path, catalog: Catalog, *, two_builds: bool = False) -> None:
        self.catalog = catalog
        self.study: Study = catalog.studies["toy"]
        self.plan: Plan = build_plan(catalog, self.study, catalog.study_cells("toy"), two_builds=two_builds)
        self.progress = Silent()
        header = RunHeader(
            schema_version=SCHEMA_VERSION,
            run_id=path.name,
            plan_sha256=self.plan.sha256,
            study=self.study,
            cells=list(self.plan.cells),
            machine={},
            overlays=[],
            builds=["new", "base"] if two_builds else ["new"],
        )
        self.folder = RunFolder.create(path, header)

    def session(self, engine: ToyEngine, purposes: Iterable[Purpose] = ALL) -> ToyEngine:
        """Run what is missing; the engine is handed back."""
        line = SessionLine(
            session=len(self.folder.read().sessions),
            started="2026-01-01T00:00:00Z",
            command=["pytest"],
            draftproof="0",
            git_commit=None,
            git_dirty=None,
            gpu_state=[],
        )
        resolver = CatalogResolver(self.catalog, self.study, {}, self.progress)
        pythons = {"new": "python", "base": "base-python"}
        runner = Runner(self.plan, self.folder, engine, resolver, self.catalog.variants, pythons, self.progress, line)
        runner.execute(purposes)
        return engine
