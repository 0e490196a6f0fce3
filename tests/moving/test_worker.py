"""The process of an arm: it answers, or it ends in one clear error; and nothing of it is left behind."""

from __future__ import annotations

import functools
import math
import os
import signal
import subprocess
import sys
import time
import types
import venv
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftproof.catalog import load_catalog
from draftproof.engines import (
    BlockRequest,
    NoiseRequest,
    ScoreRequest,
    Scripted,
    ServeRequest,
    StartRequest,
    TokenizeRequest,
    drafttally,
    serving,
    surroundings,
    waiting,
    worker,
)
from draftproof.engines.vllm import VllmArm, VllmEngine, WorkerProcess
from draftproof.errors import EngineError, scrub
from draftproof.plan import ArmSpec, build_plan
from draftproof.records import DraftTally, UnitKey
from draftproof.scenarios import Asked
from draftproof.spec import Hardware, Sampling

GONE_WITHIN_S = 10.0

# A vLLM of a few lines: what the worker asks of the real one, and ways to fail that TOY_VLLM chooses.
FAKE = {
    "vllm/__init__.py": """
import os, signal, subprocess, sys, time
from types import SimpleNamespace as NS

mode = os.environ.get("TOY_VLLM", "")
print(f"toy vllm: pid {os.getpid()} in {os.environ.get('HOME')}/models", flush=True)
if mode in ("hang", "child"):
    if mode == "child":
        print("toy child:", subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid, flush=True)
    time.sleep(600)
if mode == "exit":
    os._exit(3)
if mode == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
if mode == "raise":
    raise RuntimeError("no kernel image is available")
if mode == "broken":
    import a_module_that_is_not_there

from vllm.v1 import utils
from vllm.v1.utils import record_function_or_nullcontext


class SamplingParams:
    def __init__(self, **fields):
        self.__dict__.update(fields)


class Scheduler:
    def __init__(self):
        self.requests = {}

    def schedule(self):
        cached = NS(req_ids=[], num_computed_tokens=[])
        new = []
        for name, request in self.requests.items():
            if request.done:
                cached.req_ids.append(name)
                cached.num_computed_tokens.append(request.done)
            else:
                new.append(NS(req_id=name, num_computed_tokens=0, prompt_token_ids=[1] * request.num_prompt_tokens))
        rows = {name: request.rows() for name, request in self.requests.items()}
        return NS(scheduled_new_reqs=new, scheduled_cached_reqs=cached, num_scheduled_tokens=rows,
                  total_num_scheduled_tokens=sum(rows.values()), scheduled_spec_decode_tokens={})

    def update_from_output(self, rows):
        for name, count in rows.items():
            self.requests[name].done += count


class Runner:
    def execute_model(self, scheduled):
        with utils.record_function_or_nullcontext("gpu_model_runner: forward"):
            time.sleep(0.002)

    def propose_draft_token_ids(self, scheduled):
        return [[5, 6], [5]]


class Engine:
    def __init__(self, speculative):
        self.scheduler = Scheduler()
        self.runner = Runner()
        executor = NS(driver_worker=NS(worker=NS(model_runner=self.runner)))
        core = NS(scheduler=self.scheduler, model_executor=executor)
        self.engine_core = NS(engine_core=core, get_output=self.core_step)
        self.vllm_config = NS(
            model_config=NS(dtype="torch.float32", max_model_len=64, get_vocab_size=lambda: 100, enforce_eager=True,
                            seed=0, hf_config=NS(architectures=["Toy"]),
                            try_get_generation_config=lambda: {"eos_token_id": [2, 9]}),
            cache_config=NS(enable_prefix_caching=False, block_size=16, num_gpu_blocks=4),
            scheduler_config=NS(max_num_seqs=8, max_num_batched_tokens=64, async_scheduling=False,
                                enable_chunked_prefill=True),
            parallel_config=NS(tensor_parallel_size=1), compilation_config=NS(),
            speculative_config=NS(method="ngram", num_speculative_tokens=3) if speculative else None,
        )

    def step(self):
        self.engine_core.get_output()

    def core_step(self):
        output = self.scheduler.schedule()
        self.runner.execute_model(output)
        if self.vllm_config.speculative_config:
            self.runner.propose_draft_token_ids(output)
        self.scheduler.update_from_output(output.num_scheduled_tokens)


class Tokenizer:
    bos_token_id = 1

    def encode(self, text, add_special_tokens=True):
        return [1] * add_special_tokens + [2 + len(word) for word in text.split()]

    def apply_chat_template(self, turns, tokenize, add_generation_prompt, **options):
        return " ".join([str(options.get("style", "")), *[turn["content"] for turn in turns]])

    def get_vocab(self):
        return {"a": 1, "b": 2}

    eos_token_id = 2

    def decode(self, ids, skip_special_tokens=False):
        return "".join(f"<{token}>" for token in ids if not (skip_special_tokens and token == 2))


class LLM:
    def __init__(self, **arguments):
        if arguments["model"] == "wrong":
            raise ValueError("no such model")
        self.arguments = arguments
        self.llm_engine = Engine(arguments.get("speculative_config"))
        self.drafts = 0

    def get_tokenizer(self):
        return Tokenizer()

    def get_metrics(self):
        return [NS(name="vllm:spec_decode_num_drafts", value=self.drafts),
                NS(name="vllm:spec_decode_num_accepted_tokens_per_pos", values=[self.drafts, 0]),
                NS(name="vllm:something_else", value=7)]

    def generate(self, prompts, sampling, use_tqdm):
        if mode == "exit in a block":
            print("about to end", flush=True)
            os._exit(5)
        if mode == "hang in a block":
            time.sleep(600)
        each = sampling if isinstance(sampling, list) else [sampling] * len(prompts)
        count = max(fields.max_tokens for fields in each)
        scheduler = self.llm_engine.scheduler
        for number, prompt in enumerate(prompts):
            size = len(prompt["prompt_token_ids"])
            request = NS(done=0, num_prompt_tokens=size)
            request.rows = lambda request=request: 1 if request.done else request.num_prompt_tokens
            scheduler.requests[str(number)] = request
        for _ in range(count):
            self.llm_engine.step()
        scheduler.requests.clear()
        self.drafts += len(prompts)
        logprobs = [{5: NS(logprob=-0.25), 6: NS(logprob=-1.5)}] * count
        as_prompt = {5: NS(logprob=-0.25), 6: NS(logprob=-1.75), 7: NS(logprob=-3.0)}
        metrics = NS(to_dict=lambda: {"per_step_accepted": [1], "per_step_drafted": [3]})
        times = NS(first_token_latency=0.25, first_token_ts=7.0, last_token_ts=7.5)
        return [NS(metrics=times, prompt_logprobs=[None, *[as_prompt] * (len(prompt["prompt_token_ids"]) - 1)],
                   prompt_token_ids=prompt["prompt_token_ids"],
                   outputs=[NS(token_ids=(5,) * fields.max_tokens, finish_reason="length", logprobs=logprobs,
                               text=str(sorted(vars(fields).items())), stop_reason=None,
                               spec_decode_metrics=metrics)]) for prompt, fields in zip(prompts, each)]
""",
    "vllm/engine/__init__.py": "",
    "vllm/engine/arg_utils.py": """
import dataclasses


@dataclasses.dataclass
class EngineArgs:
    model: str = ""
    seed: int = 0
    disable_log_stats: bool = False
    speculative_config: dict = None
""",
    "vllm/config/__init__.py": "",
    "vllm/config/speculative.py": """
from typing import Literal

SpeculativeMethod = Literal["ngram", Literal["eagle", "eagle3"]]
""",
    "vllm/v1/__init__.py": "",
    "vllm/platforms.py": """
from types import SimpleNamespace as NS

current_platform = NS(is_cpu=lambda: True)
""",
    "vllm/v1/utils.py": """
import contextlib

_PROFILER_FUNC = contextlib.nullcontext


def record_function_or_nullcontext(name):
    return _PROFILER_FUNC(name)
""",
    "torch/__init__.py": """
from types import SimpleNamespace as NS

__version__ = "2.0+toy"
cuda = NS(is_available=lambda: False)
version = NS(cuda=None)


def get_num_threads():
    return 2
""",
}


