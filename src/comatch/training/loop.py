"""The training loop: build, step, log, evaluate, save; stop and resume.

An estimator takes no steps: it is fitted once.
"""

import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from comatch import compiler_cache, distributed, evaluation, files
from comatch.config import replace
from comatch.data import splits
from comatch.data.cached_features import CachedFeatures
from comatch.data.splits import Split
from comatch.device import peak_memory_mb, synchronize, threads
from comatch.errors import UserError
from comatch.methods import Estimator
from comatch.training import out_of_distribution, ranks, state
from comatch.training.build import Built, build, description
from comatch.training.checks import check_teacher
from comatch.training.environment import run_start
from comatch.training.journal import Journal
from comatch.training.meter import Meter, averages
from comatch.training.monitor import monitor
from comatch.training.progress import Bar, OpenBar, TrainingBar
from comatch.training.recipe import Recipe
from comatch.training.run_folder import RunFolder
from comatch.training.signals import StopRequest, stoppable
from comatch.types import Dataset, Part


class Interrupted(Exception):  # noqa: N818 - not an error
    """The run was stopped on request. Everything up to `step` is saved."""

    def __init__(self, step: int, folder: Path) -> None:
        super().__init__(f"stopped after step {step}")
        self.step, self.folder = step, folder


def fit(
    folder: RunFolder,
    recipe: Recipe,
    dataset: Dataset,
    device: torch.device,
    data_dir: Path,
    open_bar: OpenBar = TrainingBar,
) -> dict[str, Any]:
    """Train until the last step, from the folder's checkpoint if it has one.

    Return the summary. Its accuracy is that of the last EMA model, never of the best. A run
    without labels has the accuracy of classifiers on its features, if the classes are known.
    """
    started, is_new = run_start(), not folder.exists()
    check_teacher(recipe)
    split = folder.split_for(recipe, dataset)
    ranks.check_same(folder, recipe, dataset)
    torch.manual_seed(recipe.seed)
    # A resumed run has the weights that learn in its checkpoint: their file may be gone.
    first = not folder.checkpoint.exists()
    initial = recipe if first or recipe.model.frozen else replace(recipe, init=None)
    run = build(initial, dataset, split, device)
    distributed.seed(recipe.seed)  # from here on, each rank draws for its own images
    with files.locked(folder.path):  # nothing is written before everything was checked
        if is_new and distributed.rank() == 0:
            folder.check_free()  # another process may have written into it since
        if not folder.split.exists():
            folder.create(recipe, data_dir, splits.to_json(split, dataset))
        folder.write_environment(device)
        if run.loaded:
            folder.note("init", run.loaded.to_json())
        if isinstance(run.method, Estimator):
            return fit_estimator(folder, run, run.method, dataset, split, open_bar)
        return take_steps(folder, run, dataset, split, open_bar, started)


def fit_estimator(
    folder: RunFolder,
    run: Built,
    estimator: Estimator,
    dataset: Dataset,
    split: Split,
    open_bar: OpenBar,
) -> dict[str, Any]:
    """Fit an estimator to the features, and write what comes of it. Return the summary."""
    steps, began = run.recipe.optim.steps, time.perf_counter()
    with (
        Journal(folder.path) as journal,
        open_bar(f"{run.recipe.method_name} on {dataset.name}", steps, 0) as bar,
        stoppable() as stop,
    ):
        prepare(folder, run, bar, stop, 0)
        assert isinstance(run.feed, CachedFeatures)
        estimator.fit(run.feed.examples())
        bar.advance(steps)
        scores = evaluate(run, parts_of(dataset, split), last=True)
        journal.write(steps, "eval", scores)
    if estimator.linear:
        folder.write_model(run.trained, description(run))
        folder.write_known_images(out_of_distribution.learn(run, dataset.train, split).to_store())
    return write_summary(folder, run, dataset, split, scores, time.perf_counter() - began)


