"""Whether an arm had the CPU while it was timed. Part of the worker: standard library only.

Two sums of the Linux kernel, read before and after a block: what the threads of this process stood ready without a CPU,
and what a hypervisor took from the whole machine. Child processes of the engine are not in the first: neither an engine
core of its own nor the one process a GPU of tensor parallelism.
"""

from __future__ import annotations

import os
from typing import NamedTuple

TASKS = "/proc/self/task"
STAT = "/proc/stat"

STEAL_COLUMN = 8
"""Of the first line of /proc/stat, its label ``cpu`` counted: user, nice, system, idle, iowait, irq, softirq, steal."""


class Sums(NamedTuple):
    """What the kernel has counted so far; None: it does not say."""

    waited_ns: dict[str, int] | None
    """Thread id -> nanoseconds on a run queue."""
    stolen_ticks: int | None
    """Clock ticks, all CPUs together."""


def read_sums(tasks: str = TASKS, stat: str = STAT) -> Sums:
    return Sums(read_waits(tasks), read_stolen(stat))


def read_waits(tasks: str) -> dict[str, int] | None:
    """Time on a run queue, thread by thread.

    Source: the kernel's Documentation/scheduler/sched-stats.rst; time on a CPU, time on a run queue, timeslices.
    """
    waits: dict[str, int] = {}
    ran_ns = 0
    try:
        threads = os.listdir(tasks)
    except OSError:
        return None
    for thread in threads:
        try:
            with open(os.path.join(tasks, thread, "schedstat"), encoding="ascii") as file:
                ran, waited, _ = map(int, file.read().split())
        except (OSError, ValueError):  # it has just ended, or the kernel has no such file
            continue
        waits[thread] = waited
        ran_ns += ran
    # A kernel that has the file and does not count writes zeros, of threads that must have run to get here.
    return waits if ran_ns else None


def read_stolen(stat: str) -> int | None:
    try:
        with open(stat, encoding="ascii") as file:
            return int(file.readline().split()[STEAL_COLUMN])
    except (OSError, ValueError, IndexError):
        return None


def increase(before: Sums, after: Sums) -> dict[str, float | None]:
    """Seconds between two readings, as a block's record names them.

    A thread that began meanwhile counts from zero; one that ended takes its last wait along, which is then missing.
    """
    waited_s = stolen_s = None
    if before.waited_ns is not None and after.waited_ns is not None:
        old = before.waited_ns
        # Never below zero: a thread's id may have passed to a new one.
        waited_s = sum(max(0, ns - old.get(thread, 0)) for thread, ns in after.waited_ns.items()) / 1e9
    if before.stolen_ticks is not None and after.stolen_ticks is not None:
        # Never below zero: some hypervisors let the count run back.
        stolen_s = max(0, after.stolen_ticks - before.stolen_ticks) / os.sysconf("SC_CLK_TCK")
    return {"waited_s": waited_s, "stolen_s": stolen_s}
