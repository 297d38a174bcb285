"""The nearest labelled images by the cosine of their features, by scikit-learn."""

from dataclasses import dataclass

from sklearn.neighbors import KNeighborsClassifier

from comatch.config import MethodConfig, setting
from comatch.methods.estimator import Estimator
from comatch.types import Examples


class Knn(Estimator):
    """Nearest labelled neighbours of scikit-learn: all views of a labelled image are neighbours."""

    linear = False

    @dataclass(frozen=True)
    class Config(MethodConfig):
        method = "knn"
        neighbours: int = setting(10, "k: neighbours that vote, nearer ones more", least=1)

    def estimate(self, examples: Examples) -> KNeighborsClassifier:
        images, views, _ = examples.x.shape
        knn = KNeighborsClassifier(
            min(self.config.neighbours, images * views), weights="distance", metric="cosine"
        )
        return knn.fit(examples.x.flatten(0, 1).cpu(), examples.y.repeat_interleave(views).cpu())
