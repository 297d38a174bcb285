"""Accuracy on photographs: CoMatch's heads beside scikit-learn, on the same cached features.

    python benchmarks/photographs.py measure FILE.csv DATA... [--init WEIGHTS] [--views 16]
    python benchmarks/photographs.py table FILE.csv...
    python benchmarks/photographs.py losses FILE.csv...

DATA are folders with `train` and `test`, each with a folder for each class. Each run keeps some
labels a class of the training part and is evaluated on the test part. A run is one row; a row that
is in the file is not measured again, so a call that was stopped can be repeated.

Conditions change the unlabelled images only:
    even       all of them
    uneven     the classes have from all to a tenth of their images
    strangers  30 % are images of the next DATA, of none of the classes
"""

import argparse
import csv
import itertools
import statistics
import subprocess
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from comatch import evaluation, methods, recipes
from comatch.config import parse, replace
from comatch.data import splits
from comatch.data.cached_features import CachedFeatures, components
from comatch.data.features import Encoder, Features, Unwatched, encode_all
from comatch.data.splits import Split
from comatch.device import threads
from comatch.methods import Estimator
from comatch.nets.frozen import GivenFeatures
from comatch.planning import Request, load_dataset, plan
from comatch.projection import Projection
from comatch.training.build import build_method, feature_encoder
from comatch.training.recipe import Recipe
from comatch.training.step import TrainStep
from comatch.types import UNLABELLED, Dataset, Files

METHODS = ["comatch", *methods.ESTIMATORS]
CONDITIONS = ("even", "uneven", "strangers")
IMBALANCE, STRANGERS = 10, 0.3
CPU = torch.device("cpu")
COLUMNS = (
    "data",
    "encoder",
    "views",
    "condition",
    "labels",  # a class
    "draw",
    "method",
    "accuracy",  # of the test part, %
    "seconds",  # with all features in the cache
    "commit",
)
Row = dict[str, str]


# ------------------------------------------------------------------------------------ measuring


class Data(NamedTuple):
    """A folder and what encodes it."""

    recipe: Recipe
    dataset: Dataset
    encoder: Encoder


def measure(arguments: argparse.Namespace) -> None:
    """Append a row for each run that the file lacks: first one draw of all data."""
    commit = commit_of_the_code()
    known = {key_of(row) for row in read([arguments.file])}
    data = [open_data(path, arguments) for path in arguments.data]
    pairs = list(zip(data, [*data[1:], data[0]], strict=True))
    for draw, labels, condition, (one, other) in itertools.product(
        arguments.draws, arguments.labels, arguments.conditions, pairs
    ):
        row = {
            "data": one.dataset.name,
            "encoder": one.recipe.model.net,
            "views": str(one.recipe.features.views),
            "condition": condition,
            "labels": str(labels),
            "draw": str(draw),
        }
        wanted = [m for m in arguments.methods if key_of({**row, "method": m}) not in known]
        if not wanted:
            continue
        recipe = replace(one.recipe, seed=draw, labels=labels * len(one.dataset.classes))
        split = splits.make(one.dataset, recipe.dataset, draw)
        seen, split = changed(one.dataset, split, condition, other.dataset, draw)
        mine = Data(recipe, seen, one.encoder)
        for method, accuracy, seconds in runs(wanted, mine, split, arguments.settings):
            figures = {"accuracy": f"{100 * accuracy:.2f}", "seconds": f"{seconds:.2f}"}
            append(arguments.file, {**row, "method": method, **figures, "commit": commit})
            print(*row.values(), method, *figures.values(), flush=True)


def open_data(path: Path, arguments: argparse.Namespace) -> Data:
    """Data whose features are in the cache: the views of the training part, the plain test part."""
    settings = {"views": arguments.views}
    request = Request(
        path, encoder=arguments.encoder, init=arguments.init, settings=settings, progress=False
    )
    recipe = plan(request, CPU)
    dataset = load_dataset(recipe.reading, Path("data"), progress=False)
    encoder = feature_encoder(recipe, dataset, CPU)
    assert dataset.test, f"{path} has no test part"
    encode_all([Features(dataset.test, encoder)], 1)
    encode_all([Features(dataset.train, encoder)], arguments.views)
    return Data(recipe, dataset, encoder)


