"""Cells as JSON, as CSV and as a table in the terminal."""

from __future__ import annotations

import csv
import io

import msgspec

from draftproof.simulator.simulate import Cell

FIELDS = tuple(field.name for field in msgspec.structs.fields(Cell))


def as_json(cells: list[Cell]) -> bytes:
    """A list of objects."""
    return msgspec.json.format(msgspec.json.encode(cells), indent=1) + b"\n"


def as_csv(cells: list[Cell]) -> str:
    """One row per cell; an absent k or share is an empty field."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(FIELDS)
    writer.writerows([getattr(cell, field) for field in FIELDS] for cell in cells)
    return text.getvalue()


def as_lines(cells: list[Cell]) -> list[str]:
    """One table per data set: a row per series, a column per batch size; shares of the bound's gain where known."""
    lines: list[str] = []
    sizes = list(dict.fromkeys(cell.batch_size for cell in cells))
    for dataset in dict.fromkeys(cell.dataset for cell in cells):
        here = [cell for cell in cells if cell.dataset == dataset]
        lines += ["", f"{dataset}, rules {here[0].rules}: speedup by batch size"]
        lines.append(f"{'variant':16}{'policy':26}" + "".join(f"{size:>8}" for size in sizes) + f"{'tok/step':>10}")
        for series in dict.fromkeys((cell.variant, label(cell)) for cell in here):
            row = [cell for cell in here if (cell.variant, label(cell)) == series]
            values = "".join(f"{cell.speedup:>8.3f}" for cell in row)
            lines.append(f"{series[0]:16}{series[1]:26}{values}{row[0].tokens_per_step:>10.2f}")
            if row[0].share_of_bound is not None and row[0].policy != "bound":
                shares = "".join(f"{cell.share_of_bound or 0.0:>8.0%}" for cell in row)
                lines.append(f"{'':16}{'  of the bound':26}{shares}")
    return lines


def label(cell: Cell) -> str:
    return f"{cell.policy} k={cell.k}" if cell.k else cell.policy
