"""Scikit-learn's digits: real images that need no download and no GPU."""

import dataclasses

from comatch import methods
from comatch.augment.policies import ViewConfig
from comatch.data.config import DataConfig
from comatch.nets.config import ModelConfig
from comatch.training.optim import OptimConfig
from comatch.training.recipe import Recipe


def digits(method: str) -> Recipe:
    """Handwritten digits on a laptop: a tiny wide ResNet at 16 pixels.

    Command   comatch train digits --labels 40 --baseline
    Cost      about a minute and a half on two CPU cores
    Result    the table in the README

    Learning rate (0.03 to 0.1), steps (400 to 800) and smallest crop (0.2 or 0.5) were chosen on
    300 validation images, seeds 100 to 102. The run is short, so batch norm and EMA average over
    few steps.
    """
    return Recipe(
        name="digits",
        method=dataclasses.replace(methods.config(method), ema_decay=0.99),
        dataset=DataConfig(data="digits", labels=40, image_size=16),
        views=ViewConfig(flip=False, pad=2, min_area=0.5),
        model=ModelConfig(net="wrn-10-1", norm_momentum=0.1),
        optim=OptimConfig(batch=40, mu=4, steps=800, lr=0.1),
        log_every=10,
        eval_every=100,
        checkpoint_every=100,
    )
