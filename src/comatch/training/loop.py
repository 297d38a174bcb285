"""The whole training story: assemble, step, write down, stop and go on."""

import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from comatch import compiler_cache as cache
from comatch import distributed, evaluation, files
from comatch.config import Recipe, replace
from comatch.data import splits
from comatch.data.splits import Split
from comatch.errors import UserError
from comatch.training import checkpoint, ranks
from comatch.training.build import Assembly, assemble, description
from comatch.training.journal import Journal, averages
from comatch.training.precompute import forget, precompute
from comatch.training.progress import OpenBar, TrainingBar, beginning, stoppable
from comatch.training.run_folder import RunFolder
from comatch.training.step import Meter
from comatch.types import Dataset, Part


class Interrupted(Exception):  # noqa: N818 - it is no error
    """Somebody asked to stop; everything up to `step` is saved."""

    def __init__(self, step: int, folder: Path) -> None:
        super().__init__(f"stopped after step {step}")
        self.step, self.folder = step, folder


def fit(
    folder: RunFolder,
    recipe: Recipe,
    dataset: Dataset,
    split: Split,
    device: torch.device,
    data_dir: Path,
    open_bar: OpenBar = TrainingBar,
) -> dict[str, Any]:
    """Trains until `recipe.steps`, from the folder's last checkpoint if it has one.

    Returns the summary: the accuracy of the last averaged model, never of the best one.
    """
    started = beginning()
    ranks.check_same(folder, recipe, dataset)
    torch.manual_seed(recipe.seed)
    begins = not folder.checkpoint.exists()
    # Later, its weights are in the checkpoint: what it began from may be gone.
    run = assemble(recipe if begins else replace(recipe, init=None), dataset, split, device)
    distributed.seed(recipe.seed)  # from here on, each rank draws for its own images
    if not folder.split.exists():  # only now: nothing is written before everything was checked
        folder.create(recipe, data_dir, splits.to_json(split, dataset))
    folder.write_environment(device)
    if run.loaded:
        folder.note("init", run.loaded.to_json())
    start, seconds, position = restore(folder, run, recipe.seed)
    parts = {"": dataset.test, "validation_": validation_part(dataset, split)}
    model_json = description(recipe, dataset.classes, run)
    began = time.perf_counter() - seconds
    scores: dict[str, float] | None = None

    with (
        Journal(folder.path, position, start) as journal,
        open_bar(f"{recipe.method.method} on {dataset.name}", recipe.steps, start) as bar,
        stoppable() as stop,
    ):
        for line in run.loaded.lines() if run.loaded else ():
            bar.say(line)
        if not precompute(folder, recipe, run, bar, stop):
            raise Interrupted(start, folder.path)
        for step in range(start, recipe.steps):
            run.step(step)
            if step == start:
                startup = round(wait_for(device) - started, 2)
                folder.note("startup_seconds", startup)
                if run.step.engine != "eager":
                    bar.say(f"first step after {startup:.1f} s; compiled code: {cache.folder()}")
            done = step + 1
            last = done == recipe.steps
            # Asked once: what is said to be saved must have been saved, and by all ranks.
            stopping = distributed.any_rank(stop.asked)
            bar.advance(done)
            if last or done % recipe.log_every == 0:
                stop_on_bad_numbers(run.step.meter, done, folder)
                means = averages(run.step.meter.read()) | run.data.counts()
                journal.write(done, "train", means)
                bar.show(done, means)
            if last or done % recipe.eval_every == 0:
                scores = evaluate(run, parts)
                journal.write(done, "eval", scores)
            if last or done % recipe.checkpoint_every == 0 or stopping:
                stop_on_bad_numbers(run.step.meter, done, folder)
                # The checkpoint comes last: what a kill in between leaves is written again.
                folder.write_model(run.method.evaluated, model_json)
                save(folder, run, done, time.perf_counter() - began, journal.position)
            if stopping and not last:
                raise Interrupted(done, folder.path)

    summary = {
        "method": recipe.method.method,
        "data": dataset.name,
        "labels": len(split.labelled),
        "unlabelled": len(split.unlabelled) if run.method.views else 0,
        "seed": recipe.seed,
        **(evaluate(run, parts) if scores is None else scores),  # of the last step
        "checkpoint": f"last, {run.method.evaluated_weights}",
        "steps": recipe.steps,
        "seconds": round(time.perf_counter() - began, 2),
        "peak_memory_mb": peak_memory_mb(device),
        **run.data.counts(),
    }
    files.write_json(folder.summary, summary)
    forget(folder)
    return summary


def wait_for(device: torch.device) -> float:
    """The time at which the device has done what it was told so far."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def validation_part(dataset: Dataset, split: Split) -> Part | None:
    return dataset.train.subset(split.validation) if len(split.validation) else None


def evaluate(run: Assembly, parts: dict[str, Part | None]) -> dict[str, float]:
    """Accuracy of the averaged model on each part that there is."""

    def predict(images: Tensor) -> Tensor:
        return evaluation.probabilities(run.method.evaluated, images, run.mean, run.std)

    recipe, values = run.step.recipe, dict[str, float]()
    for prefix, part in parts.items():
        if part is None:
            continue
        scores = evaluation.score_part(
            part, predict, run.method.classes, recipe.image_size, run.mean.device, recipe.workers
        )
        values[f"{prefix}top1"] = scores.top1
        if scores.top5 is not None:
            values[f"{prefix}top5"] = scores.top5
        values[f"{prefix}calibration_error"] = scores.calibration_error
    return values


LOWER_LR_HINT = "a lower --set lr=... or --set precision=fp32 with another --out"


def stop_on_bad_numbers(
    meter: Meter, done: int, folder: RunFolder, advice: str = LOWER_LR_HINT
) -> None:
    """NaN or infinity in the steps since the last look: nothing that came of it is written."""
    bad = meter.bad_steps()
    if not bad:
        return
    kept = "no checkpoint was written before"
    if folder.checkpoint.exists():
        kept = f"the last good checkpoint is kept ({folder.checkpoint})"
    raise UserError(
        f"the loss or its gradient was not finite in {bad} of the steps up to {done}; {kept}. "
        f"Try {advice}"
    )


def save(folder: RunFolder, run: Assembly, step: int, seconds: float, position: int) -> None:
    """AllImages that the next step depends on; of several ranks, the first writes it."""
    first, *others = ranks.own_states(run)
    state = {
        "step": step,
        "seconds": seconds,
        "journal": position,
        "method": run.method.state_dict(),
        "optimizer": run.step.optimizer.state_dict(),
        "data": run.data.state_dict(),
        **first,
        "others": others,
    }
    checkpoint.save(folder.checkpoint, state)


def restore(folder: RunFolder, run: Assembly, seed: int) -> tuple[int, float, int]:
    """Puts the last checkpoint back, if there is one: its step, seconds and journal position."""
    if not folder.checkpoint.exists():
        return 0, 0.0, 0
    state = checkpoint.load(folder.checkpoint)
    try:
        run.method.load_state_dict(state["method"])
        run.data.load_state_dict(state["data"])
        run.step.load_optimizer(state["optimizer"])
        ranks.restore_own(run, [state, *state.get("others", [])], seed, state["step"])
    except (KeyError, RuntimeError, ValueError):
        raise UserError(
            f"{folder.checkpoint} is of another version or another run: start with another --out"
        ) from None
    return state["step"], state["seconds"], state["journal"]


def peak_memory_mb(device: torch.device) -> int | None:
    """Of the GPU where there is one, else of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) // 2**20
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit // 2**20
