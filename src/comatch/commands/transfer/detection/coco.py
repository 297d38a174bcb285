"""COCO as published: images with boxes and masks, batches of them, and the score.

pycocotools reads the annotations, draws the masks and computes the score. Crowds (`iscrowd`) are
not trained on. In the score, a detection inside a crowd counts neither as right nor as wrong.
"""

import contextlib
import io
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchvision.ops import box_convert
from torchvision.transforms.v2 import functional
from torchvision.tv_tensors import BoundingBoxes, Mask

from comatch.config import require
from comatch.data.images import ImageError, read_whole
from comatch.data.order import Schedule
from comatch.errors import UserError

UNSCALED, NO_LIMIT = 2**20, 2**31  # more pixels a side, and bytes, than any image has
METRICS = ("AP", "AP50", "AP75", "APs", "APm", "APl")  # what COCO reports first, in this order
READ_AHEAD = 3  # batches
THINNEST = 0.01  # pixels: float32 boxes that are thinner may be empty
Draw = tuple[int, bool]  # the row of an image, and whether to flip it
Detection = dict[str, Any]  # one object in COCO's format: image, category, score, box and mask


class Example(NamedTuple):
    """An image and its objects; or no image, and why the file cannot be read."""

    id: int
    image: Tensor | None  # [3, H, W] uint8
    target: dict[str, Tensor]
    why: str = ""


class CocoPart:
    """`train` or `val`: all images, or with `learn` those that have an object."""

    def __init__(self, root: Path, name: str, learn: bool) -> None:
        self.root, self.folder, self.learn = root, root / f"{name}2017", learn
        self.coco = read_annotations(root / "annotations" / f"instances_{name}2017.json")
        require(self.folder.is_dir(), f"there is no {self.folder}: COCO's images belong there")
        self.categories: list[int] = sorted(self.coco.getCatIds())  # of the labels 1, 2, ...
        self.classes: list[str] = [one["name"] for one in self.coco.loadCats(self.categories)]
        ids = sorted(self.coco.getImgIds())
        self.ids: list[int] = [i for i in ids if self.objects(i)] if learn else ids
        require(bool(self.ids), f"no image of {self.folder} has an object in its annotations")

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, row: int, flip: bool = False) -> Example:
        id, described = self.ids[row], self.coco.imgs[self.ids[row]]
        try:
            pixels = read_whole(self.folder / described["file_name"], UNSCALED, NO_LIMIT)
            if pixels is None or pixels.shape[:2] != (described["height"], described["width"]):
                raise ImageError("size differs from the annotations")
        except ImageError as error:
            return Example(id, None, {}, f"{described['file_name']}: {error}")
        image = torch.tensor(pixels).permute(2, 0, 1)
        target = self.target(id) if self.learn else {}
        if flip:
            image = functional.horizontal_flip(image)
            target |= {key: functional.horizontal_flip(target[key]) for key in ("boxes", "masks")}
        return Example(id, image, target)

    def objects(self, id: int) -> list[dict[str, Any]]:
        """The objects of an image to train on: no crowds, and no empty boxes."""
        width, height = (self.coco.imgs[id][side] for side in ("width", "height"))

        def has_inside(x: float, y: float, w: float, h: float) -> bool:
            inside = min(x + w, width) - max(x, 0), min(y + h, height) - max(y, 0)
            return min(inside) > THINNEST

        objects = [one for one in self.coco.imgToAnns[id] if not one.get("iscrowd")]
        return [one for one in objects if one["segmentation"] and has_inside(*one["bbox"])]

    def target(self, id: int) -> dict[str, Tensor]:
        """Boxes (by their corners), labels and masks of an image that has objects."""
        objects, described = self.objects(id), self.coco.imgs[id]
        size = (described["height"], described["width"])
        sides = torch.tensor([one["bbox"] for one in objects], dtype=torch.float32)
        corners = box_convert(sides, "xywh", "xyxy")
        boxes = BoundingBoxes(corners, format="XYXY", canvas_size=size)
        labels = [self.categories.index(one["category_id"]) + 1 for one in objects]
        masks = np.stack([self.coco.annToMask(one) for one in objects])
        return {
            "boxes": functional.clamp_bounding_boxes(boxes),  # [n, 4]
            "labels": torch.tensor(labels),  # [n], 0 is the background
            "masks": Mask(masks),  # [n, H, W] uint8
        }


