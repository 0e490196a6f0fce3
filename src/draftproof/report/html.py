"""``index.html``: one self-contained page. No network, no script, nothing but what the records hold."""

from __future__ import annotations

import functools
import json
import math
import re
import unicodedata
from typing import Any, Literal

import jinja2
import msgspec
from markupsafe import Markup

from draftproof.gate import Verdict
from draftproof.metrics import METRICS, ratio_text
from draftproof.records import ArmLine, FailureLine, RunHeader
from draftproof.report import stages, view
from draftproof.report.anatomy import anatomy
from draftproof.report.outputs import outputs
from draftproof.report.speed import speed
from draftproof.results import CellResult, RunResults

LIST_SHOWN = 10
REASON_CHARS = 600
TOKEN_CHARS = 120
ANY_CHARS = 8000
"""No single text is longer than this on the page, wherever it comes from."""

IDENTIFYING = frozenset({"host", "hostname", "node", "nodename", "user", "username", "home", "cwd"})
"""Names that a later record may bring along and that no report shows."""

HOME = re.compile(r"(?<![\w.~-])(?:/(?:home|Users)/[^/\s:'\"<>]+|/root(?=[/\s:'\"]|$))")

VERDICTS: dict[Verdict, tuple[str, str, str]] = {
    "PASS": ("✓", "good", "judged, and within its limits"),
    "IMPROVED": ("▲", "good", "judged, and better than its baseline"),
    "REGRESSED": ("▼", "bad", "the whole interval is on the wrong side of a limit; outputs: more ties than a control"),
    "FAILED": ("✕", "bad", "an engine did not start or finish; outputs: one is divergent, or no-SD's are garbage"),
    "UNSTABLE": ("≈", "warn", "not judged: the reference does not repeat itself, or the limit lies inside the noise"),
    "INSUFFICIENT": ("…", "warn", "not judged: too few finished pairs"),
    "INCOMPARABLE": ("≠", "warn", "not judged: a setting that must be held differs"),
    "NO_BASELINE": ("○", "plain", "shown, not judged: no gating limit covers the cell"),
}
"""Verdict -> symbol, tone, meaning. The word is always printed: the colour only repeats it."""


# -- untrusted text ----------------------------------------------------------------------------------------------------


def hidden_chars(text: str, keep: str) -> list[bool]:
    """Which characters cannot be seen, or change how others are seen: control, format (bidi), surrogate, private,
    unassigned, odd spaces and line ends; combining marks with nothing below them or piled higher than two."""
    found = []
    marks = 2
    for char in text:
        marks = marks + 1 if unicodedata.category(char)[0] == "M" else 0
        found.append(char not in keep and (marks > 2 or not char.isprintable()))
    return found


def visible(text: str, keep: str = "\n\t") -> str:
    """Plain text in which such characters are named: ``[U+202E]``."""
    if text.isascii() and text.isprintable():
        return text
    hidden = hidden_chars(text, keep)
    return "".join(f"[U+{ord(char):04X}]" if odd else char for char, odd in zip(text, hidden, strict=True))


def cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… [cut: {len(text) - limit:,} more characters]"


def tail(text: str, limit: int = ANY_CHARS - 100) -> str:
    return text if len(text) <= limit else f"[cut: {len(text) - limit:,} characters before this]\n{text[-limit:]}"


def shown(value: Any) -> Any:
    """Jinja's `finalize`: every text that the template prints comes through here, and is escaped afterwards."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    return visible(HOME.sub("~", cut(value, ANY_CHARS)))


def token(text: str) -> Markup:
    """A token of a model, exactly: escaped, every unseen character named, cut with a note."""
    head = text[:TOKEN_CHARS]
    body = Markup("")
    for char, odd in zip(head, hidden_chars(head, keep=""), strict=True):
        body += (
            Markup('<span class="cp" title="{}">U+{:04X}</span>').format(
                unicodedata.name(char, "unnamed character"), ord(char)
            )
            if odd
            else char
        )
    code = Markup('<code class="token" dir="ltr">{}</code>').format(body) if text else Markup("<i>nothing</i>")
    if len(text) > TOKEN_CHARS:
        code += Markup(' <span class="note">cut: {:,} more characters</span>').format(len(text) - TOKEN_CHARS)
    return code


# -- the plot ----------------------------------------------------------------------------------------------------------

TICKS = (
    1.0,
    2.0,
    0.5,
    4.0,
    0.25,
    1.5,
    3.0,
    0.75,
    8.0,
    0.1,
    16.0,
    0.9,
    1.1,
    1.25,
    1.2,
    0.8,
    0.6,
    0.7,
    6.0,
    2.5,
    32.0,
    64.0,
    0.05,
    0.02,
    0.01,
    128.0,
    256.0,
)
"""Axis labels in the order of their worth; one too near to an earlier one is left out."""
ROW_PX = 38


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the plot; places in percent of the plot's width."""

    label: str
    text: str
    tone: Literal["faster", "slower", "unclear"]
    value: float
    low: float
    high: float
    low_cut: bool
    high_cut: bool


