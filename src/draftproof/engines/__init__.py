"""Engines: what runs an arm. One protocol, one registry; an engine's module is imported when it is chosen."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, Protocol

import msgspec

from draftproof.errors import unknown
from draftproof.plan import ArmSpec
from draftproof.records import Axis, DraftTally, Output, UnitKey
from draftproof.scenarios import Asked, Received
from draftproof.spec import Control, Hardware, Purpose, Sampling


class StartRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that an engine needs to start an arm."""

    spec: ArmSpec
    group: int
    hardware: Hardware
    model: str
    """What vLLM loads: a folder or a hub id."""
    revision: str | None
    speculative_config: dict[str, Any] | None
    control: Control | None = None
    python: str
    log: Path


class BlockRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One batch to run to its end. `unit`, `rotation` and `pass_index` identify it for a replay."""

    unit: UnitKey
    rotation: int
    pass_index: int
    purpose: Purpose
    prompts: list[list[int]]
    sampling: Sampling
    output_tokens: int
    ignore_eos: bool
    references: list[list[int]] = []
    """For a control proposer: the output that it takes for granted, prompt by prompt; empty: it drafts nothing."""
    seed: int | None = None
    """Of each request's sampling; None: the engine's own stream."""
    axis: Axis | None = None
    """Of blocks of the noise floor."""


class BlockResult(msgspec.Struct, frozen=True, kw_only=True):
    seconds: float
    outputs: list[Output]
    counters: dict[str, Any]
    steps: list[dict[str, Any]] = []
    stages_reason: str = ""
    """Why there are no steps, where they were asked for."""
    draft_tally: DraftTally | None = None
    draft_tally_reason: str = ""
    """Why there is no tally, where there are steps of an arm that speculates."""
    waited_s: float | None = None
    """As in `draftproof.records.BlockLine`."""
    stolen_s: float | None = None


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Prompts of one workload: each a text, or chat messages for the target's template."""

    target: str
    workload: str
    ids: list[str]
    prompts: list[Any]
    template_options: dict[str, Any]


class Tokenized(msgspec.Struct, frozen=True, kw_only=True):
    token_ids: list[list[int]]
    bos_token_id: int | None
    tokenizer_sha256: str
    """Of the vocabulary."""


class ScoreRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A first difference to be scored: which token comes after `prefix`, `pair[0]` (no-SD) or `pair[1]`?"""

    unit: UnitKey
    rotation: int
    arm: str
    request: int
    position: int
    prefix: list[int]
    pair: tuple[int, int]
    after: tuple[list[int], list[int]] = ([], [])
    """How both outputs go on, the pair included: only to be shown as text."""


class Score(msgspec.Struct, frozen=True):
    """Log-probabilities of the best token and of the pair (None: not among the 20 best, or not finite), and texts."""

    best: float | None
    pair: tuple[float | None, float | None]
    texts: tuple[str, str]
    before: str = ""
    after: tuple[str, str] = ("", "")


class NoiseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One batch on whose continuation the gaps between two tokens are measured."""

    unit: UnitKey
    rotation: int
    prompts: list[list[int]]
    output_tokens: int


class Continuation(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine wrote after a prompt, and how sure it was: at each position its two best tokens and their gap."""

    prompt: list[int]
    output: list[int]
    pairs: list[tuple[int, int]]
    """One pair a position of the output."""
    gaps_nats: list[float]
    """Log-probability of the first of the pair less that of the second, one a position; NaN from a broken model."""


class Scripted(msgspec.Struct, frozen=True, kw_only=True):
    """What a scripted control knows of one prompt: a reference for its output, and its plan of drafts."""

    prompt: list[int]
    reference: list[int]
    plan: list[list[int]]


class ServeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One batch of unlike requests, as users send them."""

    requests: list[Asked]
    script: list[Scripted] = []
    """For an arm with a scripted control; its first entry that holds counts."""


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    received: list[Received]
    """In the order of the requests."""
    eos_token_id: int | None
    more_stop_ids: list[int]
    """Further ids that end an output where EOS is not ignored."""


class TraceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A batch of different prompts whose plain greedy outputs are traced; EOS ends an output."""

    prompts: list[list[int]]
    output_tokens: int


class Traced(msgspec.Struct, frozen=True, kw_only=True):
    """One request, whose every step committed one token."""

    output: list[int]
    proposals: list[list[int]]
    """As long as the output: the draft from 0, 1, ... committed tokens; none from 0, which is the prefill."""


class ArmFacts(msgspec.Struct, frozen=True, kw_only=True):
    load_s: float
    environment: dict[str, Any]
    resolved: dict[str, Any]
    stages_reason: str
    """Why stages cannot be clocked; empty where they can."""


class LiveArm(Protocol):
    """A started arm. Every call may raise EngineError; after a crash or a time-out the arm is gone."""

    facts: ArmFacts

    def run(self, request: BlockRequest) -> BlockResult: ...

    def tokenize(self, request: TokenizeRequest) -> Tokenized: ...

    def score(self, requests: list[ScoreRequest]) -> list[Score]: ...

    def decode_gaps(self, request: NoiseRequest) -> list[Continuation]:
        """Write on after each prompt, greedily, one row a request and step."""

    def forced_gaps(self, texts: list[Continuation]) -> list[list[float | None]]:
        """The gaps of the same pairs with the text given (one row a token, all at once); text by text.

        None: one token of the pair is not among the 20 best here.
        """

    def serve(self, request: ServeRequest) -> Answers: ...

    def trace(self, request: TraceRequest) -> list[Traced]:
        """What the arm's proposer drafts at every position of the plain output, prompt by prompt."""

    def close(self) -> None: ...


class Engine(Protocol):
    def start(self, request: StartRequest) -> LiveArm: ...


ENGINES = {"vllm": "draftproof.engines.vllm", "replay": "draftproof.engines.replay"}


def open_engine(name: str, **options: Any) -> Engine:
    """The engine of that name; its module's ``open_engine`` gets the options."""
    if name not in ENGINES:
        raise unknown("--sd-engine", name, ENGINES)
    engine: Engine = importlib.import_module(ENGINES[name]).open_engine(**options)
    return engine
