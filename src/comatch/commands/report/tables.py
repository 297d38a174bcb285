"""Tables for the terminal."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from comatch.commands.report.runs import Row
from comatch.commands.report.runs import table as table_of
from comatch.commands.reproduce import paper
from comatch.commands.transfer.record import Transfer
from comatch.config import Recipe, settings_of
from comatch.evaluation import Scores
from comatch.evaluation.accuracy import interval


def results(summaries: Sequence[dict[str, Any]]) -> Table:
    """One row a run: what it learned from, and how well."""
    table = Table(box=box.SIMPLE_HEAD, title="Accuracy on images that were never trained on")
    table.add_column("method", no_wrap=True, min_width=max(len(s["method"]) for s in summaries))
    for column in ("labels", "unlabelled used"):
        table.add_column(column, justify="right")
    table.add_column("test accuracy", justify="right", style="bold")
    for column in ("steps", "seconds"):
        table.add_column(column, justify="right")
    for summary in summaries:
        table.add_row(
            summary["method"],
            f"{summary['labels']:,}",
            f"{summary['unlabelled']:,}",
            accuracy(summary),
            f"{summary['steps']:,}",
            f"{summary['seconds']:.0f}",
        )
    return table


def accuracy(summary: dict[str, Any]) -> str:
    if "top1" in summary:
        return f"{summary['top1']:.2%}"
    if "validation_top1" in summary:
        return f"{summary['validation_top1']:.2%} (validation)"
    return "no test part"


def comparison(rows: Sequence[Row]) -> Group:
    """One line for each configuration, over its seeds; a table for each data set and its labels."""
    parts: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        parts.setdefault((row.data, row.labels), []).append(row)
    hidden = ("data", "labels", "device", "commit")  # in the title, or for the record only
    return Group(
        *(
            chosen(part, [name for name in table_of(part)[0] if name not in hidden])
            for part in parts.values()
        )
    )


def ranking(rows: Sequence[Row]) -> Table:
    """Methods on the same data."""
    return chosen(rows, ("method", "accuracy %", "seeds", "seconds", "steps"))


def chosen(rows: Sequence[Row], columns: Sequence[str]) -> Table:
    """Rows of the same data: what they have in common is the title."""
    head, *lines = table_of(rows, columns)
    table = Table(title=f"{rows[0].data} with {rows[0].labels:,} labels", box=box.SIMPLE_HEAD)
    for name in head:  # in a narrow terminal a method or a figure must stay whole
        table.add_column(name, no_wrap=name in ("method", "accuracy %"))
    for line in lines:
        table.add_row(*line)
    return table


def beside_paper(columns: Sequence[str], rows: Sequence[tuple[str, list[str], list[str]]]) -> Table:
    """For each method a line of the paper's figures and one of ours; empty ones are left out."""
    # Narrow, so that four columns fit a terminal of eighty: what is too long breaks before (n=...).
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for head in ("accuracy %", ""):
        table.add_column(head, no_wrap=True)
    for head in columns:
        table.add_column(head.replace(", ", "\n"))
    for method, theirs, ours in rows:
        if any(theirs):
            table.add_row(method, "paper", *theirs, style="dim")
        table.add_row("" if any(theirs) else method, "ours", *ours, end_section=True)
    return table


def detection(summary: dict[str, Any]) -> Table:
    """A detector on COCO below the paper's of the same schedule: boxes (bb) and masks (mk)."""
    schedule, net, steps, batch = (summary[key] for key in ("schedule", "net", "steps", "batch"))
    theirs = ("resnet50", paper.COCO_STEPS[schedule], paper.COCO_BATCH)
    caption = f"paper: {made(*theirs)}"
    if (net, steps, batch) != theirs:
        caption += f"\nours: {made(net, steps, batch)}, not to be compared with the paper's"
    table = Table(box=box.SIMPLE_HEAD, title=f"COCO val2017, {schedule} schedule", caption=caption)
    for head in ("began from", "labels"):
        table.add_column(head)
    for head in paper.COCO_FIGURES:
        table.add_column(head.replace("_", "\n"), justify="right")
    for (method, labels), figures in paper.COCO[schedule].items():
        table.add_row(
            f"paper: {method}", labels, *(f"{value:.1f}" for value in figures), style="dim"
        )
    ours = (summary[name] for name in paper.COCO_FIGURES)
    said = ("" if value is None else f"{value:.1f}" for value in ours)
    table.add_row(Text(f"ours: {Path(summary['start']).name}"), "", *said, style="bold")
    return table