class Plot(msgspec.Struct, frozen=True, kw_only=True):
    rows: list[Interval]
    ticks: list[tuple[float, str]]
    one: float
    left_out: int
    """Speculative cells that have no interval."""
    description: str

    @property
    def height(self) -> int:
        """Pixels down to the axis."""
        return ROW_PX * len(self.rows) + 8


def logarithm(value: float) -> float:
    """Natural logarithm, with the interval's ends that have none: 0 and infinity."""
    return math.log(value) if value > 0 else -math.inf


def interval_plot(cells: list[tuple[str, CellResult]]) -> Plot | None:
    """Speedups with their intervals on a logarithmic axis; one that is very wide is cut and ends in an arrow."""
    speculative = [(label, cell) for label, cell in cells if cell.arm != cell.base_arm]
    drawn = [
        (label, cell.speedup)
        for label, cell in speculative
        if cell.speedup and 0 < cell.speedup.value < math.inf and cell.speedup.low <= cell.speedup.high
    ]
    if not drawn:
        return None
    ends = [0.9, 1.1]
    for _, ratio in drawn:
        ends += [ratio.value, max(ratio.low, ratio.value / 3), min(ratio.high, ratio.value * 3)]
    low, high = math.log(min(ends)), math.log(max(ends))
    margin = 0.04 * (high - low)
    low, high = low - margin, high + margin

    def place(value: float) -> float:
        return round(3 + 94 * (min(max(logarithm(value), low), high) - low) / (high - low), 2)

    rows = []
    counts = {"faster": 0, "slower": 0, "unclear": 0}
    for label, ratio in drawn:
        tone: Literal["faster", "slower", "unclear"] = (
            "faster" if ratio.low > 1 else "slower" if ratio.high < 1 else "unclear"
        )
        counts[tone] += 1
        rows.append(
            Interval(
                label=label,
                text=ratio_text(ratio),
                tone=tone,
                value=place(ratio.value),
                low=place(ratio.low),
                high=place(ratio.high),
                low_cut=logarithm(ratio.low) < low,
                high_cut=logarithm(ratio.high) > high,
            )
        )
    ticks: list[tuple[float, str]] = []
    for tick in TICKS:
        at = place(tick)
        if low <= math.log(tick) <= high and all(abs(at - other) >= 9 for other, _ in ticks):
            ticks.append((at, f"{tick:g}"))
    description = (
        f"{len(drawn)} cells: {counts['faster']} wholly above 1.0, {counts['slower']} wholly below, "
        f"{counts['unclear']} with an interval that holds 1.0. The figures are in the table above."
    )
    return Plot(
        rows=rows, ticks=sorted(ticks), one=place(1.0), left_out=len(speculative) - len(drawn), description=description
    )


