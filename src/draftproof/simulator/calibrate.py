"""Fits the constants of a cost model to recorded engine steps. Pure: no files, no clock.

Each stage of a step is a sum of terms with non-negative constants (the linear model of arXiv 2601.11580, paper.md 4.3,
with terms for what its runs could not tell apart). For a decode step of R requests, T tokens (R and the drafts that it
verifies), D drafts and C cached tokens (those of all prompts and all that is committed):

=============  =========================================================================================
verify         ``fixed + per_token T + per_kv_token C + per_request R``: the target's forward and LM head
sample         ``fixed + per_request R + per_draft_token D``
overhead       the same: all of the step that no other stage claims
draft          ``fixed + per_token T + per_kv_token C``, one fit for each drafter
prefill        ``fixed + per_token P`` for P prompt tokens, beside what the step's requests cost: all but drafting
prompt         ``per_prompt_token P``, beside one draft: what the drafter does in a prefill
=============  =========================================================================================

A fit minimises relative errors: each step's residual is divided by the step's seconds (first the measured, then the
fitted ones, so that slow outliers are not favoured or punished for being slow), and large ones count less (Huber's
weights, 1964: from 1.345 robust standard deviations on). A term that is a combination of those before it over the
recorded steps, to 1 %, is left out: the run cannot tell it, and it is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter

import msgspec
import numpy as np

from draftproof.errors import rule
from draftproof.simulator.costs import Floats, StageError

MIN_STEPS = 8
"""Decode steps of an arm below which nothing is fitted: two for each constant of the largest stage."""
HUBER = 1.345
"""95 % efficient where errors are normal (Huber, Robust Statistics, 1981)."""
TELLING = 0.01
"""Part of a term that the terms before it must leave unexplained."""
ROUNDS = 50
LEAST_SPREAD = 1e-6
"""Relative: below it residuals are rounding, and nothing is an outlier."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """One engine step. The four stages are the whole step."""

    workload: str
    rotation: str
    """Of the unit that it belongs to: arms of one rotation ran the same prompts."""
    drafter: str
    """Variant; empty: no speculation."""
    prefill: bool
    requests: int
    tokens: int
    drafts: int
    cached_tokens: int
    draft_s: float
    verify_s: float
    sample_s: float
    overhead_s: float

    @property
    def beside_draft_s(self) -> float:
        return self.verify_s + self.sample_s + self.overhead_s

    @property
    def step_s(self) -> float:
        return self.beside_draft_s + self.draft_s


Term = Callable[[Sample], float]


def one(_: Sample) -> float:
    return 1.0


tokens, requests, drafts, cached = map(attrgetter, ("tokens", "requests", "drafts", "cached_tokens"))
VERIFY: dict[str, Term] = {"fixed_s": one, "per_token_s": tokens, "per_kv_token_s": cached, "per_request_s": requests}
BESIDE: dict[str, Term] = {"fixed_s": one, "per_request_s": requests, "per_draft_token_s": drafts}
DRAFT: dict[str, Term] = {"fixed_s": one, "per_token_s": tokens, "per_kv_token_s": cached}
PREFILL: dict[str, Term] = {"per_token_s": tokens, "fixed_s": one}
PROMPT: dict[str, Term] = {"per_prompt_token_s": tokens}


class StageFit(msgspec.Struct, frozen=True):
    """Constants of one stage in seconds; 0 for a term that does not show or that the steps cannot tell."""

    seconds: dict[str, float]
    untold: list[str]
    """Terms that are a combination of others over these steps."""
    steps: int

    def of(self, samples: Sequence[Sample], terms: Mapping[str, Term]) -> Floats:
        """The stage's fitted seconds of each step."""
        return np.asarray(matrix(samples, terms) @ np.array([self.seconds[name] for name in terms]))


class Stage(msgspec.Struct, frozen=True):
    """The steps of a stage with what was measured and fitted, in seconds."""

    fit: StageFit
    measured: Floats
    fitted: Floats


