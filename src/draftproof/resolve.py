"""From catalog entries to what an engine loads: built or local models, drafters, loaded workloads."""

from __future__ import annotations

import threading
from pathlib import Path

from draftproof import models
from draftproof.catalog import Catalog
from draftproof.errors import DraftproofError
from draftproof.live import Progress
from draftproof.records import RunFolder
from draftproof.spec import Study, Target, Variant, Workload
from draftproof.workloads import LoadedWorkload, Prompt, load_workload


class CatalogResolver:
    """Builds and looks up what the catalog describes; each thing once a session."""

    def __init__(
        self, catalog: Catalog, study: Study, given: dict[str, tuple[Workload, Path]], progress: Progress
    ) -> None:
        self._catalog = catalog
        self._study = study
        self._given = given
        self._progress = progress
        self._models: dict[str, str | DraftproofError] = {}
        self._lock = threading.Lock()  # arms start side by side, and one build is enough for all
        self._workloads: dict[str, tuple[Workload, LoadedWorkload]] = {}

    def model(self, target: Target) -> str:
        with self._lock:
            if target.name not in self._models:
                try:
                    self._models[target.name] = models.resolve_target(target, self._catalog, say=self._progress.say)
                except DraftproofError as error:
                    self._models[target.name] = error
            found = self._models[target.name]
        if isinstance(found, DraftproofError):
            raise found
        return found

    def drafter(self, target: Target, variant: Variant, model: str) -> str | None:
        return models.resolve_drafter(variant, target, model, self._catalog, say=self._progress.say)

    def workload(self, name: str) -> tuple[Workload, LoadedWorkload]:
        if name not in self._workloads:
            if name in self._given:
                workload, path = self._given[name]
            else:
                workload = self._catalog.get("workloads", name)
                path = self._catalog.workload_path(workload)
            self._workloads[name] = workload, load_workload(workload, path, num_prompts=self._num_prompts(name))
        return self._workloads[name]

    def _num_prompts(self, name: str) -> int | None:
        """The most prompts that a row of the study asks of this workload; None: the workload's own number."""
        counts = [row.num_prompts or self._study.num_prompts for row in self._study.matrix if name in row.workloads]
        known = [count for count in counts if count is not None]
        return max(known) if known else None


class ReplayResolver:
    """Prompts of a recorded run; models are never loaded."""

    def __init__(self, folder: RunFolder) -> None:
        self._prompts = folder.prompts()

    def model(self, target: Target) -> str:
        return target.model

    def drafter(self, target: Target, variant: Variant, model: str) -> str | None:
        return variant.drafters[target.name].model or model if target.name in variant.drafters else None

    def workload(self, name: str) -> tuple[Workload, LoadedWorkload]:
        ids = list(dict.fromkeys(prompt_id for _, workload, prompt_id in self._prompts if workload == name))
        if not ids:
            raise DraftproofError(f"the replayed run holds no prompts of workload {name!r}")
        prompts = tuple(Prompt(id=prompt_id, messages=None, text="(recorded as token ids)") for prompt_id in ids)
        entry = Workload(name=name, kind="recorded", title=name, source="file", path="prompts.jsonl")
        return entry, LoadedWorkload(prompts=prompts, revision=None, source="replay")
