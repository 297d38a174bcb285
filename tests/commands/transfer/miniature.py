"""A tiny COCO: coloured rectangles and discs on noise, in COCO's file format."""

import json

import numpy as np
import pytest
from PIL import Image

WIDTH, HEIGHT = 80, 64
COLOURS = {7: (220, 40, 40), 3: (40, 60, 230)}  # by category id: ids have gaps and are not sorted
CATEGORIES = [{"id": 7, "name": "rectangle"}, {"id": 3, "name": "disc"}]


def corners(kind, x, y, w, h):
    """The outline of a shape in this box as a COCO polygon: x, y, x, y, ..."""
    if kind == 7:
        return [x, y, x + w, y, x + w, y + h, x, y + h]
    angles = np.linspace(0, 2 * np.pi, 24, endpoint=False)
    around = np.stack([x + w / 2 * (1 + np.cos(angles)), y + h / 2 * (1 + np.sin(angles))], 1)
    return [round(float(value), 2) for value in around.flatten()]


def inside(polygon):
    from pycocotools import mask

    (drawn,) = mask.frPyObjects([polygon], HEIGHT, WIDTH)
    return mask.decode(drawn).astype(bool)  # [H, W]


def run_lengths(mask):
    """COCO's format of crowds: run lengths, background first, column by column."""
    flat = mask.flatten(order="F")
    changes = np.flatnonzero(np.diff(flat)) + 1
    lengths = np.diff([0, *changes, len(flat)]).tolist()
    return {"counts": [0, *lengths] if flat[0] else lengths, "size": list(mask.shape)}


def annotation(image, kind, box, segmentation, crowd=0):
    return {
        "image_id": image,
        "category_id": kind,
        "bbox": box,
        "segmentation": segmentation,
        "area": box[2] * box[3],
        "iscrowd": crowd,
    }


def make_part(root, name, count, seed):
    """Images of one or two shapes; the last has none, and the last but one also a crowd."""
    random = np.random.default_rng(seed)
    images, annotations = [], []
    (root / f"{name}2017").mkdir(parents=True)
    for number in range(count):
        image = 10 * number + 5
        pixels = random.integers(60, 160, (HEIGHT, WIDTH, 3)).astype(np.uint8)
        for place in range(0 if number == count - 1 else 1 + number % 2):
            kind = (7, 3)[(number + place) % 2]
            w, h = random.integers(22, 34, 2).tolist()
            x, y = 40 * place + int(random.integers(0, 39 - w)), int(random.integers(1, 62 - h))
            polygon = corners(kind, x, y, w, h)
            pixels[inside(polygon)] = COLOURS[kind]
            annotations.append(annotation(image, kind, [x, y, w, h], [polygon]))
        if number == count - 2:
            crowd = np.zeros((HEIGHT, WIDTH), bool)
            crowd[2:12, 4:60] = True
            annotations.append(annotation(image, 3, [4, 2, 56, 10], run_lengths(crowd), crowd=1))
        file = f"{image:012}.jpg"
        Image.fromarray(pixels).save(root / f"{name}2017" / file, quality=95)
        images.append({"id": image, "file_name": file, "width": WIDTH, "height": HEIGHT})
    for number, one in enumerate(annotations, 1):
        one["id"] = number
    (root / "annotations").mkdir(exist_ok=True)
    written = {"images": images, "annotations": annotations, "categories": CATEGORIES}
    path = root / "annotations" / f"instances_{name}2017.json"
    path.write_text(json.dumps({"info": {}, **written}))


def make_coco(root, train=10, val=6):
    """Make the folder; skip the test where pycocotools is not installed."""
    pytest.importorskip("pycocotools")
    make_part(root, "train", train, seed=0)
    make_part(root, "val", val, seed=1)
    return root
