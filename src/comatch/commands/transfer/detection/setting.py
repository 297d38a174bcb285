"""The settings of a detector on COCO, and the paper's two schedules."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from comatch.commands.reproduce.paper import COCO_BATCH, COCO_STEPS
from comatch.commands.transfer.encoders import RANDOM
from comatch.config import check_name, require
from comatch.files import read_json
from comatch.planning import absolute_weights, refuse_changes
from comatch.training.run_folder import RunFolder

SCHEDULES = {  # steps, and the steps after which the learning rate drops
    "1x": (COCO_STEPS["1x"], (60_000, 80_000)),
    "2x": (COCO_STEPS["2x"], (120_000, 160_000)),
}
WARMUP = 1_000  # steps
NORM_BATCHES = 200
LR, BATCH = 0.02, COCO_BATCH  # the learning rate is proportional to the batch size


@dataclasses.dataclass(frozen=True)
class DetectionRequest:
    """What to fine-tune, and on what."""

    coco: str | Path  # the folder with annotations, train2017 and val2017
    start: str | Path = RANDOM  # initial weights: run folder, file, timm:NAME.TAG or random
    schedule: str = "1x"
    steps: int | None = None  # default: those of the schedule; fewer steps shrink it
    batch: int = BATCH
    seed: int = 0
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # fields of `Setting`
    device: str = "auto"
    workers: int | None = None  # threads that read images; default: one a core
    save_every: int = 1_000  # steps between two checkpoints
    progress: bool = True

    def overrides(self) -> dict[str, Any]:
        """Those fields of `Setting` that were requested."""
        check_name(self.schedule, SCHEDULES, "schedule")
        steps = SCHEDULES[self.schedule][0] if self.steps is None else self.steps
        positive = min(steps, self.batch) > 0
        require(positive, f"steps={steps}, batch={self.batch}: both must be at least 1")
        require(self.seed >= 0, f"seed={self.seed}: must not be negative")
        start = str(self.start)
        return {
            "start": start if start == RANDOM else absolute_weights(start),
            "schedule": self.schedule,
            "steps": steps,
            "batch": self.batch,
            "seed": self.seed,
            **self.settings,
        }


@dataclasses.dataclass(frozen=True)
class Setting:
    """Everything that decides the result: config.json of the run."""

    start: str  # the initial weights of the encoder
    net: str
    mean: Sequence[float]  # of the channels
    std: Sequence[float]
    coco: str
    images: int  # training images with an object
    classes: list[str]
    schedule: str
    steps: int
    batch: int
    seed: int
    precision: str
    lr: float
    milestones: Sequence[int]  # steps at which the learning rate drops to a tenth
    warmup: int  # steps of linear warm-up
    norm_batches: int  # over which batch norm statistics are measured before scoring
    momentum: float = 0.9
    weight_decay: float = 1e-4  # not of batch norm, as in Detectron2
    sides: Sequence[int] = tuple(range(640, 801, 32))  # shorter side; the last when scoring
    longest: int = 1333
    proposals: int = 1000  # an image
    sampled: int = 512  # proposals an image that the box head is trained on

    def lr_at(self, step: int) -> float:
        drops = sum(step >= milestone for milestone in self.milestones)
        return self.lr * min(1, (step + 1) / max(1, self.warmup)) / 10**drops


FIELDS = [field.name for field in dataclasses.fields(Setting)]


def plan(overrides: dict[str, Any], known: dict[str, Any]) -> Setting:
    """The setting: what follows from the schedule, what is known of data and encoder, overrides."""
    for key in overrides:
        check_name(key, FIELDS, "setting")
    whole, milestones = SCHEDULES[overrides["schedule"]]
    share = overrides["steps"] / whole
    scaled = {
        "lr": LR * overrides["batch"] / BATCH,
        "milestones": [round(milestone * share) for milestone in milestones],
        "warmup": round(WARMUP * share),
        "norm_batches": min(NORM_BATCHES, overrides["steps"]),
    }
    return Setting(**known | scaled | overrides)


def check_same(folder: RunFolder, overrides: dict[str, Any]) -> None:
    """Raise an error if the run in the folder has other settings."""
    saved = read_json(folder.config)
    require(
        saved.keys() == set(FIELDS),
        f"{folder.path} is not the run of a detector: choose another --out",
    )
    plain = {key: list(now) if isinstance(now, tuple) else now for key, now in overrides.items()}
    refuse_changes(folder, ((key, saved.get(key), now) for key, now in plain.items()))
