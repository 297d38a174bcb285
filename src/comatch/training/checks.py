"""Checks of a recipe against its data and method, before the first step."""

import warnings

from comatch import distributed
from comatch.errors import UserError
from comatch.methods import Estimator, Method, Pretraining
from comatch.methods.distill import Distill
from comatch.training.recipe import Recipe
from comatch.types import Files, Part

SMALLEST = 8  # pixels: crops of smaller images show too little


def check(recipe: Recipe, method: Method, train: Part, unlabelled: int) -> None:
    """Raise an error if this method cannot be trained on these images with these settings."""
    check_shares(recipe)
    name = recipe.method_name
    if isinstance(method, Pretraining):
        check_pretraining(recipe, method, unlabelled)
    elif method.views:
        check_image_size(recipe)
        check_unlabelled(recipe, unlabelled)
    if isinstance(method, Estimator) and not recipe.model.frozen:
        raise UserError(
            f"{name} is fitted to features of a frozen encoder: use --recipe photos, or another "
            "--method"
        )
    if recipe.model.frozen and method.rotates_images:
        raise UserError(
            f"{name} rotates images or shows them to a teacher, and the features of a frozen "
            "encoder are computed before training: use another --method, or --set frozen=no"
        )
    streamed = isinstance(train, Files) and not recipe.model.frozen
    if method.uses_labels and method.needs_all_images() and streamed:
        raise UserError(
            f"{name} needs all images at once, and streamed images are never all in memory: "
            "use --set stream=no, or another method"
        )


def check_pretraining(recipe: Recipe, method: Pretraining, images: int) -> None:
    """Raise an error if the method cannot learn from so many images without labels."""
    batch, name = recipe.optim.batch, recipe.method_name
    check_image_size(recipe)
    if recipe.optim.mu != 1:
        raise UserError(f"mu={recipe.optim.mu}: {name} has no labelled images: --set batch=...")
    if recipe.model.frozen:
        raise UserError(f"{name} learns the encoder: --set frozen=no")
    if images < batch:
        raise UserError(
            f"a step of {name} takes {batch} different images and there are {images}: "
            f"--set batch={images} or less"
        )
    if batch // distributed.world() < 2:
        raise UserError(f"batch={batch}: {name} compares images with each other, so give 2 or more")
    method.check_images(images, batch)


def check_teacher(recipe: Recipe) -> None:
    """Raise an error if a run needs a teacher and none is named."""
    if recipe.method.method == Distill.Config.method and not recipe.method.teacher:  # type: ignore
        raise UserError(
            "distill learns from the network of a finished run: name its folder, --teacher RUN"
        )


def check_image_size(recipe: Recipe) -> None:
    if recipe.dataset.image_size < SMALLEST:
        raise UserError(
            f"{recipe.method_name} learns from crops, and images of "
            f"{recipe.dataset.image_size} pixels are too small for that: "
            f"--set image_size={SMALLEST} or more"
        )


def check_shares(recipe: Recipe) -> None:
    """Every rank takes the same share of a batch."""
    ranks, batch = distributed.world(), recipe.optim.batch
    if batch % ranks:
        fit = max(1, batch // ranks) * ranks
        raise UserError(
            f"batch={batch} cannot be shared evenly by {ranks} processes: "
            f"--set batch={fit}, or another --nproc-per-node"
        )


def check_unlabelled(recipe: Recipe, unlabelled: int) -> None:
    batch, mu = recipe.optim.batch, recipe.optim.mu
    if unlabelled == 0:
        raise UserError(
            f"{recipe.method_name} needs unlabelled images and there are none: add some, "
            "keep fewer --labels, or use --method supervised"
        )
    if unlabelled < batch * mu:
        warnings.warn(
            f"a step takes {batch * mu} unlabelled images (batch {batch} x mu {mu}) and there are "
            f"{unlabelled}: some are drawn more than once a step",
            stacklevel=2,
        )
