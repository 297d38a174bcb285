"""Linear classifiers on what a network makes of images: section 4.4, VOC 2007 and Places205.

The network stays as it is. Its features of some images of each class, brought to length one,
train a linear SVM for each class; those are asked about the test part. With few images a class
the draw matters, so it is repeated.

What the paper leaves open: images are drawn class by class, and of an image with several classes
all are known. The SVM's cost is chosen by cross-validation among the images drawn, never by test.
"""

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from comatch import files
from comatch.commands.report import runs
from comatch.commands.transfer import encoders, svm
from comatch.commands.transfer import record as transfers
from comatch.commands.transfer.benchmark import Benchmark, open_benchmark
from comatch.commands.transfer.encoders import Encoder
from comatch.commands.transfer.features import Store, see
from comatch.commands.transfer.record import ALL, Figure, Transfer
from comatch.config import require
from comatch.errors import UserError
from comatch.files import write_json
from comatch.training.progress import watched
from comatch.training.run_folder import environment
from comatch.types import Part

SHOTS = (4, 8, 16, 64, ALL)
COSTS = (0.1, 1.0, 10.0, 100.0, 1_000.0, 10_000.0)
FOLDS = 3
RECORD, FEATURES = "figures.json", "features"  # in the folder
RULES = f"1: {COSTS} {FOLDS}"  # by which figures are made: others are not to be mixed with them
MOST_BYTES = 16 * 10**9  # of features


def linear(
    data: str,
    names: Sequence[str],
    *,
    shots: Sequence[int | None] = SHOTS,
    repeats: int = 5,
    data_dir: str | Path = "data",
    out: str | Path | None = None,
    device: str = "auto",
    progress: bool = True,
) -> Transfer:
    """Tries the features of each encoder on `data`, with so many images a class.

    `names` are run folders, files of weights, timm:NAME.TAG or random. Figures that are in `out`
    already are not computed again, and new ones are added to them.
    """
    require(bool(names and shots), "name an encoder and a number of images at least")
    require(repeats >= 1, f"repeats={repeats}: must be at least 1")
    require(all(k is ALL or k >= 1 for k in shots), "a class needs one image at least")
    encoders.check_there(names)
    like = encoders.like_the_first(names)
    path = Path(out) if out else default_folder(data)
    files.make_folder(path / FEATURES)
    found: Transfer | None = None
    opened: dict[int, Benchmark] = {}
    for name in dict.fromkeys(names):
        encoder = encoders.read(name, like, device)
        size = encoder.image_size
        if size not in opened:
            opened[size] = open_benchmark(data, Path(data_dir), size, progress)
        trial = Trial(path, encoder, opened[size], progress)
        found = trial.run(found or begin(path, trial), jobs_for(shots, repeats))
    assert found is not None
    return found


def default_folder(data: str) -> Path:
    return Path("runs") / f"transfer-{Path(data).name}"


def jobs_for(shots: Sequence[int | None], repeats: int) -> list[tuple[int | None, int]]:
    """How many images a class, and which draw; of all there is one."""
    return [(k, seed) for k in dict.fromkeys(shots) for seed in range(1 if k is ALL else repeats)]


