"""A run's prompts as token ids: made once, the same for every arm, dealt to rotations."""

from __future__ import annotations

from typing import Protocol

import msgspec

from draftproof.engines import TokenizeRequest
from draftproof.errors import DraftproofError
from draftproof.ledger import Ledger
from draftproof.live import LiveArms
from draftproof.plan import Group, Unit, check_context, max_model_tokens
from draftproof.records import WorkloadLine
from draftproof.spec import Study, Target, Workload, digest
from draftproof.workloads import LoadedWorkload, deal


class Prompt(msgspec.Struct, frozen=True):
    id: str
    token_ids: list[int]


class Workloads(Protocol):
    """Where prompts come from."""

    def workload(self, name: str) -> tuple[Workload, LoadedWorkload]: ...


class PromptSets:
    """The prompt sets of a group's units."""

    def __init__(self, group: Group, study: Study, ledger: Ledger, arms: LiveArms, source: Workloads) -> None:
        self._group = group
        self._study = study
        self._ledger = ledger
        self._arms = arms
        self._source = source
        names = dict.fromkeys(unit.key.workload for unit in group.units)
        self._prompts = {name: self._tokenize(name) for name in names}

    def of(self, unit: Unit, rotation: int) -> list[Prompt]:
        """The prompts of one rotation: B different ones, or B copies of one (the paper's batches)."""
        size, study, mine = unit.key.batch_size, self._study, self._prompts[unit.key.workload]
        if study.batching == "identical":
            return [mine[index] for index in deal(len(mine), 1, rotation, study.seed)] * size
        return [mine[index] for index in deal(len(mine), size, rotation, study.seed)]

    def ids(self, unit: Unit, rotation: int) -> list[list[int]]:
        """The same as token ids alone."""
        return token_ids(self.of(unit, rotation))

    def _tokenize(self, name: str) -> list[Prompt]:
        """Token ids of a workload's prompts, once a run: every arm then gets the same ids."""
        study, target = self._study, self._group.target
        workload, loaded = self._source.workload(name)
        known = self._ledger.workloads.get((target.name, name))
        if known is None:
            known = self._add(workload, loaded)
        elif known.revision != loaded.revision:
            raise DraftproofError(
                f"workload {name!r} is not what it was when this run began (revision {known.revision} -> "
                f"{loaded.revision}); start a new run with --sd-fresh"
            )
        found = [
            Prompt(prompt_id, ids)
            for (target_name, workload_name, prompt_id), ids in self._ledger.prompts.items()
            if (target_name, workload_name) == (target.name, name) and fits(ids, study.max_prompt_tokens)
        ]
        if not found:
            raise DraftproofError(
                f"workload {name!r} has no prompt left: all {known.left_out} are longer than "
                f"max_prompt_tokens = {study.max_prompt_tokens}; raise it or give shorter prompts"
            )
        units = [unit for unit in self._group.units if unit.key.workload == name]
        output_tokens = max(cell.output_tokens for unit in units for cell in unit.cells)
        for prompt in found:
            check_context(
                f"workload {name!r}, prompt {prompt.id!r}",
                len(prompt.token_ids),
                output_tokens,
                max_model_tokens(self._group),
            )
        return found

    def _add(self, workload: Workload, loaded: LoadedWorkload) -> WorkloadLine:
        name, target, ledger = workload.name, self._group.target, self._ledger
        tokenized = self._arms.first().tokenize(tokenize_request(target, workload, loaded))
        rows = {prompt.id: ids for prompt, ids in zip(loaded.prompts, tokenized.token_ids, strict=True)}
        check_bos(name, rows, tokenized.bos_token_id)
        kept = [ids for ids in rows.values() if fits(ids, self._study.max_prompt_tokens)]
        ledger.add_prompts({(target.name, name, prompt_id): ids for prompt_id, ids in rows.items()})
        line = WorkloadLine(
            session=ledger.session,
            target=target.name,
            workload=name,
            num_prompts=len(kept),
            left_out=len(rows) - len(kept),
            revision=loaded.revision,
            prompts_sha256=digest(list(rows.values())),
            tokenizer_sha256=tokenized.tokenizer_sha256,
        )
        ledger.add(line)
        return line


def tokenize_request(target: Target, workload: Workload, loaded: LoadedWorkload) -> TokenizeRequest:
    return TokenizeRequest(
        target=target.name,
        workload=workload.name,
        ids=[prompt.id for prompt in loaded.prompts],
        prompts=[prompt.messages if prompt.messages is not None else prompt.text for prompt in loaded.prompts],
        template_options={**target.template_options, **workload.template_options},
    )


def token_ids(prompts: list[Prompt]) -> list[list[int]]:
    return [prompt.token_ids for prompt in prompts]


def fits(ids: list[int], limit: int | None) -> bool:
    return limit is None or len(ids) <= limit


def check_bos(workload: str, rows: dict[str, list[int]], bos: int | None) -> None:
    """Exactly one BOS: the paper's prompts began with two, since text with a BOS in it was tokenised again."""
    for prompt_id, ids in rows.items():
        if not ids:
            raise DraftproofError(f"workload {workload!r}, prompt {prompt_id!r}: no tokens")
        if bos is not None and ids[:2] == [bos, bos]:
            raise DraftproofError(
                f"workload {workload!r}, prompt {prompt_id!r} begins with two BOS tokens ({bos}); "
                "the text must not hold the one that the tokenizer adds"
            )
