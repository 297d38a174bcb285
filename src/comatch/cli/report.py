"""`comatch report`: tables of finished runs and of benchmarks."""

from pathlib import Path
from typing import Annotated

import typer

from comatch.cli.console import err, loading_torch, out, print_notes, say
from comatch.cli.options import DeviceOption
from comatch.errors import UserError


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Read run folders, folders of run folders, JSON files of bench or transfer, or a "
            "CSV file of --tuning.",
        ),
    ],
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE.html", help="Write a page about one run folder to this file."
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the page and the model card.")
    ] = False,
    device: DeviceOption = "auto",
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown tables.")] = False,
    tuning: Annotated[
        Path | None,
        typer.Option(
            "--tuning",
            metavar="FILE.csv",
            help="Append a row for each run, finished or not, to this table of tuning runs: what "
            "was changed from the recipe, and the validation accuracy.",
        ),
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Show this group of a CSV file of --tuning; repeat for more. Default: all.",
        ),
    ] = None,
) -> None:
    """Show finished runs as a table, or one run as a page to send to others.

    [bold]comatch report runs[/]                          all finished runs below this folder
    [bold]comatch report runs/mine --html report.html[/]  one run, in one file
    [bold]comatch report bench.json[/]                    a benchmark

    A row of the table has mean and standard deviation over seeds. The page has the
    accuracy with its confidence interval, confusion matrix, calibration, examples,
    a map of the images, labels that may be wrong, near-duplicates, images that fit
    no class, and the settings. It is written together with RUN/model_card.md.
    """
    if html:
        if markdown or tuning or group:
            raise UserError(
                "--html makes a page of one run: leave --markdown, --tuning and --group out"
            )
        return print_page(runs, html, overwrite, device)
    if overwrite:
        raise UserError("--overwrite is for --html")
    from comatch.commands.report import runs as reader
    from comatch.commands.report import tables
    from comatch.tables import to_markdown

    records = [path for path in runs if path.suffix in (".json", ".csv")]
    folders = reader.find_all(path for path in runs if path not in records)
    if group and not any(path.suffix == ".csv" for path in records):
        raise UserError("--group chooses rows of a CSV file of --tuning: give its path")
    if tuning:
        from comatch.commands.report import tuning as tried

        if records or tuning.suffix != ".csv":
            raise UserError("--tuning takes a CSV file to write, and run folders")
        added = tried.append(folders, tuning)
        lines = tried.summary(added)
        print(to_markdown(lines)) if markdown else out.print(tables.tuning(lines))
        say(f"{len(added)} runs in {tuning}")
        return
    for path in records:
        if path.suffix == ".csv":
            print_tuning(path, group or [], markdown)
        else:
            print_record(path, markdown)
    folders, notes = reader.finished(folders)
    print_notes(notes)
    if folders:
        folders, notes = reader.tested(folders)
        print_notes(notes)
        rows = reader.rows(folders)
        print(reader.as_markdown(rows)) if markdown else out.print(tables.comparison(rows))


def print_page(runs: list[Path], path: Path, overwrite: bool, device: str) -> None:
    """Write the page of a run, and say where it is."""
    from comatch.commands.report import request

    run = request.check(runs, path, overwrite)
    with loading_torch():
        from comatch.commands.report import page

    with err.status("predicting and drawing"):
        written = page.write(run, path, overwrite, device)
    print_notes(written.notes)
    say(f"report: {written.page}")
    if written.card:
        say(f"model card: {written.card}")
    else:
        print_notes([f"{run} has a model card already: add --overwrite to replace it"])


def print_tuning(path: Path, groups: list[str], markdown: bool) -> None:
    """Print a table that `--tuning` wrote, one line for each configuration."""
    from comatch.commands.report import tables, tuning
    from comatch.tables import to_markdown

    if not path.exists():
        raise UserError(f"{path} does not exist")
    lines = tuning.summary(tuning.choose(tuning.read(path), groups))
    print(to_markdown(lines)) if markdown else out.print(tables.tuning(lines))


def print_record(path: Path, markdown: bool) -> None:
    """Print what `comatch bench --json` or `comatch transfer linear` wrote."""
    from comatch.commands.transfer import record as transfers

    if transfers.is_record(path):
        from comatch.commands.transfer.tables import transfer
        from comatch.tables import to_markdown

        found = transfers.read_record(path)
        print(to_markdown(found.lines())) if markdown else out.print(transfer(found))
    else:
        from comatch.commands.bench import markdown as benchmarks
        from comatch.commands.bench.tables import bench

        record = benchmarks.read(path)
        markdown = markdown or benchmarks.from_script(record)
        print(benchmarks.markdown(record)) if markdown else out.print(bench(record))