def bare_python(folder: Path) -> Path:
    """An interpreter of its own, without a single package."""
    venv.create(folder, with_pip=False, symlinks=True)
    return folder / "bin" / "python"


@pytest.fixture(autouse=True)
def no_preloads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the caller has preloaded is not under test."""
    monkeypatch.delenv("LD_PRELOAD", raising=False)


@pytest.fixture(scope="module")
def empty_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(bare_python(tmp_path_factory.mktemp("empty")))


@pytest.fixture(scope="module")
def fake_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An interpreter that holds the toy vLLM."""
    python = bare_python(tmp_path_factory.mktemp("fake"))
    (site,) = python.parents[1].glob("lib/python*/site-packages")
    for name, content in FAKE.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(content, encoding="utf-8")
    return str(python)


@functools.cache
def ngram_arm() -> ArmSpec:
    """The n-gram arm of the smoke study."""
    catalog = load_catalog()
    plan = build_plan(catalog, catalog.studies["smoke"], catalog.study_cells("smoke"))
    (spec,) = [spec for spec in plan.groups[0].arms if spec.key == "ngram"]
    return spec


def request_for(python: str, log: Path, mode: str = "", *, timeout_s: float = 20.0, **changes: Any) -> StartRequest:
    hardware = Hardware(
        name="toy",
        title="toy",
        markers=["cpu"],
        device="cpu",
        max_live_arms=2,
        load_timeout_s=timeout_s,
        block_timeout_s=changes.pop("block_timeout_s", timeout_s),
        variables={"TOY_VLLM": mode},
        preload=changes.pop("preload", []),
    )
    engine = changes.pop("engine", {"seed": 3})
    spec = msgspec.structs.replace(ngram_arm(), engine=engine, variables={"VLLM_TOY_SETTING": "1"})
    fields: dict[str, Any] = {
        "spec": spec,
        "group": 0,
        "hardware": hardware,
        "model": "toy-model",
        "revision": None,
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 3},
        "python": python,
        "log": log,
        **changes,
    }
    return StartRequest(**fields)


