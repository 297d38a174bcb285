"""Accuracy and classes found with suggested labels, random ones, and as many of each class.

    python benchmarks/suggest.py FOLDER ... --init WEIGHTS --out results/suggest
    python benchmarks/suggest.py --out results/suggest     write table and figure of the rows there

Each FOLDER has a sub-folder for each class. A quarter of its images is the test part, the same for
all draws; images of a class without a label count as wrong. Two classifiers learn on cached
features: logistic regression on the labels, and the heads of CoMatch, which also use the other
images. With --no-heads there is the first one only. What is in the table already is kept, so the
command continues where it stopped.
"""

import argparse
import csv
import statistics
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from comatch import api, figures
from comatch.commands.suggest import choose, learner
from comatch.commands.suggest.features import compressed, encoder_of, recipe_for
from comatch.commands.suggest.table import Mark
from comatch.data.image_files import image_names
from comatch.device import choose_device, threads
from comatch.tables import in_per_cent, to_csv, to_markdown
from comatch.training.run_folder import RunFolder

NUMBERS = (10, 20, 40, 80)
HEAD = ["data", "classes", "choice", "labels", "draw", "classes_found", "logistic", "comatch"]
KEY = HEAD[:1] + HEAD[2:5]
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


def by_heads(images: Images, names: list[str], home: Path, init: str | None, draw: int) -> float:
    """Test accuracy of CoMatch heads that were trained with these labels."""
    table = home / "labels.csv"
    table.write_text(to_csv([{"path": name, "label": images.label[name]} for name in names]))
    with threads(1), tempfile.TemporaryDirectory(dir=home) as out:
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
        found = choose.run_predictions(RunFolder(run.path), images.test_features)
        assert found is not None  # the encoder is frozen
        best = np.stack(list(found.values())).argmax(0)
        return share_right(images, [list(found)[number] for number in best])


def by_logistic_regression(images: Images, names: list[str]) -> float:
    classes = sorted({images.label[name] for name in names})
    reduced = compressed(np.concatenate([images.features, images.test_features]))
    numbers = np.full(len(reduced), -1)
    for name in names:
        numbers[images.names.index(name)] = classes.index(images.label[name])
    guess = learner.predict(reduced, numbers, len(classes))[len(images.names) :]
    return share_right(images, [classes[number] for number in guess.argmax(1)])


def share_right(images: Images, predicted: list[str]) -> float:
    pairs = zip(images.test, predicted, strict=True)
    return sum(images.label[name] == label for name, label in pairs) / len(predicted)


Rows = dict[tuple[str, ...], dict[str, str]]


def measure(images: Images, rows: Rows, draw: int, heads: bool, words: argparse.Namespace) -> None:
    """Fill what a draw lacks."""
    for number in NUMBERS:
        for choice, names_of in CHOICES.items():
            key = images.name, choice, str(number), str(draw)
            row = rows.get(key, {})
            if row.get("comatch") or (row and not heads):
                continue
            names = names_of(images, number, draw)
            found = len({images.label[name] for name in names})
            values = images.name, len(images.classes), choice, number, draw, found
            row = row or dict(zip(HEAD, map(str, values), strict=False))
            row["logistic"] = f"{by_logistic_regression(images, names):.4f}"
            row["comatch"] = ""
            if heads:
                home = images.folder.parent
                row["comatch"] = f"{by_heads(images, names, home, words.init, draw):.4f}"
            rows[key] = row
            (words.out / "runs.csv").write_text(to_csv(list(rows.values()), HEAD))
            print(*row.values(), flush=True)


def read(path: Path) -> Rows:
    with path.open() as file:
        return {tuple(row[key] for key in KEY): row for row in csv.DictReader(file)}


def table(rows: Rows, key: str) -> str:
    """Accuracy, mean and deviation over the draws, and in brackets the classes found; Markdown."""
    lines = [["data", "labels", *CHOICES]]
    for data in dict.fromkeys(row["data"] for row in rows.values()):
        for number in NUMBERS:
            line = [data, str(number)]
            for choice in CHOICES:
                some = [row for row in rows.values() if row["choice"] == choice and row[key]]
                some = [r for r in some if (r["data"], r["labels"]) == (data, str(number))]
                found = [int(row["classes_found"]) for row in some]
                shares = in_per_cent([float(row[key]) for row in some])
                line.append(f"{shares} ({statistics.mean(found):.1f})" if some else "")
            lines.append(line)
    return to_markdown(lines, numbers=True)


def draw_figure(rows: Rows, key: str) -> Figure:
    """Accuracy against the number of labels, a panel for each data set."""
    sets = list(dict.fromkeys(row["data"] for row in rows.values()))
    with matplotlib.rc_context(figures.STYLE):
        figure = Figure(figsize=(3.2 * len(sets), 3.0), layout="constrained")
        panels = figure.subplots(1, len(sets), squeeze=False)[0]
        for panel, data in zip(panels, sets, strict=True):
            for choice, colour in zip(CHOICES, figures.COLOURS, strict=False):
                shares: dict[int, list[float]] = defaultdict(list)
                for row in rows.values():
                    if (row["data"], row["choice"]) == (data, choice):
                        shares[int(row["labels"])].append(100 * float(row[key]))
                mean = [statistics.mean(shares[number]) for number in NUMBERS]
                panel.plot(NUMBERS, mean, "o-", color=colour, label=choice)
            panel.set(title=data, xscale="log", xlabel="labels", ylabel="accuracy (%)")
            panel.set_xticks(NUMBERS, list(map(str, NUMBERS)))
            panel.minorticks_off()
        panels[-1].legend(fontsize=8)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--encoder")
    parser.add_argument("--init")
    parser.add_argument("--draws", type=int, default=5)
    parser.add_argument("--no-heads", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("results/suggest"))
    parser.add_argument("--figure", type=Path, default=Path("docs/explanation/figures/suggest.svg"))
    parser.add_argument("--table", choices=("logistic", "comatch"), help="print it, and no more")
    words = parser.parse_args()
    words.out.mkdir(parents=True, exist_ok=True)
    path = words.out / "runs.csv"
    rows = read(path) if path.exists() else {}
    if words.table:
        return print(table(rows, words.table))
    with tempfile.TemporaryDirectory() as home:
        sets = [Images(one, Path(home), words.encoder, words.init) for one in words.folders]
        for draw in range(words.draws):
            for images in sets:
                measure(images, rows, draw, not words.no_heads, words)
    figures.save(draw_figure(rows, "logistic"), words.figure, ["svg"])


if __name__ == "__main__":
    main()
