"""Serves a recorded run: the same blocks, seconds and ids, without an engine. For tests and for judging a run again."""

from __future__ import annotations

from pathlib import Path

from draftproof import tables
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
from draftproof.records import ArmLine, BlockLine, NoiseLine, RunFolder


class ReplayArm:
    """One arm of the recorded run."""

    def __init__(self, source: ReplayEngine, line: ArmLine) -> None:
        self._source = source
        self._line = line
        self._noise: NoiseLine | None = None
        self.facts = ArmFacts(
            load_s=line.load_s, environment=line.environment, resolved=line.resolved, stages_reason=""
        )

    def run(self, request: BlockRequest) -> BlockResult:
        if request.purpose == "trace" and request.axis is None:  # the warm-up: nothing of it is recorded
            return BlockResult(seconds=0.0, outputs=[], counters={})
        key = (request.unit, request.rotation, request.pass_index, request.purpose, request.axis, self._line.arm)
        block = self._source.blocks.get(key)
        if block is None:
            raise self._source.recorded_failure(self._line.arm, request)
        part = self._source.parts[request.unit, request.rotation, request.purpose, request.axis]
        return BlockResult(
            seconds=block.seconds,
            outputs=self._source.outputs[part, self._line.arm, request.pass_index],
            counters={
                "num_drafts": block.num_drafts,
                "num_draft_tokens": block.num_draft_tokens,
                "num_accepted_tokens": block.num_accepted_tokens,
                "num_accepted_tokens_per_pos": block.num_accepted_tokens_per_pos,
            },
            steps=[
                {name: value for name, value in row.items() if name not in ("part", "arm", "pass_index", "step")}
                for row in self._source.steps.get((part, self._line.arm), [])
            ],
            draft_tally=block.draft_tally,
            draft_tally_reason=block.draft_tally_reason,
            waited_s=block.waited_s,
            stolen_s=block.stolen_s,
        )

    def tokenize(self, request: TokenizeRequest) -> Tokenized:
        line = next(
            w for w in self._source.data.workloads if (w.target, w.workload) == (request.target, request.workload)
        )
        rows = [self._source.prompts[request.target, request.workload, prompt_id] for prompt_id in request.ids]
        return Tokenized(token_ids=rows, bos_token_id=None, tokenizer_sha256=line.tokenizer_sha256)

    def score(self, requests: list[ScoreRequest]) -> list[Score]:
        by = "referee" if self._line.role == "referee" else "engine"
        known = {(s.unit, s.rotation, s.arm, s.request, s.position): s for s in self._source.data.scores if s.by == by}
        scores = []
        for request in requests:
            found = known.get((request.unit, request.rotation, request.arm, request.request, request.position))
            if found is None:
                what = f"request {request.request} of {request.arm}"
                raise EngineError("replay", f"the recorded run did not score {what}")
            scores.append(
                Score(
                    best=found.best_logprob,
                    pair=found.logprobs,
                    texts=found.texts,
                    before=found.before,
                    after=found.after,
                )
            )
        return scores

    def decode_gaps(self, request: NoiseRequest) -> list[Continuation]:
        """One text whose gaps differ from the referee's, here 0, as those of the recorded run did."""
        for line in self._source.data.noise:
            if (line.unit, line.rotation) == (request.unit, request.rotation):
                self._noise = line
                count = line.positions + line.unscored
                gaps = line.largest_nats + [0.0] * (count - len(line.largest_nats))
                return [Continuation(prompt=[], output=[0] * count, pairs=[(0, 1)] * count, gaps_nats=gaps)]
        raise EngineError("replay", f"the recorded run measured no noise for {request.unit.workload}")

    def forced_gaps(self, texts: list[Continuation]) -> list[list[float | None]]:
        if self._line.role == "referee":
            return [[0.0] * len(text.pairs) for text in texts]
        (text,), line = texts, self._noise
        assert line is not None, "continuations are asked for first"
        known = text.gaps_nats[: line.positions]
        return [[known[0] - line.rows_nats, *known[1:], *[None] * line.unscored] if known else [None] * line.unscored]

    def serve(self, request: ServeRequest) -> Answers:
        raise EngineError("replay", "a recorded run cannot answer invented requests")

    def trace(self, request: TraceRequest) -> list[Traced]:
        raise EngineError("replay", "a recorded run holds no drafts of every position; trace with an engine")

    def close(self) -> None:
        """Nothing to end."""


class ReplayEngine:
    """A recorded run, read once."""

    def __init__(self, path: Path) -> None:
        folder = RunFolder(path)
        self.data = folder.read()
        self.prompts = folder.prompts()
        self.blocks: dict[tuple[object, ...], BlockLine] = {
            (block.unit, block.rotation, block.pass_index, block.purpose, block.axis, block.arm): block
            for block in self.data.blocks
        }
        self.parts = {(line.unit, line.rotation, line.purpose, line.axis): line.part for line in self.data.rotations}
        parts = set(self.parts.values())
        self.outputs = tables.read_outputs(path, parts)
        self.steps = tables.read_steps(path, parts)

    def recorded_failure(self, arm: str, request: BlockRequest) -> EngineError:
        """Why the recorded run lacks a block: the failure that it recorded, else that it simply has none."""
        unit, purpose = request.unit, request.purpose
        for failure in self.data.failures:
            place = (failure.group, failure.target, failure.workload, failure.batch_size)
            if failure.arm == arm and place == unit and failure.purpose in ("speed", purpose):
                return EngineError(failure.kind, failure.message, failure.log_tail)
        where = f"{arm}, {unit.workload} b{unit.batch_size}, rotation {request.rotation}, {purpose}"
        return EngineError("replay", f"the recorded run has no such block: {where}")

    def start(self, request: StartRequest) -> ReplayArm:
        for failure in self.data.failures:
            if failure.workload is None and (failure.group, failure.arm) == (request.group, request.spec.key):
                raise EngineError(failure.kind, failure.message, failure.log_tail)
        for line in self.data.arms:
            if (line.group, line.arm) == (request.group, request.spec.key):
                return ReplayArm(self, line)
        raise EngineError("replay", f"the recorded run has no arm {request.spec.key!r}")


def open_engine(path: Path) -> ReplayEngine:
    return ReplayEngine(path)
