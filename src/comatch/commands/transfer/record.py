"""What `comatch transfer linear` found, as a table: the paper's networks and ours."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from comatch.commands.report import runs
from comatch.commands.reproduce import paper
from comatch.errors import UserError
from comatch.files import read_json

ALL = None  # of the images of each class
MEAN_AP = "mean average precision"
MADE = "Ours: mean ± sample deviation over n draws of the images that are learned from."


@dataclass(frozen=True)
class Figure:
    """One encoder, one draw."""

    encoder: str
    digest: str  # of its weights: others under the same name are another encoder
    shots: int | None
    seed: int
    cost: float
    score: float
    images: int  # that were learned from
    tested: int | None = None  # that were asked about; not written down at first


@dataclass(frozen=True)
class Transfer:
    """All figures of one data set."""

    data: str
    digest: str  # of the data
    measure: str
    sessions: list[dict[str, Any]]  # in which the figures were computed
    figures: list[Figure]

    @property
    def theirs(self) -> dict[str, paper.FewShots]:
        """The paper's figures for these data, if it has some and ours measure the same."""
        name = self.data.lower()
        same = self.measure == ("accuracy" if name == "places205" else MEAN_AP)
        return paper.TRANSFER.get(name, {}) if same else {}

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

    def page(self) -> str:
        """The table in Markdown, and how it was made."""
        title = f"# Linear classifiers on {self.data}, by images a class"
        origins = dict.fromkeys(f"- {runs.origin(session)}" for session in self.sessions)
        made = [paper.TRANSFER_MADE] if self.theirs else []
        text = [title, runs.ruled(self.lines()), " ".join([*made, MADE]), "\n".join(origins)]
        return "\n\n".join(text) + "\n"

    def known(self, encoder: str, shots: int | None, seed: int) -> bool:
        key = (encoder, shots, seed)
        return any((f.encoder, f.shots, f.seed) == key for f in self.figures)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def is_record(path: Path) -> bool:
    record = read_json(path)
    return isinstance(record, dict) and "figures" in record


def read(path: Path) -> Transfer:
    record = read_json(path)
    try:
        figures = [Figure(**figure) for figure in record.pop("figures")]
        return Transfer(figures=figures, **record)
    except (KeyError, TypeError, AttributeError):
        raise UserError(f"{path} is not the record of a transfer test") from None


def shots_text(shots: int | None) -> str:
    return "all" if shots is ALL else str(shots)


def printed(figure: paper.Printed | float | None) -> str:
    return "" if figure is None else f"{figure:.2f}" if isinstance(figure, float) else str(figure)
