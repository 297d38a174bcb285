"""Linear classifiers on what a network makes of pictures: section 4.4, VOC 2007 and Places205.

The network stays as it is. Its features of some pictures of each class, brought to length one,
train a linear SVM for each class; those are asked about the test part. With few pictures a class
the draw matters, so it is repeated.

What the paper leaves open: pictures are drawn class by class, and of a picture with several classes
all are known. The SVM's cost is chosen by cross-validation among the pictures drawn, never by test.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from comatch import comparison
from comatch.config import demand, read_json
from comatch.errors import UserError
from comatch.report import paper, runs
from comatch.training.checkpoint import write_json
from comatch.training.folder import environment
from comatch.transfer import encoders, svm
from comatch.transfer.benchmark import Benchmark, open_benchmark
from comatch.transfer.encoders import Encoder
from comatch.transfer.features import Store, see

ALL = None  # of the pictures of each class
SHOTS = (4, 8, 16, 64, ALL)
COSTS = (0.1, 1.0, 10.0, 100.0, 1_000.0, 10_000.0)
FOLDS = 3


RECORD = "figures.json"
FEATURES = "features"
MADE = "Ours: mean ± sample deviation over n draws of the pictures that are learned from."


@dataclass(frozen=True)
class Figure:
    """One encoder, one draw."""

    encoder: str
    digest: str  # of its weights: others under the same name are another encoder
    shots: int | None
    seed: int
    pictures: int  # that were learned from
    cost: float
    score: float


@dataclass(frozen=True)
class Transfer:
    """All figures of one data set, in a folder."""

    path: Path
    data: str
    digest: str  # of the data
    measure: str
    figures: list[Figure]
    sessions: list[dict[str, Any]]  # in which they were computed

    @property
    def theirs(self) -> dict[str, paper.FewShots]:
        """The paper's figures for these data, if it has some."""
        return paper.TRANSFER.get(self.data.lower(), {})

    def lines(self) -> list[list[str]]:
        """A head, and a line for each of the paper's networks and for each of ours."""
        shots = sorted({figure.shots for figure in self.figures}, key=lambda k: (k is ALL, k))
        ours = dict.fromkeys(figure.encoder for figure in self.figures)
        return [
            [f"{self.measure} %", *map(shots_text, shots)],
            *(
                [f"paper: {name}", *(printed(row.get(k)) for k in shots)]
                for name, row in self.theirs.items()
            ),
            *([name, *(self.text(name, k) for k in shots)] for name in ours),
        ]

    def text(self, encoder: str, shots: int | None) -> str:
        scores = [f.score for f in self.figures if (f.encoder, f.shots) == (encoder, shots)]
        n = f" (n={len(scores)})" if len(scores) > 1 else ""
        return f"{runs.in_per_cent(scores)}{n}"

    def publish(self) -> None:
        """Writes the record, and from it the tables for people and for programs."""
        figures = [asdict(figure) for figure in self.figures]
        record = {
            "data": self.data,
            "digest": self.digest,
            "measure": self.measure,
            "sessions": self.sessions,
            "figures": figures,
        }
        write_json(self.path / RECORD, record)
        title = f"# Linear classifiers on {self.data}, by pictures a class"
        origins = dict.fromkeys(f"- {runs.origin(session)}" for session in self.sessions)
        made = [paper.TRANSFER_MADE] if self.theirs else []
        text = [title, runs.ruled(self.lines()), " ".join([*made, MADE]), "\n".join(origins)]
        texts = {"linear.md": "\n\n".join(text) + "\n", "linear.csv": runs.as_csv(figures)}
        comparison.write_texts(self.path, texts)

    def known(self, encoder: Encoder, shots: int | None, seed: int) -> bool:
        key = (encoder.name, shots, seed)
        return any((f.encoder, f.shots, f.seed) == key for f in self.figures)

    def without(self, encoder: Encoder) -> list[Figure]:
        """The figures without those of other weights that had the same name."""
        digest = encoder.digest()
        return [f for f in self.figures if f.encoder != encoder.name or f.digest == digest]


def read_record(path: Path) -> Transfer:
    """What a folder holds already."""
    record = read_json(path / RECORD)
    try:
        figures = [Figure(**figure) for figure in record.pop("figures")]
        return Transfer(path=path, figures=figures, **record)
    except (KeyError, TypeError, AttributeError):
        raise UserError(f"{path / RECORD} is not the record of a transfer test") from None


