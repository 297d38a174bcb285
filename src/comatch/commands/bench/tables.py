"""Tables of `comatch bench` for the terminal."""

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text


def bench(record: dict[str, Any]) -> Group:
    """One step in detail, one row for each value of a setting, or the reading of images."""
    if "images" in record:
        return reading(record)
    environment, varied = record["environment"], record.get("vary", "")
    recipe = {**record["recipe"], varied: "..."}
    rows: list[dict[str, Any]] = record["rows"] if varied else [record["results"]]
    measured = [row for row in rows if "ms" in row]
    first = measured[0]
    what = f"{recipe['method']['name']} with {recipe['net']}"
    images = f"{record.get('data') or first['data']} of {recipe['image_size']} pixels"
    machine = f"{environment['device']}, torch {environment['packages']['torch']}"
    engines, types = (dict.fromkeys(row[k] for row in measured) for k in ("engine", "precision"))
    how = f"{' or '.join(engines)} step in {' or '.join(types)}"
    head = Text.assemble((f"{what} on {images}", "bold"), f"\n{machine}, {how}")
    if varied:
        return Group(head, growth(varied, rows), *failures(rows))
    return Group(
        head,
        stages(first),
        facts(recipe, first, gpu=environment["cuda"] is not None),
        limits(first),
    )


def reading(record: dict[str, Any]) -> Group:
    """Images a second from a disk, the plain loader's too, and the host's memory."""
    environment, recipe, result = record["environment"], record["recipe"], record["images"]
    size, gpu = recipe["image_size"], result["decoder"] == "GPU"
    what = f"{result['files']:,} images of {record['data']}, {result['kilobytes']:,.0f} kB each"
    how = f"{result['workers']} workers, batches of {result['batch']:,}, views of {size} pixels"
    machine = f"{environment['device']}, torch {environment['packages']['torch']}, {how}"
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("stages")
    table.add_column("images/s", justify="right", style="bold")
    table.add_column("", style="dim")
    decoded = "decoded on the GPU" if gpu else "decoded on the CPU"
    notes = {"read": "by processes", "read, decode": f"{decoded}, cropped to squares"}
    for name, rate in result["images_per_s"].items():
        views = ", ".join(result["views"]) if name.endswith("views") else "resized crop, flip"
        table.add_row(name, f"{rate:,.0f}", notes.get(name, views))
    table.add_section()
    table.add_row(*plain_loader(result))
    if "ratio" in result:
        table.add_row("ratio for one view", f"{result['ratio']:.2f} times", "")
    table.add_section()
    table.add_row("host memory", host_memory(result), "before, peak while streaming, peak")
    return Group(Text.assemble((what, "bold"), f"\n{machine}"), table)


def encoding(record: dict[str, Any]) -> Group:
    """Views a second of a frozen encoder beside eager PyTorch, or seconds of whole commands."""
    environment = record["environment"]
    head = f"{record['encoder']} on {record['data']}"
    machine = f"{environment['device']}, torch {environment['packages']['torch']}"
    table = Table(box=box.SIMPLE_HEAD)
    if "seconds" in record:
        table.add_column("comatch train")
        table.add_column("seconds", justify="right", style="bold")
        for name, seconds in record["seconds"].items():
            table.add_row(name, f"{seconds:,.1f}")
        return Group(Text.assemble((head, "bold"), f"\n{machine}, start of Python included"), table)
    table.add_column("")
    table.add_column("views/s", justify="right", style="bold")
    for name, rate in record["views_per_s"].items():
        table.add_row(name, f"{rate:,.0f}")
    table.add_section()
    table.add_row("ratio", f"{record['ratio']:.2f} times")
    table.add_row("largest difference of features", f"{record['largest_difference']:.1e}")
    how = f"{machine}, batches of {record['batch']}"
    return Group(Text.assemble((head, "bold"), f"\n{how}"), table)