def changed(
    dataset: Dataset, split: Split, condition: str, other: Dataset, seed: int
) -> tuple[Dataset, Split]:
    """The data and the split under a condition. Labels and test part stay as they are."""
    random, rows = np.random.default_rng([seed, 7]), split.unlabelled.numpy()
    if condition == "uneven":
        labels = dataset.train.labels[split.unlabelled].numpy()
        shares = IMBALANCE ** -np.linspace(0, 1, len(dataset.classes))
        kept = [
            random.permutation(rows[labels == c])[: max(1, round(share * (labels == c).sum()))]
            for c, share in zip(random.permutation(len(shares)), shares, strict=True)
        ]
        rows = np.sort(np.concatenate(kept))
    if condition == "strangers":
        assert isinstance(dataset.train, Files)
        assert isinstance(other.train, Files)
        number = min(round(len(rows) * STRANGERS / (1 - STRANGERS)), len(other.train))
        chosen = random.permutation(len(other.train))[:number]
        names = [str(other.train.root / other.train.names[row]) for row in chosen]
        unknown = torch.full((number,), UNLABELLED)
        first = len(dataset.train)
        train = Files(
            dataset.train.root,
            torch.cat([dataset.train.labels, unknown]),
            dataset.train.names + names,  # absolute paths, which the root does not change
        )
        dataset = Dataset(dataset.name, dataset.classes, train, dataset.test)
        rows = np.concatenate([rows, np.arange(first, first + number)])
    return dataset, Split(split.labelled, torch.from_numpy(rows), split.validation, split.origin)


def runs(
    names: Sequence[str], data: Data, split: Split, settings: Sequence[str]
) -> Iterator[tuple[str, float, float]]:
    """Method, accuracy and seconds of each run. All learn from the same features."""
    began = time.perf_counter()
    recipe, dataset, encoder = data
    parts = dataset.train.subset(split.labelled), dataset.train.subset(split.unlabelled)
    width = components(recipe.features, encoder.width, sum(map(len, parts)))
    feed = CachedFeatures(
        *parts,
        recipe.optim.batch,
        recipe.optim.mu,
        kinds=(),
        encoder=encoder,
        projection=Projection(encoder.width, width),
        config=recipe.features,
        device=CPU,
    )
    feed.prepare(Unwatched())
    loading = time.perf_counter() - began
    for name in names:
        began = time.perf_counter()
        own = recipes.get(recipe.name, name)
        own = replace(own, seed=recipe.seed, views=recipe.features.views, net=recipe.model.net)
        if name == "comatch":
            own = replace(own, **parse(own, settings))
        accuracy = run(data._replace(recipe=own), split, feed)
        yield name, accuracy, loading + time.perf_counter() - began


def run(data: Data, split: Split, feed: CachedFeatures) -> float:
    """Train one method on a prepared feed, and return its accuracy on the test part."""
    recipe, dataset, encoder = data
    torch.manual_seed(recipe.seed)
    plain = torch.zeros(3), torch.ones(3)  # features are normalised already
    method = build_method(recipe, dataset, split, *plain, GivenFeatures(encoder.width))
    feed.kinds = method.views
    if isinstance(method, Estimator):
        method.fit(feed.examples())
    else:
        method.ema.net.load_state_dict(method.net.state_dict())
        step = TrainStep(method, feed, recipe, CPU)
        with threads(1):
            for number in range(recipe.optim.steps):
                step(number)

    def predict(inputs: Tensor) -> Tensor:
        return evaluation.predict(method.evaluated, inputs)

    assert dataset.test
    return evaluation.evaluate(dataset.test, feed.inputs, predict, dataset.classes).top1


def commit_of_the_code() -> str:
    """The commit, with a plus if the code has changes that are not in it."""

    def git(*words: str) -> str:
        here = Path(__file__).parent
        return subprocess.run(
            ["git", *words], cwd=here, capture_output=True, text=True, check=True
        ).stdout.strip()

    return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--short", "-uno") else "")


# ---------------------------------------------------------------------------------------- rows


def key_of(row: Row) -> tuple[str, ...]:
    return tuple(row[c] for c in COLUMNS[: COLUMNS.index("method") + 1])


def read(files: Iterable[Path]) -> list[Row]:
    rows: list[Row] = []
    for path in files:
        if path.exists():
            with path.open(newline="") as file:
                rows += csv.DictReader(file)
    return rows


def append(path: Path, row: Row) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)


# --------------------------------------------------------------------------------------- tables


