"""``draftproof trace``: what proposers draft at every position of no-SD's output, by the protocol of arXiv 2601.11580.

The target's greedy output of each prompt, by the no-SD arm, is the one continuation that all variants are held against.
A variant's arm then writes the same output again: at every position its proposer drafts up to `limit` tokens, the
leading ones that the continuation goes on with are counted, and one token is committed. What would have come after the
continuation's end is not known: a draft that agrees up to there counts the tokens within it alone, as
`draftproof.analysis.lookup` does.

Where a variant's output leaves no-SD's, which rounding may do, its trace ends before the difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

import draftproof
from draftproof.catalog import Catalog
from draftproof.engines import BlockRequest, Engine, LiveArm, StartRequest, Traced, TraceRequest
from draftproof.errors import DraftproofError, rule, unknown
from draftproof.hardware import detect_machine, for_machine, missing
from draftproof.plan import DEFAULT_MAX_MODEL_TOKENS, Place, speculative_config
from draftproof.prompts import check_bos, fits, tokenize_request
from draftproof.records import UnitKey
from draftproof.resolve import CatalogResolver
from draftproof.runner import log_name
from draftproof.simulator.command import Say, save
from draftproof.simulator.traces import AUTHORS_LIMIT, AUTHORS_VARIANTS, LIMITS, SCHEMA
from draftproof.spec import Forced, MatrixRow, Sampling, Study, Target, Variant
from draftproof.tables import shared_prefix

Layout = Literal["ours", "public"]
BATCH = 16
"""Prompts that are written together."""
FORCES = Forced(async_scheduling=False, v1_runner=True)
"""Of every arm: drafts can be watched and kept from the scheduler there."""
AUTHORS_FIELDS = {variant: field for field, variant in AUTHORS_VARIANTS.items()}
"""vLLM's method -> its field in the layout of the public traces."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command."""

    variants: list[str]
    workload: str
    target: str | None = None
    hardware: str = "cpu"
    prompts: int = 16
    tokens: int = 128
    limit: int = AUTHORS_LIMIT
    layout: Layout = "ours"
    out: Path | None = None
    python: str

    def check(self) -> None:
        if self.limit not in LIMITS:
            raise rule("--limit", f"in {LIMITS[0]}..{LIMITS[-1]}", self.limit)
        if self.prompts < 2:
            raise rule("--prompts", "at least 2 (a trace file of one request is refused)", self.prompts)
        if self.tokens < 2:
            raise rule("--tokens", "at least 2 (the first comes from the prefill)", self.tokens)
        if self.layout == "public" and self.limit != AUTHORS_LIMIT:
            raise rule("--limit", f"{AUTHORS_LIMIT} with --layout public", self.limit, do="use --layout ours")


class Prompt(msgspec.Struct, frozen=True):
    id: str
    token_ids: list[int]