def made(net: str, steps: int, batch: int) -> str:
    return f"{net}, {steps:,} steps of {batch} images"


def tuning(lines: Sequence[Sequence[str]]) -> Table:
    """A head, and a line for each configuration; its commit is for the record only."""
    head, *rest = lines
    # In a terminal of eighty, settings and figures stay whole; a list of many seeds is broken.
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    unlike, *figures, seeds, _ = head
    table.add_column(unlike, no_wrap=True)
    for name in figures:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(seeds)
    for unlike, *figures, _ in rest:
        table.add_row(unlike.replace(", ", "\n"), *figures)
    return table


def transfer(found: Transfer) -> Table:
    """A line for each network; the paper's are dim."""
    head, *rest = found.lines()
    title = escape(f"{found.data}, by images a class")
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(head[0], overflow="fold")
    for name in head[1:]:
        table.add_column(name)
    for name, *figures in rest:
        table.add_row(Text(name), *figures, style="dim" if name.startswith("paper:") else None)
    return table


def sections(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A section for all rows that begin with the same word."""
    table = Table(*columns, box=box.SIMPLE_HEAD)
    before = ""
    for first, *rest in rows:
        if before not in ("", first):
            table.add_section()
        table.add_row("" if first == before else first, *rest)
        before = first
    return table


def plain(table: Table) -> str:
    """The table as text for a file."""
    console = Console(file=io.StringIO(), width=200, color_system=None)
    with console.capture() as drawn:
        console.print(table)
    lines = [line.rstrip() for line in drawn.get().splitlines()]
    return "\n".join(line for line in lines if line)


def scores(scores: Scores, classes: list[str]) -> Table:
    """Accuracy class by class, weakest first, with the most frequent mistake, and in all."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("class")
    table.add_column("found", justify="right")
    table.add_column("most often taken for")
    rows = zip(classes, scores.per_class, scores.taken_for, strict=True)
    for name, share, mistake in sorted(rows, key=lambda row: row[1] or 0.0):
        found = "no test image" if share is None else f"{share:.1%}"
        taken = f"{classes[mistake[0]]} {mistake[1]:.1%}" if mistake else ""
        table.add_row(Text(name), found, Text(taken))
    table.add_section()
    low, high = interval(scores.top1, scores.images)
    sure = f"{low:.1%} to {high:.1%}, 19 times out of 20"
    table.add_row("[bold]top-1 accuracy", f"[bold]{scores.top1:.2%}", sure)
    if scores.top5 is not None:
        table.add_row("top-5 accuracy", f"{scores.top5:.2%}")
    table.add_row("calibration error", f"{scores.calibration_error:.2%}")
    table.add_row("images", f"{scores.images:,}")
    return table


def contradicted(mistakes: Sequence[tuple[str, str, str, float]], most: int = 10) -> Table:
    """Labelled images that were taken for something else, and how sure that was."""
    table = Table(box=box.SIMPLE_HEAD, title="Contradicted labels, the surest first")
    for column in ("image", "label", "taken for"):
        table.add_column(column, overflow="fold")
    for path, label, guess, probability in mistakes[:most]:
        table.add_row(Text(path), Text(label), Text(f"{guess} {probability:.1%}"))
    if len(mistakes) > most:
        table.add_row(f"and {len(mistakes) - most} more")
    return table


def settings(config: Recipe | Any) -> Table:
    """Every field with its value and its meaning: what --set takes."""
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("setting", "value", "meaning"):
        table.add_column(column)
    parts = [config, config.method] if isinstance(config, Recipe) else [config]
    for part in parts:
        for name, field in settings_of(part).items():
            value = getattr(part, name)
            table.add_row(name, str(value), field.metadata["says"])
        table.add_section()
    return table


def catalogue(entries: dict[str, str | None]) -> Table:
    """Names, each with the first line of what it says of itself."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    for name, text in entries.items():
        table.add_row(name, (text or "").strip().splitlines()[0])
    return table


# ------------------------------------------------------------------------------------- bench


def bench(record: dict[str, Any]) -> Group:
    """What `comatch bench` measured: one step in detail, or one row for each value of a setting.

    Or, with --data, the way of images from a disk.
    """
    if "images" in record:
        return from_disk(record)
    place, varied = record["environment"], record.get("vary", "")
    recipe = {**record["recipe"], varied: "..."}
    rows: list[dict[str, Any]] = record["rows"] if varied else [record["results"]]
    measured = [row for row in rows if "ms" in row]
    some = measured[0]
    what = f"{recipe['method']['name']} with {recipe['net']}"
    images = f"{record.get('data') or some['data']} of {recipe['image_size']} pixels"
    machine = f"{place['device']}, torch {place['packages']['torch']}"
    engines, types = (dict.fromkeys(row[k] for row in measured) for k in ("engine", "precision"))
    how = f"{' or '.join(engines)} step in {' or '.join(types)}"
    head = Text.assemble((f"{what} on {images}", "bold"), f"\n{machine}, {how}")
    if varied:
        return Group(head, growth(varied, rows), *failures(rows))
    return Group(
        head, stages(some), facts(recipe, some, gpu=place["cuda"] is not None), limits(some)
    )


def from_disk(record: dict[str, Any]) -> Group:
    """Images a second from a disk, ours beside a plain loader's, and the host's memory."""
    place, recipe, result = record["environment"], record["recipe"], record["images"]
    size, gpu = recipe["image_size"], result["decoder"] == "GPU"
    what = f"{result['files']:,} images of {record['data']}, {result['kilobytes']:,.0f} kB each"
    how = f"{result['workers']} workers, batches of {result['batch']:,}, views of {size} pixels"
    machine = f"{place['device']}, torch {place['packages']['torch']}, {how}"
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("stages")
    table.add_column("images/s", justify="right", style="bold")
    table.add_column("", style="dim")
    decoded = "decoded on the GPU" if gpu else "decoded on the CPU"
    says = {"read": "processes", "read, decode": f"{decoded}, squared"}
    for name, rate in result["images_per_s"].items():
        views = ", ".join(result["views"]) if name.endswith("views") else "resized crop, flip"
        table.add_row(name, f"{rate:,.0f}", says.get(name, views))
    table.add_section()
    table.add_row(*plain_loader(result))
    if "ratio" in result:
        table.add_row("one view against it", f"{result['ratio']:.2f} times", "")
    table.add_section()
    table.add_row("host memory", host_memory(result), "before, most while streaming, most in all")
    return Group(Text.assemble((what, "bold"), f"\n{machine}"), table)


def plain_loader(result: dict[str, Any]) -> tuple[str, str, str]:
    name, plain = "plain DataLoader, one view", result["plain"]
    if "error" in plain:
        return name, "none", plain["error"]
    says = f"Pillow, resized crop, flip, tensor in {result['workers']} processes"
    memory = "" if plain["memory_mb"] is None else f", {plain['memory_mb']:,} MiB"
    return name, f"{plain['images_per_s']:,.0f}", says + memory


def host_memory(result: dict[str, Any]) -> str:
    known = ("?" if mb is None else f"{mb:,}" for mb in result["memory_mb"].values())
    return f"{', '.join(known)} MiB"


def stages(result: dict[str, Any]) -> Table:
    """Milliseconds of each stage of a step, and their share."""
    table = Table(box=box.SIMPLE_HEAD, show_footer=True)
    low, high = result["ms_range"]
    table.add_column("stage", "step")
    table.add_column("ms", f"{result['ms']:,.2f}", justify="right", style="bold")
    spread = f"{low:,.2f} to {high:,.2f} in {result['repetitions']} x {result['steps']} steps"
    table.add_column("share of the step", spread)
    for name, ms in result.get("stages_ms", {}).items():
        share = ms / result["ms"]
        bar = "\N{FULL BLOCK}" * round(30 * share)
        table.add_row(name, f"{ms:,.2f}", f"{share:>5.1%} [dim]{bar}[/]")
    return table


def facts(recipe: dict[str, Any], result: dict[str, Any], gpu: bool) -> Table:
    """What the step amounts to."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 1))
    table.add_column()
    table.add_column(justify="right", style="bold")
    table.add_column(style="dim")
    b, mub, views = recipe["batch"], recipe["batch"] * recipe["mu"], result["views"]
    mix = f"{b} + {(views - b) // mub} x {mub:,} = " if views > b else ""
    table.add_row("images/s", f"{result['images_per_s']:,.0f}", f"{mix}{views:,} views a step")
    if "loss_ms" in result:
        says = f"{result['loss_share']:.1%} of the step, forward and backward"
        table.add_row("memory, graph, loss", f"{result['loss_ms']:,.2f} ms", says)
    if "waited_ms" in result:
        streamed, same = (f"{result[key]:,.2f}" for key in ("streamed_ms", "same_ms"))
        says = f"that a step waits for them; {streamed} in a row, {same} on the same ones"
        table.add_row("streamed images", f"{result['waited_ms']:,.2f} ms", says)
    table.add_row("peak memory", memory(result), "of the GPU" if gpu else "of the whole process")
    table.add_row("start-up", f"{result['startup_seconds']:.1f} s", "until the first step is done")
    twin = result.get("twin")
    if twin and "ms" in twin:
        says = f"eager, fp32, NCHW: {twin['ratio']:.2f} times this step"
        table.add_row("plain twin", f"{twin['ms']:,.2f} ms", says)
    elif twin:
        table.add_row("plain twin", twin["error"], "eager, fp32, NCHW")
    return table


def limits(result: dict[str, Any]) -> Table:
    """What the step achieves beside what the machine can do."""
    ceilings = result["ceilings"]
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("")
    for column in ("step", "machine", "share"):
        table.add_column(column, justify="right", style="bold" if column == "share" else "")
    table.add_column("the machine's, in a", style="dim")
    names = {"tflop_per_s": "TFLOP/s", "tb_per_s": "TB/s, least traffic"}
    for key, by in (("tflop_per_s", "product"), ("tb_per_s", "copy")):
        mine, most = result.get(key), ceilings[key]
        achieved = ("unknown", "") if mine is None else (figures(mine), f"{mine / most:.1%}")
        table.add_row(names[key], achieved[0], figures(most), achieved[1], ceilings[by])
    return table


def growth(key: str, rows: Sequence[dict[str, Any]]) -> Table:
    """One row a value: what the step costs as its work grows."""
    table = Table(box=box.SIMPLE_HEAD)
    for column in (key, "ms", "x first", "images/s", "loss ms", "loss share", "peak memory"):
        table.add_column(column, justify="right", style="bold" if column == "ms" else "")
    for row in rows:
        if "error" in row:
            table.add_row(value_of(row), "none")
            continue
        alone = "loss_ms" in row
        table.add_row(
            value_of(row),
            f"{row['ms']:,.2f}",
            f"{row['relative']:.2f}",
            f"{row['images_per_s']:,.0f}",
            f"{row['loss_ms']:,.2f}" if alone else "",
            f"{row['loss_share']:.1%}" if alone else "",
            memory(row),
        )
    return table


def failures(rows: Sequence[dict[str, Any]]) -> list[Text]:
    return [Text(f" {row['value']}: {row['error']}") for row in rows if "error" in row]


def value_of(row: dict[str, Any]) -> str:
    """The value that a row was measured for."""
    return str(row["value"]) if type(row["value"]) is not int else f"{row['value']:,}"


def memory(result: dict[str, Any]) -> str:
    mb = result["peak_memory_mb"]
    return "unknown" if mb is None else f"{mb:,} MiB"


def figures(value: float) -> str:
    """Three figures: 0.00123, 1.23, 123, 1,230."""
    return f"{float(f'{value:.3g}'):,g}"
