"""The stage shares of arXiv 2601.11580, Figure 4, beside the run's own; no verdict follows from them."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import msgspec
from markupsafe import Markup

from draftproof.catalog import fixtures_folder, load_catalog, read_entry
from draftproof.claims.ofpaper import PaperFigure, PaperRow
from draftproof.report import panels, view
from draftproof.report.marks import note
from draftproof.report.parts import Figure, Table
from draftproof.report.room import drawn
from draftproof.report.stagefigures import Bar, share_words, stacked
from draftproof.results import CellResult, RunResults

NAME = "paper-shares"
FILE = "fig4.toml"
STAGES = ("draft", "verify", "sample", "overhead")
HARDWARE = "h100"
"""Of the figure, by the catalog's name."""
WHOLE = "the whole time"
"""What the paper's shares are of: prefill is in it."""
OURS, ALIKE, THEIRS = "this run", "paper, this machine and target", "paper, H100"


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """A variant's shares by batch size, each in the order of `STAGES`, from 0 to 1."""

    whose: str
    target: str
    variant: str
    workload: str
    shares: dict[int, list[float]]


class Published(msgspec.Struct, frozen=True, kw_only=True):
    source: str
    rows: list[tuple[str, PaperRow]]
    """Each with the method of its variant."""
    sizes: list[int]
    scale: float


@functools.cache
def published() -> Published:
    """Read once a process: the files do not change."""
    figure = read_entry(fixtures_folder() / "paper" / FILE, PaperFigure)
    variants = load_catalog().variants
    rows = [(variants[row.variant].method, row) for row in figure.row]
    return Published(source=figure.source, rows=rows, sizes=[int(size) for size in figure.at], scale=figure.scale)


def table(results: RunResults) -> Table | None:
    """The run's variants of methods that the figure has, then the figure's; None without either."""
    ours = own_curves(results)
    methods = {method for method, _ in ours}
    theirs = [paper_curve(row, results) for method, row in published().rows if method in methods]
    if not theirs:
        return None
    curves = [*[curve for _, curve in ours], *sorted(theirs, key=lambda one: one.whose == THEIRS)]
    sizes = sorted({size for curve in curves for size in curve.shares})
    body = [
        [one.whose, one.variant, one.target, one.workload, *[shares_text(one.shares.get(size)) for size in sizes]]
        for one in curves
    ]
    figures, legend = figures_of(theirs)
    return Table(
        name=NAME,
        title="Beside Figure 4 of the paper",
        note="Draft / verify / sample / overhead, in % of the time. The paper's are of other machines and targets "
        "unless the row says otherwise: shown, and held against nothing. "
        f"Theirs: {published().source}; H100, vLLM 0.10.1.1 and a branch of it for draft models, k = 3, 500 requests; "
        "prefill is inside their verification, the LM head outside of it, and their clock does not wait for the "
        "device after sampling and drafting. Ours: decode steps alone, the LM head in verification.",
        head=["whose", "variant", "target", "workload", *[f"B = {size}" for size in sizes]],
        body=body,
        names=4,
        figures=figures,
        legend=legend,
    )


def own_curves(results: RunResults) -> list[tuple[str, Curve]]:
    """(Method, shares) of each variant that was clocked, controls apart."""
    found: dict[tuple[str, str, str], list[CellResult]] = {}
    for cell in sorted(results.cells, key=view.place(results)):
        clocked = cell.stages is not None and cell.stages.decode_s > 0
        if clocked and cell.speculative and cell.build == "new" and cell.cell.variant not in results.controls:
            found.setdefault((cell.cell.target, cell.cell.variant, cell.cell.workload), []).append(cell)
    curves = []
    for (target, variant, workload), cells in found.items():
        arm = results.arm_of(cells[0])
        shares = {cell.cell.batch_size: own_shares(cell) for cell in cells}
        made = Curve(whose=OURS, target=target, variant=variant, workload=workload, shares=shares)
        curves.append((str(arm.speculative_config.get("method", "")) if arm else "", made))
    known = {method for method, _ in published().rows}
    return [(method, curve) for method, curve in curves if method in known]


def own_shares(cell: CellResult) -> list[float]:
    assert cell.stages is not None
    shares = cell.stages.shares()
    return [shares[stage] for stage in STAGES]


def paper_curve(row: PaperRow, results: RunResults) -> Curve:
    known = published()
    by_stage = [row.values[stage] for stage in STAGES]
    shares = {size: [known.scale * values[at] for values in by_stage] for at, size in enumerate(known.sizes)}
    alike = any(cell.cell.target == row.target and cell.cell.hardware == HARDWARE for cell in results.cells)
    whose = ALIKE if alike else THEIRS
    return Curve(whose=whose, target=row.target, variant=row.variant, workload=row.workload, shares=shares)


def shares_text(shares: list[float] | None) -> str:
    return " / ".join(f"{100 * share:.1f}" for share in shares) if shares else "-"


def figures_of(curves: Sequence[Curve]) -> tuple[list[Figure], Markup]:
    """A panel for each of the paper's targets."""
    targets: dict[str, list[Bar]] = {}
    for curve in curves:
        for size, shares in curve.shares.items():
            parts = dict(zip(STAGES, shares, strict=True))
            targets.setdefault(curve.target, []).append(Bar(size, curve.variant, parts, None))
    some, left_out = drawn([*targets.items()])
    figures = []
    for number, (target, bars) in enumerate(some):
        ordered = sorted(bars, key=lambda bar: bar.batch_size)
        figures.append(
            Figure(
                title=f"{target} in the paper (H100)",
                description=f"Published, not of this run. {share_words(ordered, WHOLE)}",
                svg=stacked(f"{NAME}-{number}", ordered, WHOLE),
            )
        )
    meaning = "The paper's figures, of variants of the run's methods; colours as above, the LM head not apart."
    return figures, panels.legend(NAME, {}, note(meaning, left_out))
