"""Runs whose pages the browser looks at, made by hand; each has what one kind of trouble needs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from draftproof.bounds import Bounds, Predicted, Simulated
from draftproof.comparison import Compared, compare
from draftproof.limits import Limits
from draftproof.records import RunHeader
from draftproof.report.html import render_html
from draftproof.report.parts import Page
from draftproof.report.sections import sections
from draftproof.results import AaResult, CellResult, RunResults
from tests.figured import full as figured_run
from tests.reporting import (
    HOSTILE,
    broken,
    cell,
    difference,
    failure,
    header,
    hostile_run,
    ratio,
    reference,
    run,
    sameness,
)
from tests.snapshots import NGRAM, Arm, make_limits, make_run
from tests.test_report_bound import POLICIES, PREDICTIONS, reached
from tests.test_report_determinism import full as outputs_run
from tests.test_report_limits import applied, row
from tests.test_report_speed import FULL as SPEEDS
from tests.test_report_stages import full as stages_run

SCRIPTS = [
    "<script>window.__x = 1; alert(1)</script>",
    '"><img src=x onerror="window.__x = 1">',
    "' onmouseover='window.__x = 1' autofocus onfocus='window.__x = 1",
    "]]></style></svg><script>window.__x = 1</script>",
    "</title></textarea><svg onload=window.__x=1>",
    '<a href="javascript:window.__x=1">x</a><iframe srcdoc="<script>parent.__x=1</script>"></iframe>',
    '<link rel="stylesheet" href="https://evil.example/x.css"><meta http-equiv="refresh" content="0;url=//a.b">',
]
"""Texts that would show that they were taken for HTML: each sets ``window.__x``, opens a dialog or asks the network."""

LONG = "unbroken" * 12_500
"""100,000 characters without a place to break."""

RTL = "\N{RIGHT-TO-LEFT OVERRIDE}\N{RIGHT-TO-LEFT ISOLATE}\N{HEBREW LETTER ALEF}\N{RIGHT-TO-LEFT MARK}" * 20
CONTROL = "".join(map(chr, [*range(32), 127, *range(0x80, 0xA0), 0x2028, 0xFEFF, 0xD800])) * 5


def full() -> RunResults:
    """Something for every section."""
    outputs, stages, figured = outputs_run(), stages_run(), figured_run()
    cells: dict[str, CellResult] = {}
    for found in [
        cell(build_ratio=ratio(1.02, 1.01, 1.03), stages=stages.cells[0].stages),
        *outputs.cells,
        *SPEEDS.cells,
        *figured.cells,
        cell("oracle", "chat", 4, speedup=ratio(2.0, 1.9, 2.1)),
        cell("mtp", "code_edit", verdict="REGRESSED", speedup=ratio(0.6, 0.5, 0.7), informing=["beside 1.28 (paper)"]),
        cell("suffix", verdict="UNSTABLE", problems=["suffix, chat b1, rotation 0: 5 tokens accepted of 4 drafted"]),
    ]:
        cells.setdefault(found.cell.id, found)
    return msgspec.structs.replace(
        outputs,
        cells=list(cells.values()),
        aa=[AaResult(target="tiny", workload="chat", batch_size=1, ratio=ratio(1.0, 0.98, 1.02))],
        decays=SPEEDS.decays,
        stage_findings=stages.stage_findings,
        anatomies=figured.anatomies,
        memory=figured.memory,
        bounds=bounds(),
        limits=limits(),
        skipped={"tiny-mtp-chat-b1": "needs a target with an MTP head"},
        notes=["chat: 2 prompts were left out"],
    )


def bounds() -> Bounds:
    """The measured oracle, and what ``simulated-tiny.json`` and ``predicted-tiny.json`` hold."""
    several = [reached("ngram", 1), reached("ngram", 4, 0.3), reached("eagle", 1, -0.2), reached("eagle", 4, None)]
    one_size = [reached(name, 1, 0.4, workload="code_edit") for name in ("ngram", "eagle", "draft_model")]
    return Bounds(
        reached=[*several, *one_size],
        without=["other"],
        simulated=[Simulated(target="tiny", cells=POLICIES)],
        predicted=[Predicted(target="tiny", cells=PREDICTIONS)],
        notes=["simulated-other.json is left out: Input data was truncated"],
    )


def limits() -> Limits:
    """Some that decide and some that inform, met and not, and some that nothing was measured for."""
    rows = [row(), row(limit=1.2), row("divergent_share", 0.0), row("waiting_share", 0.1), row("stage_rise", 0.1)]
    published = row("paper_speedup", 1.28, gating=False, source="a paper", workloads=["chat"], variants=["ngram"])
    return Limits(rows=applied(*rows, published).rows, others=2)


def against() -> Compared:
    """A baseline that the n-gram variant became slower than; its engine kept another memory for the cache."""
    slower = Arm(step_s=1.3 * NGRAM.step_s, length=NGRAM.length, sigma=NGRAM.sigma)
    return compare([make_run("base")], [make_run("now", slower)], make_limits())


OF_SPEEDS = {"matrix", "recommendation", "cells"}
SECTIONS = {
    "full": OF_SPEEDS
    | {"speedups", "failures", "builds", "claims", "speed", "anatomy", "outputs", "stages", "positions"}
    | {"not-run", "notes", "bound", "memory", "limits", "against"},
    "partial": OF_SPEEDS | {"failures", "not-run"},
    "one request": OF_SPEEDS | {"speedups", "claims", "outputs", "positions"},
    "empty": {"cells", "not-run"},
    "many": OF_SPEEDS | {"speedups", "failures", "claims", "outputs", "positions"},
}
"""What each run has data for, beside `ALWAYS`; written down here, not asked of the code that is tested."""

ALWAYS = {"meaning", "environment"}


def partial() -> RunResults:
    return run(
        reference(),
        cell(speedup=None, verdict="INSUFFICIENT", reason="0 of 3 pairs", pairs=0),
        broken(),
        finished=False,
        partial="the budget of 330 s was spent",
        skipped={"tiny-mtp-chat-b1": "needs a target with an MTP head"},
    )


def many() -> RunResults:
    """300 cells of 15 variants."""
    return run(
        *[
            cell(
                f"variant_{index % 15}",
                f"workload_{index // 75}",
                2 ** (index // 15 % 5),
                reason="the interval lies above the limit of 1.0 " * 4,
                speedup=ratio(0.5 + index / 200, 0.45 + index / 200, 0.6 + index / 200),
                failures=[failure(log_tail="x" * 4000)] if index % 7 == 0 else [],
                sameness=sameness(*[difference(f" left {index}", "\x00") for _ in range(12)]),
            )
            for index in range(300)
        ]
    )


RUNS: dict[str, Callable[[], RunResults]] = {
    "full": full,
    "partial": partial,
    "one request": lambda: run(reference(), cell(sameness=sameness(difference(), requests=1))),
    "empty": lambda: run(
        arms=[], finished=False, partial="no cell was selected", skipped={"tiny-mtp-chat-b1": "needs an MTP head"}
    ),
    "many": many,
}


def html(results: RunResults, of: RunHeader | None = None, compared: Compared | None = None) -> str:
    """A plain string: what tests put into it is not escaped."""
    known = of or header()
    return str(render_html(results, known, sections(Page(results, known, compared))))


@functools.cache
def page_of(name: str) -> str:
    if name == "full":
        return html(full(), header(builds=["new", "base"]), against())
    return html(RUNS[name]())


# -- runs written by somebody else -------------------------------------------------------------------------------------


DICTS = (inspect.StructType, inspect.DictType)
LISTS = (inspect.ListType, inspect.TupleType, inspect.VarTupleType, inspect.NamedTupleType)
Spoilable = TypeVar("Spoilable", RunResults, RunHeader)


def with_texts(value: Any, change: Callable[[str], str], kind: inspect.Type) -> Any:
    """Plain data of type `kind`, with `change` made to each text that may be any text; words of a fixed list stay."""
    match kind:
        case inspect.StrType() | inspect.AnyType() if isinstance(value, str):
            return change(value)
        case inspect.UnionType() if isinstance(value, str):
            return change(value) if any(isinstance(one, inspect.StrType) for one in kind.types) else value
        case inspect.UnionType():
            kinds = DICTS if isinstance(value, dict) else LISTS if isinstance(value, list | tuple) else ()
            one = [one for one in kind.types if isinstance(one, kinds)]
            return with_texts(value, change, one[0]) if one else value
        case inspect.StructType():
            types = {field.encode_name: field.type for field in kind.fields}
            return {key: with_texts(one, change, types[key]) if key in types else one for key, one in value.items()}
        case inspect.NamedTupleType():
            pairs = zip(value, kind.fields, strict=True)
            return [with_texts(one, change, field.type) for one, field in pairs]
        case inspect.TupleType():
            return [with_texts(one, change, other) for one, other in zip(value, kind.item_types, strict=True)]
        case inspect.ListType() | inspect.VarTupleType():
            return [with_texts(one, change, kind.item_type) for one in value]
        case inspect.DictType():
            return {key: with_texts(one, change, kind.value_type) for key, one in value.items()}
        case inspect.AnyType() if isinstance(value, list | tuple):
            return [with_texts(one, change, kind) for one in value]
        case inspect.AnyType() if isinstance(value, dict):
            return {key: with_texts(one, change, kind) for key, one in value.items()}
    return value


def spoilt(value: Spoilable, text: str) -> Spoilable:
    """`text` before every text of the records, names included, so that names which were one stay one."""
    plain = with_texts(msgspec.to_builtins(value), lambda old: text + old, inspect.type_info(type(value)))
    return msgspec.convert(plain, type(value))


HOSTILE_PAGES: dict[str, Callable[[], str]] = {
    "scripts in model output": lambda: html(hostile_run("\n".join([*SCRIPTS, *HOSTILE]))),
    "scripts in every text": lambda: html(spoilt(full(), "".join(SCRIPTS)), spoilt(header(), SCRIPTS[0])),
    "control characters": lambda: html(spoilt(full(), CONTROL)),
    "right to left": lambda: html(spoilt(full(), RTL)),
    "100,000 characters": lambda: html(hostile_run(LONG)),
}


def without_policy(text: str) -> str:
    before, tag, after = text.partition('<meta http-equiv="Content-Security-Policy"')
    assert tag
    return before + after.partition(">")[2]
