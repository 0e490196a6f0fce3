"""``draftproof history``: nightly results in one file, and the change points over them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Nightly results in one file, and the change points over them.")

Store = Annotated[Path, typer.Option(help="The history's Parquet file.")]
Catalogs = Annotated[
    list[Path] | None, typer.Option("--sd-catalog", help="Folder of your own entries; may be repeated.")
]
STORE = Path("reports/history.parquet")


@app.command("add")
def add(
    runs: Annotated[list[Path], typer.Argument(help="Folders of finished runs.")],
    store: Store = STORE,
    commit: Annotated[
        str, typer.Option(help="Commit of what was under test (default: vLLM's version and the digest of its files).")
    ] = "",
    ref: Annotated[str, typer.Option(help="Its branch, tag or build, told beside the commit.")] = "",
    catalog: Catalogs = None,
) -> None:
    """Add finished runs, all or none; one that is there already is left alone."""
    from draftproof.catalog import load_catalog
    from draftproof.errors import DraftproofError
    from draftproof.history.rows import rows_of
    from draftproof.history.store import add as add_rows
    from draftproof.records import RunFolder
    from draftproof.results import analyse
    from draftproof.snapshot import take

    thresholds = load_catalog(*(catalog or [])).thresholds
    rows = []
    for run in dict.fromkeys(runs):
        folder = RunFolder(run)
        snapshot = take(folder, analyse(folder, thresholds))
        if snapshot.partial:
            raise DraftproofError(
                f"run {snapshot.run_id!r} must be whole to be a night of the history ({snapshot.partial}); run its "
                "command again to finish it, without a choice of cells; nothing was added"
            )
        rows += rows_of(snapshot, commit, ref)
    added = add_rows(store, rows)
    for run_id in added.known:
        typer.echo(f"{run_id} is in {store} already: nothing changed")
    if added.new:
        typer.echo(f"added {', '.join(added.new)} to {store}: {added.rows} rows")


@app.command("show")
def show(
    store: Store = STORE,
    study: Annotated[str | None, typer.Option(help="Only this study.")] = None,
    since: Annotated[
        str, typer.Option(help="Only nights from this day on (YYYY-MM-DD): accepts what came before it.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Nights, verdicts and changes as JSON.")] = False,
    catalog: Catalogs = None,
) -> None:
    """Every series and its verdict. Exit status: 1 a regression, 3 nothing could be judged, 0 neither, 2 an error."""
    from datetime import date

    from draftproof.catalog import load_catalog
    from draftproof.errors import rule, unknown
    from draftproof.history import show as shown
    from draftproof.history.judge import judge
    from draftproof.history.store import read

    if since:
        try:
            date.fromisoformat(since)
        except ValueError as error:
            raise rule("--since", "a day, YYYY-MM-DD", since) from error
    rows = read(store)
    if study is not None and study not in {row.study for row in rows}:
        raise unknown("--study", study, {row.study for row in rows})
    chosen = [row for row in rows if study in (None, row.study) and row.taken >= since]
    judged = judge(chosen, load_catalog(*(catalog or [])).thresholds)
    for line in [shown.as_json(store, judged)] if as_json else shown.lines(judged):
        typer.echo(line)
    raise typer.Exit(shown.exit_status(judged))