def read_annotations(path: Path) -> Any:
    """A `pycocotools.coco.COCO`."""
    try:
        from pycocotools.coco import COCO
    except ImportError:
        raise UserError('detection needs pycocotools: pip install "comatch[detection]"') from None
    require(path.is_file(), f"there is no {path}: COCO's annotations belong there")
    try:
        with silent():
            return COCO(str(path))
    except (OSError, ValueError, KeyError, AssertionError) as error:
        raise UserError(f"{path} cannot be read as COCO's annotations: {error!r}") from None


def silent() -> contextlib.AbstractContextManager[Any]:
    """Without the lines that pycocotools prints."""
    return contextlib.redirect_stdout(io.StringIO())


# ---------------------------------------------------------------------------------- batches


def batches(
    part: CocoPart, batch: int, seed: int, steps: range, workers: int
) -> Iterator[list[Example]]:
    """A batch for each of these steps. It depends on the seed and the step alone."""
    schedule = Schedule(len(part), batch, seed)

    def drawn() -> Iterator[list[Draw]]:
        for step in steps:
            flips = np.random.default_rng([seed, 1, step]).random(batch) < 0.5
            yield list(zip(schedule.at(step).tolist(), flips.tolist(), strict=True))

    return read_ahead(part, drawn(), workers)


def one_by_one(part: CocoPart, workers: int) -> Iterator[Example]:
    rows = ([(row, False)] for row in range(len(part)))
    return (example for examples in read_ahead(part, rows, workers) for example in examples)


def read_ahead(
    part: CocoPart, drawn: Iterable[list[Draw]], workers: int
) -> Iterator[list[Example]]:
    """Read batches in threads before they are needed."""
    pending: deque[list[Future[Example]]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        for rows in drawn:
            pending.append([pool.submit(part.read, *one) for one in rows])
            if len(pending) > READ_AHEAD:
                yield [future.result() for future in pending.popleft()]
        for futures in pending:
            yield [future.result() for future in futures]


# ---------------------------------------------------------------------------------- scoring


def to_detections(output: dict[str, Tensor], id: int, categories: Sequence[int]) -> list[Detection]:
    """The output of torchvision's detector for an image, in COCO's format."""
    from pycocotools import mask

    drawn = (output["masks"][:, 0] > 0.5).permute(1, 2, 0).byte().cpu().numpy()  # [H, W, n]
    return [
        {
            "image_id": id,
            "category_id": categories[label - 1],
            "score": score,
            "bbox": box,
            "segmentation": segmentation,
        }
        for label, score, box, segmentation in zip(
            output["labels"].tolist(),
            output["scores"].tolist(),
            box_convert(output["boxes"], "xyxy", "xywh").tolist(),
            mask.encode(np.asfortranarray(drawn)),
            strict=True,
        )
    ]


def score(
    part: CocoPart, detections: Sequence[Detection], ids: Sequence[int]
) -> dict[str, float | None]:
    """Average precision of boxes (bb) and masks (mk) on these images, in per cent.

    None for a size of which there is no object.
    """
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    values: dict[str, float | None] = {}
    # pycocotools takes the size of an object from its box if there is one: wrong for masks.
    for kind, prefix, without in (("bbox", "bb", "segmentation"), ("segm", "mk", "bbox")):
        with silent():
            results = COCO()
            if detections:
                kept = [{k: v for k, v in one.items() if k != without} for one in detections]
                results = part.coco.loadRes(kept)
            else:  # loadRes fails on an empty list
                results.dataset = {**part.coco.dataset, "annotations": []}
                results.createIndex()
            evaluation = COCOeval(part.coco, results, kind)
            evaluation.params.imgIds = list(ids)
            evaluation.evaluate()
            evaluation.accumulate()
            evaluation.summarize()
        for metric, value in zip(METRICS, evaluation.stats, strict=False):
            values[f"{prefix}_{metric}"] = round(100 * float(value), 3) if value >= 0 else None
    return values
