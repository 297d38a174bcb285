"""What `comatch bench --json` wrote, as a Markdown table."""

from pathlib import Path
from typing import Any

from comatch.commands.report.runs import origin, ruled
from comatch.commands.report.tables import host_memory, memory, plain_loader, value_of
from comatch.errors import UserError
from comatch.files import read_json


def read(path: Path) -> dict[str, Any]:
    record = read_json(path)
    if not isinstance(record, dict) or not {"rows", "results", "images"} & set(record):
        raise UserError(f"{path} was not written by comatch bench --json")
    return record


def markdown(record: dict[str, Any]) -> str:
    """The table, and under it what it was measured with."""
    if "images" in record:
        table = images(record["images"])
    elif "vary" in record:
        table = growth(record["vary"], record["rows"])
    else:
        table = step(record["results"])
    return f"{ruled(table, numbers=True)}\n\n{origin(record['environment'])}"


def images(result: dict[str, Any]) -> list[list[str]]:
    """Images a second from a disk, ours beside a plain loader's, and the host's memory."""
    rows = [["", "images/s", ""]]
    rows += [[name, f"{rate:,.0f}", ""] for name, rate in result["images_per_s"].items()]
    name, rate, says = plain_loader(result)
    rows.append([name, rate, says])
    if "ratio" in result:
        rows.append(["**one view against it**", f"**{result['ratio']:.2f} times**", ""])
    rows.append(["host memory", host_memory(result), "before, most while streaming, most in all"])
    return rows


def step(result: dict[str, Any]) -> list[list[str]]:
    """The stages of a step, and what it is compared with."""
    ms = result["ms"]
    rows = [["", "ms", "share"]]
    rows += [[n, f"{t:.2f}", f"{t / ms:.1%}"] for n, t in result.get("stages_ms", {}).items()]
    rows.append(["**step**", f"**{ms:.2f}**", f"{result['images_per_s']:,.0f} images/s"])
    if "loss_ms" in result:
        share = f"{result['loss_share']:.1%}, forward and backward"
        rows.append(["memory bank, graph, losses", f"{result['loss_ms']:.2f}", share])
    if "waited_ms" in result:
        rows.append(["in a row, on streamed images", f"{result['streamed_ms']:.2f}", ""])
        rows.append(["in a row, on the same images", f"{result['same_ms']:.2f}", ""])
        waited = f"{result['waited_ms'] / result['streamed_ms']:.1%} of the first"
        rows.append(["waited for images", f"{result['waited_ms']:.2f}", waited])
    twin = result.get("twin", {})
    if "ms" in twin:
        rows.append(["plain twin", f"{twin['ms']:.2f}", f"{twin['ratio']:.2f} times the step"])
    for key, unit in (("tflop_per_s", "TFLOP/s"), ("tb_per_s", "TB/s of least traffic")):
        mine, most = result.get(key), result["ceilings"][key]
        if mine is not None:  # not counted where the twin does not fit into memory
            rows.append([unit, f"{mine:.3g}", f"{mine / most:.0%} of {most:.3g}"])
    rows.append(["peak memory", memory(result), ""])
    return rows


def growth(key: str, measured: list[dict[str, Any]]) -> list[list[str]]:
    rows = [[key, "ms", "times the first", "images/s", "bank, graph, losses", "memory"]]
    for row in measured:
        if "ms" not in row:
            rows.append([value_of(row), row["error"], "", "", "", ""])
            continue
        loss = f"{row['loss_ms']:.2f} ms, {row['loss_share']:.1%}" if "loss_ms" in row else ""
        rows.append(
            [
                value_of(row),
                f"{row['ms']:.2f}",
                f"{row['relative']:.2f}",
                f"{row['images_per_s']:,.0f}",
                loss,
                memory(row),
            ]
        )
    return rows
