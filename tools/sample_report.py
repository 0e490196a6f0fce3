"""The committed sample report: a run's report with its screenshots, and README's table made from it.

    python tools/sample_report.py reports/RUN     # makes reports/sample and writes README's block
    python tools/sample_report.py --readme        # writes README's block again, from the sample that is there
    python tools/sample_report.py --check         # status 1 where README or the sample is not what it must be

The records go along where they are small enough; folders of this machine in the recorded commands are cut to their last
part, and nothing else is changed. Screenshots need ``pip install -e .[browser]`` and a Chromium.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import shutil
import socket
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import msgspec

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from draftproof.catalog import load_catalog  # noqa: E402
from draftproof.errors import DraftproofError, rule  # noqa: E402
from draftproof.metrics import METRICS  # noqa: E402
from draftproof.records import RunFolder, write_atomic  # noqa: E402
from draftproof.report import view  # noqa: E402
from draftproof.report.markdown import cell_text, table  # noqa: E402
from draftproof.report.untrusted import HOME  # noqa: E402
from draftproof.report.written import write_report  # noqa: E402
from draftproof.results import RunResults, analyse  # noqa: E402

SAMPLE = ROOT / "reports" / "sample"
README = ROOT / "README.md"
BEGIN, END = "<!-- sample:begin -->", "<!-- sample:end -->"
AGAIN = "make it again with python tools/sample_report.py RUN"

REPORTS = ("index.html", "summary.md", "summary.json")
RECORDS = ("run.json", "records.jsonl", "prompts.jsonl", "tokens.parquet", "steps.parquet")
"""All that `analyse` reads of a finished run; some without the others would give other figures."""
DERIVED = ("predicted-*.json", "simulated-*.json")
"""What `draftproof calibrate --validate` and `draftproof simulate` left in the run's folder; the report shows it."""
RECORDS_BYTES = 600_000


class Shot(NamedTuple):
    title: str
    width_px: int
    height_px: int
    """In CSS pixels."""
    scheme: str
    scale: int
    """Device pixels of a CSS pixel, along one side."""


SHOTS = {
    "first-screen.png": Shot("The first screen of the report", 1280, 900, "light", 1),
    "phone-dark.png": Shot("The same on a phone, dark", 390, 844, "dark", 2),
}
SHOT_BYTES = 250_000

COLUMNS = ("speedup", "acceptance_length", "identical_share")
PATH = re.compile(r"(^|=)/(?:[^/=]+/)*([^/=]+)/?$")


# -- the sample's files ------------------------------------------------------------------------------------------------


def without_folders(records: bytes) -> bytes:
    """``records.jsonl`` with each absolute path in a session's command cut to its last part."""
    lines = []
    for raw in records.splitlines():
        line = json.loads(raw)
        if line["record"] == "session":
            line["command"] = [PATH.sub(r"\1\2", word) for word in line["command"]]
            raw = msgspec.json.encode(line)
        lines.append(raw + b"\n")
    return b"".join(lines)


def kept(folder: Path) -> list[Path]:
    """What of a run's folder goes into a sample, beside what is rendered from it."""
    return [path for pattern in (*RECORDS, *DERIVED) for path in sorted(folder.glob(pattern))]


def make(run: Path, sample: Path) -> RunResults:
    """Render `run` into `sample`, whose former files go; `run` itself is not written to."""
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "sample"
        made.mkdir()
        for path in kept(run):
            shutil.copyfile(path, made / path.name)
        folder = RunFolder(made)
        if not folder.header().finished:
            raise rule("RUN", "a finished run", run.name, do="let the study end, then " + AGAIN)
        (made / "records.jsonl").write_bytes(without_folders((made / "records.jsonl").read_bytes()))
        catalog = load_catalog()
        results = analyse(folder, catalog.thresholds, catalog=catalog)
        write_report(folder, results)
        (made / ".lock").unlink(missing_ok=True)
        if sum(path.stat().st_size for path in kept(made)) > RECORDS_BYTES:
            for path in kept(made):
                path.unlink()
        shoot(made)
        shutil.rmtree(sample, ignore_errors=True)
        shutil.copytree(made, sample)
    return results


