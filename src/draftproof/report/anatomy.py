"""Where drafts are accepted and rejected, as tables."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from markupsafe import Markup

from draftproof.analysis.anatomy import Anatomy, Box, VerifyCost
from draftproof.analysis.stats import Ratio
from draftproof.report import anatomyfigures, heatmaps, overlapfigures, view
from draftproof.report.parts import Figure, Page, Section, Table
from draftproof.report.words import interval_text
from draftproof.results import CellResult, RunResults

TITLE = "Where drafts are accepted and rejected"
JACKKNIFE = "95 % by delete-one jackknife over prompts, both passes of a prompt added"
WILSON = "95 % by Wilson with the trials divided by their design effect over prompts"


def section(page: Page) -> Section | None:
    found = tables(page.results)
    return Section(id="anatomy", title=TITLE, tables=found) if found else None


def tables(results: RunResults) -> list[Table]:
    """All tables that the run has something for, in the order of a page."""
    shown = [*cells(results)]
    if not shown:
        return []
    known = [(name, found) for name, _, found in shown]
    bare = [(cell, found) for _, cell, found in shown]
    made = [
        drawn(request_table(known), anatomyfigures.request_figures(results, bare)),
        drawn(draft_table(known), anatomyfigures.draft_figures(results, bare)),
        drawn(output_table(known), anatomyfigures.output_figures(results, bare)),
        heatmaps.table_of(results, bare),
        rejected_table(known),
        drawn(difference_table(results), heatmaps.difference_figures(results, results.anatomies.differences)),
        drawn(overlap_table(results), overlapfigures.overlap_figures(results, results.anatomies.overlaps)),
    ]
    return [table for table in made if table.body]


def drawn(table: Table, made: tuple[list[Figure], Markup]) -> Table:
    figures, legend = made
    return msgspec.structs.replace(table, figures=figures, legend=legend) if figures else table


def cells(results: RunResults) -> Iterator[tuple[list[str], CellResult, Anatomy]]:
    """(How the cell is named, the cell, its anatomy), in the order of the closing table."""
    known = {(found.cell, found.build): found.anatomy for found in results.anatomies.cells}
    for row in view.rows(results):
        if (key := (row.cell.cell.id, row.cell.build)) in known:
            yield row.name, row.cell, known[key]


def request_table(shown: list[tuple[list[str], Anatomy]]) -> Table:
    body = [
        [
            *name,
            str(found.prompts),
            interval_text(found.acceptance_length),
            box_text(found.acceptance_length_box),
            interval_text(found.tokens_per_step),
            box_text(found.tokens_per_step_box),
        ]
        for name, found in shown
    ]
    return Table(
        name="by-request",
        title="By request",
        note=f"AL: 1 + accepted / drafted steps; tok/step: tokens / steps, both without the prefill. {JACKKNIFE}; "
        "boxes: 5th / 25th / 50th / 75th / 95th percentile over prompts.",
        head=["variant", "workload", "B", "prompts", "AL [95 %]", "AL box", "tok/step [95 %]", "tok/step box"],
        body=body,
        names=2,
    )


def draft_table(shown: list[tuple[list[str], Anatomy]]) -> Table:
    """Two rows a cell, a column for each place."""
    places = max(len(found.survival) for _, found in shown)
    body = []
    for name, found in shown:
        for what, shares in (("survival", [*found.survival]), ("conditional", found.conditional)):
            texts = [interval_text(share) for share in shares]
            body.append([*name, what, *texts, *["-"] * (places - len(texts))])
    return Table(
        name="by-place",
        title="By place in the draft",
        note="Survival: accepted there / drafts; conditional: accepted there / drafts that had a token there and whose "
        f"tokens before it were accepted. {WILSON}.",
        head=["variant", "workload", "B", "acceptance", *[f"place {number}" for number in range(1, places + 1)]],
        body=body,
        names=2,
    )


def output_table(shown: list[tuple[list[str], Anatomy]]) -> Table:
    body = []
    for name, found in shown:
        for group in found.lengths:
            length = f"{group.least_tokens}"
            length += f" to {group.most_tokens}" if group.most_tokens > group.least_tokens else ""
            figures = [interval_text(ratio) for ratio in group.deciles]
            body.append([*name, length, str(group.requests), str(found.unplaced), *figures])
    return Table(
        name="by-position",
        title="Tokens per step by position in the output",
        note=f"Each tenth of an output: tokens / steps, a step shared out to its tokens. {JACKKNIFE}. Unplaced "
        "requests had steps without a draft whose place the records do not tell.",
        head=["variant", "workload", "B", "tokens", "requests", "unplaced", *[f"{n}0 %" for n in range(1, 11)]],
        body=body,
        names=2,
    )


def rejected_table(shown: list[tuple[list[str], Anatomy]]) -> Table:
    body = []
    for name, found in shown:
        cost = found.cost
        body.append(
            [
                *name,
                interval_text(found.rejected),
                percent(found.rejected_rows),
                f"{1e3 * cost.s_per_row:.3f}" if cost else "-",
                percent(cost.mean_share if cost else None),
                f"{1e3 * cost.extra_s_per_draft:.3f}" if cost and cost.extra_s_per_draft is not None else "-",
                lost_text(cost),
            ]
        )
    return Table(
        name="rejected",
        title="What rejected tokens cost",
        note="Rejected / verified draft tokens, and rejected draft tokens / rows of all steps after the prefill "
        f"({WILSON}). Verify time of the stages blocks: per row, as if each row bore the same, and per draft token, "
        "what a drafted step takes beyond no-SD's (near 0 where memory bounds the step, below 0 by chance). Lost: that "
        "times the rejected tokens of the decode steps, of their time; nothing: a draft token added no time. Drafts "
        "verified beside another request's prefill are in no decode step; the share rejected is taken over all. No "
        "intervals. -: no stages were clocked.",
        head=[
            "variant",
            "workload",
            "B",
            "rejected [95 %]",
            "of rows",
            "ms per row",
            "lost, by rows",
            "ms per draft token",
            "lost, by drafts",
        ],
        body=body,
        names=2,
    )


def lost_text(cost: VerifyCost | None) -> str:
    """The share by what drafts added; a word where they added nothing, which a share of 0 would be mistaken for."""
    if cost is not None and cost.extra_s_per_draft is not None and cost.extra_s_per_draft <= 0:
        return "nothing"
    return percent(cost.extra_share if cost else None)


def difference_table(results: RunResults) -> Table:
    known = results.cells_by_id
    body = []
    for pair in results.anatomies.differences:
        first, second = known[pair.first, pair.build], known[pair.second, pair.build]
        found = pair.map
        values = [value for row in found.values for value in row]
        body.append(
            [
                *view.name(results, first),
                view.name(results, second)[0],
                str(len(found.prompts) + found.left_out),
                f"{sum(values) / len(values):+.2f}",
                percent(found.longer),
                percent(found.shorter),
            ]
        )
    return Table(
        name="differences",
        title="N-gram less a learned drafter, on the same prompts",
        note="Tokens per step, place by place (the map is in summary.json): mean over its bins, and the shares of bins "
        "where either emits more. Bins of one prompt hang together: no intervals.",
        head=["variant", "workload", "B", "less", "prompts", "mean", "longer", "shorter"],
        body=body,
        names=2,
    )


def overlap_table(results: RunResults) -> Table:
    known = results.cells_by_id
    body = []
    for pair in results.anatomies.overlaps:
        first, second = known[pair.first, pair.build], known[pair.second, pair.build]
        figures = [
            f"{advantage_text(found.advantage)} n = {found.prompts}{' (few)' if found.few else ''}"
            for found in pair.bins
        ]
        body.append([*view.name(results, first), view.name(results, second)[0], pair.basis, *figures])
    return Table(
        name="overlap",
        title="N-gram against a learned drafter, by overlap of prompt and output",
        note="Overlap: BLEU-4 of no-SD's output against its prompt, on token ids (sacrebleu, tokenize none, smoothing "
        "exp): outputs shorter than their prompts bear its brevity penalty. Output tokens / seconds of the requests "
        "(steps: per step, where no times were recorded), n-gram's over the other's, less 1. "
        f"{JACKKNIFE}. Few: fewer than 10 prompts.",
        head=["variant", "workload", "B", "against", "by", *[f"BLEU {n / 5:.1f}-{(n + 1) / 5:.1f}" for n in range(5)]],
        body=body,
        names=2,
    )


def advantage_text(ratio: Ratio | None) -> str:
    if ratio is None:
        return "-"
    value, low, high = (f"{100 * (end - 1):+.0f}" for end in (ratio.value, ratio.low, ratio.high))
    return f"{value} % [{low}, {high}]"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def box_text(box: Box | None) -> str:
    return " / ".join(f"{value:.2f}" for value in box.quantiles) if box else "-"
