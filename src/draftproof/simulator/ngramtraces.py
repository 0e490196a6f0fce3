"""``draftproof traces ngram``: the no-SD outputs of a run -> traces of n-gram lookup, without an engine.

A line is one request of the first pass of one rotation. A target and its workload have one file, with all batch sizes:
a prompt that was asked at several, or in several rotations, has a line for each, and what is printed tells how many.
Where several groups ran the same rotation, each with its own no-SD arm, the first one's outputs are taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from draftproof import tables
from draftproof.analysis.lookup import LIMIT, MAX_N, MIN_N, check_settings, lookup_trace
from draftproof.errors import rule, unknown
from draftproof.plan import is_no_sd
from draftproof.records import RotationLine, RunFolder
from draftproof.simulator.command import Say, save
from draftproof.simulator.traces import LIMITS, SCHEMA

Place = tuple[str, str]
"""Target and workload."""


class Lookup(msgspec.Struct, frozen=True):
    """Settings of the lookup, in tokens."""

    min_n: int = MIN_N
    max_n: int = MAX_N
    limit: int = LIMIT

    def check(self) -> None:
        check_settings(self.min_n, self.max_n, self.limit)
        if self.limit not in LIMITS:
            raise rule("limit", f"in {LIMITS[0]}..{LIMITS[-1]}", self.limit)


def write_traces(
    path: Path, out: Path | None, target: str | None, workload: str | None, lookup: Lookup, say: Say
) -> None:
    """One file for each target and workload of the run, or for those that are named; `out` takes one alone."""
    lookup.check()
    folder = RunFolder(path)
    run = folder.read()
    if not run.header.finished:
        say(f"{run.header.run_id}: the run is not finished: its finished rotations are used")
    rotations = [line for line in run.rotations if line.purpose == "speed" and reference_arms(line)]
    for option, wanted, known in (
        ("--target", target, {line.target for line in rotations}),
        ("--workload", workload, {line.workload for line in rotations}),
    ):
        if wanted is not None and wanted not in known:
            raise unknown(option, wanted, known)
    rotations = [line for line in rotations if target in (None, line.target) and workload in (None, line.workload)]
    places = list(dict.fromkeys((line.target, line.workload) for line in rotations))
    if not places:
        raise rule("rotations with no-SD outputs", "at least one", 0, do="run a study, or wait for its first rotation")
    if out is not None and len(places) > 1:
        names = [f"{target} on {workload}" for target, workload in places]
        raise rule("--out", "left out for several files", str(out), names, "or name one with --target and --workload")
    prompts = folder.prompts()
    for place in places:
        lines = [line for line in rotations if (line.target, line.workload) == place]
        made = list(traces(path, lines, prompts, lookup))
        if len(made) < 2:
            raise rule(
                f"no-SD outputs of {' on '.join(place)}", "at least 2 requests", len(made), do="run more rotations"
            )
        file = out or path / f"traces-{'-'.join(place)}.jsonl"
        save(file, b"".join(msgspec.json.encode(one) + b"\n" for one in made))
        lengths = [length for one in made for length in one["variants"]["ngram"]["lengths"]]
        distinct = {tuple(one["prompt_token_ids"]) for one in made}
        say(
            f"{file}: {' on '.join(place)}, {len(made)} requests of {len(distinct)} prompts, {len(lengths)} positions, "
            f"mean length {sum(lengths) / len(lengths):.2f} at a limit of {lookup.limit} drafts"
        )


def reference_arms(line: RotationLine) -> list[str]:
    """The no-SD arms of the build under test, in the run's order."""
    return [key for key in line.arms if is_no_sd(key) and not key.startswith("base:")]


def traces(
    path: Path, lines: list[RotationLine], prompts: dict[tuple[str, str, str], list[int]], lookup: Lookup
) -> Iterator[dict[str, Any]]:
    """Requests in the order in which they were run, in this project's layout."""
    outputs = tables.read_outputs(path, {line.part for line in lines})
    seen: set[tuple[int, int]] = set()
    for line in lines:
        arm = next((key for key in reference_arms(line) if (line.part, key, 0) in outputs), None)
        if arm is None or (line.batch_size, line.rotation) in seen:
            continue
        seen.add((line.batch_size, line.rotation))
        for number, (prompt_id, output) in enumerate(
            zip(line.prompt_ids, outputs[line.part, arm, 0], strict=True), start=1
        ):
            prompt = prompts.get((line.target, line.workload, prompt_id))
            if prompt is None:
                known = {
                    name for target, workload, name in prompts if (target, workload) == (line.target, line.workload)
                }
                raise unknown(f"{path.name}/prompts.jsonl: prompt", prompt_id, known, "the records are damaged")
            trace = lookup_trace(prompt, output.token_ids, min_n=lookup.min_n, max_n=lookup.max_n, limit=lookup.limit)
            yield {
                "schema": SCHEMA,
                "dataset": line.workload,
                "id": f"b{line.batch_size} rotation {line.rotation} request {number}: {prompt_id}",
                "prompt_token_ids": prompt,
                "limit": lookup.limit,
                "variants": {
                    "ngram": {
                        "lengths": trace.lengths.tolist(),
                        "token_ids": output.token_ids,
                        "drafted": trace.drafted.tolist(),
                    }
                },
            }
