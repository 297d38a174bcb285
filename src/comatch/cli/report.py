"""`comatch report`: finished runs and benchmarks as tables."""

from pathlib import Path
from typing import Annotated

import typer

from comatch.cli.console import out, tell_remarks
from comatch.errors import UserError


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Folders of runs, folders of those, or files of bench --json or of transfer.",
        ),
    ],
    markdown: Annotated[bool, typer.Option("--markdown", help="As a Markdown table.")] = False,
    tuning: Annotated[
        bool,
        typer.Option(
            "--tuning", help="Settings unlike the first run's, and validation instead of test."
        ),
    ] = False,
    at: Annotated[
        int | None,
        typer.Option(
            "--at",
            metavar="STEP",
            min=1,
            help="With --tuning: as the runs were at this step, finished or not.",
        ),
    ] = None,
) -> None:
    """Compare finished runs: mean and deviation over seeds, and how many."""
    from comatch.commands.bench import markdown as benchmarks
    from comatch.commands.report import runs as reader
    from comatch.commands.report import tables
    from comatch.commands.report import tuning as tried
    from comatch.commands.transfer import record as transfers

    if at and not tuning:
        raise UserError("--at compares settings that were tried: add --tuning")
    for path in (path for path in runs if path.suffix == ".json"):
        if transfers.is_record(path):
            found = transfers.read(path)
            print(reader.ruled(found.lines())) if markdown else out.print(tables.transfer(found))
        else:
            record = benchmarks.read(path)
            print(benchmarks.markdown(record)) if markdown else out.print(tables.bench(record))
    given = reader.every(path for path in runs if path.suffix != ".json")
    folders, remarks = tried.reached(given, at) if at else reader.finished(given)
    tell_remarks(remarks)
    if tuning and folders:
        lines = tried.table(folders, at)
        print(reader.ruled(lines)) if markdown else out.print(tables.tuning(lines))
    elif folders:
        folders, remarks = reader.tested(folders)
        tell_remarks(remarks)
        rows = reader.rows(folders)
        print(reader.markdown(rows)) if markdown else out.print(tables.comparison(rows))
