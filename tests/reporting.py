"""Hand-made results of a run, each field of which a test may change by keyword, and strict readers of the reports."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import msgspec
from markdown_it import MarkdownIt

from draftproof.analysis.acceptance import Acceptance, AcceptanceRepeat
from draftproof.analysis.stages import StageSums
from draftproof.analysis.stats import Ratio
from draftproof.analysis.survival import Observation, rate, survival
from draftproof.analysis.tokendiff import Comparison
from draftproof.determinism import Floor, Sameness
from draftproof.gate import Judgement, Verdict
from draftproof.records import SCHEMA_VERSION, ArmLine, FailureLine, RunHeader
from draftproof.report.html import render_html
from draftproof.results import CellResult, RunResults
from draftproof.spec import Cell, MatrixRow, Study

PICTURE = "data:image/png;base64,"
"""What a map of a figure may hold; no other address is allowed on a page."""
VOID = {"meta", "link", "br", "img", "input", "hr", "wbr"}
HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "]]></style></svg><script>alert(1)</script>",
    "javascript:alert(1)",
    "&lt;script&gt;",
    "| a | b |\n| --- | --- |",
    "``` ` `` <b>",
    "[text](https://evil.example) ![i](https://evil.example/i.png)",
    "abc\N{RIGHT-TO-LEFT OVERRIDE}def",
    "\x00\x1b[31mred\x07\r\n",
    "e" + "\N{COMBINING ACUTE ACCENT}" * 500,
    "\ud800",
]


def ratio(value: float = 1.5, low: float = 1.4, high: float = 1.6) -> Ratio:
    return Ratio(value=value, low=low, high=high, clusters=3, method="jackknife over prompt sets, t quantile")


def failure(**changes: Any) -> FailureLine:
    line = FailureLine(
        session=0,
        group=0,
        target="tiny",
        arm="ngram",
        workload=None,
        batch_size=None,
        purpose="speed",
        kind="crash",
        message="arm 'ngram' ended during 'load'",
        log_tail="Traceback\n  ValueError: x",
    )
    return msgspec.structs.replace(line, **changes)


def difference(left: str = " the", right: str = " a", **changes: Any) -> Comparison:
    found = Comparison(
        rotation=0,
        request=0,
        prompt_id="p0",
        position=3,
        tokens_at_risk=4,
        cause="near_tie",
        gap_nats=0.01,
        texts=(left, right),
    )
    return msgspec.structs.replace(found, **changes)


def sameness(*differences: Comparison, requests: int = 12, **changes: Any) -> Sameness:
    """Outputs of 64 tokens, of which the given ones differ."""
    causes: dict[str, int] = {}
    for found in differences:
        causes[found.cause] = causes.get(found.cause, 0) + 1
    same = max(0, requests - len(differences))
    seen = [Observation(found.tokens_at_risk, True) for found in differences] + [Observation(64, False)] * same
    result = Sameness(
        requests=requests,
        identical=same,
        prompts=requests,
        prompts_identical=same,
        share=1.0,
        share_low=0.75,
        share_high=1.0,
        causes={"identical": same, **causes},
        limit_nats=0.05,
        differences=list(differences),
        rate=rate(seen),
        survival=survival(seen),
        floor=Floor(
            requests=requests,
            repeat_identical=requests,
            aa_identical=requests - 1,
            variant_repeat_identical=requests,
        ),
        repeats=AcceptanceRepeat(requests=requests, differing=0, steps=(0, 0)),
        garbage="",
    )
    return msgspec.structs.replace(result, **changes)


def cell(
    variant: str = "ngram",
    workload: str = "chat",
    batch_size: int = 1,
    *,
    verdict: Verdict = "PASS",
    reason: str = "within the limit",
    target: str = "tiny",
    **changes: Any,
) -> CellResult:
    what = Cell(
        study="default",
        hardware="cpu",
        target=target,
        variant=variant,
        workload=workload,
        batch_size=batch_size,
        batching="mixed",
        output_tokens=64,
        num_prompts=None,
    )
    acceptance = Acceptance(
        num_drafts=100,
        num_draft_tokens=300,
        num_accepted_tokens=150,
        length=2.5,
        rate=0.5,
        per_position=[0.8, 0.5, 0.2],
        tokens_per_step=2.1,
    )
    stages = StageSums(
        seconds={"draft": 1.0, "verify": 6.0, "sample": 1.0, "overhead": 2.0, "prefill": 1.0},
        lm_head_s=1.0,
        unattributed_s=0.5,
        decode_steps=40,
        prefill_steps=2,
    )
    result = CellResult(
        cell=what,
        build="new",
        arm=variant,
        base_arm="no_sd",
        pairs=3,
        tokens_per_s=90.0,
        base_tokens_per_s=60.0,
        speedup=ratio(),
        build_ratio=None,
        acceptance=acceptance,
        sameness=sameness(),
        stages=stages,
        stage_rounds=[],
        problems=[],
        failures=[],
        throughput=Judgement(verdict=verdict, reason=reason),
        determinism=Judgement(verdict="PASS", reason="12 identical of 12"),
        informing=[],
    )
    return msgspec.structs.replace(result, **changes)


def reference(workload: str = "chat", batch_size: int = 1) -> CellResult:
    return cell(
        "no_sd",
        workload,
        batch_size,
        reason="the reference itself",
        speedup=None,
        acceptance=None,
        sameness=None,
        pairs=0,
    )


def broken(variant: str = "draft_model", **changes: Any) -> CellResult:
    return cell(
        variant,
        verdict="FAILED",
        reason="arm did not start",
        speedup=None,
        acceptance=None,
        sameness=None,
        stages=None,
        tokens_per_s=None,
        base_tokens_per_s=None,
        pairs=0,
        **{"failures": [failure()], **changes},
    )


def arm(name: str = "ngram", **changes: Any) -> ArmLine:
    line = ArmLine(
        session=0,
        group=0,
        arm=name,
        target="tiny",
        variant=name,
        role="run",
        build="new",
        target_sha256="ab" * 32,
        load_s=12.34,
        config_sha256="cd" * 32,
        speculative_config={"method": name, "num_speculative_tokens": 3},
        resolved={"dtype": "bfloat16", "max_model_len": 512, "async_scheduling": False},
        environment={
            "vllm": "0.32.0",
            "torch": "2.9.0",
            "python": "3.11.2",
            "cpu": "AMD EPYC",
            "threads": 2,
            "gpus": [],
            "preloads": ["libtcmalloc_minimal.so.4"],
            "variables": {"VLLM_CPU_KVCACHE_SPACE": "2"},
        },
    )
    return msgspec.structs.replace(line, **changes)


def run(*cells: CellResult, **changes: Any) -> RunResults:
    results = RunResults(
        run_id="default-20260101-000000",
        study="default",
        title="n-gram against no speculation",
        finished=True,
        partial="",
        cells=list(cells),
        aa=[],
        floors=[],
        lengths=[],
        noise=[],
        arms=[arm("no_sd"), arm()],
        skipped={},
        notes=[],
    )
    return msgspec.structs.replace(results, **changes)


def header(**changes: Any) -> RunHeader:
    study = Study(
        name="default",
        title="n-gram against no speculation",
        hardware="cpu",
        output_tokens=64,
        matrix=[MatrixRow(target="tiny", variants=["ngram"], workloads=["chat"], batch_sizes=[1])],
    )
    line = RunHeader(
        schema_version=SCHEMA_VERSION,
        run_id="default-20260101-000000",
        plan_sha256="ef" * 32,
        study=study,
        cells=[],
        machine={"cpu": "AMD EPYC", "node": "secret-host"},
        overlays=[],
        builds=["new"],
    )
    return msgspec.structs.replace(line, **changes)


def hostile_run(text: str) -> RunResults:
    """`text` wherever a model, an engine or a data set could bring it in, and as names of settings."""
    return run(
        cell(
            reason=text,
            sameness=sameness(difference(text, text, prompt_id=text, before=text, after=(text, text)), garbage=text),
            problems=[text],
            informing=[text],
            failures=[failure(kind=text, message=text, log_tail=text)],
        ),
        title=text,
        finished=False,
        partial=text,
        skipped={text: text},
        notes=[text],
        arms=[
            arm(
                environment={"vllm": text, "variables": {text: text}},
                resolved={text: text},
                speculative_config={text: [text]},
            )
        ],
    )


class Page(HTMLParser):
    """A strict reader: every tag closes in order, every id is used once; collects text, links and tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.data: list[str] = []
        self.feed(text)
        self.close()
        self.text = "".join(self.data)
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.data.append(data)

    def values(self, *names: str) -> list[str]:
        return [value for name, value in self.attributes if name in names]


