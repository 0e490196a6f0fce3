"""The ``draftproof`` command: builds models, says what this machine can run, renders records; it runs no study."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

from draftproof.history.command import app as history_app

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Keep speculative decoding honest in vLLM. Studies run through pytest: pytest --sd-study NAME.",
)
models_app = typer.Typer(no_args_is_help=True, help="Build and find the models of the catalog.")
app.add_typer(models_app, name="models")
drafters_app = typer.Typer(no_args_is_help=True, help="Drafters of the embedded target.")
app.add_typer(drafters_app, name="drafters")
traces_app = typer.Typer(no_args_is_help=True, help="Acceptance traces, the input of simulate.")
app.add_typer(traces_app, name="traces")
baseline_app = typer.Typer(no_args_is_help=True, help="Runs that later ones are compared with.")
app.add_typer(baseline_app, name="baseline")
app.add_typer(history_app, name="history")

Catalogs = Annotated[
    list[Path] | None, typer.Option("--sd-catalog", help="Folder of your own entries; may be repeated.")
]


@models_app.command("build")
def models_build(
    names: Annotated[
        list[str] | None, typer.Argument(help="Targets and drafters (default: all that are built).")
    ] = None,
    verify: Annotated[bool, typer.Option(help="Hash every file even if its size and time are unchanged.")] = False,
    catalog: Catalogs = None,
) -> None:
    """Build targets and trained drafters into the user cache, checked by SHA-256; what is whole is left alone."""
    from draftproof import models
    from draftproof.catalog import load_catalog
    from draftproof.errors import rule

    entries = load_catalog(*(catalog or []))
    targets = {t.name: t for t in entries.targets.values() if t.source in models.BUILT}
    drafters = {d.name: d for d in entries.drafters.values() if d.kind != "mtp"}
    for name in names or {**targets, **drafters}:
        if name not in targets and name not in drafters:
            raise rule("name", "a target or drafter that is built", name, [*targets, *drafters])
        if name in targets:
            typer.echo(f"{name}: {models.build_target(targets[name], entries, say=typer.echo, verify=verify)}")
        if name in drafters:
            typer.echo(f"{name}: {models.build_drafter(drafters[name], entries, say=typer.echo, verify=verify)}")


@models_app.command("list")
def models_list(catalog: Catalogs = None) -> None:
    """Every target and trained drafter of the catalog and whether it is at hand."""
    from draftproof import models
    from draftproof.catalog import load_catalog

    entries = load_catalog(*(catalog or []))
    rows = [(models.describe(target, entries), target.model) for target in entries.targets.values()]
    rows += [(models.describe_drafter(entry, entries), entry.target) for entry in entries.drafters.values()]
    for facts, model in rows:
        size = f"{facts['size_bytes'] / 1e6:.0f} MB" if facts["size_bytes"] else "-"
        typer.echo(f"{facts['name']:24} {facts['source']:9} {facts['state']:18} {size:>8}  {model}")


@models_app.command("path")
def models_path(
    name: Annotated[str, typer.Argument(help="A target of the catalog.")], catalog: Catalogs = None
) -> None:
    """The folder (or hub id) that vLLM loads for a target, built first where it must be; nothing else is printed."""
    from draftproof import models
    from draftproof.catalog import load_catalog

    entries = load_catalog(*(catalog or []))
    target = entries.get("targets", name)
    say = lambda text: typer.echo(text, err=True)  # noqa: E731
    typer.echo(models.resolve_target(target, entries, say=say))


@drafters_app.command("train")
def drafters_train(
    names: Annotated[list[str] | None, typer.Argument(help="Drafters of the catalog.")] = None,
    everyone: Annotated[bool, typer.Option("--all", help="All drafters of the catalog.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for weights, cards and entries; a catalog layer.")] = Path(
        "trained-drafters"
    ),
    work: Annotated[
        Path | None, typer.Option(help="Folder for texts, features and checkpoints (default: in the user cache).")
    ] = None,
    hardware: Annotated[str, typer.Option(help="Hardware entry that the texts are written with.")] = "cpu",
    catalog: Catalogs = None,
) -> None:
    """Train drafters from the target's own texts; a run that was ended goes on where it was."""
    from draftproof import building
    from draftproof.catalog import load_catalog
    from draftproof.errors import rule

    entries = load_catalog(*(catalog or []))
    chosen = list(entries.drafters) if everyone else list(names or [])
    if not chosen or (everyone and names):
        raise rule("names", "drafters, or --all for every one", names or [], list(entries.drafters))
    from draftproof.drafters.command import train

    folder = work or building.models_folder().parent / "training"
    train(chosen, entries, work=folder, out=out, hardware=hardware, say=typer.echo)


