"""``draftproof simulate`` and ``draftproof traces check``: options that take several values, then files."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from draftproof.errors import DraftproofError, rule, unknown
from draftproof.simulator.costs import CostModel, load_costs
from draftproof.simulator.policies import KNOWN, Bound, Policy, policies_named
from draftproof.simulator.rules import CORRECTED, MENDS, RULES, Rules, rules_named
from draftproof.simulator.simulate import Cell, simulate, with_shares
from draftproof.simulator.traces import TraceFile, trace_files

Say = Callable[[str], None]
DEFAULT_POLICIES = ["fixed:1,3,5", "oracle", "combine", "bound"]
EXPLAIN_POLICIES = ["fixed:1,3,5", "oracle", "combine"]
BATCH_SIZES = [1, 8, 16, 32, 64, 128]


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="draftproof simulate",
        description="Speedups that policies would reach, from acceptance traces and a cost model. No engine, no GPU.",
        epilog="mends: " + "; ".join(f"{mend}: {text}" for mend, text in MENDS.items()),
    )
    made.add_argument("--traces", nargs="+", type=Path, required=True, metavar="PATH", help="trace files or folders")
    made.add_argument("--hardware", required=True, help="a name in fixtures/costs/ or a TOML file")
    made.add_argument("--rules", default="corrected", choices=RULES, help="default: corrected")
    made.add_argument("--with", nargs="+", default=[], dest="on", metavar="MEND", help="switch mends on")
    made.add_argument("--without", nargs="+", default=[], dest="off", metavar="MEND", help="switch mends off")
    made.add_argument("--policies", nargs="+", metavar="POLICY", help=", ".join(KNOWN))
    made.add_argument("--variants", nargs="+", metavar="NAME", help="default: all that the cost model knows")
    made.add_argument("--batch-sizes", nargs="+", type=int, metavar="B", help="default: 1 to 128")
    made.add_argument("--requests", type=int, metavar="N", help="draw N requests (default: what the rules say)")
    made.add_argument("--json", type=Path, metavar="OUT", help="write the cells as a list of objects")
    made.add_argument("--csv", type=Path, metavar="OUT", help="write the cells as rows")
    made.add_argument("--plot", type=Path, metavar="OUT", help="folder for one SVG per data set")
    made.add_argument("--explain", action="store_true", help="what each mend does by itself")
    made.add_argument("--best-k", action="store_true", help="variant and k to deploy, by data set and batch size")
    made.add_argument("--max-k", type=int, default=10, metavar="K", help="largest k that --best-k tries; default: 10")
    return made


def run(arguments: Sequence[str], say: Say) -> None:
    """``draftproof simulate``."""
    options = parser().parse_args(arguments)
    files = trace_files(options.traces)
    costs = load_costs(options.hardware)
    rules = rules_named(options.rules, options.on, options.off)
    variants = known_variants(options.variants, costs)
    batch_sizes = list(dict.fromkeys(options.batch_sizes or (BATCH_SIZES[::5] if options.explain else BATCH_SIZES)))
    for size in batch_sizes:
        if size < 1:
            raise rule("--batch-sizes", "at least 1", size)
    if options.best_k:
        from draftproof.simulator.bestk import advice_lines, best_k

        if options.max_k < 1:
            raise rule("--max-k", "at least 1", options.max_k)
        rows = [
            row
            for file in files
            for row in best_k(file, costs, rules, variants, batch_sizes, options.max_k, options.requests)
        ]
        for line in advice_lines(rows):
            say(line)
        write(options, [row.best for row in rows])
        return
    words = options.policies or (EXPLAIN_POLICIES if options.explain else DEFAULT_POLICIES)
    if rules.mixed and not options.policies:
        words = [word for word in words if word != "bound"]
    policies = policies_named(words)
    if options.explain:
        from draftproof.simulator.explain import explain

        cells, lines = explain(files, costs, policies, variants, batch_sizes, options.requests)
    else:
        from draftproof.simulator.output import as_lines

        cells = cells_of(files, costs, rules, policies, variants, batch_sizes, options.requests)
        lines = as_lines(cells)
    for line in lines:
        say(line)
    write(options, cells)
    if options.plot:
        plot(options.plot, cells, files, costs, variants, batch_sizes)


def cells_of(
    files: list[TraceFile],
    costs: CostModel,
    rules: Rules,
    policies: list[Policy],
    variants: list[str],
    batch_sizes: list[int],
    requests: int | None = None,
) -> list[Cell]:
    found: list[Cell] = []
    origin: dict[str, Path] = {}
    for file in files:
        cells = list(simulate(file, costs, rules, policies, variants, batch_sizes, requests))
        if cells and cells[0].dataset in origin:
            raise DraftproofError(
                f"{file.path}: data set {cells[0].dataset!r} is already that of {origin[cells[0].dataset]}; "
                "give one file per data set"
            )
        origin.update((cell.dataset, file.path) for cell in cells[:1])
        found += cells
    return with_shares(found)


def known_variants(names: list[str] | None, costs: CostModel) -> list[str]:
    for name in names or []:
        if name not in costs.drafters:
            raise unknown("--variants", name, costs.drafters)
    return list(dict.fromkeys(names or costs.drafters))


def write(options: argparse.Namespace, cells: list[Cell]) -> None:
    from draftproof.simulator.output import as_csv, as_json

    if options.json:
        save(options.json, as_json(cells))
    if options.csv:
        save(options.csv, as_csv(cells).encode())


def save(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise DraftproofError(f"{path}: cannot be written: {error.strerror}") from error


def plot(
    folder: Path,
    cells: list[Cell],
    files: list[TraceFile],
    costs: CostModel,
    variants: list[str],
    batch_sizes: list[int],
) -> None:
    """One SVG per data set, with the corrected bound beside what was asked for."""
    from draftproof.simulator.plot import draw

    bounds = cells_of(files, costs, CORRECTED, [Bound()], variants, batch_sizes)
    for dataset in dict.fromkeys(cell.dataset for cell in cells):
        here = [cell for cell in cells if cell.dataset == dataset]
        here = [cell for cell in here if cell.rules == here[0].rules]
        shown = [cell for cell in here if not (cell.policy == "bound" and cell.rules == "corrected")]
        dashed = [cell for cell in bounds if cell.dataset == dataset]
        save(folder / f"{dataset}.svg", draw(dataset, shown or here, dashed).encode())


def check(paths: list[Path], say: Say) -> None:
    """``draftproof traces check``: every line is read; the first that is wrong ends it."""
    for file in trace_files(paths):
        requests, same, prompt = 0, 0, 0
        tokens: dict[str, int] = {}
        dataset, limit = file.name, 0
        for trace in file.read():
            requests += 1
            dataset, limit = trace.dataset, max(limit, trace.limit)
            same += trace.same_tokens(tuple(trace.lengths))
            prompt += trace.prompt_tokens
            for name, lengths in trace.lengths.items():
                tokens[name] = tokens.get(name, 0) + len(lengths)
        shown = ", ".join(f"{name} {count} tokens" for name, count in tokens.items())
        say(
            f"{file.path}: ok: {dataset}, {requests} requests, {prompt} prompt tokens, k up to {limit}; {shown}; "
            f"{same} requests whose variants belong to the same output"
        )
