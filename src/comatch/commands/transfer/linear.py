"""Linear classifiers on features of a trained encoder: VOC 2007 and Places205 (section 4.4).

The encoder is not trained any more. Its features, scaled to length one, train a linear SVM for each
class on some images a class, and the SVMs are evaluated on the test part. With few images the
result depends on which are drawn, so it is repeated with several draws.

The paper leaves two things open. Here the images are drawn class by class, and all labels of an
image that shows several classes are used. The cost of the SVM is chosen by cross-validation on the
drawn images, never on the test part.

The paper refers to PCL (Li et al., 2021) for VOC 2007. Protocol `pcl` follows it in three points:
images of a class count twice in the SVM, those in which the class is hard to see count as images
without it, and average precision is interpolated. The default protocol does none of this.
"""

import hashlib
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from comatch import files
from comatch.commands.transfer import svm
from comatch.commands.transfer.benchmark import PCL, STRICT, VOC, Benchmark, open_benchmark
from comatch.commands.transfer.encoders import (
    Encoder,
    check_exist,
    default_description,
    load_encoder,
)
from comatch.commands.transfer.features import Store, encode
from comatch.commands.transfer.record import ALL, Record, Result, read_record
from comatch.config import check_name, require
from comatch.errors import UserError
from comatch.files import write_json
from comatch.tables import to_csv
from comatch.training.environment import environment
from comatch.training.progress import watched
from comatch.types import Part

SHOTS = (4, 8, 16, 64, ALL)
COSTS = (0.1, 1.0, 10.0, 100.0, 1_000.0, 10_000.0)
FOLDS = 3
RECORD, FEATURES = "figures.json", "features"  # in the output folder
RULES = f"1: {COSTS} {FOLDS}"  # results of other rules must not be in the same record
MOST_BYTES = 16 * 10**9  # of features


@dataclass(frozen=True)
class LinearTest:
    """What to evaluate, and how."""

    data: str  # voc2007, a named data set, or a folder of images
    encoders: Sequence[str]  # run folders, files of weights, timm:NAME.TAG or random
    shots: Sequence[int | None] = SHOTS  # training images a class; None: all
    repeats: int = 5  # draws of the training images
    protocol: str = STRICT  # of VOC 2007
    data_dir: str | Path = "data"
    out: str | Path | None = None  # default: a folder in runs, named after the data
    device: str = "auto"
    progress: bool = True

    def __post_init__(self) -> None:
        require(bool(self.encoders and self.shots), "name an encoder and a number of images")
        require(self.repeats >= 1, f"repeats={self.repeats}: must be at least 1")
        holds = all(k is ALL or k >= 1 for k in self.shots)
        require(holds, "--shots: each number of images must be at least 1")
        check_name(self.protocol, (STRICT, PCL), "protocol")
        only_voc = self.protocol == STRICT or self.data == VOC
        require(only_voc, f"--protocol {self.protocol} is for {VOC}, not for {self.data}")

    @property
    def folder(self) -> Path:
        protocol = "" if self.protocol == STRICT else f"-{self.protocol}"
        return Path(self.out or Path("runs") / f"transfer-{Path(self.data).name}{protocol}")

    def jobs(self) -> list[tuple[int | None, int]]:
        """The number of images a class and the seed of each draw; all images are one draw."""
        return [
            (shots, seed)
            for shots in dict.fromkeys(self.shots)
            for seed in range(1 if shots is ALL else self.repeats)
        ]


def linear(test: LinearTest) -> Record:
    """Evaluate each encoder on the data.

    Results that the output folder has are not computed again, and new ones are added to them.
    """
    check_exist(test.encoders)
    default = default_description(test.encoders)
    files.make_folder(test.folder / FEATURES)
    record: Record | None = None
    opened: dict[int, Benchmark] = {}
    for name in dict.fromkeys(test.encoders):
        encoder = load_encoder(name, default, test.device)
        size = encoder.image_size
        if size not in opened:
            home = Path(test.data_dir)
            opened[size] = open_benchmark(test.data, home, size, test.progress, test.protocol)
        trial = Trial(test.folder, encoder, opened[size], test.progress)
        record = trial.run(record or open_record(trial), test.jobs())
    assert record is not None
    return record