@app.command()
def doctor(
    python: Annotated[Path, typer.Option("--sd-python", help="Interpreter whose vLLM would be under test.")] = Path(
        sys.executable
    ),
    catalog: Catalogs = None,
) -> None:
    """What this machine can run, and why not the rest."""
    from draftproof.catalog import load_catalog
    from draftproof.doctor import examine

    findings = examine(load_catalog(*(catalog or [])), str(python))
    for finding in findings:
        typer.echo(f"{'ok ' if finding.ok else 'NO '} {finding.what}: {finding.text}")
    if not any(finding.ok for finding in findings if finding.what.startswith("study ")):
        raise typer.Exit(1)


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    base: Annotated[
        Path | None,
        typer.Option(
            "--compare", metavar="BASE", help="Folder of an earlier run, or a baseline's file: what moved since then."
        ),
    ] = None,
    catalog: Catalogs = None,
) -> None:
    """Render a run's report again from its records.

    Whatever it shows, the exit status is 0, with --compare too: draftproof compare is what judges.
    """
    from draftproof import baselines
    from draftproof.catalog import load_catalog
    from draftproof.comparison import compare as judge
    from draftproof.records import RunFolder
    from draftproof.report.terminal import comparison_lines, summary_lines
    from draftproof.report.written import write_report
    from draftproof.results import analyse
    from draftproof.snapshot import take

    folder, entries = RunFolder(run), load_catalog(*(catalog or []))
    results = analyse(folder, entries.thresholds, catalog=entries)
    found = None
    if base is not None:
        new = take(folder, results)
        found = judge(baselines.others(base, new, entries), [new], entries.thresholds.get(new.hardware, []))
    write_report(folder, results, found)
    terminal = sys.stdout.isatty()
    colour = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    width = shutil.get_terminal_size().columns if terminal else 120
    for line in summary_lines(results, width, terminal=terminal, colour=colour):
        typer.echo(line)
    for line in comparison_lines(found, colour=colour) if found is not None else []:
        typer.echo(line)
    typer.echo(f"report: {run / 'index.html'}")


Baselines = Annotated[Path, typer.Option("--dir", help="Folder of baselines.")]
BASELINES = Path("baselines")


@baseline_app.command("save")
def baseline_save(
    run: Annotated[Path, typer.Argument(help="Folder of a whole run without a red cell.")],
    folder: Baselines = BASELINES,
    catalog: Catalogs = None,
) -> None:
    """Add a run to the baseline of its hardware, study and fingerprint."""
    from draftproof import baselines
    from draftproof.catalog import load_catalog

    path = baselines.save(baselines.read_run(run, load_catalog(*(catalog or []))), folder)
    typer.echo(f"{path}: {len(baselines.read(path).snapshots)} runs")


@baseline_app.command("list")
def baseline_list(folder: Baselines = BASELINES) -> None:
    """Every baseline of a folder."""
    from draftproof import baselines

    for line in baselines.table(baselines.everything(folder)) or [f"no baseline in {folder}"]:
        typer.echo(line)


@baseline_app.command("show")
def baseline_show(file: Annotated[Path, typer.Argument(help="A baseline's file.")]) -> None:
    """Where a baseline's figures come from, run by run, and what it holds."""
    from draftproof import baselines

    for line in baselines.provenance(baselines.read(file)):
        typer.echo(line)


