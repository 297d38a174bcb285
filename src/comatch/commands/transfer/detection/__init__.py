"""Does an encoder help to find things? Mask R-CNN, fine-tuned on COCO (section 4.4 of the paper).

The setting is MoCo's, as in the paper: ResNet-50 and a feature pyramid, every layer and all batch
norm trained, shorter sides of 640 to 800 pixels, 90,000 steps of 16 images (1x) or twice as many
(2x). One process sees the whole batch, so its batch norm is what several would have to synchronise.
Before scoring, batch norm is measured anew over many batches, as MoCo's configurations do.
"""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import torch

from comatch import api
from comatch.commands.transfer import encoders
from comatch.commands.transfer.detection import mask_rcnn
from comatch.commands.transfer.detection.coco import Part
from comatch.commands.transfer.detection.setting import BATCH, SCHEDULES, Setting, check_same, plan
from comatch.commands.transfer.detection.training import FineTuning
from comatch.commands.transfer.encoders import Encoder
from comatch.config import check_name, require
from comatch.errors import UserError
from comatch.files import read_json
from comatch.training.build import has_bf16
from comatch.training.progress import TrainingBar
from comatch.training.run_folder import RunFolder


def fine_tune(
    data: str | Path,
    start: str | Path,
    *,
    schedule: str = "1x",
    steps: int | None = None,
    batch: int = BATCH,
    seed: int = 0,
    out: str | Path | None = None,
    resume: bool = False,
    device: str = "auto",
    progress: bool = True,
    workers: int | None = None,
    save_every: int = 1_000,
    settings: dict[str, Any] | None = None,
) -> api.Run:
    """Trains a detector on COCO's train2017, scores it on val2017, and leaves a run folder.

    `data` is COCO's folder, `start` what the encoder begins from: a run folder, a file of weights,
    "timm:NAME.TAG" or "random". With fewer `steps` the schedule shrinks in proportion, and
    the learning rate follows the batch; `settings` changes any other field of `Setting`. With
    `resume`, an unfinished run in `out` goes on.
    """
    check_name(schedule, SCHEDULES, "schedule")
    steps = SCHEDULES[schedule][0] if steps is None else steps
    require(min(steps, batch) > 0, f"steps={steps}, batch={batch}: both must be at least 1")
    require(seed >= 0, f"seed={seed}: must not be negative")
    start, root, where = absolute(str(start)), Path(data).expanduser(), api.choose_device(device)
    asked = {"start": start, "schedule": schedule, "steps": steps, "batch": batch, "seed": seed}
    folder = RunFolder(Path(out) if out else default_folder(start, schedule, seed))
    asked |= settings or {}
    if resume and folder.exists():
        check_same(folder, asked)
        if folder.finished():
            return api.Run(folder.path, read_json(folder.summary))
    else:
        folder.check_free()
    # Once there is a checkpoint, what it began from may be gone.
    source = None if folder.checkpoint.exists() else mask_rcnn.read_start(start)
    train, test = Part(root, "train", learn=True), Part(root, "val", learn=False)
    require(train.categories == test.categories, f"{root}: train2017 and val2017 differ in classes")
    setting = begun(asked, source, train, where) if source else continued(folder, train)

    torch.manual_seed(setting.seed)
    encoder, loaded = mask_rcnn.begin(setting.net, source)
    run = FineTuning(folder, setting, mask_rcnn.build(setting, encoder), where, workers)
    if source:  # only now: nothing is written before everything was checked
        folder.begin(dataclasses.asdict(setting))
    folder.write_environment(where)
    if loaded:
        folder.note("init", loaded.to_json())
    try:
        bar = partial(TrainingBar, show=progress)
        run.fit(train, bar, save_every, loaded.lines() if loaded else ())
        return api.Run(folder.path, run.summarise(train, test, progress))
    except torch.OutOfMemoryError:
        raise UserError("the GPU has too little memory for this: lower --batch") from None


def begun(asked: dict[str, Any], source: Encoder, train: Part, where: torch.device) -> Setting:
    """What was asked for, and what is known of the encoder, the data and the device."""
    known = {
        "net": mask_rcnn.net_of(asked["start"]),
        "mean": [round(value, 6) for value in source.mean.tolist()],
        "std": [round(value, 6) for value in source.std.tolist()],
        "coco": str(train.root.absolute()),
        "images": len(train),
        "classes": train.classes,
        "precision": "bf16" if where.type == "cuda" and has_bf16(where) else "fp32",
    }
    return plan(asked, known)


def continued(folder: RunFolder, train: Part) -> Setting:
    setting = Setting(**read_json(folder.config))
    same = (setting.images, setting.classes) == (len(train), train.classes)
    require(same, f"{train.root} does not hold what {folder.path} began with")
    return setting


def absolute(start: str) -> str:
    return start if start == encoders.RANDOM else api.absolute_weights(start)


def default_folder(start: str, schedule: str, seed: int) -> Path:
    """runs/detect-mine-1x-seed0"""
    return Path("runs") / f"detect-{Path(start).name.replace(':', '-')}-{schedule}-seed{seed}"
