"""Joins what the stage clocks of one block saw, step by step. Pure. Part of the worker: no other package."""

from __future__ import annotations

from typing import Any

Step = dict[str, Any]

CORE_PARTS = ("schedule_s", "update_s", "output_s")


def combine(core: list[Step] | None, workers: list[dict[str, Any]], pid: int) -> list[Step]:
    """The records of a block's steps, from the core's (None: it is in another process) and from those of each worker.

    `pid` is the arm's process. Of several workers the slowest counts, step by step, with the parts that it has;
    ``spread_s`` is by how much the fastest was faster. Where workers are processes of their own, ``outside_s`` is what
    a step takes beside the worker and the core's known parts: messages, and without a core all of its work. A step
    without a core lasts until the worker's next one begins.
    """
    if not workers:
        raise ValueError("no worker gave stage samples")
    counts = [len(worker["steps"]) for worker in workers]
    whole = None if core is None else fold(core)
    if whole is not None:
        counts.append(len(whole))
    if len(set(counts)) > 1:
        raise ValueError(f"the clocks of workers{' and engine core' if whole is not None else ''} saw {counts} steps")
    found = []
    for index in range(counts[0]):
        rows = [worker["steps"][index] for worker in workers]
        slowest = max(range(len(rows)), key=lambda number: rows[number]["own_s"])
        mine, worker = rows[slowest], workers[slowest]
        if whole is not None:
            sides = {name: whole[index][name] for name in ("step_s", *CORE_PARTS)}
        else:
            later = worker["steps"][index + 1]["began_s"] if index + 1 < counts[0] else mine["ended_s"]
            sides = {"step_s": later - mine["began_s"], **dict.fromkeys(CORE_PARTS, 0.0)}
        apart = worker["pid"] != pid
        known = mine["own_s"] + sum(sides[part] for part in CORE_PARTS)
        step = {name: value for name, value in mine.items() if name not in ("own_s", "began_s", "ended_s")}
        step |= sides
        step["outside_s"] = max(0.0, sides["step_s"] - known) if apart else 0.0
        step["workers"] = len(rows)
        step["spread_s"] = mine["own_s"] - min(row["own_s"] for row in rows)
        step["clock"] = worker["how"]
        found.append(step)
    return found


def fold(core: list[Step]) -> list[Step]:
    """Steps that scheduled something; one that only waited for earlier ones is counted to the last of these."""
    found: list[Step] = []
    for step in core:
        if step["rows"]:
            found.append(dict(step))
        elif found:
            for name in ("step_s", *CORE_PARTS):
                found[-1][name] += step[name]
    return found
