"""Measure how well four scores find images of unknown classes, and what they cost in accuracy.

    python benchmarks/out_of_distribution.py HOST UNKNOWN FILE.csv [--recipe photos --init FILE ...]

HOST is a folder with a sub-folder of images for each class. UNKNOWN is a folder of other images, or
`classes`: then three in ten classes of HOST are left out and become unknown. A classifier is
trained on some labelled images and a pool of unlabelled ones, 30 % of which are unknown. It is
tested on other images, of which 30 % are unknown too. A row is appended to the CSV file for each
seed, with the area under the ROC curve (AUROC) of

    msp     the maximum softmax probability (Hendrycks and Gimpel 2017)
    energy  the log-sum-exp of the logits (Liu et al. 2020)
    knn     the distance to the K-th nearest training image, labelled or not (Sun et al. 2022)
    fit     `fit` of comatch predict: of a distance to labelled images, calibrated
"""

import argparse
import csv
import random
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.metrics import roc_auc_score
from torch import Tensor

import comatch
from comatch.classifier import Classifier
from comatch.data.image_folder import find_images

UNKNOWN_SHARE = 0.3
TEST_SHARE = 0.25
K = 10  # of knn
REJECT = 0.05
CHUNK = 256


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("host", type=Path)
    parser.add_argument("unknown")
    parser.add_argument("table", type=Path)
    parser.add_argument("--recipe", default="photos")
    parser.add_argument("--init")
    parser.add_argument("--labels", type=int, default=10, help="of each class")
    parser.add_argument("--each", type=int, default=100, help="images of each class, at most")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--set", nargs="*", default=[], dest="settings")
    parser.add_argument("--clean", action="store_true", help="no unknown image in the pool")
    options = parser.parse_args()
    for seed in options.seeds:
        row = measure(options, seed)
        new = not options.table.exists()
        with options.table.open("a", newline="") as file:
            table = csv.DictWriter(file, row, lineterminator="\n")
            if new:
                table.writeheader()
            table.writerow(row)
        print(row, flush=True)


def measure(options: argparse.Namespace, seed: int) -> dict[str, object]:
    """Train on one draw of images, and score known and unknown test images."""
    draw = random.Random(seed)
    known = {
        folder.name: shuffled(find_images([folder]), draw)[: options.each]
        for folder in sorted(options.host.iterdir())
        if folder.is_dir()
    }
    if options.unknown == "classes":
        left_out = shuffled(sorted(known), draw)[: round(UNKNOWN_SHARE * len(known))]
        others = shuffled([path for name in left_out for path in known.pop(name)], draw)
    else:
        others = shuffled(find_images([Path(options.unknown)]), draw)
    tests = {name: paths[: round(TEST_SHARE * len(paths))] for name, paths in known.items()}
    rest = {name: paths[len(tests[name]) :] for name, paths in known.items()}
    labelled = {name: paths[: options.labels] for name, paths in rest.items()}
    pool = [path for paths in rest.values() for path in paths[options.labels :]]
    test = [path for paths in tests.values() for path in paths]
    odds = UNKNOWN_SHARE / (1 - UNKNOWN_SHARE)
    wanted = round(odds * len(test)), round(odds * len(pool))
    scale = min(1.0, len(others) / sum(wanted))
    in_test, in_pool = (round(scale * number) for number in wanted)
    unknown = others[:in_test]
    if not options.clean:
        pool += others[in_test : in_test + in_pool]

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for name, paths in labelled.items():
            link(paths, folder / "images" / name)
        link(pool, folder / "images" / "unlabeled")
        run = comatch.train(
            folder / "images",
            recipe=options.recipe,
            init=options.init,
            steps=options.steps,
            seed=seed,
            settings=options.settings,
            out=folder / "run",
            progress=False,
        )
        classifier = comatch.load(run)
    classifier.expect(10**6)  # as for many images
    training = [path for paths in labelled.values() for path in paths] + pool
    p, features, fit = outputs(classifier, test + unknown)
    memory = F.normalize(outputs(classifier, training)[1], dim=1)
    with torch.no_grad():
        logits = classifier.net.cpu().classifier(features)
    near = F.normalize(features, dim=1) @ memory.T
    scores = {
        "msp": p.amax(1),
        "energy": logits.logsumexp(1),
        "knn": near.topk(K, dim=1).values[:, -1],
        "fit": fit,
    }
    labels = [classifier.classes.index(name) for name, paths in tests.items() for _ in paths]
    right = p[: len(test)].argmax(1) == torch.tensor(labels)
    kept, passed = fit[: len(test)] >= REJECT, fit[len(test) :] >= REJECT
    is_known = torch.arange(len(p)) < len(test)
    return {
        "host": options.host.name,
        "unknown": Path(options.unknown).name,
        "recipe": options.recipe,
        "labels": sum(map(len, labelled.values())),
        "pool": len(pool),
        "unknown_in_pool": 0 if options.clean else in_pool,
        "test": len(test),
        "unknown_in_test": len(unknown),
        "seed": seed,
        "accuracy": mean(right),
        **{f"auroc_{name}": auroc(is_known, score) for name, score in scores.items()},
        "unknown_above_95": mean(p[len(test) :].amax(1) > 0.95),
        "known_rejected": mean(~kept),
        "unknown_rejected": mean(~passed),
        "accuracy_of_kept": mean(right[kept]),
    }


def shuffled(items: list, draw: random.Random) -> list:
    return draw.sample(items, len(items))


def link(paths: list[Path], folder: Path) -> None:
    folder.mkdir(parents=True)
    for number, path in enumerate(paths):
        (folder / f"{number:05d}{path.suffix}").symlink_to(path.resolve())


def outputs(classifier: Classifier, paths: list[Path]) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities, features and fit of image files."""
    found = [
        classifier.predict(paths[begin : begin + CHUNK]) for begin in range(0, len(paths), CHUNK)
    ]
    fits = [one.fit for one in found if one.fit is not None]
    return (
        torch.cat([one.probabilities for one in found]),
        torch.cat([one.features for one in found]),
        torch.cat(fits),
    )


def auroc(is_known: Tensor, score: Tensor) -> float:
    return round(float(roc_auc_score(is_known.numpy(), score.numpy())), 4)


def mean(holds: Tensor) -> float:
    return round(holds.float().mean().item(), 4)


if __name__ == "__main__":
    main()