def page(results: RunResults, of: RunHeader | None = None) -> Page:
    """Render, and check what holds for every page."""
    text = render_html(results, of or header())
    assert text.startswith("<!DOCTYPE html>")
    found = Page(text)
    assert not {"script", "img", "iframe", "object", "embed", "base", "form"} & set(found.tags)
    assert not [name for name, _ in found.attributes if name.startswith("on") or name in ("src", "srcset", "action")]
    ids = found.values("id")
    assert len(ids) == len(set(ids))
    for link in found.values("href", "xlink:href"):
        assert link == "data:," or link.startswith(PICTURE) or link.removeprefix("#") in ids, link
    assert set(" ".join(found.values("aria-labelledby")).split()) <= set(ids)
    style = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    return found


FOLDED = re.compile(r'<details class="note"><summary>[^<]*</summary><p>[^<]*</p></details>\s*')
"""The rest of a note: how long its names are decides whether it is folded."""


def unfolded(results: RunResults) -> Page:
    """A page without what is folded of its notes, which may hold no tag."""
    page(results)
    return Page(FOLDED.sub("", render_html(results, header())))


def markdown_tags(text: str) -> set[str]:
    """Kinds of everything in a Markdown text, with raw HTML allowed and tables on."""
    tokens = MarkdownIt("commonmark", {"html": True}).enable("table").parse(text)
    return {child.type for outer in tokens for child in [outer, *(outer.children or [])]}
