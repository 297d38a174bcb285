"""How fast a training step is on this machine, and how far that is from what the machine can do.

The step is assembled and called exactly as training does it (`stages`). Three things to compare
it with are measured in the same run (`limits`):

    a large matrix product   the operations a second that this machine can do
    a large copy             the bytes a second that it can move
    the plain twin           the same step in eager float32 PyTorch, images as [N, C, H, W]

And one setting can be varied, to see what the step costs as its work grows. How fast images
come from a disk into such a step is another measurement (`images`).
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from comatch.commands.bench import images
from comatch.commands.bench.limits import assemble_twin, ceilings, count, tf32_flags
from comatch.commands.bench.stages import CUTS, Say, free, silent, time_step
from comatch.config import Recipe, check_name, parse, replace, require, settings_of, to_json
from comatch.data.splits import Split
from comatch.errors import UserError
from comatch.training.build import assemble
from comatch.training.run_folder import environment
from comatch.types import UNLABELLED, Dataset, Images

PASS = 32  # batches of made-up images: shuffling them is then as rare as with real ones

Source = Callable[[Recipe, int], tuple[Dataset, Split]]


def run(
    recipe: Recipe,
    source: Source,
    device: torch.device,
    *,
    classes: int = 10,
    vary: str | None = None,
    steps: int | None = None,
    twin: bool = True,
    say: Say = silent,
) -> dict[str, Any]:
    """AllImages that was measured, ready to be printed or written down.

    `source` gives the images for a recipe and a number of classes, `vary` is
    "key=value,value,...", `steps` how many each repetition times, and `say` is told what goes on.
    """
    require(steps is None or steps >= 1, f"--steps {steps}: must be at least 1")
    require(classes >= 2, f"--classes {classes}: must be at least 2")
    cases = variants(recipe, classes, vary) if vary else []  # a mistake is told before measuring
    record: dict[str, Any] = {"environment": environment(device), "recipe": describe(recipe)}
    if not vary:
        say("getting the images")
        dataset, split = source(recipe, classes)
        results = measure(recipe, dataset, split, device, steps, twin, say)
        return {**record, "data": dataset.name, "results": results}
    rows = [measure_row(case, source, device, steps, say) for case in cases]
    if not any("ms" in row for row in rows):
        raise UserError(f"none of the values could be measured: {rows[0]['error']}")
    relate(rows)
    return {**record, "vary": vary.partition("=")[0], "rows": rows}


def run_images(
    recipe: Recipe,
    path: Path,
    device: torch.device,
    workers: int | None = None,
    say: Say = silent,
) -> dict[str, Any]:
    """How fast the images of this folder can be read, decoded and augmented: a record like it."""
    require(workers is None or workers >= 1, f"--workers {workers}: must be at least 1")
    measured = rounded(images.measure(recipe, path, device, workers, say))
    record = {"environment": environment(device), "recipe": describe(recipe)}
    return {**record, "data": path.resolve().name, "images": measured}


def measure(
    recipe: Recipe,
    dataset: Dataset,
    split: Split,
    device: torch.device,
    steps: int | None = None,
    twin: bool = True,
    say: Say = silent,
) -> dict[str, Any]:
    """The step with its stages, its plain twin, and the limits of the machine."""
    result = time_step(lambda: assemble(recipe, dataset, split, device), device, steps, CUTS, say)

    def make() -> Any:
        return assemble_twin(recipe, dataset, split, device)

    free(device)
    try:
        say("counting operations")
        flops, elements = count(make())
        moved = elements * (2 if result["precision"] == "bf16" else 4)
        seconds = result["ms"] / 1000
        result |= {"gflop": flops / 1e9, "tflop_per_s": flops / 1e12 / seconds}
        result |= {"least_traffic_gb": moved / 1e9, "tb_per_s": moved / 1e12 / seconds}
        if twin:
            plain = time_step(make, device, steps, (), lambda text: say(f"plain twin: {text}"))
            plain |= {"ratio": plain["ms"] / result["ms"], **tf32_flags(device)}
            result["twin"] = plain
    except (RuntimeError, MemoryError) as error:  # float32 may not fit where bf16 does
        result["twin"] = {"error": out_of_memory(error)}
    free(device)
    say("limits of the machine")
    # Last, because on a CPU the peak is the process's and must not be that of a large copy.
    result["ceilings"] = ceilings(device, result["precision"])
    return rounded(result)


# ------------------------------------------------------------------------- cost as work grows


class Variant(NamedTuple):
    value: Any
    recipe: Recipe
    classes: int


def variants(recipe: Recipe, classes: int, vary: str) -> list[Variant]:
    """`mu=1,3,7` as three recipes; `classes` is no setting but can be varied like one."""
    key, equals, values = vary.partition("=")
    require(bool(equals and values), f"--vary {vary}: write it as key=value,value,...")
    check_name(key, [*settings_of(recipe), *settings_of(recipe.method), "classes"], "setting")
    if key == "classes":
        numbers = [int(text) if text.strip().isdecimal() else 0 for text in values.split(",")]
        require(min(numbers) >= 2, f"--vary {vary}: classes are whole numbers of at least 2")
        return [Variant(number, recipe, number) for number in numbers]
    typed = [parse(recipe, [f"{key}={value}"])[key] for value in values.split(",")]
    return [Variant(value, replace(recipe, **{key: value}), classes) for value in typed]


def measure_row(
    case: Variant, source: Source, device: torch.device, steps: int | None, say: Say
) -> dict[str, Any]:
    """One value: the whole step and its loss. A value that cannot be had is a row that says so."""
    say(f"{case.value}: getting the images")
    try:
        dataset, split = source(case.recipe, case.classes)
        result = time_step(
            lambda: assemble(case.recipe, dataset, split, device),
            device,
            steps,
            ("backward",),
            lambda text: say(f"{case.value}: {text}"),
        )
    except UserError as error:
        return {"value": case.value, "error": str(error)}
    except (RuntimeError, MemoryError) as error:
        return {"value": case.value, "error": out_of_memory(error)}
    result.pop("stages_ms", None)  # of which there is only one
    return rounded({"value": case.value, "data": dataset.name, **result})


def relate(rows: list[dict[str, Any]]) -> None:
    """Adds how much longer each takes than the first that could be measured."""
    measured = [row for row in rows if "ms" in row]
    for row in measured:
        row["relative"] = round(row["ms"] / measured[0]["ms"], 3)


def out_of_memory(error: RuntimeError | MemoryError) -> str:
    """Says so if that is what it was; anything else is no matter of size and goes on."""
    known = isinstance(error, torch.OutOfMemoryError | MemoryError)
    if not known and "allocate memory" not in str(error):  # what torch says on a CPU
        raise error
    return "out of memory"


# -------------------------------------------------------------------------------- small things


def made_up(recipe: Recipe, classes: int) -> tuple[Dataset, Split]:
    """Random images of the recipe's size, as many as its steps ask for: nothing to download."""
    wanted = recipe.labels if isinstance(recipe.labels, int) else recipe.batch
    labelled = -(-wanted // classes) * classes  # the same for each class
    n = labelled + PASS * recipe.batch * recipe.mu
    pixels = torch.randint(256, (n, 3, recipe.image_size, recipe.image_size), dtype=torch.uint8)
    labels = torch.full((n,), UNLABELLED)
    labels[:labelled] = torch.arange(labelled) % classes
    train = Images(pixels, labels, [str(i) for i in range(n)])
    dataset = Dataset("made-up images", [str(c) for c in range(classes)], train)
    rows = torch.arange(n)
    return dataset, Split(rows[:labelled], rows[labelled:], rows[:0], "made up")


def describe(recipe: Recipe) -> dict[str, Any]:
    """The recipe for the record, without the paths of the machine that it was measured on."""
    plain = to_json(recipe)
    for key in ("data", "labels_file", "init"):
        plain[key] = Path(plain[key]).name if plain[key] else plain[key]
    return plain


def rounded(value: Any) -> Any:
    """Five figures of every number: no clock here knows more."""
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner) for inner in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


__all__ = ["made_up", "measure", "run", "run_images"]
