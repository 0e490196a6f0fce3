"""The tables of stage times: where a step's time goes, what explains the speedup, what rows cost."""

from __future__ import annotations

from draftproof.analysis.rowsprice import Interval
from draftproof.analysis.stages import OVERHEAD, STAGES, StageSums
from draftproof.metrics import ratio_text
from draftproof.report import paperstages, stagefigures, view
from draftproof.report.parts import Page, Section, Table
from draftproof.results import RunResults

OUTSIDE = "outside the worker"


TITLE = "Time"


def section(page: Page) -> Section | None:
    found = tables(page.results)
    return Section(id="stages", title=TITLE, tables=found) if found else None


def tables(results: RunResults) -> list[Table]:
    """Those that the run has something for."""
    made = [shares(results), paperstages.table(results), explained(results), prices(results)]
    return [table for table in made if table is not None and table.body]


def percent(seconds: float | None, whole_s: float) -> str:
    return "-" if seconds is None else f"{100 * seconds / whole_s:.1f} %"


def shares(results: RunResults) -> Table:
    """Each stage in the decode steps; LM head, the parts of overhead and what no part claims apart."""
    ordered = sorted(results.cells, key=view.place(results))
    shown = [(cell, cell.stages) for cell in ordered if cell.stages is not None and cell.stages.decode_s > 0]
    all_sums = [sums for _, sums in shown]
    on_device = any(sums.device_busy_s is not None for sums in all_sums)
    outside = any(sums.overhead_s.get(OUTSIDE) for sums in all_sums)
    stages = [stage for stage in STAGES if stage != "prefill"]
    parts = [part for part in OVERHEAD if part != OUTSIDE or outside]
    head = ["variant", "workload", "B", *stages, "LM head (in verify)"]
    head += [f"{part} (in overhead)" for part in (*parts, "unattributed")]
    head += ["device busy", "device idle"] if on_device else []
    head += ["ms/step", "decode steps"]
    body = []
    for cell, sums in shown:
        whole = sums.decode_s
        device_s = (sums.device_busy_s or 0.0) + (sums.device_idle_s or 0.0)
        line = [percent(sums.seconds[stage], whole) for stage in stages] + [percent(sums.lm_head_s, whole)]
        line += [percent(sums.overhead_s.get(part), whole) for part in parts] + [percent(sums.unattributed_s, whole)]
        if on_device:
            line += [percent(seconds, device_s or 1.0) for seconds in (sums.device_busy_s, sums.device_idle_s)]
        line += [f"{1000 * whole / sums.decode_steps:.1f}", str(sums.decode_steps)]
        body.append([*view.name(results, cell), *line])
    figures, legend = stagefigures.share_figures(results)
    return Table(
        name="shares",
        title="Time of a decode step by stage",
        note=shares_note(all_sums),
        head=head,
        body=body,
        names=2,
        figures=figures,
        legend=legend,
    )


def shares_note(shown: list[StageSums]) -> str:
    """How the seconds were measured, and of which worker."""
    clocks = "; ".join(dict.fromkeys(sums.clock for sums in shown))
    note = f"Verify holds the LM head; overhead is all that draft, verify and sample leave of a step. Clock: {clocks}."
    several = [sums for sums in shown if sums.workers > 1]
    if several:
        spread = max(sums.spread_s / sums.decode_s for sums in several)
        note += (
            f" Of {max(sums.workers for sums in several)} workers the slowest of each step is shown; the fastest took "
            f"up to {100 * spread:.1f} % of a step less in the mean."
        )
    if any(sums.device_busy_s is not None for sums in shown):
        note += (
            " Draft, verify and sample are the device's seconds; the parts of overhead are the host's, which works "
            "while the device does: they need not add up. Busy: inside the three, gaps between kernels included."
        )
    return note


def explained(results: RunResults) -> Table:
    """Expected speedups beside the measured one."""
    head = ["variant", "workload", "B", "k", "alpha", "c", "v", "tokens/decode step"]
    head += ["Eq. 1", "measured tokens and v", "whole steps", "measured speedup [95 %]"]
    cells = results.cells_by_id
    body = []
    for one in results.stage_findings.explained:
        found = one.expected
        cell = cells.get((one.cell, one.build))
        name = view.name(results, cell) if cell is not None else [one.variant, one.workload, str(one.batch_size)]
        measured = [f"{found.alpha:.2f}", f"{found.c:.3f}", f"{found.v:.2f}", f"{found.tokens_per_step:.2f}"]
        speedups = [f"{value:.2f}x" for value in (found.iid, found.measured_positions, found.whole_step)]
        body.append([*name, str(found.k), *measured, *speedups, ratio_text(one.speedup)])
    note = (
        "Eq. 1 (arXiv 2601.11580, after 2211.17192): (1 - alpha^(k+1)) / ((1 - alpha)(k c + 1)), with alpha the share "
        "of judged draft tokens that were accepted, and c one draft forward over one target forward. It takes k + 1 "
        "rows to cost as much as one; next to it tokens per decode step / (k c + v), with v the verification over a "
        "no-SD forward, and the same with whole steps, overhead included. Stage seconds are those of steps with the "
        "whole batch; the measured speedup has prefill and the batch's end in it. Expected figures are points."
    )
    figures, legend = stagefigures.explained_figures(results)
    return Table(
        name="expected",
        title="Expected and measured speedup",
        note=note,
        head=head,
        body=body,
        names=2,
        figures=figures,
        legend=legend,
    )


def milliseconds(found: Interval) -> str:
    return f"{1000 * found.value:.2f} [{1000 * found.low:.2f}, {1000 * found.high:.2f}]"


def prices(results: RunResults) -> Table:
    """Verify time by batch size and rows."""
    found = results.stage_findings.prices
    several = len({one.build for one in found}) > 1
    head = [
        "target",
        "B",
        "rows a request",
        "verify ms, median [95 %]",
        "over 1 row [95 %]",
        "per row over 1 row",
        "steps",
    ]
    body = []
    for one in found:
        label = one.target + (f" ({one.build} build)" if several else "")
        for price in one.prices:
            relative = price.relative
            body.append(
                [
                    label,
                    str(price.batch_size),
                    str(price.rows),
                    milliseconds(price.verify_s),
                    f"{relative.value:.2f}x [{relative.low:.2f}, {relative.high:.2f}]" if relative else "-",
                    f"{relative.value / price.rows:.2f}x" if relative else "-",
                    str(price.steps),
                ]
            )
    note = (
        "Forward and LM head of decode steps in which every request of the batch had so many rows (its drafts and one "
        "more), over all arms. Intervals are order statistics of the median. Steps of one block are not independent: "
        "the intervals are rather too narrow than too wide."
    )
    figures, legend = stagefigures.price_figures(results)
    return Table(
        name="row-prices",
        title="The price of verification rows",
        note=note,
        head=head,
        body=body,
        names=2,
        figures=figures,
        legend=legend,
    )
