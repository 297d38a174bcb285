"""Features of the plain view of each picture, from the cache or encoded now."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from comatch import recipes
from comatch.data import views
from comatch.data.features import Encoder, Features
from comatch.errors import UserError
from comatch.planning import Request, plan
from comatch.projection import Projection
from comatch.training.build import feature_encoder
from comatch.training.recipe import Recipe
from comatch.types import UNLABELLED, Dataset, Files

COMPONENTS = 256  # principal components that are kept
FITTED = 10_000  # pictures that the components are fitted to
CHUNK = 1000  # pictures whose digests are computed together


def recipe_for(
    folder: Path, encoder: str | None, init: str | Path | None, device: torch.device
) -> Recipe:
    """The recipe with the encoder of this name and with these weights, or with the default one."""
    named = None if encoder or not init else recipes.ENCODED
    recipe = plan(Request(folder, encoder=encoder, init=init, recipe=named), device)
    if not recipe.model.frozen:
        raise UserError(
            "images are compared by a pre-trained encoder, and none can be downloaded here: "
            "give its name and a file of its weights, --encoder NAME --init FILE"
        )
    return recipe


def encoder_of(recipe: Recipe, folder: Path, names: Sequence[str], device: torch.device) -> Encoder:
    pictures = Dataset(folder.name, [], files_of(folder, names))
    return feature_encoder(recipe, pictures, device)


def files_of(folder: Path, names: Sequence[str]) -> Files:
    return Files(folder, torch.full((len(names),), UNLABELLED), list(names))


class Found(NamedTuple):
    """Features of some pictures; `bad` has those that cannot be read, and why."""

    rows: list[int]
    features: np.ndarray  # [n, width] float16
    bad: dict[int, str]
    done: int  # pictures that are new in this chunk


def plain_features(
    root: Path, names: Sequence[str], rows: Sequence[int], encoder: Encoder
) -> Iterator[Found]:
    """The features of these rows of `names`, in their order and in chunks, as they are computed.

    An empty chunk with the number of pictures done comes in between.
    """
    encode = None
    for begin in range(0, len(rows), CHUNK):
        some = list(rows[begin : begin + CHUNK])
        part = Features(files_of(root, [names[row] for row in some]), encoder)
        missing = part.missing([views.PLAIN])
        nothing = np.empty((0, encoder.width), np.float16)
        if missing:
            encode = encode or encoder.load()
            for done in part.encode(missing, [views.PLAIN], encode):
                yield Found([], nothing, {}, done)
        features, there = part.read(views.PLAIN)
        good = np.flatnonzero(there).tolist()
        bad = {row: part.bad.get(i, "cannot be read") for i, row in enumerate(some) if not there[i]}
        yield Found([some[i] for i in good], features[there], bad, len(some) - len(missing))


def compressed(features: np.ndarray) -> np.ndarray:  # [n, width] -> [n, k] float32
    """Principal components of features of length one, the largest first."""
    step = max(1, len(features) // FITTED)
    few = torch.from_numpy(features[::step])
    projection = Projection(few.shape[1], min(COMPONENTS, *few.shape))
    projection.fit(few, few)
    pieces = torch.from_numpy(features).split(FITTED)
    return torch.cat([projection(piece.float()) for piece in pieces]).numpy()