def shoot(sample: Path) -> None:
    """Screenshots of the first screen, in 256 colours."""
    from PIL import Image  # matplotlib brings it

    from tests.browser import chromium

    if gap := chromium.gap():
        raise DraftproofError(gap)
    with chromium.running() as browser:
        for name, shot in SHOTS.items():
            page = browser.new_page(
                viewport={"width": shot.width_px, "height": shot.height_px},
                color_scheme=shot.scheme,
                device_scale_factor=shot.scale,
            )
            page.goto((sample / "index.html").resolve().as_uri())
            taken = Image.open(io.BytesIO(page.screenshot()))
            taken.quantize(256).save(sample / name, optimize=True)
            page.close()


def load(sample: Path) -> RunResults:
    try:
        return msgspec.json.decode((sample / "summary.json").read_bytes(), type=RunResults)
    except (OSError, msgspec.ValidationError) as error:
        raise DraftproofError(f"{sample.name}/summary.json: {error}; {AGAIN}") from error


def problems(sample: Path) -> list[str]:
    """What a committed sample must not hold, lack or weigh."""
    found = [f"{name} is missing; {AGAIN}" for name in (*REPORTS, *SHOTS) if not (sample / name).exists()]
    for path in sorted(sample.iterdir()):
        if path.suffix == ".png" and path.stat().st_size > SHOT_BYTES:
            found.append(f"{path.name} has more than {SHOT_BYTES:,} bytes")
        if path.name not in (*REPORTS, *SHOTS) and path not in kept(sample):
            found.append(f"{path.name} is not of a sample")
        if path.suffix not in (".png", ".parquet"):
            found += leaks(path)
    return found


def leaks(path: Path) -> list[str]:
    """Home folders, and this machine's name, in a text."""
    text = path.read_text(encoding="utf-8")
    host = re.escape(socket.gethostname().partition(".")[0])
    named = [rf"(?<![\w.-]){host}(?![\w.-])"] if len(host) > 3 and host != "localhost" else []
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        for pattern in (HOME, *map(re.compile, named)):
            found += [f"{path.name}, line {number}: {match[0]!r}" for match in pattern.finditer(line)]
    return found


# -- README's block ----------------------------------------------------------------------------------------------------


def block(results: RunResults) -> str:
    """What stands between the two marks: the run in one line, its speculative cells, its pictures."""
    metrics = [metric for name in COLUMNS for metric in METRICS if metric.name == name]
    head = ["variant", "workload", "B", *[metric.title for metric in metrics], "verdict"]
    body = [
        [*row.name, *[metric.text(row.cell) for metric in metrics], row.throughput]
        for row in view.rows(results)
        if row.cell.arm != row.cell.base_arm
    ]
    lines = [
        f"[The sample report](reports/sample/index.html) ([as Markdown](reports/sample/summary.md)) is of study "
        f"`{results.study}`: {cell_text(view.environment_line(results))}.",
        "",
        *table(head, body),
        "",
        *[f"![{shot.title}](reports/sample/{name})" for name, shot in SHOTS.items()],
    ]
    return "\n".join(lines)


def with_block(text: str, made: str) -> str:
    """`text` with what stands between the marks replaced."""
    if (text.count(BEGIN), text.count(END)) != (1, 1) or text.index(BEGIN) > text.index(END):
        found = f"{text.count(BEGIN)} and {text.count(END)}"
        raise rule("README.md", f"a text with one {BEGIN} and, after it, one {END}", found, do="put them in")
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{made}\n{END}{rest.partition(END)[2]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", nargs="?", type=Path, metavar="RUN", help="folder of a finished run")
    parser.add_argument("--readme", action="store_true", help="only write README's block again")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; status 1 where anything is not as it must be"
    )
    parser.add_argument("--sample", type=Path, default=SAMPLE, help="the sample's folder (default: reports/sample)")
    parser.add_argument("--readme-file", type=Path, default=README, help="the text with the marks (default: README.md)")
    options = parser.parse_args()
    if (options.run is not None) + options.readme + options.check != 1:
        parser.error("give either RUN, or --readme, or --check")
    try:
        results = make(options.run, options.sample) if options.run else load(options.sample)
        found = problems(options.sample)
        text = options.readme_file.read_text(encoding="utf-8")
        made = with_block(text, block(results))
    except DraftproofError as error:
        sys.exit(f"sample_report: {error}")
    if options.check and made != text:
        found.append(f"{options.readme_file.name} differs from the sample; write it with --readme")
    elif made != text:
        write_atomic(options.readme_file, made.encode())
    for line in found:
        print(line)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