# -- what the template is given ----------------------------------------------------------------------------------------


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """One failure, however many cells it stops."""

    number: int
    line: FailureLine
    cells: list[str]


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the closing table and what its detail holds."""

    row: view.Row
    label: str
    failures: list[Failure]


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    """An arm as it was started, once or again by a later session."""

    title: str
    loads: list[float]
    """Seconds of each start."""
    facts: list[tuple[str, str]]
    """Only what is not the same on every arm."""


def collect_failures(cells: list[CellResult]) -> dict[FailureLine, Failure]:
    """Each failure once, with the cells that it stops: no-SD's stops all of its target's."""
    found: dict[FailureLine, Failure] = {}
    for cell in cells:
        for line in cell.failures:
            if line not in found:
                found[line] = Failure(number=len(found) + 1, line=line, cells=[])
            if cell.cell.id not in found[line].cells:
                found[line].cells.append(cell.cell.id)
    return found


def shown_rows(results: RunResults, failures: dict[FailureLine, Failure]) -> list[Shown]:
    return [
        Shown(row=row, label=view.label(results, row.cell), failures=[failures[line] for line in row.cell.failures])
        for row in view.rows(results)
    ]


def plain(value: object) -> str:
    """A recorded value as text: strings as they are, lists of them with commas, the rest as JSON."""
    if value is None or value in ([], {}):
        return "none"
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ", ".join(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)


def arm_facts(arm: ArmLine) -> dict[str, str]:
    """Everything recorded about an arm, flat, without what could name a machine or a person."""
    environment = {name: value for name, value in arm.environment.items() if name.lower() not in IDENTIFYING}
    variables = environment.pop("variables", None)
    facts = {name: plain(value) for name, value in environment.items()}
    if isinstance(variables, dict):
        facts |= {f"${name}": plain(value) for name, value in variables.items()}
    facts |= {name: plain(value) for name, value in arm.resolved.items()}
    facts |= {f"speculative_config.{name}": plain(value) for name, value in arm.speculative_config.items()}
    return facts | {
        "target weights, SHA-256": arm.target_sha256 or "not known",
        "resolved configuration, SHA-256": arm.config_sha256,
    }


def engines(arms: list[ArmLine]) -> tuple[list[tuple[str, str]], list[Engine]]:
    """What all arms share, and each arm with the rest."""
    facts = [arm_facts(arm) for arm in arms]
    shared = {
        name: value
        for name, value in (facts[0] if facts else {}).items()
        if all(other.get(name) == value for other in facts)
    }
    found: dict[tuple[str, ...], Engine] = {}
    for arm, own in zip(arms, facts, strict=True):
        rest = {name: value for name, value in own.items() if name not in shared}
        role = "second process (A/A)" if arm.role == "aa" else arm.variant
        title = f"{arm.arm}: {role}, target {arm.target}, {arm.build} build"
        key = (title, *rest, *rest.values())
        loads = found[key].loads if key in found else []
        found[key] = Engine(title=title, loads=[*loads, arm.load_s], facts=list(rest.items()))
    return list(shared.items()), list(found.values())


def study_facts(results: RunResults, header: RunHeader) -> list[tuple[str, str]]:
    study = header.study
    lengths = f"{study.output_tokens} tokens, " + ("EOS ignored" if study.ignore_eos else "EOS ends a request")
    facts = {
        "run": results.run_id,
        "study": results.study,
        "hardware": study.hardware,
        "builds": ", ".join(header.builds),
        "batching": study.batching,
        "output length": lengths,
        "prompt length": f"at most {study.max_prompt_tokens} tokens" if study.max_prompt_tokens else "not limited",
        "sampling": ", ".join(f"{name} {value:g}" for name, value in msgspec.to_builtins(study.sampling).items()),
        "rotations": f"{study.rotations}, at most {study.max_rotations} within {study.budget_s:g} s",
        "narrow enough": f"half of the interval within {100 * study.half_width:g} % of the speedup",
        "A/A": "yes" if study.aa else "no",
        "seed": str(study.seed),
        "engine arguments": plain(study.engine),
        "source": study.source or "none",
        "overlays": ", ".join(header.overlays) or "none",
        "plan, SHA-256": header.plan_sha256,
        "schema": str(header.schema_version),
    }
    return list(facts.items())


@functools.cache
def environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.PackageLoader("draftproof", "report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def render_html(results: RunResults, header: RunHeader) -> str:
    """The whole page; works for unfinished, failed and empty runs."""
    failures = collect_failures(results.cells)
    rows = shown_rows(results, failures)
    shared, arms = engines(results.arms)
    return (
        environment()
        .get_template("page.html.j2")
        .render(
            results=results,
            rows=rows,
            failures=list(failures.values()),
            metrics=METRICS,
            verdicts=VERDICTS,
            headline=view.headline(results),
            environment_line=view.environment_line(results),
            plot=interval_plot([(row.label, row.row.cell) for row in rows]),
            row_px=ROW_PX,
            aa=view.aa_lines(results),
            noise=view.noise_line(results),
            builds=[
                [cell.variant, cell.workload, str(cell.batch_size), cell.target, ratio_text(row.row.cell.build_ratio)]
                for row in rows
                for cell in [row.row.cell.cell]
                if row.row.cell.build_ratio
            ],
            stages=stages.tables(results),
            positions=view.position_table(results),
            **speed(results),
            **anatomy(results),
            **outputs(results),
            token_chars=TOKEN_CHARS,
            shared=shared,
            arms=arms,
            study=study_facts(results, header),
            token=token,
            cut=cut,
            tail=tail,
            short=functools.partial(cut, limit=REASON_CHARS),
            list_shown=LIST_SHOWN,
        )
    )