def plain_loader(result: dict[str, Any]) -> tuple[str, str, str]:
    name, plain = "plain DataLoader, one view", result["plain"]
    if "error" in plain:
        return name, "none", plain["error"]
    note = f"Pillow, resized crop, flip, tensor in {result['workers']} processes"
    memory = "" if plain["memory_mb"] is None else f", {plain['memory_mb']:,} MiB"
    return name, f"{plain['images_per_s']:,.0f}", note + memory


def host_memory(result: dict[str, Any]) -> str:
    known = ("?" if mb is None else f"{mb:,}" for mb in result["memory_mb"].values())
    return f"{', '.join(known)} MiB"


def stages(result: dict[str, Any]) -> Table:
    """Milliseconds of each stage of a step, and its share."""
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
    """Rates and memory of the step."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 1))
    table.add_column()
    table.add_column(justify="right", style="bold")
    table.add_column(style="dim")
    b, mub, views = recipe["batch"], recipe["batch"] * recipe["mu"], result["views"]
    mix = f"{b} + {(views - b) // mub} x {mub:,} = " if views > b else ""
    table.add_row("images/s", f"{result['images_per_s']:,.0f}", f"{mix}{views:,} views a step")
    if "loss_ms" in result:
        share = f"{result['loss_share']:.1%} of the step, forward and backward"
        table.add_row("memory bank, graph, loss", f"{result['loss_ms']:,.2f} ms", share)
    if "waited_ms" in result:
        streamed, same = (f"{result[key]:,.2f}" for key in ("streamed_ms", "same_ms"))
        note = f"a step takes {streamed} ms with reading, {same} ms without"
        table.add_row("wait for images", f"{result['waited_ms']:,.2f} ms", note)
    table.add_row("peak memory", memory(result), "of the GPU" if gpu else "of the whole process")
    table.add_row(
        "start-up", f"{result['startup_seconds']:.1f} s", "until the first step has finished"
    )
    reference = result.get("reference")
    if reference and "ms" in reference:
        note = f"eager, fp32: {reference['ratio']:.2f} times this step"
        table.add_row("reference", f"{reference['ms']:,.2f} ms", note)
    elif reference:
        table.add_row("reference", reference["error"], "eager, fp32")
    return table


def limits(result: dict[str, Any]) -> Table:
    """What the step achieves, and what the machine can do."""
    ceilings = result["ceilings"]
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("")
    for column in ("step", "machine", "share"):
        table.add_column(column, justify="right", style="bold" if column == "share" else "")
    table.add_column("measured with a", style="dim")
    names = {"tflop_per_s": "TFLOP/s", "tb_per_s": "TB/s, minimum traffic"}
    for key, by in (("tflop_per_s", "product"), ("tb_per_s", "copy")):
        step, machine = result.get(key), ceilings[key]
        achieved = ("unknown", "") if step is None else (digits(step), f"{step / machine:.1%}")
        table.add_row(names[key], achieved[0], digits(machine), achieved[1], ceilings[by])
    return table


def growth(key: str, rows: Sequence[dict[str, Any]]) -> Table:
    """One row for each value of the varied setting."""
    table = Table(box=box.SIMPLE_HEAD)
    for column in (key, "ms", "x first", "images/s", "loss ms", "loss share", "peak memory"):
        table.add_column(column, justify="right", style="bold" if column == "ms" else "")
    for row in rows:
        if "error" in row:
            table.add_row(value_of(row), "none")
            continue
        has_loss = "loss_ms" in row
        table.add_row(
            value_of(row),
            f"{row['ms']:,.2f}",
            f"{row['relative']:.2f}",
            f"{row['images_per_s']:,.0f}",
            f"{row['loss_ms']:,.2f}" if has_loss else "",
            f"{row['loss_share']:.1%}" if has_loss else "",
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


def digits(value: float) -> str:
    """Three digits: 0.00123, 1.23, 123, 1,230."""
    return f"{float(f'{value:.3g}'):,g}"
