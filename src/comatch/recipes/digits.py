"""Scikit-learn's digits: real images that need no download and no GPU."""

import dataclasses

from comatch import methods
from comatch.config import Recipe


def digits(method: str) -> Recipe:
    """Handwritten digits on a laptop: a tiny wide ResNet at 16 pixels.

    Command   comatch train digits --labels 40 --baseline
    Cost      about a minute and a half on two CPU cores
    Result    the README's table

    Chosen on 300 validation images, seeds 100 to 102, among learning rates of 0.03 to 0.1, 400 to
    800 steps and crops of 0.2 and 0.5. Batch norm and average are quick, as so short a run needs.
    """
    return Recipe(
        name="digits",
        method=dataclasses.replace(methods.config(method), ema_decay=0.99),
        data="digits",
        labels=40,
        image_size=16,
        flip=False,
        pad=2,
        min_area=0.5,
        net="wrn-10-1",
        norm_momentum=0.1,
        batch=40,
        mu=4,
        steps=800,
        lr=0.1,
        log_every=10,
        eval_every=100,
        checkpoint_every=100,
    )
