"""Accuracy and classes found with suggested labels, random ones, and as many of each class.

    python benchmarks/suggest.py FOLDER ... --init WEIGHTS --out results/suggest

Each FOLDER has a sub-folder for each class. A quarter of its images is the test part, the same for
all draws; images of a class without a label count as wrong. CoMatch trains heads on cached
features. A row that is in the table already is kept, so the command continues where it stopped.
"""

import argparse
import csv
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np

from comatch import api
from comatch.commands.suggest import choose
from comatch.commands.suggest.features import encoder_of, recipe_for
from comatch.commands.suggest.table import Mark
from comatch.data.image_files import image_names
from comatch.device import choose_device, threads
from comatch.tables import to_csv
from comatch.training.run_folder import RunFolder

NUMBERS = (10, 20, 40, 80)
HEAD = ["data", "classes", "choice", "labels", "draw", "classes_found", "top1"]
VIEWS, STEPS = 4, 200  # fewer than the recipe has: the choices are compared


class Images:
    """A folder of labelled images as `comatch train` reads it, with a test part."""

    def __init__(self, source: Path, home: Path, encoder: str | None, init: str | None) -> None:
        self.name, self.folder = source.name, home / source.name
        names = image_names(source, [])
        names = np.random.default_rng(0).permutation(names).tolist()
        self.label = {name: name.split("/")[0] for name in names}
        self.test, self.train = names[: len(names) // 4], sorted(names[len(names) // 4 :])
        for name in self.train:
            link = self.folder / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to((source / name).resolve())
        device = choose_device("cpu")
        found = encoder_of(recipe_for(self.folder, encoder, init, device), self.folder, [], device)
        self.names, self.features, _ = choose.encode(self.folder, self.train, found, True)
        self.test, self.test_features, _ = choose.encode(source, self.test, found, True)
        self.classes = sorted(set(self.label.values()))

    def truth(self, name: str) -> Mark:
        return Mark(self.label[name])


def at_random(images: Images, number: int, draw: int) -> list[str]:
    return np.random.default_rng(draw).permutation(images.names)[:number].tolist()


def of_each_class(images: Images, number: int, draw: int) -> list[str]:
    """The same number of each class, which nobody can choose without knowing all labels."""
    seen: Counter[str] = Counter()
    turn = {}
    for name in np.random.default_rng(draw).permutation(images.names).tolist():
        turn[name] = (seen[images.label[name]], draw * 7 + len(turn))
        seen[images.label[name]] += 1
    return sorted(turn, key=lambda name: turn[name])[:number]


def suggested(images: Images, number: int, draw: int) -> list[str]:
    """All at once, without a label."""
    chosen = choose.choose(images.names, images.features, {}, number, seed=draw)
    return [images.names[row] for row in chosen.rows]


def in_rounds(images: Images, number: int, draw: int) -> list[str]:
    """Ten without a label, then as many again as there are, with the labels so far."""
    names = suggested(images, min(number, NUMBERS[0]), draw)
    while len(names) < number:  # of ten, there is one round
        marks = {name: images.truth(name) for name in names}
        more = min(len(names), number - len(names))
        chosen = choose.choose(images.names, images.features, marks, more, seed=draw)
        names += [images.names[row] for row in chosen.rows]
    return names


CHOICES = {
    "random": at_random,
    "same number of each class": of_each_class,
    "suggest, at once": suggested,
    "suggest, in rounds": in_rounds,
}


def accuracy(images: Images, names: list[str], home: Path, init: str | None, draw: int) -> float:
    """Test accuracy of CoMatch heads that were trained with these labels."""
    table = home / "labels.csv"
    table.write_text(to_csv([{"path": name, "label": images.label[name]} for name in names]))
    with tempfile.TemporaryDirectory(dir=home) as out:
        run = api.train(
            images.folder,
            recipe="photos",
            init=init,
            labels_file=table,
            out=Path(out) / "run",
            steps=STEPS,
            seed=draw,
            settings={"views": VIEWS, "eval_every": STEPS, "checkpoint_every": STEPS},
            progress=False,
        )
        folder = RunFolder(run.path)
        found = choose.run_predictions(folder, images.test_features)
        assert found is not None  # the encoder is frozen
        classes = folder.description()["classes"]
        predicted = [classes[number] for number in found.argmax(1)]
    right = [
        images.label[name] == label for name, label in zip(images.test, predicted, strict=True)
    ]
    return sum(right) / len(right)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--encoder")
    parser.add_argument("--init")
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("results/suggest"))
    words = parser.parse_args()
    words.out.mkdir(parents=True, exist_ok=True)
    path = words.out / "runs.csv"
    rows = list(csv.DictReader(path.open())) if path.exists() else []
    done = {tuple(row[key] for key in HEAD[:1] + HEAD[2:5]) for row in rows}
    with tempfile.TemporaryDirectory() as temporary, threads(1):
        home = Path(temporary)
        sets = [Images(folder, home, words.encoder, words.init) for folder in words.folders]
        for draw in range(words.draws):
            for images in sets:
                for number in NUMBERS:
                    for choice, names_of in CHOICES.items():
                        if (images.name, choice, str(number), str(draw)) in done:
                            continue
                        names = names_of(images, number, draw)
                        found = len({images.label[name] for name in names})
                        if found < 2:
                            continue  # nothing can be learned; it does not happen in these sets
                        top1 = accuracy(images, names, home, words.init, draw)
                        share = f"{top1:.4f}"
                        values = (
                            images.name,
                            len(images.classes),
                            choice,
                            number,
                            draw,
                            found,
                            share,
                        )
                        rows.append(dict(zip(HEAD, map(str, values), strict=True)))
                        path.write_text(to_csv(rows, HEAD))
                        print(*values, flush=True)


if __name__ == "__main__":
    main()
