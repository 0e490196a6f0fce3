"""Cost models: how long a step takes, from one TOML file per target and hardware."""

from __future__ import annotations

import math
import re
import tomllib
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from draftproof.catalog import fixtures_folder, known_keys
from draftproof.errors import DraftproofError, unknown
from draftproof.spec import Entry, require

Floats = NDArray[np.float64]


def check_seconds(entry: Entry, *fields: str) -> None:
    for field in fields:
        value = getattr(entry, field)
        require(math.isfinite(value) and value >= 0.0, field, "a finite number of at least 0", value)


class VerifyCost(Entry, frozen=True, kw_only=True):
    """One forward of the target over a batch."""

    fixed_s: float
    per_token_s: float
    per_kv_token_s: float

    def __post_init__(self) -> None:
        check_seconds(self, "fixed_s", "per_token_s", "per_kv_token_s")
        require(self.fixed_s > 0.0, "fixed_s", "more than 0", self.fixed_s)


class PrefillCost(Entry, frozen=True, kw_only=True):
    """One forward of the target over prompt tokens, where they cost otherwise than the tokens of `VerifyCost`.

    A step that holds prompt tokens alone costs this `fixed_s`, any other step that of `VerifyCost`; cached tokens cost
    the same in both.
    """

    fixed_s: float
    per_token_s: float

    def __post_init__(self) -> None:
        check_seconds(self, "fixed_s", "per_token_s")


class StepCost(Entry, frozen=True, kw_only=True):
    """What every engine step costs beside its forwards, and how long a prefill chunk may be."""

    overhead_s: float
    per_request_s: float = 0.0
    """For each request in the step."""
    per_draft_token_s: float = 0.0
    """For each draft token that is verified (rejection sampling)."""
    max_batched_tokens: int = 8192

    def __post_init__(self) -> None:
        check_seconds(self, "overhead_s", "per_request_s", "per_draft_token_s")
        require(self.max_batched_tokens >= 1, "max_batched_tokens", "at least 1", self.max_batched_tokens)

    def beside_s(self, requests: ArrayLike, drafts: ArrayLike) -> Floats:
        """Seconds beside the forwards of a step with so many requests and draft tokens; they broadcast."""
        more = self.per_request_s * np.asarray(requests, dtype=float)
        return np.asarray(self.overhead_s + more + self.per_draft_token_s * np.asarray(drafts, dtype=float))


class DraftCost(Entry, frozen=True, kw_only=True):
    """All drafts of one step: ``share x verify + fixed + per_kv x cached tokens + per_token x draft tokens``."""

    fixed_s: float = 0.0
    per_kv_token_s: float = 0.0
    per_token_s: float = 0.0
    share_of_verify: float = 0.0
    per_prompt_token_s: float = 0.0
    """What the drafter adds to a prefill: it reads the prompt as well."""
    fitted_k: int = 0
    """k of the runs behind `fixed_s` and `per_kv_token_s`; 0: drafting is one pass, whatever k is."""
    can_miss: bool = False
    """A lookup: it may find nothing to propose."""

    def __post_init__(self) -> None:
        check_seconds(self, "fixed_s", "per_kv_token_s", "per_token_s", "share_of_verify", "per_prompt_token_s")
        require(self.fitted_k >= 0, "fitted_k", "at least 0", self.fitted_k)


class Padding(Entry, frozen=True, kw_only=True):
    """Token counts that have a captured graph: a batch runs at the next larger one, beyond the last without."""

    sizes: list[int]

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip(self.sizes, self.sizes[1:], strict=False))
        require(bool(self.sizes) and self.sizes[0] >= 1 and rising, "sizes", "positive and rising", self.sizes)


class Roofline(Entry, frozen=True, kw_only=True):
    """A floor under a forward: arithmetic and memory traffic at the device's peaks."""

    flops_per_token: float
    flops_per_s: float
    weight_bytes: float
    kv_bytes_per_token: float
    bytes_per_s: float

    def __post_init__(self) -> None:
        check_seconds(self, "flops_per_token", "flops_per_s", "weight_bytes", "kv_bytes_per_token", "bytes_per_s")
        for field in ("flops_per_s", "bytes_per_s"):
            require(getattr(self, field) > 0.0, field, "more than 0", getattr(self, field))


class Units(Entry, frozen=True, kw_only=True):
    time: str
    length: str

    def __post_init__(self) -> None:
        require(self.time == "seconds", "time", "'seconds'", self.time)
        require(self.length == "tokens", "length", "'tokens'", self.length)


class StageError(Entry, frozen=True, kw_only=True):
    """Absolute relative errors of a fit, ``|fitted - measured| / measured`` by step: median and 90th percentile."""

    stage: str
    steps: int
    median: float
    p90: float
    held_out_median: float | None = None
    """Of steps that the fit did not see; None: no part of the data could be held out."""
    held_out_p90: float | None = None


class Fit(Entry, frozen=True, kw_only=True):
    method: str
    data: str
    error: str
    errors: list[StageError] = msgspec.field(default_factory=list)
    """The same by stage, where they are known."""
    batch_sizes: list[int] = msgspec.field(default_factory=list)
    caution: str = ""


