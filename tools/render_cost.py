"""What `draftproof report RUN` costs for a run of many cells: seconds and peak memory, sizes of its files.

The run is made by hand (tests/manyrecords.py): per ten cells one place with no-SD, its twin and nine variants, two
rotations of two passes at batch sizes 1 to 16, some with failures and differing outputs. The command runs in a fresh
process, then its two halves in another: reading and judging, and rendering. The limits of a run of 5,000 cells are 20 s
and 500 MB, those of 300 cells a page of 3 MB:

    python tools/render_cost.py [CELLS] [--run FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MIB = 2**20
MAKE = """
import sys
from pathlib import Path
from tests.manyrecords import write_run
write_run(Path(sys.argv[1]), int(sys.argv[2]))
"""
HALVES = """
import json, resource, sys, time
from pathlib import Path

def now():
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"wall_s": time.perf_counter(), "cpu_s": time.process_time(), "peak_mib": peak}

from draftproof.catalog import load_catalog
from draftproof.records import RunFolder
from draftproof.report.terminal import summary_lines
from draftproof.report.written import write_report
from draftproof.results import analyse
folder, entries = RunFolder(Path(sys.argv[1])), load_catalog()
marks = [now()]
results = analyse(folder, entries.thresholds, catalog=entries)
marks.append(now())
write_report(folder, results)
summary_lines(results, 120)
marks.append(now())
print(json.dumps(marks))
"""


def make(run: Path, cells: int) -> None:
    """In a process of its own: a child's peak begins with the memory that its parent had."""
    subprocess.run([sys.executable, "-c", MAKE, str(run.resolve()), str(cells)], cwd=ROOT, check=True)


def whole(run: Path) -> None:
    """The command itself, in a process of its own."""
    program = "from draftproof.cli import main; main()"
    started = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-c", program, "report", str(run)], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    wall_s = time.perf_counter() - started
    if status:
        sys.exit(f"draftproof report ended with status {status}")
    cpu_s, peak_mib = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024  # Linux counts KiB
    print(f"draftproof report: {wall_s:.1f} s, {cpu_s:.1f} s of CPU, peak memory {peak_mib:.0f} MiB")


def halves(run: Path) -> None:
    """Reading and judging, then rendering: both in one further process, the second on what the first made."""
    done = subprocess.run([sys.executable, "-c", HALVES, str(run)], stdout=subprocess.PIPE, check=True)
    marks = json.loads(done.stdout)
    print(f"  imports and catalog: peak memory {marks[0]['peak_mib']:.0f} MiB")
    for name, before, after in zip(("read and judge", "render"), marks, marks[1:], strict=False):
        wall_s, cpu_s = (after[key] - before[key] for key in ("wall_s", "cpu_s"))
        print(f"  {name}: {wall_s:.1f} s, {cpu_s:.1f} s of CPU, peak memory so far {after['peak_mib']:.0f} MiB")


def measure(run: Path) -> None:
    whole(run)
    halves(run)
    for name in ("records.jsonl", "tokens.parquet", "steps.parquet", "index.html", "summary.md", "summary.json"):
        print(f"  {name}: {(run / name).stat().st_size / MIB:.1f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", type=int, nargs="?", default=5000, help="a multiple of 50")
    parser.add_argument("--run", type=Path, help="keep the run there; one that is there is measured as it is")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = options.run or Path(folder) / "run"
        if not (run / "run.json").exists():
            started = time.perf_counter()
            make(run, options.cells)
            print(f"a run of {options.cells} cells, made in {time.perf_counter() - started:.0f} s")
        measure(run)


if __name__ == "__main__":
    main()
