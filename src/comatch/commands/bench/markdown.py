"""A record of `comatch bench --json`, or of a script in benchmarks/, as a Markdown table."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from comatch.commands.bench.tables import host_memory, memory, plain_loader, value_of
from comatch.errors import UserError
from comatch.files import read_json
from comatch.tables import origin, to_markdown


def read(path: Path) -> dict[str, Any]:
    record = read_json(path)
    known = {"rows", "results", "images", "microseconds"}
    if not isinstance(record, dict) or not known & set(record):
        raise UserError(f"{path} was not written by comatch bench --json")
    return record


def markdown(record: dict[str, Any]) -> str:
    """The table, and below it the command, commit and device."""
    if "images" in record:
        table = images(record["images"])
    elif "vary" in record:
        table = growth(record["vary"], record["rows"])
    elif from_script(record):
        table = variants(record.get("microseconds") or record["rows"])
    else:
        table = step(record["results"])
    return f"{to_markdown(table, numbers=True)}\n\n{origin(record['environment'])}"


def from_script(record: dict[str, Any]) -> bool:
    """Whether a script in benchmarks/ wrote this record: it times no training step."""
    return "recipe" not in record


def variants(rows: list[dict[str, Any]]) -> list[list[str]]:
    """One column for each variant, named in its first value, and one row for each measure."""
    columns = [dict(flat(row)) for row in rows]
    return [[name, *(text(column[name]) for column in columns)] for name in columns[0]]


def text(value: str | float) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def flat(row: dict[str, Any], group: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested dictionaries: `chunked: ms`."""
    for name, value in row.items():
        if isinstance(value, dict):
            yield from flat(value, f"{name}: ")
        else:
            yield f"{group}{name}", value


def images(result: dict[str, Any]) -> list[list[str]]:
    """Images a second from a disk, the plain loader's too, and the host's memory."""
    rows = [["", "images/s", ""]]
    rows += [[name, f"{rate:,.0f}", ""] for name, rate in result["images_per_s"].items()]
    rows.append([*plain_loader(result)])
    if "ratio" in result:
        rows.append(["**ratio for one view**", f"**{result['ratio']:.2f} times**", ""])
    rows.append(["host memory", host_memory(result), "before, peak while streaming, peak"])
    return rows


def step(result: dict[str, Any]) -> list[list[str]]:
    """The stages of a step, the reference implementation and the limits of the machine."""
    ms = result["ms"]
    rows = [["", "ms", "share"]]
    rows += [[n, f"{t:.2f}", f"{t / ms:.1%}"] for n, t in result.get("stages_ms", {}).items()]
    rows.append(["**step**", f"**{ms:.2f}**", f"{result['images_per_s']:,.0f} images/s"])
    if "loss_ms" in result:
        share = f"{result['loss_share']:.1%}, forward and backward"
        rows.append(["memory bank, graph, losses", f"{result['loss_ms']:.2f}", share])
    if "waited_ms" in result:
        rows.append(["step that reads its images", f"{result['streamed_ms']:.2f}", ""])
        rows.append(["the same step without reading", f"{result['same_ms']:.2f}", ""])
        waited = f"{result['waited_ms'] / result['streamed_ms']:.1%} of the first"
        rows.append(["wait for images", f"{result['waited_ms']:.2f}", waited])
    reference = result.get("reference", {})
    if "ms" in reference:
        ratio = f"{reference['ratio']:.2f} times the step"
        rows.append(["reference implementation", f"{reference['ms']:.2f}", ratio])
    for key, unit in (("tflop_per_s", "TFLOP/s"), ("tb_per_s", "TB/s of minimum traffic")):
        achieved, most = result.get(key), result["ceilings"][key]
        if achieved is not None:  # not counted where the reference does not fit into memory
            rows.append([unit, f"{achieved:.3g}", f"{achieved / most:.0%} of {most:.3g}"])
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
