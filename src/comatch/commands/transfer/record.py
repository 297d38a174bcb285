"""Results of `comatch transfer linear` as a table: the paper's encoders and ours."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from comatch.commands.reproduce import paper
from comatch.errors import UserError
from comatch.files import read_json
from comatch.tables import in_per_cent, origin, to_markdown

ALL = None  # images of each class
MEAN_AP = "mean average precision"
PCL_AP = "mean average precision (protocol of PCL)"
OURS = "Ours: mean ± sample deviation over n draws of the training images."


@dataclass(frozen=True)
class Result:
    """The score of one encoder with one draw of the training images."""

    encoder: str
    digest: str  # of the encoder, which tells other weights under the same name apart
    shots: int | None
    seed: int
    cost: float
    score: float
    images: int  # training images
    tested: int | None = None  # test images; not recorded by the first version


@dataclass(frozen=True)
class Record:
    """All results on one data set. Its fields are the keys of the JSON file."""

    data: str
    digest: str  # of the data and of the rules by which results are computed
    measure: str
    sessions: list[dict[str, Any]]  # in which the results were computed
    figures: list[Result]

    @property
    def published(self) -> dict[str, paper.FewShots]:
        """The paper's figures for these data, if it has some of the same measure."""
        name = self.data.lower()
        same = self.measure in (("accuracy",) if name == "places205" else (MEAN_AP, PCL_AP))
        return paper.TRANSFER.get(name, {}) if same else {}

    def lines(self) -> list[list[str]]:
        """The table: its head, and a line for each of the paper's encoders and of ours."""
        shots = sorted({result.shots for result in self.figures}, key=lambda k: (k is ALL, k))
        ours = dict.fromkeys(result.encoder for result in self.figures)
        return [
            [f"{self.measure} %", *map(shots_text, shots)],
            *(
                [f"paper: {name}", *(figure_text(row.get(k)) for k in shots)]
                for name, row in self.published.items()
            ),
            *([name, *(self.text(name, k) for k in shots)] for name in ours),
        ]

    def text(self, encoder: str, shots: int | None) -> str:
        scores = [r.score for r in self.figures if (r.encoder, r.shots) == (encoder, shots)]
        n = f" (n={len(scores)})" if len(scores) > 1 else ""
        return f"{in_per_cent(scores)}{n}"

    def markdown(self) -> str:
        """The table, and how it was made."""
        title = f"# Linear classifiers on {self.data}, by images a class"
        origins = dict.fromkeys(f"- {origin(session)}" for session in self.sessions)
        made = [paper.TRANSFER_MADE] if self.published else []
        text = [title, to_markdown(self.lines()), " ".join([*made, OURS]), "\n".join(origins)]
        return "\n\n".join(text) + "\n"

    def has(self, encoder: str, shots: int | None, seed: int) -> bool:
        key = (encoder, shots, seed)
        return any((r.encoder, r.shots, r.seed) == key for r in self.figures)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def is_record(path: Path) -> bool:
    content = read_json(path)
    return isinstance(content, dict) and "figures" in content


def read_record(path: Path) -> Record:
    content = read_json(path)
    try:
        results = [Result(**result) for result in content.pop("figures")]
        return Record(figures=results, **content)
    except (KeyError, TypeError, AttributeError):
        raise UserError(f"{path} is not a record of comatch transfer linear") from None


def shots_text(shots: int | None) -> str:
    return "all" if shots is ALL else str(shots)


def figure_text(figure: paper.Printed | float | None) -> str:
    return "" if figure is None else f"{figure:.2f}" if isinstance(figure, float) else str(figure)
