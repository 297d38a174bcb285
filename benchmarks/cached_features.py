"""How long training takes when the features of many images are cached.

python benchmarks/cached_features.py 100000 [cpu|cuda]

The images and their features are random, which changes neither the work nor the time: reading the
cache, fitting the projection, the steps of the recipe `photos`, evaluation.
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import timm
import torch

from comatch import planning
from comatch.data import feature_store
from comatch.data.feature_store import FeatureStore
from comatch.data.features import views_for
from comatch.planning import Request
from comatch.training.build import feature_encoder
from comatch.training.loop import fit
from comatch.training.progress import TrainingBar
from comatch.training.run_folder import RunFolder
from comatch.types import Dataset, Images

CLASSES, TEST, CHUNK = 10, 1000, 20_000


def random_images(number: int, seed: int) -> Images:
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (number, 3, 4, 4), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, CLASSES, (number,), generator=generator)
    return Images(pixels, labels, [str(i) for i in range(number)])


def fill(store: FeatureStore, digests: np.ndarray, views: int) -> None:
    random = np.random.default_rng(0)
    for view in range(views):
        for begin in range(0, len(digests), CHUNK):
            some = digests[begin : begin + CHUNK]
            store.append(view, some, random.standard_normal((len(some), store.width), np.float32))


def main(number: int, device: torch.device) -> None:
    with tempfile.TemporaryDirectory() as temporary:
        home, root = Path(temporary), Path(temporary) / "features"
        torch.save(timm.create_model("tf_efficientnet_lite0").state_dict(), home / "random.pth")
        request = Request("digits", recipe="photos", init=home / "random.pth", labels=40)
        recipe = planning.plan(request, device)
        dataset = Dataset(
            "random",
            [str(c) for c in range(CLASSES)],
            random_images(number, seed=0),
            random_images(TEST, seed=1),
        )
        encoder = feature_encoder(recipe, dataset, device)
        views = views_for(number, recipe.features.views, recipe.features.view_budget)
        for part, count in ((dataset.train, views), (dataset.test, 1)):
            store = FeatureStore(root, encoder.name, encoder.width)
            fill(store, feature_store.digests(root, part), count)
        feature_store.default_root = lambda: root
        began = time.perf_counter()
        fit(RunFolder(home / "run"), recipe, dataset, device, home, TrainingBar)
        seconds = time.perf_counter() - began
        print(f"{number:,} images, {views} views, {device.type}: {seconds:.1f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]), torch.device(sys.argv[2] if len(sys.argv) > 2 else "cpu"))