# ------------------------------------------------------------------------------------ the story


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
    """Tries the features of each encoder on `data`, with so many pictures a class.

    `names` are run folders, files of weights, timm:NAME.TAG or random. Figures that are in `out`
    already are not computed again, and new ones are added to them.
    """
    demand(bool(names and shots), "name an encoder and a number of pictures at least")
    demand(repeats >= 1, f"repeats={repeats}: must be at least 1")
    demand(all(k is ALL or k >= 1 for k in shots), "a class needs one picture at least")
    encoders.check_there(names)
    like = encoders.like_the_first(names)
    path = Path(out or f"runs/transfer-{Path(data).name}")
    comparison.make_folder(path / FEATURES)
    transfer: Transfer | None = None
    opened: dict[int, Benchmark] = {}
    for name in dict.fromkeys(names):
        encoder = encoders.read(name, like, device)
        if encoder.image_size not in opened:
            home, size = Path(data_dir), encoder.image_size
            opened[size] = open_benchmark(data, home, size, progress)
        benchmark = opened[encoder.image_size]
        transfer = transfer or begin(path, benchmark, encoder)
        transfer = replace(transfer, figures=transfer.without(encoder))
        add(transfer, encoder, benchmark, jobs_for(shots, repeats), progress)
    assert transfer is not None
    return transfer


def begin(path: Path, benchmark: Benchmark, encoder: Encoder) -> Transfer:
    session = environment(encoder.mean.device)
    if not (path / RECORD).exists():
        digest = benchmark.digest()
        return Transfer(path, benchmark.name, digest, benchmark.measure, [], [session])
    transfer = read_record(path)
    if transfer.digest != benchmark.digest():
        raise UserError(
            f"{path} holds figures of {transfer.data} with other pictures or labels: "
            "choose another --out"
        )
    return replace(transfer, sessions=[*transfer.sessions, session])


def jobs_for(shots: Sequence[int | None], repeats: int) -> list[tuple[int | None, int]]:
    """How many pictures a class, and which draw; of all there is one."""
    return [(k, seed) for k in dict.fromkeys(shots) for seed in range(1 if k is ALL else repeats)]


def add(
    transfer: Transfer,
    encoder: Encoder,
    benchmark: Benchmark,
    jobs: Sequence[tuple[int | None, int]],
    progress: bool,
) -> None:
    """Computes the figures of an encoder that are not there yet; each is written at once."""
    digest, where = encoder.digest(), encoder.mean.device
    todo = [
        (k, seed, draw(benchmark, k, seed))
        for k, seed in jobs
        if not transfer.known(encoder, k, seed)
    ]
    if not todo:
        return
    wanted = {"train": torch.cat([rows for *_, rows in todo]).unique()}
    wanted["test"] = torch.arange(len(benchmark.test))
    parts = {"train": benchmark.train, "test": benchmark.test}
    stores = {}
    for part, rows in wanted.items():
        file = transfer.path / FEATURES / f"{digest[:16]}-{part}.safetensors"
        stores[part] = Store(file, f"{digest} {transfer.digest}")
        see(stores[part], encoder, parts[part], rows, progress)
    test_rows, test_x = stores["test"].pick(wanted["test"])
    test_x, test_y = test_x.to(where), benchmark.test_y[test_rows]
    bar = track(
        todo,
        f"learning, {encoder.short}",
        console=Console(stderr=True),
        transient=True,
        disable=not progress,
    )
    for k, seed, rows in bar:
        rows, x = stores["train"].pick(rows)
        x, y = x.to(where), benchmark.train_y[rows].to(where, x.dtype)
        cost = choose_cost(benchmark, x, y, seed)
        (w,) = svm.fit(x, y, [cost])
        score = benchmark.score(svm.decide(test_x, w).cpu(), test_y)
        transfer.figures.append(Figure(encoder.name, digest, k, seed, len(rows), cost, score))
        transfer.publish()


# ------------------------------------------------------------------------------------ the parts


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
                f"class '{name}' of {benchmark.name} has {len(there)} pictures to learn from: "
                f"leave {shots} out of --shots"
            )
        drawn.append(there[torch.randperm(len(there), generator=generator)[:shots]])
    return torch.cat(drawn).unique()


def choose_cost(benchmark: Benchmark, x: Tensor, y: Tensor, seed: int) -> float:
    """The cost that is best at what was held back of these pictures; of equals the least."""
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
    """A fold for each picture; the classes are spread over the folds."""
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    order = order[y[order].argmax(1).argsort(stable=True)]
    part = torch.empty(len(y), dtype=torch.long)
    part[order] = torch.arange(len(y)) % folds
    return part


def shots_text(shots: int | None) -> str:
    return "all" if shots is ALL else str(shots)


def printed(figure: paper.Printed | float | None) -> str:
    return "" if figure is None else f"{figure:.2f}" if isinstance(figure, float) else str(figure)
