"""Accuracy of a published checkpoint, without training: is a file as accurate as the paper says?

The file must have the encoder of the recipe's network and a classifier for the classes of the data,
in the order of their names. The authors' files for ImageNet have both.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from comatch import evaluation
from comatch.commands.reproduce import paper
from comatch.data.streaming import in_pieces
from comatch.device import choose_device
from comatch.errors import UserError, shortened
from comatch.evaluation import Scores
from comatch.nets import Network, build_encoder, pretrained
from comatch.nets.pretrained import Loaded
from comatch.planning import Request, load_dataset, plan
from comatch.training.build import normalisation
from comatch.training.init_weights import check_exists
from comatch.training.recipe import Recipe

TABLE = {"imagenet-1pct": 1, "imagenet-10pct": 10}  # per cent of the labels, in the paper's table


@dataclass(frozen=True)
class Checkpoint:
    """A file of weights, what was loaded from it, and its accuracy on the test part."""

    recipe: Recipe
    loaded: Loaded
    scores: Scores

    @property
    def published(self) -> paper.Tops | None:
        """The paper's accuracy of CoMatch for the recipe, if it has one."""
        share = TABLE.get(self.recipe.name)
        return None if share is None else paper.TABLE2[share]["", "comatch_momentum"]


def evaluate_checkpoint(file: str, request: Request) -> Checkpoint:
    """Evaluate a file of weights on the test part of the request's data.

    The request's recipe decides network, image size and normalisation.
    """
    check_exists(file)
    weights = pretrained.read_file(Path(file))
    device = choose_device(request.device)
    recipe = plan(request, device)
    home = Path(request.data_dir or "data")
    dataset = load_dataset(recipe.reading, home, request.progress)
    if dataset.test is None:
        raise UserError(f"{dataset.name} has no test part to evaluate {file} on")
    model, size = recipe.model, recipe.dataset.image_size
    width = getattr(recipe.method, "embedding_dim", 0)
    encoder = build_encoder(model.net, size, model.stem)
    net = Network(encoder, len(dataset.classes), width, model.head_activation)
    loaded = pretrained.fill(net, weights, file, classifier=True)
    require_classifier(loaded)
    net.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    mean, std = (value.to(device) for value in normalisation(recipe, dataset))

    def predict(images: Tensor) -> Tensor:
        return evaluation.probabilities(net, images, mean, std)

    workers = recipe.streaming.workers
    found = evaluation.evaluate(
        dataset.test,
        lambda part: in_pieces(part, size, device, workers),
        predict,
        dataset.classes,
    )
    return Checkpoint(recipe, loaded, found.scores)


def require_classifier(loaded: Loaded) -> None:
    """Raise an error unless encoder and classifier are complete."""
    if loaded.left_out:
        raise UserError(f"{loaded.source} is no whole encoder: {shortened(loaded.left_out)}")
    verdict = loaded.heads["classifier"]
    if verdict != "loaded":
        raise UserError(f"{loaded.source} has no classifier of these data: classifier {verdict}")