class Trial:
    """One encoder on one benchmark, and the features that were computed of it."""

    def __init__(self, path: Path, encoder: Encoder, benchmark: Benchmark, progress: bool) -> None:
        self.path, self.encoder, self.benchmark = path, encoder, benchmark
        self.progress = progress
        self.digest, self.where = encoder.digest(), encoder.mean.device
        self.key = f"{self.digest} {benchmark.digest}"

    def run(self, found: Transfer, jobs: Sequence[tuple[int | None, int]]) -> Transfer:
        """Adds the figures that are not there yet; each is written at once."""
        name, benchmark = self.encoder.name, self.benchmark
        found = self.without_others(found)
        todo = [(k, seed) for k, seed in jobs if not found.known(name, k, seed)]
        if not todo:
            return found
        draws = [draw(benchmark, k, seed) for k, seed in todo]
        self.check_size(max(map(len, draws)))
        train = self.look("train", benchmark.train, torch.cat(draws).unique())
        every = torch.arange(len(benchmark.test))
        test_rows, test_x = self.look("test", benchmark.test, every).pick(every)
        test_x, test_y = test_x.to(self.where), benchmark.test_y[test_rows]
        jobs_and_rows = list(zip(todo, draws, strict=True))
        title = f"learning, {self.encoder.short}"
        for (k, seed), rows in watched(jobs_and_rows, title, len(todo), self.progress):
            rows, x = train.pick(rows)
            x, y = x.to(self.where), benchmark.train_y[rows].to(self.where, x.dtype)
            cost = choose_cost(benchmark, x, y, seed)
            (w,) = svm.fit(x, y, [cost])
            score = benchmark.score(svm.decide(test_x, w).cpu(), test_y)
            sizes = len(rows), len(test_rows)
            found.figures.append(Figure(name, self.digest, k, seed, cost, score, *sizes))
            publish(self.path, found)
        return found

    def without_others(self, found: Transfer) -> Transfer:
        """Other weights that had the same name are gone, and their figures with them."""
        name = self.encoder.name
        kept = [f for f in found.figures if f.encoder != name or f.digest == self.digest]
        if gone := len(found.figures) - len(kept):
            warnings.warn(f"{name} is not what it was: {gone} figures are dropped", stacklevel=2)
        return replace(found, figures=kept)

    def check_size(self, images: int) -> None:
        """Of so many images, the features are held in memory several times over."""
        size = 8 * images * self.encoder.net.classifier.in_features
        require(
            size <= MOST_BYTES,
            f"the features of {images:,} images are {size / 1e9:.0f} GB, too much for an SVM: "
            "leave all out of --shots",
        )

    def look(self, part: str, images: Part, rows: Tensor) -> Store:
        store = Store(self.path / FEATURES / f"{self.digest[:16]}-{part}.safetensors", self.key)
        see(store, self.encoder, images, rows, self.progress)
        return store


def begin(path: Path, trial: Trial) -> Transfer:
    """What the folder holds already, and this session."""
    benchmark, session = trial.benchmark, environment(trial.where)
    digest = hashlib.sha256(f"{benchmark.digest} {RULES}".encode()).hexdigest()
    if not (path / RECORD).exists():
        return Transfer(benchmark.name, digest, benchmark.measure, [session], [])
    found = transfers.read(path / RECORD)
    require(
        found.digest == digest,
        f"{path} holds figures of {found.data} with other images, labels or rules: choose "
        "another --out",
    )
    return replace(found, sessions=[*found.sessions, session])


def publish(path: Path, found: Transfer) -> None:
    """Writes the record, and from it the tables for people and for programs."""
    record = found.to_json()
    write_json(path / RECORD, record)
    texts = {"linear.md": found.page(), "linear.csv": runs.as_csv(record["figures"])}
    files.write_texts(path, texts)


# ----------------------------------------------------------------------- draws, folds and costs


def draw(benchmark: Benchmark, shots: int | None, seed: int) -> Tensor:
    """Rows of the training part: so many of each class, in order, each once."""
    y = benchmark.train_y
    if shots is ALL:
        return torch.arange(len(y))
    generator = torch.Generator().manual_seed(seed)
    drawn = []
    for name, column in zip(benchmark.classes, y.T, strict=True):
        there = (column > 0).nonzero()[:, 0]
        if len(there) < shots:
            raise UserError(
                f"class '{name}' of {benchmark.name} has {len(there)} images to learn from: "
                f"leave {shots} out of --shots"
            )
        drawn.append(there[torch.randperm(len(there), generator=generator)[:shots]])
    return torch.cat(drawn).unique()


def choose_cost(benchmark: Benchmark, x: Tensor, y: Tensor, seed: int) -> float:
    """The cost that is best at what was held back of these images; of equals the least."""
    folds = min(FOLDS, int((y > 0).sum(0).min()))
    if folds < 2:
        return 1.0
    part = deal(y.cpu(), folds, seed).to(x.device)
    scores = dict.fromkeys(COSTS, 0.0)
    for fold in range(folds):
        rest, held = part != fold, part == fold
        for cost, w in zip(COSTS, svm.fit(x[rest], y[rest], COSTS), strict=True):
            scores[cost] += benchmark.score(svm.decide(x[held], w).cpu(), y[held].cpu())
    return max(COSTS, key=lambda cost: (round(scores[cost], 9), -cost))


def deal(y: Tensor, folds: int, seed: int) -> Tensor:  # [n]
    """A fold for each image; the classes are spread over the folds."""
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    order = order[y[order].argmax(1).argsort(stable=True)]
    part = torch.empty(len(y), dtype=torch.long)
    part[order] = torch.arange(len(y)) % folds
    return part