def take_steps(
    folder: RunFolder,
    run: Built,
    dataset: Dataset,
    split: Split,
    open_bar: OpenBar,
    started: float,
) -> dict[str, Any]:
    """Take the steps that are left, and write what comes of them. Return the summary."""
    recipe, device = run.recipe, run.mean.device
    start, seconds, position = state.restore(folder, run)
    parts = parts_of(dataset, split)
    seen = dataset.train.subset(split.unlabelled)  # without labels, by a run that uses none
    score = (
        partial(evaluate, run, parts) if recipe.uses_labels else partial(monitor, run, seen, parts)
    )
    began = time.perf_counter() - seconds
    scores: dict[str, float] | None = None
    means: dict[str, float] = {}

    with (
        Journal(folder.path, position, start) as journal,
        open_bar(f"{recipe.method_name} on {dataset.name}", recipe.optim.steps, start) as bar,
        stoppable() as stop,
    ):
        prepare(folder, run, bar, stop, start)
        for step in range(start, recipe.optim.steps):
            with threads(1 if run.feed.tiny_batches else None):
                run.step(step)
            if step == start:
                startup = round(synchronize(device) - started, 2)
                folder.note("startup_seconds", startup)
                if run.step.engine != "eager":
                    cache = compiler_cache.folder()
                    bar.say(f"first step after {startup:.1f} s; compiled code: {cache}")
            done = step + 1
            last = done == recipe.optim.steps
            # All ranks ask once, so that all save at the same step.
            stopping = distributed.any_rank(stop.asked)
            bar.advance(done)
            logging = last or done % recipe.log_every == 0
            evaluating = last or done % recipe.eval_every == 0
            if logging:
                stop_on_bad_numbers(run.step.meter, done, folder)
                means = averages(run.step.meter.read()) | run.feed.counts()
                journal.write(done, "train", means)
            if evaluating:
                scores = score(last=last)
                journal.write(done, "eval", scores)
            if means and (logging or evaluating):
                bar.show(done, means | (scores or {}))
            if last or done % recipe.checkpoint_every == 0 or stopping:
                stop_on_bad_numbers(run.step.meter, done, folder)
                # The checkpoint comes last: what a kill before it leaves is written again.
                folder.write_model(run.trained, description(run))
                state.save(folder, run, done, time.perf_counter() - began, journal.position())
            if stopping and not last:
                raise Interrupted(done, folder.path)

    if scores is None:  # it was resumed after its last step
        scores = score(last=True)
    if recipe.uses_labels:
        folder.write_known_images(out_of_distribution.learn(run, dataset.train, split).to_store())
    return write_summary(folder, run, dataset, split, scores, time.perf_counter() - began)


def prepare(folder: RunFolder, run: Built, bar: Bar, stop: StopRequest, step: int) -> None:
    """Say what the run starts from, and let its feed get ready."""
    for line in run.loaded.lines() if run.loaded else ():
        bar.say(line)
    if not run.feed.prepare(WatchBar(bar, stop)):
        raise Interrupted(step, folder.path)


def parts_of(dataset: Dataset, split: Split) -> dict[str, Part | None]:
    """The images to evaluate on, by the prefix of their scores."""
    held_out = dataset.train.subset(split.validation) if len(split.validation) else None
    return {"": dataset.test, "validation_": held_out}


def write_summary(
    folder: RunFolder,
    run: Built,
    dataset: Dataset,
    split: Split,
    scores: dict[str, float],
    seconds: float,
) -> dict[str, Any]:
    recipe = run.recipe
    summary = {
        "method": recipe.method_name,
        "data": dataset.name,
        "labels": len(split.labelled),
        "unlabelled": len(split.unlabelled) if run.method.views else 0,
        "seed": recipe.seed,
        **scores,
        "checkpoint": f"last, {run.method.evaluated_weights}",
        "steps": recipe.optim.steps,
        "seconds": round(seconds, 2),
        "peak_memory_mb": peak_memory_mb(run.mean.device),
        **run.feed.counts(),
    }
    files.write_json(folder.summary, summary)
    return summary


class WatchBar:
    """Shows the preparation of a feed on the bar of the run."""

    def __init__(self, bar: Bar, stop: StopRequest) -> None:
        self.progress = bar.encoding
        self.bar, self.stop = bar, stop

    def stopped(self) -> bool:
        return self.stop.asked

    def go_on(self) -> None:
        if self.stop.asked:
            self.bar.say("encoding was stopped; training begins with the views there are")
            self.stop.asked = False


def evaluate(run: Built, parts: dict[str, Part | None], last: bool) -> dict[str, float]:
    """Accuracy of the EMA model on each part that there is."""

    def predict(inputs: Tensor) -> Tensor:
        return evaluation.predict(run.method.evaluated, inputs)

    values: dict[str, float] = {}
    for prefix, part in parts.items():
        if part is None:
            continue
        scores = evaluation.evaluate(part, run.feed.inputs, predict, run.classes).scores
        values[f"{prefix}top1"] = scores.top1
        if scores.top5 is not None:
            values[f"{prefix}top5"] = scores.top5
        values[f"{prefix}calibration_error"] = scores.calibration_error
    return values


LOWER_LR_HINT = "a lower --set lr=... or --set precision=fp32 with another --out"


def stop_on_bad_numbers(
    meter: Meter, done: int, folder: RunFolder, advice: str = LOWER_LR_HINT
) -> None:
    """Raise an error after a NaN or an infinity, before anything that came of it is written."""
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
