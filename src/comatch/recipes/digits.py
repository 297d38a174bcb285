"""Scikit-learn's digits: real pictures that need no download and no GPU."""

from comatch import methods
from comatch.config import Recipe


def digits(method: str) -> Recipe:
    """Handwritten digits on a laptop: a tiny wide ResNet at 16 pixels.

    Command   comatch train digits --labels 40 --baseline
    """
    return Recipe(
        name="digits",
        method=methods.config(method),
        data="digits",
        labels=40,
        image_size=16,
        flip=False,
        pad=2,
        net="wrn-10-1",
        batch=40,
        mu=4,
        steps=600,
        lr=0.03,
        log_every=10,
        eval_every=100,
        checkpoint_every=100,
    )