def is_gone(pid: int) -> bool:
    """No such process, or one that has ended and is not yet buried by its parent."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in ("Z", "X")


def gone_soon(pid: int) -> bool:
    """Poll, with a bound: the end of a process is not instant."""
    deadline = time.monotonic() + GONE_WITHIN_S
    while not is_gone(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def logged_pid(text: str, before: str) -> int:
    return int(text.split(before, 1)[1].split()[0])


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., WorkerProcess]]:
    """Starts bare workers, and ends what a test has left."""
    running: list[WorkerProcess] = []

    def begin(python: str, mode: str = "", **changes: Any) -> WorkerProcess:
        running.append(WorkerProcess(request_for(python, tmp_path / "arm.log", mode, **changes)))
        return running[-1]

    yield begin
    for process in running:
        process.close()


def pid_of(process: WorkerProcess) -> int:
    return process._process.pid


# --- how it fails -----------------------------------------------------------------------------------------------------


def test_without_vllm_the_message_says_how_to_install_it(empty_python: str, tmp_path: Path) -> None:
    """And the worker's own folder, which holds a ``vllm.py``, is not mistaken for vLLM."""
    with pytest.raises(EngineError) as caught:
        VllmEngine().start(request_for(empty_python, tmp_path / "log"))
    assert caught.value.kind == "vllm_missing"
    assert "pip install 'draftproof[cpu]'" in str(caught.value)
    assert "'draftproof[gpu]'" in str(caught.value)


@pytest.mark.parametrize(("mode", "how"), [("kill", "signal SIGKILL"), ("exit", "exit status 3")])
def test_a_worker_that_ends_is_a_crash_with_its_log(fake_python: str, tmp_path: Path, mode: str, how: str) -> None:
    with pytest.raises(EngineError) as caught:
        VllmEngine().start(request_for(fake_python, tmp_path / "log", mode))
    assert caught.value.kind == "crash"
    assert str(caught.value) == f"arm 'ngram' ended during 'load' ({how})"
    assert "toy vllm: pid" in caught.value.log_tail
    assert gone_soon(logged_pid(caught.value.log_tail, "toy vllm: pid "))


