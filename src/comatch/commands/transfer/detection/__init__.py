"""Object detection and segmentation: Mask R-CNN, fine-tuned on COCO (section 4.4 of the paper).

The setting is that of MoCo, as in the paper: ResNet-50 with a feature pyramid, all layers and all
batch norm trained, shorter sides of 640 to 800 pixels, 90,000 steps of 16 images (1x) or twice as
many (2x). One process computes the whole batch, so its batch norm needs no synchronisation. Before
scoring, batch norm statistics are measured over many batches, as MoCo's configurations do.
"""

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any

import torch

from comatch.commands.transfer.detection import mask_rcnn
from comatch.commands.transfer.detection.coco import CocoPart
from comatch.commands.transfer.detection.setting import (
    DetectionRequest,
    Setting,
    check_same,
    plan,
)
from comatch.commands.transfer.detection.training import FineTuning
from comatch.commands.transfer.encoders import Encoder
from comatch.config import require
from comatch.device import choose_device, has_bf16
from comatch.errors import UserError
from comatch.files import read_json
from comatch.training.progress import TrainingBar
from comatch.training.run_folder import NothingToResumeError, Run, RunFolder


def fine_tune(
    request: DetectionRequest, out: str | Path | None = None, resume: bool = False
) -> Run:
    """Train a detector on COCO's train2017, score it on val2017 and return its run folder.

    With `resume`, an unfinished run in `out` is continued, and a finished one returned.
    """
    root, device = Path(request.coco).expanduser(), choose_device(request.device)
    overrides = request.overrides()
    start = overrides["start"]
    folder = RunFolder(Path(out) if out else default_folder(request))
    if resume and folder.exists():
        check_same(folder, overrides)
        if folder.finished():
            return Run(folder.path, read_json(folder.summary))
    elif resume and not folder.path.exists():
        raise NothingToResumeError(folder)
    else:
        folder.check_free()
    # With a checkpoint, the initial weights are not needed and may be gone.
    source = None if folder.checkpoint.exists() else mask_rcnn.load_start(start)
    train, test = CocoPart(root, "train", learn=True), CocoPart(root, "val", learn=False)
    require(train.categories == test.categories, f"{root}: train2017 and val2017 differ in classes")
    setting = (
        plan(overrides, known(start, source, train, device)) if source else saved(folder, train)
    )

    torch.manual_seed(setting.seed)
    encoder, loaded = mask_rcnn.build_encoder_from(source, setting.net)
    run = FineTuning(folder, setting, mask_rcnn.build(setting, encoder), device, request.workers)
    if source:  # nothing is written before everything was checked
        folder.begin(dataclasses.asdict(setting))
    folder.write_environment(device)
    if loaded:
        folder.note("init", loaded.to_json())
    try:
        bar = partial(TrainingBar, show=request.progress)
        run.fit(train, bar, request.save_every, loaded.lines() if loaded else ())
        return Run(folder.path, run.summarise(train, test, request.progress))
    except torch.OutOfMemoryError:
        raise UserError("the GPU has too little memory for this: lower --batch") from None


def known(start: str, source: Encoder, train: CocoPart, device: torch.device) -> dict[str, Any]:
    """The settings that follow from encoder, data and device."""
    return {
        "net": mask_rcnn.net_of(start),
        "mean": [round(value, 6) for value in source.mean.tolist()],
        "std": [round(value, 6) for value in source.std.tolist()],
        "coco": str(train.root.absolute()),
        "images": len(train),
        "classes": train.classes,
        "precision": "bf16" if device.type == "cuda" and has_bf16(device) else "fp32",
    }


def saved(folder: RunFolder, train: CocoPart) -> Setting:
    setting = Setting(**read_json(folder.config))
    same = (setting.images, setting.classes) == (len(train), train.classes)
    require(same, f"{train.root} is not the data that {folder.path} was started with")
    return setting


def default_folder(request: DetectionRequest) -> Path:
    """runs/detect-mine-1x-seed0"""
    start = Path(request.start).name.replace(":", "-")
    return Path("runs") / f"detect-{start}-{request.schedule}-seed{request.seed}"
