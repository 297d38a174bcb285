"""What decides the result of a detector on COCO, and the two schedules that have names."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from comatch import api
from comatch.commands.reproduce.paper import COCO_BATCH, COCO_STEPS
from comatch.config import check_name, require
from comatch.files import read_json
from comatch.training.run_folder import RunFolder

SCHEDULES = {  # steps, and after how many the learning rate falls
    "1x": (COCO_STEPS["1x"], (60_000, 80_000)),
    "2x": (COCO_STEPS["2x"], (120_000, 160_000)),
}
WARMUP = 1_000  # steps
NORM_BATCHES = 200
LR, BATCH = 0.02, COCO_BATCH  # which belong together


@dataclasses.dataclass(frozen=True)
class Setting:
    """AllImages that decides the result."""

    start: str  # what the encoder begins from
    net: str
    mean: Sequence[float]  # of the channels
    std: Sequence[float]
    coco: str
    images: int  # that can be learned from
    classes: list[str]
    schedule: str
    steps: int
    batch: int
    seed: int
    precision: str
    lr: float
    milestones: Sequence[int]  # steps from which on the learning rate is a tenth of what it was
    warmup: int  # steps in which it is reached
    norm_batches: int  # over which batch norm is measured before scoring
    momentum: float = 0.9
    weight_decay: float = 1e-4  # but not of batch norm, as in Detectron2
    sides: Sequence[int] = tuple(range(640, 801, 32))  # the shorter one; when scoring, the last
    longest: int = 1333
    proposals: int = 1000  # regions of an image that are looked at
    sampled: int = 512  # and those of them that are learned from

    def lr_at(self, step: int) -> float:
        drops = sum(step >= milestone for milestone in self.milestones)
        return self.lr * min(1, (step + 1) / max(1, self.warmup)) / 10**drops


FIELDS = [field.name for field in dataclasses.fields(Setting)]


def plan(asked: dict[str, Any], known: dict[str, Any]) -> Setting:
    """The schedule, shrunk to the steps that were asked for, and the batch's learning rate."""
    for key in asked:
        check_name(key, FIELDS, "setting")
    whole, milestones = SCHEDULES[asked["schedule"]]
    share = asked["steps"] / whole
    follows = {
        "lr": LR * asked["batch"] / BATCH,
        "milestones": [round(milestone * share) for milestone in milestones],
        "warmup": round(WARMUP * share),
        "norm_batches": min(NORM_BATCHES, asked["steps"]),
    }
    return Setting(**known | follows | asked)


def check_same(folder: RunFolder, asked: dict[str, Any]) -> None:
    """A run goes on with the settings that it began with, or not at all."""
    written = read_json(folder.config)
    require(
        written.keys() == set(FIELDS),
        f"{folder.path} is not the run of a detector: choose another --out",
    )
    plain = {key: list(now) if isinstance(now, tuple) else now for key, now in asked.items()}
    api.refuse_changes(folder, ((key, written.get(key), now) for key, now in plain.items()))
