"""Features of the plain view of each picture, from the cache or encoded now."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from comatch import recipes
from comatch.config import replace
from comatch.data import views
from comatch.data.features import Encoder, Features
from comatch.nets.engine import Engine
from comatch.nets.network import width_of
from comatch.planning import absolute_weights, complete
from comatch.projection import Projection
from comatch.training.build import build_encoder_for, identity, net_of
from comatch.training.init_weights import load_initial
from comatch.types import UNLABELLED, Files

COMPONENTS = 256  # principal components that are kept
FITTED = 10_000  # pictures that the components are fitted to
CHUNK = 1000  # pictures whose digests are computed together


def encoder_of(init: str | None, device: torch.device) -> Encoder:
    """The encoder of the recipe `photos`, with these weights or with the recipe's."""
    recipe = replace(recipes.get("photos"), data="pictures")
    given = {"init": absolute_weights(init)} if init else {}
    recipe = complete(replace(recipe, **given), given)
    size, mean, std = recipe.dataset.image_size, recipe.dataset.mean, recipe.dataset.std
    assert mean is not None  # these weights have theirs
    assert std is not None
    net = build_encoder_for(recipe)
    load_initial(net_of(net), recipe.model, size, [])
    channels = torch.tensor(mean), torch.tensor(std)
    return Encoder(
        f"{recipe.model.net}-{size}px-{identity(net, *channels)}",
        width_of(net),
        size,
        lambda: Engine(net, *channels, size, device),
    )


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
        unknown = torch.full((len(some),), UNLABELLED)
        part = Features(Files(root, unknown, [names[row] for row in some]), encoder)
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