def test_a_worker_killed_from_outside_is_a_crash(fake_python: str, start: Callable[..., WorkerProcess]) -> None:
    """As the kernel does when memory is short; the next call finds it dead as well."""
    process = start(fake_python)
    os.kill(pid_of(process), signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(EngineError, match=r"ended during 'run' \(signal SIGKILL\)") as caught:
            process.call("run", 20.0)
        assert caught.value.kind == "crash"


@pytest.mark.parametrize(
    ("mode", "kind", "message"),
    [
        ("raise", "exception", "RuntimeError: no kernel image is available"),
        ("broken", "exception", "ModuleNotFoundError: No module named 'a_module_that_is_not_there'"),
    ],
)
def test_an_exception_is_told_with_its_traceback(
    fake_python: str, tmp_path: Path, mode: str, kind: str, message: str
) -> None:
    """A broken vLLM is not a missing one."""
    with pytest.raises(EngineError) as caught:
        VllmEngine().start(request_for(fake_python, tmp_path / "log", mode))
    assert caught.value.kind == kind
    assert str(caught.value) == message
    assert "Traceback" in caught.value.log_tail


def test_a_load_that_hangs_is_ended(fake_python: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pytest.raises(EngineError, match=r"arm 'ngram' did not answer 'load' within 2 s") as caught:
        VllmEngine().start(request_for(fake_python, log, "hang", timeout_s=2.0))
    assert caught.value.kind == "timeout"
    assert gone_soon(logged_pid(caught.value.log_tail, "toy vllm: pid "))


def begin_load(process: WorkerProcess, log: Path) -> list[int]:
    """Ask for a load whose child hangs, without waiting for an answer; the worker's pid and its child's."""
    process._sink.write(b'{"op": "load", "engine_args": {"model": "m"}}\n')
    process._sink.flush()
    deadline = time.monotonic() + GONE_WITHIN_S
    while time.monotonic() < deadline:
        text = log.read_text(encoding="utf-8")
        if "toy child:" in text and text.endswith("\n"):
            pids = [pid_of(process), logged_pid(text, "toy child: ")]
            assert not any(map(is_gone, pids))
            return pids
        time.sleep(0.02)
    pytest.fail(f"the toy vLLM did not start a child; its log: {log.read_text(encoding='utf-8')}")


def test_a_worker_that_does_not_answer_is_ended_with_its_children(
    fake_python: str, start: Callable[..., WorkerProcess], tmp_path: Path
) -> None:
    process = start(fake_python, "child")
    pids = begin_load(process, tmp_path / "arm.log")
    with pytest.raises(EngineError, match=r"arm 'ngram' did not answer 'run' within 0\.2 s"):
        process.call("run", 0.2)
    assert all(map(gone_soon, pids))


@pytest.mark.parametrize(
    ("mode", "kind", "message"),
    [
        ("exit in a block", "crash", r"arm 'ngram' ended during 'run' \(exit status 5\)"),
        ("hang in a block", "timeout", r"did not answer 'run' within"),
    ],
)
def test_a_block_fails_like_a_load(fake_python: str, tmp_path: Path, mode: str, kind: str, message: str) -> None:
    arm = VllmArm(request_for(fake_python, tmp_path / "log", mode, block_timeout_s=20.0 if "exit" in mode else 0.5))
    try:
        with pytest.raises(EngineError, match=message) as caught:
            arm.run(block_request())
        assert caught.value.kind == kind
        assert gone_soon(pid_of(arm._process))
    finally:
        arm.close()


def test_an_interpreter_that_cannot_be_started(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="cannot start an arm under no-python") as caught:
        VllmEngine().start(request_for(str(tmp_path / "no-python"), tmp_path / "log"))
    assert caught.value.kind == "start"


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        (
            {"speculative_config": {"method": "eagel3"}},
            "method",
            "vLLM None has no speculative method 'eagel3'; known: eagle, eagle3, ngram",
        ),
        ({"engine": {"seeds": 1, "sed": 2}}, "engine_argument", "this vLLM has no engine argument sed, seeds"),
        ({"model": "wrong"}, "exception", "ValueError: no such model"),
        (
            {"speculative_config": {"method": "eagle", "rejection_sample_method": "synthetic"}},
            "synthetic",
            "needs a vLLM that accepts drafts at a set rate (rejection_sample_method = 'synthetic'); "
            "found None for CPUs, which does not (ModuleNotFoundError: No module named 'vllm.v1.sample'); "
            "enable with a GPU",
        ),
    ],
)
def test_what_this_vllm_cannot_do_is_said(
    fake_python: str, tmp_path: Path, changes: dict[str, Any], kind: str, message: str
) -> None:
    with pytest.raises(EngineError) as caught:
        VllmEngine().start(request_for(fake_python, tmp_path / "log", **changes))
    assert (caught.value.kind, str(caught.value)) == (kind, message)


# --- what it leaves ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["", "child"])
def test_nothing_is_left_after_close(
    fake_python: str, start: Callable[..., WorkerProcess], tmp_path: Path, mode: str
) -> None:
    """Idle, or in the middle of a load that has children of its own; closing twice does no harm."""
    process = start(fake_python, mode)
    pids = begin_load(process, tmp_path / "arm.log") if mode else [pid_of(process)]
    process.close()
    assert all(map(is_gone, pids)), "the next engine may need their memory at once"
    process.close()
    with pytest.raises(ChildProcessError):
        os.waitpid(pids[0], os.WNOHANG)


