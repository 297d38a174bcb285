"""Which pictures to label next.

Without labels: typical and diverse ones. As many clusters as pictures are wanted, and of each the
picture with the smallest mean distance to its nearest neighbours (TypiClust, Hacohen et al. 2022).

With labels: uncertain and diverse ones. As many clusters as pictures are wanted, and of each a
picture about which the classifier is least certain; classes with few labels come first.
"""

import warnings
from collections.abc import Sequence

import numpy as np
from sklearn.cluster import KMeans, MiniBatchKMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import silhouette_score
from sklearn.neighbors import NearestNeighbors

NEIGHBOURS = 20  # of a picture, whose mean distance says how typical it is
MANY = 10_000  # pictures from which clusters are computed on batches
COMPONENTS = 64  # principal components in which pictures are compared
MOST_CLUSTERS = 500
LEAST = 5  # pictures of a cluster that is used, while there are larger ones
SAMPLE = 1500  # pictures that the number of groups is estimated from
GROUPS = (2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40)  # numbers that are tried


def clusters(features: np.ndarray, number: int, seed: int = 0) -> np.ndarray:  # [n, k] -> [n]
    number = max(1, min(number, len(features)))
    kind = KMeans if len(features) <= MANY else MiniBatchKMeans
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # copies of a picture are one point
        found: np.ndarray = kind(number, n_init=1, random_state=seed).fit_predict(features)
    return found


def spread(features: np.ndarray) -> np.ndarray:  # [n, k] -> [n]
    """The mean distance of each picture to its nearest neighbours among these."""
    neighbours = min(NEIGHBOURS, len(features) - 1)
    if neighbours < 1:
        return np.zeros(len(features))
    # Brute force is faster than a tree in so many dimensions.
    distances, _ = (
        NearestNeighbors(n_neighbors=neighbours, algorithm="brute").fit(features).kneighbors()
    )
    mean: np.ndarray = distances.mean(1)
    return mean


def typical(
    features: np.ndarray, number: int, taken: Sequence[int] = (), seed: int = 0
) -> list[int]:
    """Rows of typical pictures, in clusters where none is taken yet; the largest cluster first."""
    number = min(number, len(features) - len(taken))
    if number < 1:
        return []
    cluster = clusters(features, min(len(taken) + number, MOST_CLUSTERS), seed)
    size = np.bincount(cluster)
    used = np.bincount(cluster[list(taken)], minlength=len(size))
    free = np.ones(len(features), bool)
    free[list(taken)] = False
    chosen: list[int] = []
    while len(chosen) < number:
        # Least used first, then large before small ones, which are often outliers.
        room = np.bincount(cluster[free], minlength=len(size)) > 0
        order = np.lexsort((-size, used, size < LEAST, ~room))
        here = order[0]
        rows = np.flatnonzero((cluster == here) & free)
        row = int(rows[spread(features[rows]).argmin()])
        chosen.append(row)
        free[row] = False
        used[here] += 1
    return chosen


def uncertain(
    features: np.ndarray,
    probabilities: np.ndarray,  # [n, C] by a classifier
    labels: np.ndarray,  # [n] -1: without
    number: int,
    taken: Sequence[int] = (),
    seed: int = 0,
) -> list[int]:
    """Rows of uncertain pictures, one of each cluster of those that are not taken.

    Those that the classifier takes for a class with few labels come first.
    """
    free = np.ones(len(features), bool)
    free[list(taken)] = False
    rows = np.flatnonzero(free)
    if not len(rows):
        return []
    two = np.sort(probabilities[rows], 1)[:, -2:]
    margin = two[:, -1] - two[:, 0]
    cluster = clusters(features[rows], min(number, MOST_CLUSTERS), seed)
    chosen = []
    for one in np.unique(cluster):
        here = np.flatnonzero(cluster == one)
        distance = spread(features[rows[here]])
        core = here[distance <= np.median(distance)]  # no outliers
        chosen.append(int(core[margin[core].argmin()]))
    count = np.bincount(labels[labels >= 0], minlength=probabilities.shape[1])
    guess = probabilities[rows].argmax(1)
    return [int(rows[i]) for i in sorted(chosen, key=lambda i: (count[guess[i]], margin[i]))]


def groups(features: np.ndarray, seed: int = 0) -> np.ndarray:  # [n, k] -> [n]
    """The group of each picture; their number is the one with the clearest borders."""
    random = np.random.default_rng(seed)
    some = random.permutation(len(features))[:SAMPLE]
    best, number = -2.0, 1
    for tried in GROUPS:
        if tried >= len(some) // 2:
            break
        found = clusters(features[some], tried, seed)
        if len(set(found.tolist())) < 2:
            continue
        score = silhouette_score(features[some], found)
        if score > best:
            best, number = score, tried
    return clusters(features, number, seed)
