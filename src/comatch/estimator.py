"""The classifier as a scikit-learn estimator: `fit`, `predict`, `score`, in pipelines and searches.

    classifier = comatch.Classifier(recipe="digits", steps=200)
    classifier.fit(images, y)          # y is -1 where the class is unknown
    classifier.predict(more_images)

A run folder is made for training and removed afterwards; `save` keeps what it learned.
"""

import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image
from scipy.sparse import issparse
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
)
from sklearn.utils import Tags, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    assert_all_finite,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from comatch import api
from comatch.data.in_memory import Given, class_of, labelled
from comatch.errors import UserError
from comatch.files import make_folder
from comatch.training.run_folder import RunFolder
from comatch.types import UNLABELLED

REFIT = 4  # a refit takes one in so many steps of a fit
WHITE = 255

Result = TypeVar("Result")


class Classifier(
    ClassNamePrefixFeaturesOutMixin,
    ClassifierMixin,
    TransformerMixin,
    BaseEstimator,
):
    """A scikit-learn estimator that learns from few labels.

    X is a list of paths or Pillow images, or an array uint8 [N, H, W, 3] or [N, H, W]. It may also
    be a table [N, pixels]: a row has the pixels of a square image, grey or RGB, and the values that
    `fit` sees are scaled to 0 .. 255. A row of another length is filled up to a square.

    y is -1 or None where the class is unknown. Without such images, the default method is
    `supervised`; else it is the recipe's.
    """

    def __init__(
        self,
        method: str | None = None,
        *,
        recipe: str | None = None,
        init: str | Path | None = None,
        encoder: str | None = None,
        steps: int | None = None,
        settings: dict[str, Any] | None = None,
        device: str = "auto",
        random_state: Any = 0,
        verbose: bool = False,
    ) -> None:
        self.method = method
        self.recipe = recipe
        self.init = init
        self.encoder = encoder
        self.steps = steps
        self.settings = settings
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any) -> "Classifier":  # noqa: N803 - scikit-learn's name
        """Learn from images X and classes y, of which -1 or None is unknown."""
        images, numbers = self._prepare(X, y)
        self._train(images, numbers, init=self.init, steps=self.steps)
        self.fit_steps_ = self.n_iter_
        return self

    def refit(self, X: Any, y: Any, steps: int | None = None) -> "Classifier":  # noqa: N803
        """Learn again after labels were added or corrected, faster than `fit`.

        Training starts from the weights there are, with a quarter of the steps of `fit` unless
        `steps` says otherwise. With a frozen encoder it is the training of `fit`: its features of
        the images are known already.
        """
        check_is_fitted(self)
        known = self.classes_
        images, numbers = self._prepare(X, y)
        if self.description_["frozen"] or not np.array_equal(known, self.classes_):
            self._train(images, numbers, init=self.init, steps=steps or self.steps)
            return self
        with tempfile.TemporaryDirectory() as start:
            self.save(start)
            few = max(1, self.fit_steps_ // REFIT)
            self._train(images, numbers, init=start, steps=steps or few)
        return self

    def predict_proba(self, X: Any) -> np.ndarray:  # noqa: N803
        """The probability [N, C] of each class, in the order of `classes_`."""
        return self._probabilities(self._images(X))

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """The class [N] of each image."""
        best = self.predict_proba(X).argmax(axis=1)
        found: np.ndarray = self.classes_[best]
        return found

    def transform(self, X: Any) -> np.ndarray:  # noqa: N803
        """The features [N, width] of the encoder."""
        images = self._images(X)
        features: np.ndarray = as_value_error(
            lambda: self.trained_.predict(list(images)).features
        ).numpy()
        return features

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:  # noqa: N803
        """The accuracy on those of the images whose class is known."""
        images, labels = self._images(X), Labels(y)
        check_consistent_length(images, labels.values, sample_weight)
        rows = np.flatnonzero(labels.known)
        if not len(rows):
            raise ValueError("no class in y is known: give the classes of some images")
        p = self._probabilities([images[row] for row in rows])
        right = self.classes_[p.argmax(axis=1)] == labels.values[rows]
        weights = None if sample_weight is None else np.asarray(sample_weight)[rows]
        return float(np.average(right, weights=weights))

    def save(self, folder: str | Path) -> None:
        """Write the classifier for `comatch.load` and for predict, export and serve."""
        check_is_fitted(self)
        make_folder(Path(folder))
        RunFolder(Path(folder)).write_model(self.trained_.net, self.description_)

    # ------------------------------------------------------------------------- conversion

    def _prepare(self, X: Any, y: Any) -> tuple[Any, np.ndarray]:  # noqa: N803
        """Images, and the number of the class of each; learns `classes_`."""
        if y is None:
            raise ValueError("Classifier requires y to be passed, but the target y is None")
        images, labels = self._images(X, reset=True), Labels(y)
        check_consistent_length(images, labels.values)
        known = labels.values[labels.known]
        check_classification_targets(known)
        classes = np.unique(known)
        if len(classes) < 2:
            raise ValueError(f"y has one class or none ({classes}): give two or more")
        self.classes_ = classes
        numbers = np.full(len(labels.values), UNLABELLED)
        numbers[labels.known] = np.searchsorted(classes, known)
        return images, numbers

    def _images(self, X: Any, reset: bool = False) -> Any:  # noqa: N803
        """X as a list of images, or as an array of them."""
        if not reset:
            check_is_fitted(self)
        if is_images(X):
            return X if isinstance(X, np.ndarray) and X.ndim > 1 else list(X)
        table = validate_data(self, X, reset=reset, dtype="numeric", ensure_min_samples=1)
        if reset:
            self.range_ = (0, WHITE) if table.dtype == np.uint8 else (table.min(), table.max())
        return rows_as_images(table, *self.range_)

    # --------------------------------------------------------------------------- training

    def _train(
        self, images: Any, numbers: np.ndarray, init: str | Path | None, steps: int | None
    ) -> None:
        items = labelled(images, numbers)._replace(classes=[str(name) for name in self.classes_])
        method = self.method or (None if UNLABELLED in numbers else "supervised")
        seed = self.random_state
        if not isinstance(seed, int):
            seed = int(check_random_state(seed).randint(2**31))
        with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng():
            run = as_value_error(
                lambda: api.train(
                    Given(items),
                    out=Path(folder) / "run",
                    method=method,
                    recipe=self.recipe,
                    init=init,
                    encoder=self.encoder,
                    steps=steps,
                    seed=seed,
                    device=self.device,
                    settings=self.settings or {},
                    progress=self.verbose,
                )
            )
            self.description_ = RunFolder(run.path).description()
            self.trained_ = api.load(run, self.device)
        self.n_iter_ = run.summary["steps"]
        self._n_features_out = self.trained_.net.classifier.in_features

    def _probabilities(self, images: Any) -> np.ndarray:
        p = as_value_error(lambda: self.trained_.predict(list(images)).probabilities).double()
        normalised: np.ndarray = (p / p.sum(dim=1, keepdim=True)).numpy()
        return normalised

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.input_tags.string = True  # paths
        tags.transformer_tags.preserves_dtype = []  # features are float32
        # A network learns from crops and from mirrored images, which a table of numbers has not.
        tags.classifier_tags.poor_score = True
        return tags


class Labels:
    """The classes of images, and whether each is known."""

    def __init__(self, y: Any) -> None:
        self.values: np.ndarray = column_or_1d(y, warn=True)
        if self.values.dtype.kind == "f":
            assert_all_finite(self.values, input_name="y")
        self.known = np.array([class_of(label, None) is not None for label in self.values], bool)


def is_images(X: Any) -> bool:  # noqa: N803
    """Whether X has paths, Pillow images or arrays of pixels, and not rows of numbers."""
    if isinstance(X, np.ndarray) and X.ndim > 1:
        return X.ndim > 2
    if issparse(X) or not hasattr(X, "__len__") or hasattr(X, "columns") or not len(X):
        return False
    first = next(iter(X))
    return isinstance(first, str | Path | Image.Image) or getattr(first, "ndim", 1) > 1


def rows_as_images(table: np.ndarray, low: float, high: float) -> np.ndarray:
    """Rows of pixels as images uint8 [N, S, S] or [N, S, S, 3]; `low` is black and `high` white."""
    scale = WHITE / (high - low) if high > low else 0.0
    pixels = np.round((table.astype(np.float64) - low) * scale).clip(0, WHITE).astype(np.uint8)
    count, width = pixels.shape
    if width % 3 == 0 and math.isqrt(width // 3) ** 2 == width // 3:
        side = math.isqrt(width // 3)
        return pixels.reshape(count, side, side, 3)
    side = math.isqrt(width - 1) + 1
    filled = np.pad(pixels, ((0, 0), (0, side**2 - width)))
    return filled.reshape(count, side, side)


def as_value_error(work: Callable[[], Result]) -> Result:
    """The result of `work`; what is wrong with its input is a ValueError, as in scikit-learn."""
    try:
        return work()
    except UserError as error:
        raise ValueError(str(error)) from error
