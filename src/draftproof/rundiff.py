"""``draftproof diff``: the outputs of one arm in two runs, request by request, by token id."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

from draftproof import tables
from draftproof.analysis.stats import wilson
from draftproof.analysis.survival import observe, rate
from draftproof.analysis.tokendiff import OutputSet, first_difference, pair_up
from draftproof.errors import DraftproofError, unknown
from draftproof.records import RunData, RunFolder
from draftproof.spec import digest

SHOWN = 10
"""First differences that are told of each cell."""

Place = tuple[str, str, int]
"""Target, workload, batch size."""


def diff(reference: Path, other: Path, arm: str, other_arm: str) -> tuple[list[str], bool]:
    """Lines to print, and whether all outputs are identical.

    Raises DraftproofError where the runs are not of the same requests, or were read by different tokenizers.
    """
    left, right = outputs_of(reference, arm), outputs_of(other, other_arm)
    for run, mine, others in ((reference, left, right), (other, right, left)):
        missing = [place for place in others if place not in mine]
        if missing:
            raise DraftproofError(
                f"run {run.name!r} lacks {', '.join(map(cell_text, missing))}, which the other one has"
            )
    lines, same = [], True
    for place in left:
        pairs = pair_up(left[place], right[place])
        found = [(name, a, b, first_difference(a, b)) for name, a, b in pairs]
        differing = sorted((f for f in found if f[3] is not None), key=lambda f: f[3] or 0)
        same = same and not differing
        low, high = wilson(len(found) - len(differing), len(found))
        per_1000 = rate(observe([(name, position, len(a)) for name, a, _, position in found]))
        lines.append(
            f"{cell_text(place)}: {len(found) - len(differing)} of {len(found)} requests identical "
            f"({100 * low:.0f}-{100 * high:.0f} %)"
            + (
                f"; {per_1000.per_1000:.2f} first differences per 1,000 tokens at risk "
                f"[{per_1000.low:.2f}, {per_1000.high:.2f}]"
                if per_1000
                else ""
            )
        )
        for name, a, b, position in differing[:SHOWN]:
            assert position is not None
            lines.append(f"  {name}, output position {position}: {token(a, position)} -> {token(b, position)}")
        if len(differing) > SHOWN:
            lines.append(f"  and {len(differing) - SHOWN} more")
    return lines, same


def outputs_of(path: Path, arm: str) -> dict[Place, OutputSet]:
    """First-pass outputs of one arm; a request is named by its prompt and rotation."""
    folder = RunFolder(path)
    data = folder.read()
    known = sorted({key for line in data.rotations for key in line.arms})
    if arm not in known:
        raise unknown(f"run {path.name!r}: arm", arm, known)
    outputs = tables.read_outputs(path, {line.part for line in data.rotations})
    prompts = folder.prompts()
    tokenizers = {(line.target, line.workload): line.tokenizer_sha256 for line in data.workloads}
    found: dict[Place, OutputSet] = {}
    for place, lines in itertools.groupby(sorted(rotations(data, arm), key=lambda row: row[0]), key=lambda row: row[0]):
        target, workload, _ = place
        ids: dict[str, list[int]] = {}
        hashes: dict[str, str] = {}
        for _, part, rotation, prompt_ids in lines:
            for index, (prompt_id, output) in enumerate(zip(prompt_ids, outputs[part, arm, 0], strict=True)):
                name = f"prompt {prompt_id}, rotation {rotation}, request {index}"
                ids.setdefault(name, output.token_ids)
                hashes.setdefault(name, digest(prompts[target, workload, prompt_id]))
        found[place] = OutputSet(
            name=f"run {path.name!r}, arm {arm!r}, {cell_text(place)}",
            prompts_sha256=hashes,
            tokenizer_sha256=tokenizers[target, workload],
            outputs=ids,
        )
    return found


def rotations(data: RunData, arm: str) -> Iterator[tuple[Place, str, int, list[str]]]:
    for line in data.rotations:
        if line.purpose == "speed" and arm in line.arms:
            yield (line.target, line.workload, line.batch_size), line.part, line.rotation, line.prompt_ids


def cell_text(place: Place) -> str:
    target, workload, size = place
    return f"{target} {workload} b{size}"


def token(ids: list[int], position: int) -> str:
    return f"token {ids[position]}" if position < len(ids) else "the end"