def trace(asked: Asked, catalog: Catalog, engine: Engine, say: Say) -> Path:
    """Trace the variants one after the other, each in an engine of its own, and write one file."""
    asked.check()
    variants = variants_of(asked, catalog)
    target = target_of(asked, variants, catalog)
    tracer = Tracer(asked, target, catalog, engine, say)
    prompts, continuations = tracer.continuations()
    found = {variant.name: tracer.trace(variant, prompts, continuations) for variant in variants}
    lines = [
        line_of(asked, prompt, {name: rows[number] for name, rows in found.items()})
        for number, prompt in enumerate(prompts)
        if all(rows[number] for rows in found.values())
    ]
    if len(lines) < 2:
        raise rule("requests that all variants traced", "at least 2", len(lines), do="ask for more with --prompts")
    if asked.layout == "public":
        lines = [as_public(line, variants) for line in lines]
    save(tracer.out, b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    say(f"{tracer.out}: {target.name} on {asked.workload}, {len(lines)} requests")
    return tracer.out


def variants_of(asked: Asked, catalog: Catalog) -> list[Variant]:
    """The named variants, each once; one without drafts of its own is refused."""
    found: list[Variant] = [catalog.get("variants", name) for name in dict.fromkeys(asked.variants)]
    for variant in found:
        if not variant.speculative or variant.control is not None:
            kind = "a control drafts what it is told" if variant.control else "it drafts nothing"
            raise rule("variant", "one that proposes by itself", variant.name, do=kind)
        if asked.layout == "public" and variant.method not in AUTHORS_FIELDS:
            raise rule("variant", "of a method that the public layout has", variant.name, AUTHORS_FIELDS)
    if asked.layout == "public" and len({variant.method for variant in found}) < len(found):
        raise rule("variants", "of different methods with --layout public", asked.variants)
    return found


def target_of(asked: Asked, variants: Sequence[Variant], catalog: Catalog) -> Target:
    """The named target, else the first embedded or derived one that all variants can draft for."""
    fit = [t for t in catalog.targets.values() if all(not v.drafters or t.name in v.drafters for v in variants)]
    if asked.target is not None:
        named: Target = catalog.get("targets", asked.target)
        if named not in fit:
            raise rule("--target", "one that all variants have a drafter for", named.name, [t.name for t in fit])
        return named
    local = [target for source in ("embedded", "derived") for target in fit if target.source == source]
    if not local:
        raise rule("--target", "named for these variants", None, [t.name for t in fit])
    return local[0]


class Quiet:
    """Progress of model building, told; there are no blocks."""

    def __init__(self, say: Say) -> None:
        self.say = say

    def block(self, done: int, total: int, left_s: float | None, what: str) -> None:
        """Nothing to tell."""


class Tracer:
    """One target on one workload; its arms are alive one at a time."""

    def __init__(self, asked: Asked, target: Target, catalog: Catalog, engine: Engine, say: Say) -> None:
        hardware = for_machine(catalog.get("hardware", asked.hardware), detect_machine())
        gap = missing(hardware, detect_machine())
        if gap is not None:
            raise DraftproofError(gap)
        row = MatrixRow(target=target.name, variants=asked.variants, workloads=[asked.workload], batch_sizes=[BATCH])
        study = Study(
            name="trace", title="", hardware=hardware.name, matrix=[row], output_tokens=asked.tokens, aa=False
        )
        self._asked, self._target, self._catalog, self._engine, self._say = asked, target, catalog, engine, say
        self._place = Place(study, hardware, target, catalog)
        self._resolver = CatalogResolver(catalog, study, {}, Quiet(say))
        self._model = self._resolver.model(target)
        dataset = asked.workload if asked.layout == "ours" else asked.workload.replace("_", "-")
        usual = (
            f"{target.name}_{dataset}.jsonl" if asked.layout == "public" else f"traces-{target.name}-{dataset}.jsonl"
        )
        self.out = asked.out or Path(usual)
        if self.out.suffix != ".jsonl":
            raise rule("--out", "a .jsonl file", str(self.out))
        try:
            self.out.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DraftproofError(f"{self.out.parent}: cannot be created: {error.strerror}") from error

    def _start(self, variant: Variant) -> LiveArm:
        config = None
        if variant.speculative:
            drafter = self._resolver.drafter(self._target, variant, self._model)
            # The limit goes over k after the drafter was checked with its own: heads and models are loops, and the
            # protocol asks for what they draft beyond what they were trained for, too.
            config = speculative_config(
                msgspec.structs.replace(variant, k=self._asked.limit), self._target.name, drafter
            )
        self._say(f"loading {variant.name} ({self._target.title})")
        return self._engine.start(
            StartRequest(
                spec=self._place.arm(variant.name, variant, FORCES, build="new"),
                group=0,
                hardware=self._place.hardware,
                model=self._model,
                revision=self._target.revision,
                speculative_config=config,
                python=self._asked.python,
                log=self.out.with_name(f"{self.out.stem}-{log_name(variant.name)}.log"),
            )
        )

    def continuations(self) -> tuple[list[Prompt], list[list[int]]]:
        """The first prompts that fit, and no-SD's greedy output of each."""
        arm = self._start(self._catalog.get("variants", "no_sd"))
        try:
            prompts = self._prompts(arm)
            outputs: list[list[int]] = []
            for batch in batches(prompts):
                request = BlockRequest(
                    unit=UnitKey(0, self._target.name, self._asked.workload, len(batch)),
                    rotation=0,
                    pass_index=0,
                    purpose="trace",
                    prompts=[prompt.token_ids for prompt in batch],
                    sampling=Sampling(),
                    output_tokens=self._asked.tokens,
                    ignore_eos=False,
                )
                outputs += [output.token_ids for output in arm.run(request).outputs]
        finally:
            arm.close()
        return prompts, outputs

    def _prompts(self, arm: LiveArm) -> list[Prompt]:
        """Near the context's end vLLM asks no proposer: prompt, output and one draft must fit."""
        asked = self._asked
        workload, loaded = self._resolver.workload(asked.workload)
        tokenized = arm.tokenize(tokenize_request(self._target, workload, loaded))
        rows = dict(zip((prompt.id for prompt in loaded.prompts), tokenized.token_ids, strict=True))
        check_bos(asked.workload, rows, tokenized.bos_token_id)
        context = int(self._place.engine.get("max_model_len", DEFAULT_MAX_MODEL_TOKENS))
        room = context - asked.tokens - asked.limit
        different: dict[tuple[int, ...], str] = {}
        for name, ids in rows.items():
            if fits(ids, room):
                different.setdefault(tuple(ids), name)
        left_out = len(rows) - len(different)
        if left_out:
            self._say(f"{asked.workload}: {left_out} prompts are copies or longer than {room} tokens and were left out")
        found = [Prompt(name, list(ids)) for ids, name in different.items()][: asked.prompts]
        if len(found) < 2:
            do = f"a context of {context} holds a prompt, --tokens {asked.tokens} and --limit {asked.limit}; lower them"
            raise rule(f"prompts of {asked.workload} that fit", "at least 2", len(found), do=do)
        if len(found) < asked.prompts:
            self._say(f"{asked.workload}: {len(found)} prompts, not {asked.prompts}")
        return found

    def trace(
        self, variant: Variant, prompts: list[Prompt], continuations: list[list[int]]
    ) -> list[dict[str, Any] | None]:
        """The entry of each prompt in our layout; None where not one token is no-SD's."""
        arm = self._start(variant)
        try:
            traced = [
                one
                for batch in batches(prompts)
                for one in arm.trace(
                    TraceRequest(prompts=[p.token_ids for p in batch], output_tokens=self._asked.tokens)
                )
            ]
            facts = self._provenance(variant, arm)
        finally:
            arm.close()
        rows = [entry_of(one, ids, facts) for one, ids in zip(traced, continuations, strict=True)]
        cut = [row for row in rows if row is None or "differs_from_no_sd_at" in row["provenance"]]
        lengths = [length for row in rows if row for length in row["lengths"]]
        self._say(
            f"{variant.name}: {len(lengths)} positions, mean length {sum(lengths) / max(1, len(lengths)):.2f} at a "
            f"limit of {self._asked.limit} drafts; {len(cut)} of {len(rows)} outputs leave no-SD's, and their traces "
            "end there"
        )
        return rows

    def _provenance(self, variant: Variant, arm: LiveArm) -> dict[str, Any]:
        drafter = variant.drafters.get(self._target.name)
        trained = self._catalog.drafters.get(drafter.model) if drafter and drafter.source == "trained" else None
        return {
            "draftproof": draftproof.__version__,
            "vllm": str(arm.facts.environment.get("vllm")),
            "target": self._target.name,
            "target_sha256": self._target.weights_sha256,
            "dtype": str(arm.facts.resolved.get("dtype")),
            "method": variant.method,
            "drafter": drafter.model or drafter.source if drafter else None,
            "supported_k": trained.max_k if trained else None,
            "batch": BATCH,
            **{name: value for name, value in variant.options.items() if isinstance(value, (str, int, float, bool))},
        }


def batches(prompts: Sequence[Prompt]) -> Iterator[Sequence[Prompt]]:
    for begin in range(0, len(prompts), BATCH):
        yield prompts[begin : begin + BATCH]


def entry_of(traced: Traced, continuation: list[int], provenance: dict[str, Any]) -> dict[str, Any] | None:
    """A variant's part of a line: cut where the arm's own output leaves the continuation; None: at the first token."""
    same = shared_prefix(continuation, traced.output)
    if not same:
        return None
    whole = traced.output == continuation
    drafts = traced.proposals[:same]
    return {
        "lengths": [1 + shared_prefix(draft, continuation[place:]) for place, draft in enumerate(drafts)],
        "token_ids": continuation[:same],
        "drafted": [len(draft) for draft in drafts],
        "provenance": provenance if whole else {**provenance, "differs_from_no_sd_at": same},
    }


def line_of(asked: Asked, prompt: Prompt, entries: dict[str, dict[str, Any] | None]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "dataset": asked.workload,
        "id": prompt.id,
        "prompt_token_ids": prompt.token_ids,
        "limit": asked.limit,
        "variants": entries,
    }


def as_public(line: dict[str, Any], variants: Sequence[Variant]) -> dict[str, Any]:
    """The same request as the public traces have it; the ids are those of the n-gram trace where there is one."""
    entries: dict[str, dict[str, Any]] = line["variants"]
    first = next((v for v in variants if v.method == "ngram"), variants[0])
    return {
        "id": line["id"],
        "prompt_token_ids": line["prompt_token_ids"],
        "generated_token_ids": entries[first.name]["token_ids"],
        **{AUTHORS_FIELDS[v.method]: {"acc_len": entries[v.name]["lengths"]} for v in variants},
    }


def names_of(text: str) -> list[str]:
    """``ngram,eagle3`` -> names."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise rule("variant", "a name, or several with commas", text)
    return names


def layout_named(text: str) -> Layout:
    for layout in get_args(Layout):
        if layout == text:
            found: Layout = layout
            return found
    raise unknown("--layout", text, get_args(Layout))