@app.command()
def compare(
    base: Annotated[Path, typer.Argument(help="Folder of a run, or a baseline's file.")],
    new: Annotated[Path, typer.Argument(help="Folder of a run, or a baseline's file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Findings as JSON.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="A table to paste into a pull request.")] = False,
    catalog: Catalogs = None,
) -> None:
    """Judge a run against another; exit status 0 green, 1 regressed, failed or divergent, 3 not judged."""
    from draftproof import baselines
    from draftproof.catalog import load_catalog
    from draftproof.comparison import compare as judge
    from draftproof.report import compared

    entries = load_catalog(*(catalog or []))
    runs = baselines.resolve(new, entries)
    found = judge(baselines.resolve(base, entries), runs, entries.thresholds.get(runs[-1].hardware, []))
    if as_json:
        typer.echo(compared.as_json(found))
    else:
        for line in compared.markdown_lines(found) if markdown else compared.lines(found):
            typer.echo(line)
    raise typer.Exit(found.exit_code)


@app.command()
def claims(
    run: Annotated[Path | None, typer.Argument(help="Folder of a run (without one: the paper's own figures).")] = None,
    catalog: Catalogs = None,
) -> None:
    """What arXiv 2601.11580 claims: does it hold on a run, and in the paper's own figures?"""
    from draftproof.catalog import load_catalog
    from draftproof.claims import judged
    from draftproof.records import RunFolder
    from draftproof.report.untrusted import visible
    from draftproof.results import analyse

    entries = load_catalog(*(catalog or []))
    results = analyse(RunFolder(run), entries.thresholds) if run else None
    for line in judged.lines(*judged.judge(results, entries)):
        typer.echo(visible(line))


@app.command()
def diff(
    reference: Annotated[Path, typer.Argument(help="Folder of a run.")],
    other: Annotated[Path, typer.Argument(help="Folder of a run of the same study.")],
    arm: Annotated[str, typer.Option(help="Arm of the first run.")] = "no_sd",
    other_arm: Annotated[str | None, typer.Option(help="Arm of the second run (default: the same).")] = None,
) -> None:
    """Outputs of one arm in two runs, by token id; exit status 1 where any differs."""
    from draftproof.rundiff import diff as outputs

    lines, same = outputs(reference, other, arm, other_arm or arm)
    for line in lines:
        typer.echo(line)
    if not same:
        raise typer.Exit(1)


@app.command()
def memory(
    target: Annotated[str, typer.Argument(help="A target of the catalog, or a folder that holds config.json.")],
    drafter: Annotated[
        str | None, typer.Argument(help="A variant or drafter of the catalog, or a folder (with --method).")
    ] = None,
    method: Annotated[str | None, typer.Option(help="vLLM's method for a drafter in a folder.")] = None,
    gpu_memory_gib: Annotated[
        float | None, typer.Option(help="Memory of all GPUs together: prints how many tokens fit.")
    ] = None,
    utilisation: Annotated[
        float, typer.Option(help="vLLM's gpu_memory_utilization: the part of it to fill; vLLM's own value in 0.32.")
    ] = 0.92,
    as_json: Annotated[bool, typer.Option("--json", help="Bytes and shares as JSON.")] = False,
    catalog: Catalogs = None,
) -> None:
    """Memory that a target and its drafter will take, from configurations and file headers; nothing is loaded."""
    from draftproof import memory as expected
    from draftproof.catalog import load_catalog

    budget = None if gpu_memory_gib is None else expected.budget_bytes(gpu_memory_gib, utilisation)
    report = expected.expect(target, drafter, load_catalog(*(catalog or [])), method=method, budget=budget)
    for line in [expected.as_json(report)] if as_json else expected.lines(report):
        typer.echo(line)


@app.command(add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def simulate(context: typer.Context) -> None:
    """Speedups that policies would reach, from acceptance traces and a cost model; simulate --help lists options."""
    from draftproof.simulator.command import run

    run(context.args, typer.echo)


@app.command()
def calibrate(
    run: Annotated[Path, typer.Argument(help="Folder of a run with stages blocks.")],
    out: Annotated[Path | None, typer.Option(help="Cost model (default: RUN/costs-<target>.toml).")] = None,
    target: Annotated[str | None, typer.Option(help="Only this target of the run.")] = None,
    validate: Annotated[
        bool, typer.Option("--validate", help="Also predict the run's speedups from its step times and acceptance.")
    ] = False,
) -> None:
    """Fit the cost model that simulate --hardware FILE reads to a run's own step times; one file a target."""
    from draftproof.simulator.calibration import calibrate_run

    calibrate_run(run, out, target, validate=validate, say=typer.echo)


@app.command()
def trace(
    variant: Annotated[str, typer.Argument(help="A variant of the catalog, or several with commas: ngram,eagle3.")],
    workload: Annotated[str, typer.Argument(help="A workload of the catalog.")],
    out: Annotated[
        Path | None, typer.Option(help="Trace file (default: traces-<target>-<workload>.jsonl in this folder).")
    ] = None,
    prompts: Annotated[int, typer.Option(help="Prompts to trace: the workload's first that fit the context.")] = 16,
    tokens: Annotated[int, typer.Option(help="Most output tokens of a prompt; EOS ends it earlier.")] = 128,
    limit: Annotated[int, typer.Option(help="Most tokens drafted at a position: the largest k to simulate.")] = 20,
    layout: Annotated[
        str, typer.Option(help="ours, or public: that of the public traces, <target>_<workload>.jsonl.")
    ] = "ours",
    target: Annotated[
        str | None, typer.Option(help="A target (default: the built one that the variants have drafters for).")
    ] = None,
    hardware: Annotated[str, typer.Option(help="Hardware entry that it runs with.")] = "cpu",
    python: Annotated[Path, typer.Option("--sd-python", help="Interpreter whose vLLM is asked.")] = Path(
        sys.executable
    ),
    catalog: Catalogs = None,
) -> None:
    """What proposers draft at every position of no-SD's output, one token committed each time: traces for simulate."""
    from draftproof.catalog import load_catalog
    from draftproof.engines import open_engine
    from draftproof.session import interpreter_path
    from draftproof.simulator import livetraces

    asked = livetraces.Asked(
        variants=livetraces.names_of(variant),
        workload=workload,
        target=target,
        hardware=hardware,
        prompts=prompts,
        tokens=tokens,
        limit=limit,
        layout=livetraces.layout_named(layout),
        out=out,
        python=interpreter_path("--sd-python", str(python)),
    )
    livetraces.trace(asked, load_catalog(*(catalog or [])), open_engine("vllm"), typer.echo)


@traces_app.command("check")
def traces_check(files: Annotated[list[Path], typer.Argument(help="Trace files, or folders of them.")]) -> None:
    """Validate trace files line by line (JSON lines or Parquet, this project's layout or the public traces')."""
    from draftproof.simulator.command import check

    check(files, typer.echo)


@traces_app.command("ngram")
def traces_ngram(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    out: Annotated[
        Path | None, typer.Option(help="Trace file (default: RUN/traces-<target>-<workload>.jsonl, one for each).")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Only this target of the run.")] = None,
    workload: Annotated[str | None, typer.Option(help="Only this workload of the run.")] = None,
    min_n: Annotated[int, typer.Option(help="Shortest suffix looked up, in tokens.")] = 3,
    max_n: Annotated[int, typer.Option(help="Longest suffix looked up, in tokens.")] = 7,
    limit: Annotated[int, typer.Option(help="Most tokens drafted in a step: the largest k to simulate.")] = 20,
) -> None:
    """What n-gram lookup would draft along a run's no-SD outputs, from token ids alone: traces for simulate."""
    from draftproof.simulator.ngramtraces import Lookup, write_traces

    write_traces(run, out, target, workload, Lookup(min_n, max_n, limit), typer.echo)


def version(value: bool) -> None:
    if value:
        import draftproof

        typer.echo(draftproof.__version__)
        raise typer.Exit


@app.callback()
def options(show_version: Annotated[bool, typer.Option("--version", callback=version, is_eager=True)] = False) -> None:
    """Keep speculative decoding honest in vLLM."""


def main() -> None:
    """Entry point: an error that the user can mend is one line on standard error and exit status 2."""
    from draftproof.errors import DraftproofError

    try:
        app()
    except DraftproofError as error:
        typer.echo(f"draftproof: {error}", err=True)
        raise SystemExit(2) from error


if __name__ == "__main__":
    main()
