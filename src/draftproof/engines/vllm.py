"""Drives vLLM in a worker process of its own: a crash, a hang or an out-of-memory kill is one failed cell."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

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
from draftproof.engines.surroundings import PRELOAD_VARIABLE
from draftproof.errors import EngineError, scrub
from draftproof.records import DraftTally, Output
from draftproof.scenarios import Received

WORKER = Path(__file__).with_name("worker.py")
LOG_TAIL_BYTES = 4000

GONE_WITHIN_S = 10.0
"""Bound of the wait for killed processes: where nobody buries orphans their group never empties."""


class WorkerProcess:
    """A spawned worker and its two pipes."""

    def __init__(self, request: StartRequest) -> None:
        self._log = request.log
        self._name = request.spec.key
        environment = {
            **os.environ,
            "VLLM_LOGGING_LEVEL": "WARNING",
            "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))),
            "TOKENIZERS_PARALLELISM": "false",
            **request.hardware.variables,
            **request.spec.variables,
            PRELOAD_VARIABLE: ",".join(request.hardware.preload),
        }
        if request.python != sys.executable:
            environment.pop("PYTHONPATH", None)  # another interpreter must not see this one's packages
        to_worker, parent_writes = os.pipe()
        parent_reads, from_worker = os.pipe()
        try:
            with request.log.open("ab") as log:
                self._process = subprocess.Popen(
                    [request.python, str(WORKER), str(to_worker), str(from_worker)],
                    pass_fds=(to_worker, from_worker),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # Ctrl-C is the parent's to handle; children die with the group
                    env=environment,
                )
        except OSError as error:
            os.close(parent_writes)
            os.close(parent_reads)
            raise EngineError("start", f"cannot start an arm under {Path(request.python).name}: {error}") from error
        finally:
            os.close(to_worker)
            os.close(from_worker)
        self._sink = os.fdopen(parent_writes, "wb")
        self._source = parent_reads
        self._buffer = b""

    def call(self, operation: str, timeout_s: float, **fields: Any) -> dict[str, Any]:
        """Send one request and wait for its answer; on a crash or time-out the process is gone afterwards."""
        try:
            self._sink.write(json.dumps({"op": operation, **fields}).encode() + b"\n")
            self._sink.flush()
        except OSError as error:
            raise self._crashed(operation) from error
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([self._source], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                self.kill()
                raise EngineError(
                    "timeout",
                    f"arm {self._name!r} did not answer {operation!r} within {timeout_s:g} s",
                    self.log_tail(),
                )
            chunk = os.read(self._source, 1 << 20)
            if not chunk:
                raise self._crashed(operation)
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if not answer["ok"]:
            raise EngineError(answer["kind"], answer["error"], self.log_tail())
        return answer

    def _crashed(self, operation: str) -> EngineError:
        self.kill()
        code = self._process.returncode
        how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit status {code}"
        return EngineError("crash", f"arm {self._name!r} ended during {operation!r} ({how})", self.log_tail())

    def log_tail(self) -> str:
        """The end of the arm's log, without home or temporary paths."""
        with contextlib.suppress(OSError), self._log.open("rb") as log:
            log.seek(max(0, self._log.stat().st_size - LOG_TAIL_BYTES))
            return scrub(log.read().decode("utf-8", "replace"))
        return ""

    def kill(self) -> None:
        """End the worker and all of its children, and wait until they are gone: the next arm may need their memory."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        deadline = time.monotonic() + GONE_WITHIN_S
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=GONE_WITHIN_S)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            while time.monotonic() < deadline:
                os.killpg(self._process.pid, 0)
                time.sleep(0.02)

    def close(self) -> None:
        self.kill()
        with contextlib.suppress(OSError):
            self._sink.close()
        with contextlib.suppress(OSError):
            os.close(self._source)


class VllmArm:
    """A loaded engine."""

    def __init__(self, request: StartRequest) -> None:
        self._hardware = request.hardware
        self._process = WorkerProcess(request)
        arguments = {"model": request.model, **request.spec.engine}
        if request.revision:
            arguments["revision"] = request.revision
        try:
            answer = self._process.call(
                "load",
                self._hardware.load_timeout_s,
                engine_args=arguments,
                speculative_config=request.speculative_config,
                control=msgspec.to_builtins(request.control),
            )
        except EngineError as error:
            self._process.close()
            raise explain(error) from error
        except BaseException:
            self._process.close()
            raise
        self.facts = ArmFacts(
            load_s=answer["load_s"],
            environment=answer["environment"],
            resolved=answer["resolved"],
            stages_reason=answer["stages_reason"],
        )

    def run(self, request: BlockRequest) -> BlockResult:
        if request.purpose == "stages" and self.facts.stages_reason:
            return BlockResult(seconds=0.0, outputs=[], counters={}, stages_reason=self.facts.stages_reason)
        answer = self._process.call(
            "run",
            self._hardware.block_timeout_s,
            prompts=request.prompts,
            purpose=request.purpose,
            references=request.references,
            sampling={
                "temperature": request.sampling.temperature,
                "top_p": request.sampling.top_p,
                "top_k": request.sampling.top_k,
                "max_tokens": request.output_tokens,
                "ignore_eos": request.ignore_eos,
                "seed": request.seed,
            },
        )
        return BlockResult(
            seconds=answer["seconds"],
            outputs=[Output(**row) for row in answer["outputs"]],
            counters=answer["counters"],
            steps=answer.get("steps", []),
            draft_tally=DraftTally(**answer["draft_tally"]) if "draft_tally" in answer else None,
            draft_tally_reason=answer.get("draft_tally_reason", ""),
            waited_s=answer["waited_s"],
            stolen_s=answer["stolen_s"],
        )

    def tokenize(self, request: TokenizeRequest) -> Tokenized:
        answer = self._process.call(
            "tokenize",
            self._hardware.block_timeout_s,
            prompts=request.prompts,
            template_options=request.template_options,
        )
        return Tokenized(
            token_ids=answer["token_ids"],
            bos_token_id=answer["bos_token_id"],
            tokenizer_sha256=answer["tokenizer_sha256"],
        )

    def score(self, requests: list[ScoreRequest]) -> list[Score]:
        answer = self._process.call(
            "score",
            self._hardware.block_timeout_s,
            prefixes=[request.prefix for request in requests],
            pairs=[request.pair for request in requests],
            after=[request.after for request in requests],
        )
        return [
            Score(
                best=row["best"],
                pair=tuple(row["pair"]),
                texts=tuple(row["texts"]),
                before=row["before"],
                after=tuple(row["after"]),
            )
            for row in answer["scores"]
        ]

    def decode_gaps(self, request: NoiseRequest) -> list[Continuation]:
        answer = self._process.call(
            "decode_gaps", self._hardware.block_timeout_s, prompts=request.prompts, tokens=request.output_tokens
        )
        return [
            Continuation(
                prompt=prompt,
                output=row["output"],
                pairs=[(first, second) for first, second in row["pairs"]],
                gaps_nats=row["gaps_nats"],
            )
            for prompt, row in zip(request.prompts, answer["continuations"], strict=True)
        ]

    def forced_gaps(self, texts: list[Continuation]) -> list[list[float | None]]:
        answer = self._process.call(
            "forced_gaps", self._hardware.block_timeout_s, texts=[msgspec.to_builtins(text) for text in texts]
        )
        gaps: list[list[float | None]] = answer["gaps_nats"]
        return gaps

    def serve(self, request: ServeRequest) -> Answers:
        answer = self._process.call(
            "serve",
            self._hardware.block_timeout_s,
            prompts=[asked.prompt for asked in request.requests],
            sampling=[
                {
                    "temperature": 0.0,
                    "max_tokens": asked.max_tokens,
                    "min_tokens": asked.min_tokens,
                    "ignore_eos": asked.ignore_eos,
                    "stop": asked.stop,
                    "stop_token_ids": asked.stop_token_ids,
                }
                for asked in request.requests
            ],
            script=msgspec.to_builtins(request.script),
        )
        return Answers(
            received=[Received(**row) for row in answer["received"]],
            eos_token_id=answer["eos_token_id"],
            more_stop_ids=answer["more_stop_ids"],
        )

    def trace(self, request: TraceRequest) -> list[Traced]:
        answer = self._process.call(
            "trace", self._hardware.block_timeout_s, prompts=request.prompts, output_tokens=request.output_tokens
        )
        return [Traced(**row) for row in answer["traced"]]

    def close(self) -> None:
        self._process.close()


def explain(error: EngineError) -> EngineError:
    """Add what to do where the cause is known."""
    if error.kind == "vllm_missing":
        return EngineError(
            error.kind,
            f"{error}; install it with: pip install 'draftproof[cpu]' (no GPU) or 'draftproof[gpu]'",
            error.log_tail,
        )
    return error


class VllmEngine:
    def start(self, request: StartRequest) -> VllmArm:
        return VllmArm(request)


def open_engine() -> VllmEngine:
    return VllmEngine()