def means(rows: Iterable[Row], *by: str) -> dict[tuple[str, ...], dict[str, float]]:
    """The mean accuracy of each method over the draws, by the values of some columns."""
    found: dict[tuple[str, ...], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        found[tuple(row[column] for column in by)][row["method"]].append(float(row["accuracy"]))
    return {
        key: {method: statistics.mean(values) for method, values in of_key.items()}
        for key, of_key in found.items()
    }


def markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rule = ["---"] * len(head)
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *lines))


def with_best(values: dict[str, float]) -> list[str]:
    """The accuracy of each method, the best one in bold."""
    best = max(values.values())
    texts = [f"{values[m]:.1f}" if m in values else "" for m in METHODS]
    return [f"**{text}**" if text == f"{best:.1f}" else text for text in texts]


def summary(rows: Sequence[Row]) -> str:
    """The last lines of the table: the means over the data."""
    head, rule, *lines = table(rows).splitlines()
    return "\n".join([head, rule, *(line for line in lines if "| mean |" in line)])


def table(rows: Sequence[Row]) -> str:
    """Accuracy without a condition, and how far CoMatch is ahead of the best of the others."""
    even = [row for row in rows if row["condition"] == "even"]
    columns = ("encoder", "data", "labels")
    draws = Counter(tuple(row[c] for c in columns) for row in even if row["method"] == "comatch")
    groups = means(even, *columns)
    lines, ahead = [], defaultdict(list)
    for key in sorted(groups, key=order):
        (encoder, _, labels), values = key, groups[key]
        lead = values["comatch"] - max(v for m, v in values.items() if m != "comatch")
        ahead[encoder, labels].append((lead, values))
        lines.append([*key, str(draws[key]), *with_best(values), f"{lead:+.1f}"])
    for (encoder, labels), found in sorted(ahead.items(), key=lambda one: int(one[0][1])):
        every = {m: statistics.mean(v[m] for _, v in found) for m in METHODS}
        lead = statistics.mean(lead for lead, _ in found)
        lines.append([encoder, "mean", labels, "", *with_best(every), f"{lead:+.1f}"])
    return markdown(["encoder", "data", "labels a class", "draws", *METHODS, "ahead"], lines)


def order(key: tuple[str, ...]) -> tuple[str, str, int]:
    """By encoder and data, then the number of labels."""
    encoder, data, labels = key
    return encoder, data, int(labels)


def losses(rows: Sequence[Row]) -> str:
    """What each condition costs in points: the mean over data and draws, beside the same draws."""
    by = ("encoder", "labels", "data", "draw")
    groups = {c: means([row for row in rows if row["condition"] == c], *by) for c in CONDITIONS}
    changes: dict[tuple[str, ...], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for condition in CONDITIONS[1:]:
        for key, values in groups[condition].items():
            for method, value in values.items():
                if method in groups["even"].get(key, {}):
                    change = value - groups["even"][key][method]
                    changes[condition, *key[:2]][method].append(change)
    lines = []
    for key, found in changes.items():
        texts = [f"{statistics.mean(found[m]):+.1f}" if m in found else "" for m in METHODS]
        lines.append([*key, str(len(found["comatch"])), *texts])
    return markdown(["condition", "encoder", "labels a class", "runs", *METHODS], lines)


TABLES: dict[str, Callable[[Sequence[Row]], str]] = {
    "summary": summary,
    "table": table,
    "losses": losses,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("file", type=Path)
    measuring.add_argument("data", type=Path, nargs="+")
    measuring.add_argument("--encoder", default="tf_efficientnet_lite0")
    measuring.add_argument("--init", help="a file of weights; default: those of timm")
    measuring.add_argument("--views", type=int, default=26)
    measuring.add_argument("--labels", type=int, nargs="+", default=[1, 4, 8, 16])
    measuring.add_argument("--draws", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    measuring.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    measuring.add_argument("--set", nargs="*", default=[], dest="settings", help="of comatch")
    measuring.add_argument("--conditions", nargs="+", default=["even"], choices=CONDITIONS)
    for name in TABLES:
        commands.add_parser(name).add_argument("files", type=Path, nargs="+")
    arguments = parser.parse_args()
    if arguments.command == "measure":
        warnings.filterwarnings("ignore", category=UserWarning)  # of small sets
        measure(arguments)
    else:
        print(TABLES[arguments.command](read(arguments.files)))


if __name__ == "__main__":
    main()
