"""``draftproof calibrate``: a run's own step times -> one cost model for each target, and what it says of the run."""

from __future__ import annotations

from pathlib import Path

import msgspec

from draftproof.errors import rule
from draftproof.records import RunFolder
from draftproof.simulator.calibrate import errors, fit_steps, held_out_by
from draftproof.simulator.command import save
from draftproof.simulator.costfile import as_toml, cost_model
from draftproof.simulator.costs import CostModel
from draftproof.simulator.recorded import Measured, Say, read_targets
from draftproof.simulator.validation import PREDICTED, predict, prediction_lines


def calibrate_run(path: Path, out: Path | None, target: str | None, *, validate: bool, say: Say) -> None:
    """Fit, print, write; with `validate` also predict the run's own speedups."""
    folder = RunFolder(path)
    targets = read_targets(folder, target, say)
    if out is not None and len(targets) > 1:
        names = [found.target for found in targets]
        raise rule("--out", "left out for a run with several targets", str(out), names, "or name one with --target")
    for found in targets:
        fit = fit_steps(found.samples, found.k)
        model = cost_model(found, fit, errors(found.samples, found.k, fit))
        file = out or path / f"costs-{found.target}.toml"
        save(file, as_toml(model).encode())
        lines = table_lines(found, model)
        if validate:
            predictions, reasons = predict(folder, found, model)
            lines += prediction_lines(predictions, reasons)
            save(path / f"{PREDICTED}{found.target}.json", msgspec.json.encode(predictions) + b"\n")
        for line in [*lines, f"cost model: {file}"]:
            say(line)


def table_lines(found: Measured, model: CostModel) -> list[str]:
    """Errors by stage and the constants."""
    by = held_out_by(found.samples)
    title = f"left-out {by}" if by else "nothing to hold out"
    lines = [
        f"{found.target}: {model.fit.data}",
        f"{'|fitted - measured| / measured':32}{'steps':>6}{'median':>9}{'90 %':>9}   {title}: median, 90 %",
    ]
    for row in model.fit.errors:
        held = f"{row.held_out_median:9.1%}{row.held_out_p90:9.1%}" if row.held_out_median is not None else f"{'-':>9}"
        lines.append(f"  {row.stage:30}{row.steps:>6}{row.median:>9.1%}{row.p90:>9.1%}   {held}")
    for prefix, entry in (
        ("verify", model.verify),
        ("step", model.step),
        ("prefill", model.prefill),
        *((f"drafters.{name}", drafter) for name, drafter in model.drafters.items()),
    ):
        numbers = {key: value for key, value in msgspec.to_builtins(entry).items() if key.endswith("_s") and value}
        lines.append(f"  {prefix:20} " + ", ".join(f"{key} {value:.3g}" for key, value in numbers.items()))
    lines.append(f"  caution: {model.fit.caution}")
    return lines