class StepModel(msgspec.Struct, frozen=True, kw_only=True):
    """All stages of a target and its drafters."""

    verify: StageFit
    sample: StageFit
    overhead: StageFit
    prefill: StageFit
    drafts: dict[str, StageFit]
    prompts: dict[str, StageFit]
    k: dict[str, int]
    """Drafter -> drafts of each request and step."""

    def beside_s(self, name: str) -> float:
        """A constant of all that is beside a step's forwards: its requests' part of `verify` is counted there."""
        of_verify = self.verify.seconds["per_request_s"] if name == "per_request_s" else 0.0
        return self.sample.seconds[name] + self.overhead.seconds[name] + of_verify

    def prefill_offset(self, samples: Sequence[Sample]) -> Floats:
        """Seconds of a prefill that are not its prompt tokens': the requests', and attention to earlier chunks."""
        each = matrix(samples, {"one": one, "requests": requests, "cached": cached})
        prices = (self.beside_s("fixed_s"), self.beside_s("per_request_s"), self.verify.seconds["per_kv_token_s"])
        return np.asarray(each @ np.array(prices))

    def prompt_offset(self, name: str, samples: Sequence[Sample]) -> Floats:
        """Seconds of the draft that a prefill ends with."""
        after = [
            msgspec.structs.replace(s, tokens=s.requests * (1 + self.k[name]), cached_tokens=s.cached_tokens + s.tokens)
            for s in samples
        ]
        return self.drafts[name].of(after, DRAFT)

    def stages(self, samples: Iterable[Sample]) -> dict[str, Stage]:
        """Every stage on these steps, whether they were fitted or not."""
        everything = list(samples)
        decode = [s for s in everything if not s.prefill]
        prefill = [s for s in everything if s.prefill]
        found: dict[str, Stage] = {}
        whole = np.zeros(len(decode))
        for name, fit, terms in (
            ("verify", self.verify, VERIFY),
            ("sample", self.sample, BESIDE),
            ("overhead", self.overhead, BESIDE),
        ):
            fitted = fit.of(decode, terms)
            whole = whole + fitted
            found[name] = Stage(fit, seconds_of(decode, f"{name}_s"), fitted)
        for name, fit in self.drafts.items():
            mine = [s for s in decode if s.drafter == name]
            fitted = fit.of(mine, DRAFT)
            whole[[s.drafter == name for s in decode]] += fitted
            found[f"draft {name}"] = Stage(fit, seconds_of(mine, "draft_s"), fitted)
        fitted = self.prefill_offset(prefill) + self.prefill.of(prefill, PREFILL)
        found["prefill"] = Stage(self.prefill, seconds_of(prefill, "beside_draft_s"), fitted)
        for name, fit in self.prompts.items():
            mine = [s for s in prefill if s.drafter == name]
            fitted = self.prompt_offset(name, mine) + fit.of(mine, PROMPT)
            found[f"prompt {name}"] = Stage(fit, seconds_of(mine, "draft_s"), fitted)
        for name in ("", *self.drafts):
            here = np.array([s.drafter == name for s in decode], dtype=bool)
            count = StageFit({}, [], self.drafts[name].steps if name else self.verify.steps)
            found[f"step {name or 'no_sd'}"] = Stage(count, seconds_of(decode, "step_s")[here], whole[here])
        return found


def matrix(samples: Sequence[Sample], terms: Mapping[str, Term]) -> Floats:
    """Shape (steps, terms)."""
    rows = [[float(term(sample)) for term in terms.values()] for sample in samples]
    return np.array(rows, dtype=np.float64).reshape(len(samples), len(terms))


def seconds_of(samples: Sequence[Sample], name: str) -> Floats:
    return np.array([getattr(sample, name) for sample in samples], dtype=np.float64)


def fit_steps(samples: Iterable[Sample], k: Mapping[str, int]) -> StepModel:
    """The constants of all stages; `k` is the number of drafts of each drafter. No order of the steps matters."""
    everything = list(samples)
    decode = [s for s in everything if not s.prefill]
    prefill = [s for s in everything if s.prefill]
    nothing = StageFit(dict.fromkeys(PREFILL, 0.0), [], 0)
    model = StepModel(
        verify=fit_stage(decode, VERIFY, "verify_s"),
        sample=fit_stage(decode, BESIDE, "sample_s"),
        overhead=fit_stage(decode, BESIDE, "overhead_s"),
        prefill=nothing,
        drafts={name: fit_stage([s for s in decode if s.drafter == name], DRAFT, "draft_s") for name in k},
        prompts={},
        k=dict(k),
    )
    prompts = {}
    for name in k:
        mine = [s for s in prefill if s.drafter == name]
        prompts[name] = fit_stage(mine, PROMPT, "draft_s", model.prompt_offset(name, mine))
    offset = model.prefill_offset(prefill)
    return msgspec.structs.replace(
        model, prefill=fit_stage(prefill, PREFILL, "beside_draft_s", offset), prompts=prompts
    )


