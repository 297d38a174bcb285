"""`comatch bench`: how fast a training step is on this machine, and how far from its limits.

The step is built and called as in training (`stages`). Three things are measured in the same run
for comparison (`limits`):

    a large matrix product     operations a second that this machine can do
    a large copy               bytes a second that it can move
    a reference implementation the same step in eager float32 PyTorch, images as [N, C, H, W]

One setting can be varied, to see how the cost of the step grows with it. The other measurement is
how fast images are read from a disk, decoded and augmented (`images`).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from comatch.commands.bench import images
from comatch.commands.bench.limits import build_reference, ceilings, count, float32_settings
from comatch.commands.bench.stages import PREFIXES, Report, build_prepared, silent, time_step
from comatch.config import check_name, flatten, parse, replace, require, settings_of, to_json
from comatch.data.splits import Split
from comatch.device import free_memory
from comatch.errors import UserError
from comatch.training.environment import environment
from comatch.training.recipe import Recipe
from comatch.types import UNLABELLED, Dataset, Images

BATCHES_A_PASS = 32  # of random images: a new pass is then as rare as with real ones

Source = Callable[[Recipe, int], tuple[Dataset, Split]]


def run(
    recipe: Recipe,
    source: Source,
    device: torch.device,
    *,
    classes: int = 10,
    vary: str | None = None,
    steps: int | None = None,
    reference: bool = True,
    report: Report = silent,
) -> dict[str, Any]:
    """Measure a step, or one step for each value of a setting; return a record for JSON.

    `source` gives the images for a recipe and a number of classes, `vary` is
    "key=value,value,...", and `steps` is the number of steps in a repetition. `report` is called
    with what is being measured.
    """
    require(steps is None or steps >= 1, f"--steps {steps}: must be at least 1")
    require(classes >= 2, f"--classes {classes}: must be at least 2")
    cases = variants(recipe, classes, vary) if vary else []  # finds mistakes before measuring
    record: dict[str, Any] = {"environment": environment(device), "recipe": describe(recipe)}
    if not vary:
        report("loading images")
        dataset, split = source(recipe, classes)
        results = measure(recipe, dataset, split, device, steps, reference, report)
        return {**record, "data": dataset.name, "results": results}
    rows = [measure_row(case, source, device, steps, report) for case in cases]
    if not any("ms" in row for row in rows):
        raise UserError(f"none of the values could be measured: {rows[0]['error']}")
    add_relative_times(rows)
    return {**record, "vary": vary.partition("=")[0], "rows": rows}


def run_images(
    recipe: Recipe,
    path: Path,
    device: torch.device,
    workers: int | None = None,
    report: Report = silent,
) -> dict[str, Any]:
    """Measure how fast the images of a folder are read and augmented; return a record for JSON."""
    require(workers is None or workers >= 1, f"--workers {workers}: must be at least 1")
    measured = rounded(images.measure(recipe, path, device, workers, report))
    record = {"environment": environment(device), "recipe": describe(recipe)}
    return {**record, "data": path.resolve().name, "images": measured}


def measure(
    recipe: Recipe,
    dataset: Dataset,
    split: Split,
    device: torch.device,
    steps: int | None = None,
    reference: bool = True,
    report: Report = silent,
) -> dict[str, Any]:
    """The step with its stages, the reference implementation, and the limits of the machine."""
    parts = recipe, dataset, split, device
    result = time_step(lambda: build_prepared(*parts), device, steps, PREFIXES, report)
    free_memory(device)
    try:
        report("counting operations")
        flops, elements = count(build_reference(*parts))
        moved = elements * (2 if result["precision"] == "bf16" else 4)
        seconds = result["ms"] / 1000
        result |= {"gflop": flops / 1e9, "tflop_per_s": flops / 1e12 / seconds}
        result |= {"least_traffic_gb": moved / 1e9, "tb_per_s": moved / 1e12 / seconds}
        if reference:
            plain = time_step(
                lambda: build_reference(*parts),
                device,
                steps,
                (),
                lambda text: report(f"reference implementation: {text}"),
            )
            plain |= {"ratio": plain["ms"] / result["ms"], **float32_settings(device)}
            result["reference"] = plain
    except (RuntimeError, MemoryError) as error:  # float32 may not fit where bf16 does
        result["reference"] = {"error": out_of_memory(error)}
    free_memory(device)
    report("limits of the machine")
    # Last: on a CPU the peak memory is that of the process and would include the large copy.
    result["ceilings"] = ceilings(device, result["precision"])
    return rounded(result)


# ------------------------------------------------------------------------- cost as work grows


class Variant(NamedTuple):
    value: Any
    recipe: Recipe
    classes: int


def variants(recipe: Recipe, classes: int, vary: str) -> list[Variant]:
    """`mu=1,3,7` as three recipes. `classes` is no setting but can be varied too."""
    key, equals, values = vary.partition("=")
    require(bool(equals and values), f"--vary {vary}: write it as key=value,value,...")
    check_name(key, [*settings_of(recipe), "classes"], "setting")
    if key == "classes":
        numbers = [int(text) if text.strip().isdecimal() else 0 for text in values.split(",")]
        require(min(numbers) >= 2, f"--vary {vary}: classes are whole numbers of at least 2")
        return [Variant(number, recipe, number) for number in numbers]
    typed = [parse(recipe, [f"{key}={value}"])[key] for value in values.split(",")]
    return [Variant(value, replace(recipe, **{key: value}), classes) for value in typed]


def measure_row(
    case: Variant, source: Source, device: torch.device, steps: int | None, report: Report
) -> dict[str, Any]:
    """The step and its loss for one value; or the reason why they could not be measured."""
    report(f"{case.value}: loading images")
    try:
        dataset, split = source(case.recipe, case.classes)
        result = time_step(
            lambda: build_prepared(case.recipe, dataset, split, device),
            device,
            steps,
            ("backward",),
            lambda text: report(f"{case.value}: {text}"),
        )
    except UserError as error:
        return {"value": case.value, "error": str(error)}
    except (RuntimeError, MemoryError) as error:
        return {"value": case.value, "error": out_of_memory(error)}
    result.pop("stages_ms", None)  # there is only one stage
    return rounded({"value": case.value, "data": dataset.name, **result})


def add_relative_times(rows: list[dict[str, Any]]) -> None:
    """Add to each row its time as a multiple of the first that could be measured."""
    measured = [row for row in rows if "ms" in row]
    for row in measured:
        row["relative"] = round(row["ms"] / measured[0]["ms"], 3)


def out_of_memory(error: RuntimeError | MemoryError) -> str:
    """The text for too little memory. Any other error is raised again."""
    known = isinstance(error, torch.OutOfMemoryError | MemoryError)
    if not known and "allocate memory" not in str(error):  # PyTorch's message on a CPU
        raise error
    return "out of memory"


# -------------------------------------------------------------------------------- small things


def random_images(recipe: Recipe, classes: int) -> tuple[Dataset, Split]:
    """Random images of the recipe's size, as many as its steps need: nothing to download."""
    batch, size = recipe.optim.batch, recipe.dataset.image_size
    wanted = recipe.dataset.labels if isinstance(recipe.dataset.labels, int) else batch
    labelled = -(-wanted // classes) * classes  # the same number for each class
    n = labelled + BATCHES_A_PASS * batch * recipe.optim.mu
    pixels = torch.randint(256, (n, 3, size, size), dtype=torch.uint8)
    labels = torch.full((n,), UNLABELLED)
    labels[:labelled] = torch.arange(labelled) % classes
    train = Images(pixels, labels, [str(i) for i in range(n)])
    dataset = Dataset("random images", [str(c) for c in range(classes)], train)
    rows = torch.arange(n)
    return dataset, Split(rows[:labelled], rows[labelled:], rows[:0], "random images")


def describe(recipe: Recipe) -> dict[str, Any]:
    """The settings for the record, without paths of the machine."""
    plain = flatten(to_json(recipe))
    for key in ("data", "labels_file", "init"):
        plain[key] = Path(plain[key]).name if plain[key] else plain[key]
    return plain


def rounded(value: Any) -> Any:
    """Five digits of every number, more than any clock here is exact to."""
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner) for inner in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


__all__ = ["measure", "random_images", "run", "run_images"]
