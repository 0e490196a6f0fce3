"""Whether an arm had the CPU while it was timed. Part of the worker: standard library only.

Two sums of the Linux kernel, read before and after a block: what the threads that did the work stood ready without a
CPU, and what a hypervisor took from the whole machine. Helper threads that wake for a moment (an idle gloo loop does so
a thousand times a minute) may wait long for nothing that anybody misses: a thread counts if it ran for a twentieth of
the time of the one that ran most. Child processes of the engine are not in the first: neither an engine core of its own
nor the one process a GPU of tensor parallelism.
"""

from __future__ import annotations

import os
from typing import NamedTuple

TASKS = "/proc/self/task"
STAT = "/proc/stat"

STEAL_COLUMN = 8
"""Of the first line of /proc/stat, its label ``cpu`` counted: user, nice, system, idle, iowait, irq, softirq, steal."""


WORKING_SHARE = 0.05
"""A thread worked if it ran for this share of the time of the thread that ran most."""


class Waits(NamedTuple):
    """One thread's nanoseconds so far."""

    ran: int
    waited: int


class Sums(NamedTuple):
    """What the kernel has counted so far; None: it does not say."""

    threads: dict[str, Waits] | None
    """By thread id."""
    stolen_ticks: int | None
    """Clock ticks, all CPUs together."""


def read_sums(tasks: str = TASKS, stat: str = STAT) -> Sums:
    return Sums(read_waits(tasks), read_stolen(stat))


def read_waits(tasks: str) -> dict[str, Waits] | None:
    """Time on a CPU and on a run queue, thread by thread.

    Source: the kernel's Documentation/scheduler/sched-stats.rst; time on a CPU, time on a run queue, timeslices.
    """
    waits: dict[str, Waits] = {}
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
        waits[thread] = Waits(ran, waited)
    # A kernel that has the file and does not count writes zeros, of threads that must have run to get here.
    return waits if any(found.ran for found in waits.values()) else None


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
    if before.threads is not None and after.threads is not None:
        new = Waits(0, 0)
        # Never below zero: a thread's id may have passed to a new one.
        rises = [
            Waits(max(0, now.ran - old.ran), max(0, now.waited - old.waited))
            for now, old in ((now, before.threads.get(thread, new)) for thread, now in after.threads.items())
        ]
        most = max((rise.ran for rise in rises), default=0)
        waited_s = sum(rise.waited for rise in rises if rise.ran >= WORKING_SHARE * most) / 1e9
    if before.stolen_ticks is not None and after.stolen_ticks is not None:
        # Never below zero: some hypervisors let the count run back.
        stolen_s = max(0, after.stolen_ticks - before.stolen_ticks) / os.sysconf("SC_CLK_TCK")
    return {"waited_s": waited_s, "stolen_s": stolen_s}