class Provenance(Entry, frozen=True, kw_only=True):
    constants: list[str]
    source: str


class CostModel(Entry, frozen=True, kw_only=True):
    """``costs/<name>.toml``."""

    name: str
    title: str
    target: str
    hardware: str
    units: Units
    verify: VerifyCost
    step: StepCost
    prefill: PrefillCost | None = None
    """None: prompt tokens cost what `verify` says."""
    drafters: dict[str, DraftCost]
    """Variant -> its draft cost."""
    padding: Padding | None = None
    roofline: Roofline | None = None
    fit: Fit
    provenance: list[Provenance]

    def __post_init__(self) -> None:
        require(bool(self.drafters), "drafters", "at least one drafter", self.drafters)
        named = {constant for row in self.provenance for constant in row.constants}
        for constant in constants(self):
            require(constant in named, "provenance", f"given for every constant, {constant} too", sorted(named))

    def drafter(self, variant: str) -> DraftCost:
        if variant not in self.drafters:
            raise unknown("variant", variant, self.drafters, f"add [drafters.{variant}] to costs/{self.name}.toml")
        return self.drafters[variant]

    def forward_s(
        self, cached: Floats, tokens: Floats, *, pad: bool, floor: bool, prompt: ArrayLike | None = None
    ) -> Floats:
        """Seconds of a forward over `tokens` (of the whole batch) with `cached` tokens of context; they broadcast.

        `prompt` of the tokens are prompt tokens; None: none of them.
        """
        alone = np.asarray(0.0 if prompt is None else prompt, dtype=float) >= tokens
        if pad and self.padding is not None:
            sizes = np.array([*self.padding.sizes, np.inf])
            padded = sizes[np.searchsorted(sizes, tokens)]
            tokens = np.where(np.isfinite(padded), padded, tokens)
        linear = self.verify.fixed_s + self.verify.per_kv_token_s * cached + self.verify.per_token_s * tokens
        if self.prefill is not None and prompt is not None:
            linear = linear + (self.prefill.per_token_s - self.verify.per_token_s) * np.asarray(prompt, dtype=float)
            linear = linear + np.where(alone, self.prefill.fixed_s - self.verify.fixed_s, 0.0)
        if not (floor and self.roofline is not None):
            return np.asarray(linear)
        roof = self.roofline
        compute_s = tokens * (roof.flops_per_token / roof.flops_per_s)
        memory_s = (roof.weight_bytes + roof.kv_bytes_per_token * cached) / roof.bytes_per_s
        floored: Floats = np.maximum(linear, np.maximum(compute_s, memory_s))
        return floored


def constants(model: CostModel) -> list[str]:
    """Dotted names of every number that is not left at its default: each needs a source."""
    names: list[str] = []
    parts: dict[str, Entry | None] = {
        "verify": model.verify,
        "step": model.step,
        "prefill": model.prefill,
        "padding": model.padding,
        "roofline": model.roofline,
        **{f"drafters.{name}": drafter for name, drafter in model.drafters.items()},
    }
    for prefix, entry in parts.items():
        if entry is None:
            continue
        for field in msgspec.structs.fields(entry):
            if field.required or getattr(entry, field.name) != field.default:
                names.append(f"{prefix}.{field.name}")
    return names


def load_costs(name: str) -> CostModel:
    """The cost model of that name in ``fixtures/costs/``, or of that file."""
    folder = fixtures_folder() / "costs"
    known = {path.stem: path for path in sorted(folder.glob("*.toml"))}
    path = known.get(name, Path(name))
    if not path.is_file():
        raise unknown("--hardware", name, known, "or give the path of a cost model's TOML file")
    try:
        text = path.read_text(encoding="utf-8")
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DraftproofError(f"{path}: not valid TOML: {error}") from error
    try:
        return msgspec.convert(table, type=CostModel)
    except msgspec.ValidationError as error:
        line = line_of(text, str(error))
        raise DraftproofError(f"{path}{line}: {error}{known_keys(str(error), CostModel)}") from error


def line_of(text: str, message: str) -> str:
    """``:<line>`` of the key that a validation message is about, where it can be found."""
    place = re.search(r"at `\$\.?([^`]*)`", message)
    table = place.group(1).replace("[...]", "") if place else ""
    named = re.search(r"unknown field `(\w+)`", message) or re.match(r"(\w+) must be", message)
    if named is None:
        table, _, key = table.rpartition(".")
    else:
        key = named.group(1)
    section = ""
    for number, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*\[+([^\]]+)\]+", line)
        section = header.group(1).strip() if header else section
        if re.match(rf"\s*{re.escape(key)}\s*=", line) and (section == table or "drafters" in table):
            if "drafters" in table and named and not section.startswith("drafters"):
                continue
            value = line.partition("=")[2].partition("#")[0]
            got = re.search(r"got (\S+)\)", message)
            if got and got.group(1) in ("nan", "inf", "-inf") and got.group(1).strip("-") not in value:
                continue
            return f":{number}"
    return ""