PARENT = """
import sys, time
from pathlib import Path
import msgspec
from draftproof.engines import StartRequest
from draftproof.engines.vllm import WorkerProcess

request = msgspec.convert(msgspec.json.decode(Path(sys.argv[1]).read_bytes()), StartRequest, dec_hook=lambda t, v: t(v))
process = WorkerProcess(request)
print(process._process.pid, flush=True)
if request.hardware.variables["TOY_VLLM"]:
    process.call("load", 600, engine_args={"model": "m"})
time.sleep(600)
"""


@pytest.mark.parametrize("mode", ["", "child"])
def test_a_worker_ends_with_its_parent(fake_python: str, tmp_path: Path, mode: str) -> None:
    """Even when the parent is killed without a word, whether the worker is idle or deep in a load."""
    log = tmp_path / "arm.log"
    request = tmp_path / "request.json"
    request.write_bytes(msgspec.json.encode(request_for(fake_python, log, mode), enc_hook=str))
    script = tmp_path / "parent.py"
    script.write_text(PARENT, encoding="utf-8")
    command = [sys.executable, str(script), str(request)]
    environment = {**os.environ, "PYTHONPATH": str(Path(worker.__file__).parents[2])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        try:
            assert parent.stdout is not None
            pids = [int(parent.stdout.readline())]
            deadline = time.monotonic() + GONE_WITHIN_S
            while mode == "child" and len(pids) == 1 and time.monotonic() < deadline:
                text = log.read_text(encoding="utf-8")
                if "toy child:" in text and text.endswith("\n"):
                    pids.append(logged_pid(text, "toy child: "))
                time.sleep(0.02)
            assert not any(map(is_gone, pids))
            assert len(pids) == (2 if mode else 1)
        finally:
            parent.send_signal(signal.SIGKILL)
    assert all(map(gone_soon, pids))


# --- what it says -----------------------------------------------------------------------------------------------------


def block_request(purpose: Literal["speed", "stages", "trace"] = "speed") -> BlockRequest:
    return BlockRequest(
        unit=UnitKey(0, "toy", "w", 2),
        rotation=0,
        pass_index=0,
        purpose=purpose,
        prompts=[[1, 2, 3], [1, 4]],
        sampling=Sampling(),
        output_tokens=4,
        ignore_eos=True,
    )


def test_a_worker_answers_everything_that_an_arm_is_asked(fake_python: str, tmp_path: Path) -> None:
    """Load, tokenize, run, stages, score and noise through the two pipes, with a vLLM that has just what is needed."""
    arm = VllmArm(request_for(fake_python, tmp_path / "log"))
    try:
        facts = arm.facts
        assert facts.load_s > 0
        assert facts.stages_reason == ""
        assert facts.environment["variables"]["VLLM_TOY_SETTING"] == "1"
        assert facts.environment["torch"] == "2.0+toy"
        assert facts.environment["preloads"] == []
        assert (facts.resolved["dtype"], facts.resolved["kv_cache_tokens"]) == ("float32", 64)
        assert (facts.resolved["speculative_method"], facts.resolved["num_speculative_tokens"]) == ("ngram", 3)
        tokenized = arm.tokenize(
            TokenizeRequest(
                target="toy",
                workload="w",
                ids=["1", "2"],
                prompts=["a bc", [{"role": "user", "content": "a bc"}]],
                template_options={"style": "plain"},
            )
        )
        assert tokenized.token_ids == [[1, 3, 4], [7, 3, 4]], "one BOS for text, the template's own for a chat"
        assert tokenized.bos_token_id == 1
        for _ in range(2):
            result = arm.run(block_request())
            assert result.seconds >= 4 * 0.002
            assert [output.token_ids for output in result.outputs] == [[5] * 4] * 2
            assert (result.outputs[0].accepted, result.outputs[0].drafted) == ([1], [3])
            assert [(output.ttft_s, output.decode_s) for output in result.outputs] == [(0.25, 0.5)] * 2
            assert result.counters == {"num_drafts": 2, "num_accepted_tokens_per_pos": [2, 0]}, "since the last block"
            assert result.steps == []
            assert (result.draft_tally, result.draft_tally_reason) == (None, "")
            counted = waiting.read_sums()
            assert (result.waited_s is None) == (counted.threads is None)
            assert (result.stolen_s is None) == (counted.stolen_ticks is None)
        stages = arm.run(block_request("stages"))
        assert [step["kind"] for step in stages.steps] == ["prefill", "decode", "decode", "decode"]
        assert [step["rows"] for step in stages.steps] == [5, 2, 2, 2]
        assert all(0.002 <= step["forward_s"] <= step["step_s"] for step in stages.steps)
        assert stages.draft_tally == DraftTally(tokens=12, distinct=2, top_token=5, top_count=8)
        assert arm.run(block_request()).steps == [], "the clock is off again"
        assert arm.run(block_request("stages")).draft_tally == stages.draft_tally, "each block is counted alone"
        unit = UnitKey(0, "toy", "w", 2)
        asked = ScoreRequest(
            unit=unit, rotation=0, arm="ngram", request=0, position=1, prefix=[1, 2], pair=(6, 9), after=([6], [9, 7])
        )
        (score,) = arm.score([asked])
        assert (score.best, score.pair, score.texts) == (-0.25, (-1.5, None), ("<6>", "<9>"))
        assert (score.before, score.after) == ("<1><2>", ("<6>", "<9><7>"))
        asked_noise = NoiseRequest(unit=unit, rotation=0, prompts=[[1, 2, 3], [1, 4]], output_tokens=4)
        texts = arm.decode_gaps(asked_noise)
        assert [(text.output, text.pairs, text.gaps_nats) for text in texts] == [
            ([5] * 4, [(5, 6)] * 4, [1.25] * 4)
        ] * 2
        assert arm.forced_gaps(texts) == [[1.5] * 4] * 2, "the text is a prompt now"
        unseen = [msgspec.structs.replace(texts[0], pairs=[(5, 99)] * 4)]
        assert arm.forced_gaps(unseen) == [[None] * 4], "not among the 20 best"
        served = arm.serve(
            ServeRequest(
                requests=[
                    Asked(prompt=[1, 2, 3], max_tokens=2, min_tokens=1, stop=["a"], stop_token_ids=[7]),
                    Asked(prompt=[1, 4], max_tokens=3),
                ],
                script=[Scripted(prompt=[1, 4], reference=[5], plan=[[0]])],
            )
        )
        assert (served.eos_token_id, served.more_stop_ids) == (2, [9])
        first, second = served.received
        assert first.text == str(
            [("ignore_eos", False), ("max_tokens", 2), ("min_tokens", 1), ("stop", ["a"]), ("stop_token_ids", [7]),
             ("temperature", 0.0)]
        ), "each request has its own sampling parameters"  # fmt: skip
        assert (first.token_ids, first.finish_reason, first.prompt_tokens) == ([5, 5], "length", 3)
        assert (second.token_ids, second.decoded, second.ends) == ([5] * 3, "<5><5><5>", [3, 6, 9])
        assert (second.accepted, second.drafted, second.counted) == ([1], [3], True)
    finally:
        arm.close()


class Bytes:
    """A tokenizer whose tokens are bytes, 0 a special one; a text begins without its leading space."""

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return bytes(filter(None, ids)).decode("utf-8", "replace").removeprefix(" ")


def test_an_output_is_decoded_behind_its_prompt() -> None:
    """Its own leading space stays; a character counts with the token that completes it, half a one at the end never."""
    ids = [*" é".encode(), 0, *b"x", *"é".encode()[:1]]
    assert serving.decode(Bytes(), list(b"hello"), ids) == (" éx", [1, 1, 2, 2, 3, 3])
    assert serving.decode(Bytes(), list(b"hello"), []) == ("", [])


def test_the_home_folder_stays_out_of_log_tails(
    fake_python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/somebody-in-particular")
    with pytest.raises(EngineError) as caught:
        VllmEngine().start(request_for(fake_python, tmp_path / "log", "exit"))
    assert "somebody" not in caught.value.log_tail
    assert "in ~/models" in caught.value.log_tail
    assert scrub("/home/somebody-in-particular/x") == "~/x"


@pytest.mark.parametrize("home", ["/", ""])
def test_a_home_that_is_no_folder_scrubs_nothing(monkeypatch: pytest.MonkeyPatch, home: str) -> None:
    monkeypatch.setattr(Path, "home", lambda: Path(home) if home else Path("/"))
    assert scrub("a/b") == "a/b"


def test_a_long_log_is_cut_at_its_beginning(tmp_path: Path, start: Callable[..., WorkerProcess]) -> None:
    (tmp_path / "arm.log").write_text("x" * 10_000 + "the end", encoding="utf-8")
    process = start(sys.executable)
    process.kill()
    assert len(process.log_tail()) == 4000
    assert process.log_tail().endswith("the end")


def test_another_interpreter_does_not_see_our_packages(
    empty_python: str, fake_python: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PYTHONPATH is this interpreter's: handed on, it would bring this one's vLLM along."""
    (site,) = Path(fake_python).parents[1].glob("lib/python*/site-packages")
    monkeypatch.setenv("PYTHONPATH", str(site))
    with pytest.raises(EngineError) as caught:
        VllmEngine().start(request_for(empty_python, tmp_path / "log"))
    assert caught.value.kind == "vllm_missing"


# --- preloads ---------------------------------------------------------------------------------------------------------


def test_libraries_are_found_beside_the_interpreter_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = surroundings.find_library("libm.so.6")
    assert found is not None
    assert Path(found).is_absolute()
    assert surroundings.find_library("libno-such-thing.so.1") is None
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libm.so.6").touch()
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert surroundings.find_library("libm.so.6") == str(tmp_path / "lib" / "libm.so.6")


def test_preloads_reach_the_process_and_absent_ones_are_left_out(fake_python: str, tmp_path: Path) -> None:
    """The loader has mapped them; the variable that asked for them is gone, so that no child asks again."""
    name = next(name for name in ("libanl.so.1", "libm.so.6") if surroundings.find_library(name))
    arm = VllmArm(request_for(fake_python, tmp_path / "log", preload=[name, "libno-such-thing.so.1"]))
    try:
        assert arm.facts.environment["preloads"] == [name]
        maps = Path(f"/proc/{pid_of(arm._process)}/maps").read_text(encoding="utf-8")
        assert f"/{name.split('.so')[0]}" in maps
        environ = Path(f"/proc/{pid_of(arm._process)}/environ").read_bytes().split(b"\0")
        assert not [entry for entry in environ if entry.startswith(surroundings.PRELOAD_VARIABLE.encode())]
    finally:
        arm.close()


# --- small parts ------------------------------------------------------------------------------------------------------


def test_literal_values_of_nested_literals() -> None:
    nested = Literal["a", Literal["b", "c"]]  # noqa: RUF041  (vLLM nests them)
    assert worker.literal_values(nested) == {"a", "b", "c"}
    assert worker.literal_values(nested | Literal["d"] | None) == {"a", "b", "c", "d"}
    assert worker.literal_values(None) == set()


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ({"first_token_latency": 0.25, "first_token_ts": 100.0, "last_token_ts": 101.5}, (0.25, 1.5)),
        ({"first_token_latency": 0.25, "first_token_ts": 100.0, "last_token_ts": 100.0}, (0.25, 0.0)),
        ({"first_token_latency": 0.25}, (0.25, None)),
        ({"first_token_ts": 100.0, "last_token_ts": 101.5}, (None, 1.5)),
        ({"first_token_latency": 0.0, "first_token_ts": 0.0, "last_token_ts": 0.0}, (None, None)),
        ({"first_token_latency": -0.5, "first_token_ts": 101.5, "last_token_ts": 100.0}, (None, None)),
        ({"first_token_latency": math.nan, "first_token_ts": 1.0, "last_token_ts": math.inf}, (None, None)),
    ],
    ids=["both", "one token", "no timestamps", "no latency", "not noted", "clock set back", "not finite"],
)
def test_latencies_are_told_as_far_as_vllm_tells_them(
    metrics: dict[str, float], expected: tuple[float | None, float | None]
) -> None:
    """None is recorded for what is absent or can be no duration; never 0 for "not said"."""
    assert tuple(worker.latency(types.SimpleNamespace(**metrics)).values()) == expected


def test_without_statistics_there_are_no_latencies() -> None:
    """vLLM's `RequestOutput.metrics` is None where it keeps none."""
    assert worker.latency(None) == {"ttft_s": None, "decode_s": None}


counters = st.dictionaries(st.sampled_from("abc"), st.integers(0, 50), min_size=3)


@given(counters, counters, st.lists(st.integers(0, 9), min_size=2, max_size=2))
def test_counter_differences_are_since_the_block_began(
    before: dict[str, int], more: dict[str, int], positions: list[int]
) -> None:
    """What was not there before counts from zero, lists place by place."""
    after: dict[str, Any] = {name: before[name] + more[name] for name in before}
    first = {**before, "list": [1, 1]}
    second = {**after, "list": [1 + value for value in positions], "new": 4, "new list": [2]}
    expected = {**more, "list": positions, "new": 4, "new list": [2]}
    assert worker.counter_difference(second, first) == expected


# --- which tokens were drafted ----------------------------------------------------------------------------------------


class FakeTensor:
    """As much of a tensor as the tally asks of one; `tolist` waits for the device, as a real one's does."""

    def __init__(self, rows: list[list[int]], waits: list[str]) -> None:
        self.rows, self.waits = rows, waits

    def clone(self) -> FakeTensor:
        return FakeTensor([list(row) for row in self.rows], self.waits)

    def tolist(self) -> list[list[int]]:
        self.waits.append("waited")
        return self.rows


class FakeRunner:
    """Proposes what it is given, and notes with what it was called."""

    def __init__(self, proposals: list[Any]) -> None:
        self.proposals = proposals
        self.called: list[tuple[Any, ...]] = []

    def propose_draft_token_ids(self, *args: Any) -> Any:
        self.called.append(args)
        return self.proposals[len(self.called) - 1]


ROWS = st.lists(st.lists(st.integers(-1, 4), max_size=4), max_size=4)


@given(st.lists(st.tuples(ROWS, st.booleans()), max_size=5))
def test_drafts_are_counted_as_lists_and_as_tensors(proposals: list[tuple[list[list[int]], bool]]) -> None:
    """A slow count over all rows gives the same; -1 fills up rows, and is no token; the runner's answer is its own."""
    waits: list[str] = []
    given_ = [FakeTensor(rows, waits) if is_tensor else rows for rows, is_tensor in proposals]
    runner = FakeRunner(given_)
    tally = drafttally.DraftTally(runner)
    assert tally.reason == ""
    with tally.running():
        for number, proposal in enumerate(given_):
            assert runner.propose_draft_token_ids("scheduled", number) is proposal
            if isinstance(proposal, FakeTensor):
                proposal.rows = [[9]]  # the next step writes into the same memory
        assert waits == [], "no step waits for the device"
    ids = [token for rows, _ in proposals for row in rows for token in row if token >= 0]
    found = DraftTally(**tally.answer()["draft_tally"])
    assert (found.tokens, found.distinct) == (len(ids), len(set(ids)))
    assert found.top_count == max(map(ids.count, ids), default=0)
    assert found.top_token == min((t for t in ids if ids.count(t) == found.top_count), default=None)
    assert runner.called == [("scheduled", number) for number in range(len(given_))]


def test_the_runner_is_left_as_it_was() -> None:
    """After the block, after an error in it too; outside of a block nothing is counted."""
    runner = FakeRunner([[[1]], [[2]], [[3]]])
    before = set(vars(runner))
    tally = drafttally.DraftTally(runner)
    with tally.running():
        runner.propose_draft_token_ids()
    runner.propose_draft_token_ids()
    assert tally.answer()["draft_tally"] == {"tokens": 1, "distinct": 1, "top_token": 1, "top_count": 1}
    assert tally.answer() == tally.answer(), "it may be asked twice"
    with pytest.raises(RuntimeError, match="out of memory"), tally.running():
        raise RuntimeError("out of memory")
    assert set(vars(runner)) == before
    with tally.running():
        runner.propose_draft_token_ids()
    assert tally.answer()["draft_tally"]["top_token"] == 3, "each block begins with no counts"


@pytest.mark.parametrize(
    ("runner", "found"),
    [
        (None, "found the model runner in another process; enable with tensor_parallel_size = 1"),
        (types.SimpleNamespace(), "found no propose_draft_token_ids in types.SimpleNamespace; enable with"),
    ],
    ids=["another process", "another runner"],
)
def test_a_runner_that_cannot_be_watched_says_why(runner: Any, found: str) -> None:
    """And the block runs as ever."""
    tally = drafttally.DraftTally(runner)
    with tally.running():
        pass
    answer = tally.answer()
    assert list(answer) == ["draft_tally_reason"]
    assert answer["draft_tally_reason"].startswith("needs the ids of draft tokens; ")
    assert found in answer["draft_tally_reason"]


def test_a_runner_that_drafted_nothing_yet_is_counted() -> None:
    """vLLM's runner answers None where there is nothing to propose for."""
    runner = FakeRunner([None])
    tally = drafttally.DraftTally(runner)
    with tally.running():
        assert runner.propose_draft_token_ids() is None
    assert tally.answer()["draft_tally"] == {"tokens": 0, "distinct": 0, "top_token": None, "top_count": 0}