class Trial:
    """One encoder on one benchmark."""

    def __init__(self, path: Path, encoder: Encoder, benchmark: Benchmark, progress: bool) -> None:
        self.path, self.encoder, self.benchmark = path, encoder, benchmark
        self.progress = progress
        self.digest, self.device = encoder.digest(), encoder.mean.device

    def run(self, record: Record, jobs: Sequence[tuple[int | None, int]]) -> Record:
        """Add the missing results. Each is written at once."""
        name, benchmark = self.encoder.name, self.benchmark
        record = self.drop_outdated(record)
        todo = [(k, seed) for k, seed in jobs if not record.has(name, k, seed)]
        if not todo:
            return record
        draws = [draw(benchmark, k, seed) for k, seed in todo]
        self.check_size(max(map(len, draws)))
        train = self.encode("train", benchmark.train, torch.cat(draws).unique())
        every = torch.arange(len(benchmark.test))
        test_rows, test_x = self.encode("test", benchmark.test, every).get(every)
        test_x, test_y = test_x.to(self.device), benchmark.test_y[test_rows]
        jobs_and_rows = list(zip(todo, draws, strict=True))
        title = f"fitting, {self.encoder.short_name}"
        for (k, seed), rows in watched(jobs_and_rows, title, len(todo), self.progress):
            rows, x = train.get(rows)
            x, y = x.to(self.device), benchmark.train_y[rows].to(self.device, x.dtype)
            cost = choose_cost(benchmark, x, y, seed)
            (w,) = svm.fit(x, y, [cost], positive_weight=benchmark.positive_weight)
            score = benchmark.score(svm.decide(test_x, w).cpu(), test_y)
            sizes = len(rows), len(test_rows)
            record.figures.append(Result(name, self.digest, k, seed, cost, score, *sizes))
            write(self.path, record)
        return record

    def drop_outdated(self, record: Record) -> Record:
        """The record without the results of other weights that had the same name."""
        name = self.encoder.name
        kept = [r for r in record.figures if r.encoder != name or r.digest == self.digest]
        if dropped := len(record.figures) - len(kept):
            warnings.warn(f"{name} has changed: {dropped} results are dropped", stacklevel=2)
        return replace(record, figures=kept)

    def check_size(self, images: int) -> None:
        """Raise an error if the features of so many images do not fit into memory."""
        size = 8 * images * self.encoder.net.classifier.in_features
        require(
            size <= MOST_BYTES,
            f"the features of {images:,} images are {size / 1e9:.0f} GB, too much for an SVM: "
            "leave all out of --shots",
        )

    def encode(self, part: str, images: Part, rows: Tensor) -> Store:
        path = self.path / FEATURES / f"{self.digest[:16]}-{part}.safetensors"
        store = Store(path, f"{self.digest} {self.benchmark.digest}")
        encode(store, self.encoder, images, rows, self.progress)
        return store


def open_record(trial: Trial) -> Record:
    """The record in the output folder or a new one, with an entry for this session."""
    path, benchmark, session = trial.path, trial.benchmark, environment(trial.device)
    rules = RULES if benchmark.protocol == STRICT else f"{RULES} {benchmark.protocol}"
    digest = hashlib.sha256(f"{benchmark.digest} {rules}".encode()).hexdigest()
    if not (path / RECORD).exists():
        return Record(benchmark.name, digest, benchmark.measure, [session], [])
    record = read_record(path / RECORD)
    require(
        record.digest == digest,
        f"{path} holds results on {record.data} with other images, labels or rules: choose "
        "another --out",
    )
    return replace(record, sessions=[*record.sessions, session])


def write(path: Path, record: Record) -> None:
    """Write the record, and from it the tables as Markdown and CSV."""
    content = record.to_json()
    write_json(path / RECORD, content)
    texts = {"linear.md": record.markdown(), "linear.csv": to_csv(content["figures"])}
    files.write_texts(path, texts)


# ----------------------------------------------------------------------- draws, folds and costs


def draw(benchmark: Benchmark, shots: int | None, seed: int) -> Tensor:
    """Rows of the training part: this number of each class, in order, each row once."""
    y = benchmark.train_y
    if shots is ALL:
        return torch.arange(len(y))
    generator = torch.Generator().manual_seed(seed)
    drawn = []
    for name, column in zip(benchmark.classes, y.T, strict=True):
        rows = (column > 0).nonzero()[:, 0]
        if len(rows) < shots:
            raise UserError(
                f"class '{name}' of {benchmark.name} has {len(rows)} training images: "
                f"leave {shots} out of --shots"
            )
        drawn.append(rows[torch.randperm(len(rows), generator=generator)[:shots]])
    return torch.cat(drawn).unique()


def choose_cost(benchmark: Benchmark, x: Tensor, y: Tensor, seed: int) -> float:
    """The cost with the best score in cross-validation; of equal scores the smallest cost."""
    folds = min(FOLDS, int((y > 0).sum(0).min()))
    if folds < 2:
        return 1.0
    fold_of = make_folds(y.cpu(), folds, seed).to(x.device)
    scores = dict.fromkeys(COSTS, 0.0)
    for fold in range(folds):
        rest, held_out = fold_of != fold, fold_of == fold
        found = svm.fit(x[rest], y[rest], COSTS, positive_weight=benchmark.positive_weight)
        for cost, w in zip(COSTS, found, strict=True):
            decisions = svm.decide(x[held_out], w).cpu()
            scores[cost] += benchmark.score(decisions, y[held_out].cpu())
    return max(COSTS, key=lambda cost: (round(scores[cost], 9), -cost))


def make_folds(y: Tensor, folds: int, seed: int) -> Tensor:  # [n]
    """The fold of each image; every class is spread over the folds."""
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    order = order[y[order].argmax(1).argsort(stable=True)]
    fold_of = torch.empty(len(y), dtype=torch.long)
    fold_of[order] = torch.arange(len(y)) % folds
    return fold_of
