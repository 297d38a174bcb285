"""Label spreading over a graph of nearest neighbours (Zhou et al., 2003), by scikit-learn.

The graph has the plain views of all training images, by the cosine of their features. A new image
has the mean label of its neighbours.
"""

from dataclasses import dataclass
from typing import Any

from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer
from sklearn.semi_supervised import LabelSpreading as Spreading

from comatch.config import MethodConfig, setting
from comatch.methods.estimator import Estimator, with_unlabelled
from comatch.types import Examples


class LabelSpreading(Estimator):
    """Label spreading of scikit-learn over all training images."""

    linear = False

    @dataclass(frozen=True)
    class Config(MethodConfig):
        method = "label_spreading"
        neighbours: int = setting(15, "neighbours of each image in the graph", least=1)
        alpha: float = setting(
            0.8, "how far labels spread; near 1: through the whole graph", above=0, below=1
        )

    def estimate(self, examples: Examples) -> Any:
        features, labels = with_unlabelled(examples)
        neighbours = min(self.config.neighbours, len(labels))
        spreading = Spreading(
            kernel="knn", n_neighbors=neighbours, alpha=self.config.alpha, max_iter=200
        )
        return make_pipeline(Normalizer(), spreading).fit(features, labels)
