"""What is worth a look among the answers of a classifier: examples, doubts and a map.

Everything here is rows of `Answers`; the page turns them into pictures and tables.
"""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from comatch.commands.report.page.answers import HELD_OUT, LABELLED, NOT_LABELLED, TEST, Answers
from comatch.data.copies import near_pairs
from comatch.evaluation.accuracy import LabelCheck

EACH = 6  # examples of a class, of each kind
LISTED = 30  # labels that may be wrong
PAIRS = 12  # of near-duplicates
NEIGHBOURS = 10
UNKNOWN = 0.05  # an image with a smaller fit may be out-of-distribution
POINTS = 2_000  # on the map: t-SNE takes about ten seconds on two CPU cores
COMPONENTS = 50  # of the features, before t-SNE


class Examples(NamedTuple):
    """Rows of images of one class."""

    number: int  # of the class
    images: int  # that are predicted as it
    surest: list[int]
    least_sure: list[int]
    mistakes: list[int]  # labelled as the class, predicted as another


class Doubt(NamedTuple):
    """A label that something contradicts."""

    name: str
    part: str
    row: int | None  # of the image, if it is among the answers
    label: str
    suggested: str
    share: float  # of the evidence that is for the suggested class


def shown(answers: Answers) -> Tensor:
    """The rows of images whose label the classifier was not trained on: test images, if any."""
    for parts in ((TEST,), (HELD_OUT, NOT_LABELLED), (LABELLED,)):
        if len(rows := answers.rows(*parts)):
            return rows
    return answers.rows()


def examples(answers: Answers, classes: int, most: int) -> list[Examples]:
    """For each of the `most` classes that are predicted most often, some of their images."""
    rows = shown(answers)
    labels, predicted = answers.labels[rows], answers.predicted[rows]
    order = answers.confidence[rows].argsort(descending=True)
    found = []
    for number in range(classes):
        own = rows[order[predicted[order] == number]].tolist()
        wrong = order[(labels[order] == number) & (predicted[order] != number)]
        mistakes = rows[wrong].tolist()[:EACH]
        if own or mistakes:
            least = own[EACH:][-EACH:][::-1]
            found.append(Examples(number, len(own), own[:EACH], least, mistakes))
    return sorted(found, key=lambda one: -one.images)[:most]


def doubtful_labels(answers: Answers, classes: list[str], checks: list[LabelCheck]) -> list[Doubt]:
    """Labels that are contradicted, the strongest contradiction first.

    For a test label by the classifier; for a training label by cross-validation if there are
    checks, and else by the images that are nearest in feature space.
    """
    row = {name: i for i, name in enumerate(answers.names)}
    found = [
        Doubt(one.path, LABELLED, row.get(one.path), one.label, one.predicted, one.probability)
        for one in checks
    ]
    known = answers.rows(TEST, HELD_OUT) if checks else answers.rows(TEST, HELD_OUT, LABELLED)
    evidence = answers.probabilities.clone()
    if not checks and len(trained := answers.rows(LABELLED)):
        evidence[trained] = neighbours_say(answers, trained)
    for i in known[answers.labels[known] >= 0].tolist():
        share, best = evidence[i].max(0)
        one = classes[int(answers.labels[i])], classes[int(best)], float(share)
        found.append(Doubt(answers.names[i], str(answers.parts[i]), i, *one))
    wrong = [one for one in found if one.suggested != one.label and one.share > 0.5]
    return sorted(wrong, key=lambda one: -one.share)


def neighbours_say(answers: Answers, rows: Tensor) -> Tensor:  # [n, C]
    """The mean probabilities of the nearest training images; of a labelled one, its label."""
    others = answers.rows(LABELLED, HELD_OUT, NOT_LABELLED)
    votes = answers.probabilities[others].clone()
    labels = answers.labels[others]
    given = (labels >= 0) & torch.from_numpy(answers.parts[others.numpy()] == LABELLED)
    votes[given] = F.one_hot(labels[given], votes.shape[1]).to(votes.dtype)
    features = F.normalize(answers.features, dim=1)
    similar = features[rows] @ features[others].T
    similar[rows[:, None] == others[None]] = -2.0  # the image itself
    nearest = similar.topk(min(NEIGHBOURS, len(others)), dim=1).indices
    return votes[nearest].mean(1)


def copies(answers: Answers, thumbnails: list[np.ndarray | None]) -> list[tuple[int, int]]:
    """Pairs of images that look nearly the same; those across test and training come first."""
    rows = [i for i, image in enumerate(thumbnails) if image is not None]
    if not rows:
        return []
    images = torch.from_numpy(np.stack([thumbnails[i] for i in rows]))  # type: ignore[misc]
    pairs = [(rows[a], rows[b]) for a, b in near_pairs(images)]
    return sorted(pairs, key=lambda pair: not leaks(answers, pair))


def leaks(answers: Answers, pair: tuple[int, int]) -> bool:
    """Whether one of two images is a test image and the other one is not."""
    return (answers.parts[pair[0]] == TEST) != (answers.parts[pair[1]] == TEST)


def unknown(answers: Answers) -> Tensor:
    """The rows of images that fit no class, the most distant first."""
    rows = answers.rows(TEST, HELD_OUT, NOT_LABELLED)
    if answers.fit is None or answers.distance is None:
        return rows[:0]
    rows = rows[answers.fit[rows] < UNKNOWN]
    return rows[answers.distance[rows].argsort(descending=True)]


def on_the_map(answers: Answers) -> tuple[list[int], np.ndarray, str]:
    """Some rows, their places [n, 2] in the unit square, and the name of the projection."""
    rows = torch.arange(0, len(answers), max(1, -(-len(answers) // POINTS)))
    features = F.normalize(answers.features[rows], dim=1).double().numpy()
    places, name = project(features)
    low, high = places.min(0), places.max(0)
    return rows.tolist(), (places - low) / np.maximum(high - low, 1e-9), name


def project(features: np.ndarray) -> tuple[np.ndarray, str]:  # [n, width] -> [n, 2]
    from sklearn.decomposition import PCA  # slow to import
    from sklearn.manifold import TSNE

    images, width = features.shape
    few = min(images, width)
    if few < 3:
        return np.pad(features[:, :2], ((0, 0), (0, max(0, 2 - width)))), "features"
    small = PCA(min(COMPONENTS, few), random_state=0).fit_transform(features)
    if images < 3 * NEIGHBOURS:
        return small[:, :2], "PCA"
    perplexity = min(30.0, (images - 1) / 3)
    tsne = TSNE(2, perplexity=perplexity, init="pca", random_state=0)
    return tsne.fit_transform(small.astype(np.float32)), "t-SNE"
