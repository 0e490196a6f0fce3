"""What a report of many cells costs: seconds and peak memory of its rendering, sizes of its files.

Cells are made by hand, a quarter of them with failures, broken invariants or differing outputs. The limits of a run of
5,000 cells are 20 s and 500 MB, those of 300 cells a page of 3 MB: python tools/render_cost.py [CELLS]
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from draftproof.records import RunFolder  # noqa: E402
from draftproof.report.terminal import summary_lines  # noqa: E402
from draftproof.report.written import write_report  # noqa: E402
from tests.manycells import many  # noqa: E402
from tests.reporting import header  # noqa: E402

MIB = 2**20


def peak_mib() -> float:
    """Of this process so far (Linux counts KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cells", type=int, nargs="?", default=5000)
    cells = parser.parse_args().cells
    before = peak_mib()
    results = many(cells)
    made = peak_mib()
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder.create(Path(folder) / "run", header())
        started, used = time.perf_counter(), time.process_time()
        write_report(run, results)
        lines = summary_lines(results, 140)
        seconds, used = time.perf_counter() - started, time.process_time() - used
        print(f"{cells} cells: {seconds:.1f} s ({used:.1f} s of CPU), the terminal's {len(lines)} lines included")
        print(f"peak memory: {before:.0f} MiB at the start, {made:.0f} with the results, {peak_mib():.0f} at the end")
        for name in ("index.html", "summary.md", "summary.json"):
            print(f"{name}: {(run.path / name).stat().st_size / MIB:.1f} MiB")


if __name__ == "__main__":
    main()