def fit_stage(
    samples: Sequence[Sample], terms: Mapping[str, Term], name: str, offset: Floats | None = None
) -> StageFit:
    """``offset + terms`` fitted to the seconds `name` of these steps. Steps that took no time say nothing."""
    measured = seconds_of(samples, name)
    some = measured > 0.0
    columns = matrix(samples, terms)[some]
    known = np.zeros(len(samples)) if offset is None else offset
    seconds = dict.fromkeys(terms, 0.0)
    kept = telling(columns)
    if kept:
        found = robust(columns[:, kept], measured[some], known[some])
        seconds |= {list(terms)[index]: float(value) for index, value in zip(kept, found, strict=True)}
    untold = [name for index, name in enumerate(terms) if index not in kept] if some.any() else []
    return StageFit(seconds, untold, int(some.sum()))


def telling(columns: Floats) -> list[int]:
    """Columns that are no combination of those kept before them."""
    kept: list[int] = []
    for index in range(columns.shape[1]):
        column = columns[:, index]
        left = column
        if kept:
            before = columns[:, kept] / np.linalg.norm(columns[:, kept], axis=0)
            left = column - before @ np.linalg.lstsq(before, column, rcond=None)[0]
        if np.linalg.norm(left) > TELLING * np.linalg.norm(column):
            kept.append(index)
    return kept


def robust(columns: Floats, measured: Floats, offset: Floats) -> Floats:
    """Non-negative x with ``offset + columns x`` near `measured`, relatively; Huber's weights, iterated."""
    from scipy.optimize import nnls

    scale, weight = measured, np.ones(measured.size)
    norms = np.linalg.norm(columns, axis=0)
    found = np.zeros(columns.shape[1])
    for _ in range(ROUNDS):
        by = np.sqrt(weight) / scale
        rows = columns / norms * by[:, None]
        size = np.linalg.norm(rows, axis=0)
        solved, _ = nnls(rows / size, (measured - offset) * by)
        before, found = found, solved / size / norms
        fitted = offset + columns @ found
        scale = np.maximum(fitted, measured / 10)
        residual = np.abs(measured - fitted) / scale
        limit = HUBER * max(1.4826 * float(np.median(residual)), LEAST_SPREAD)
        weight = np.where(residual > limit, limit / np.maximum(residual, limit), 1.0)
        if np.allclose(found, before, rtol=1e-9, atol=0.0):
            break
    return np.asarray(found, dtype=np.float64)


def check(samples: Sequence[Sample], k: Mapping[str, int]) -> None:
    """Every arm has enough decode steps, and there is a prefill to fit."""
    for drafter in ("", *k):
        found = sum(s.drafter == drafter and not s.prefill for s in samples)
        if found < MIN_STEPS:
            raise rule(
                f"decode steps of arm {drafter or 'no_sd'}",
                f"at least {MIN_STEPS}",
                found,
                do="run the study again with more stage_output_tokens or stage_blocks",
            )
    if not any(s.prefill for s in samples):
        raise rule("prefill steps", "at least 1", 0, do="run the study again: its stages blocks are cut off")


def held_out_by(samples: Sequence[Sample]) -> str:
    """What is left out at a time: ``workload``, ``rotation`` where there is one workload; empty: nothing can be."""
    if len({s.workload for s in samples}) > 1:
        return "workload"
    return "rotation" if len({s.rotation for s in samples}) > 1 else ""


def errors(samples: Sequence[Sample], k: Mapping[str, int], model: StepModel) -> list[StageError]:
    """Errors of each stage on all steps, and on parts that a fit to the others did not see."""
    by = held_out_by(samples)
    unseen: dict[str, list[Floats]] = {}
    for part in sorted({getattr(s, by) for s in samples}) if by else []:
        rest = [s for s in samples if getattr(s, by) != part]
        other = fit_steps(rest, k)
        for name, stage in other.stages(s for s in samples if getattr(s, by) == part).items():
            least = 1 if name.startswith(("prefill", "prompt")) else MIN_STEPS
            if stage.fit.steps >= least:
                unseen.setdefault(name, []).append(relative(stage))
    found = []
    for name, stage in model.stages(samples).items():
        here = relative(stage)
        if not here.size:
            continue
        out = np.concatenate(unseen[name]) if name in unseen else np.zeros(0)
        found.append(
            StageError(
                stage=name,
                steps=int(here.size),
                median=quantile(here, 0.5),
                p90=quantile(here, 0.9),
                held_out_median=quantile(out, 0.5) if out.size else None,
                held_out_p90=quantile(out, 0.9) if out.size else None,
            )
        )
    return found


def relative(stage: Stage) -> Floats:
    """``|fitted - measured| / measured`` of the steps that took time."""
    some = stage.measured > 0.0
    return np.abs(stage.fitted[some] - stage.measured[some]) / stage.measured[some]


def quantile(values: Floats, share: float) -> float:
    return round(float(np.quantile(values, share)), 4)
