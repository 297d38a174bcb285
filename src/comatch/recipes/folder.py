"""A folder of images of one's own."""

import dataclasses

from comatch import methods
from comatch.config import Recipe, replace


def folder(method: str) -> Recipe:
    """Your own images on a laptop: a small wide ResNet at 32 pixels, Muon.

    Command   comatch train PATH
    Cost      about twelve minutes on a CPU core

    Optimiser and selection were chosen on validation images of CIFAR-10, and gain on two folders
    of photographs too, where --steps 2000 gained four to five points more: see results/README.md.
    """
    recipe = Recipe(
        name="folder",
        method=dataclasses.replace(methods.config(method), ema_decay=0.99),
        data="",
        image_size=32,
        net="wrn-10-2",
        norm_momentum=0.05,
        batch=32,
        mu=3,
        steps=1000,
        lr=0.06,
        optimizer="muon",
        muon_lr=0.05,
        muon_decay=0.01,
        log_every=10,
        eval_every=250,
        checkpoint_every=50,
    )
    if method == "comatch":
        recipe = replace(recipe, selection="adaptive", selection_decay=0.99)
    return recipe


def folder_pretrained(method: str) -> Recipe:
    """Your own images on a laptop, through a network that knows ImageNet and stays as it is.

    Command   comatch train PATH --recipe folder-pretrained
    Cost      timm downloads 19 MB once; then two minutes for 2,500 images on one CPU core
    Result    results/README.md, beside that of the recipe folder

    What it learns are CoMatch's two heads, on features of four views of each kind.
    """
    recipe = Recipe(
        name="folder-pretrained",
        method=dataclasses.replace(methods.config(method), ema_decay=0.99),
        data="",
        image_size=96,
        pad=12,
        net="tf_efficientnet_lite0",
        stem="standard",
        init="timm",
        frozen=True,
        batch=32,
        mu=3,
        steps=1500,
        lr=0.03,
        schedule="cosine",
        log_every=25,
        eval_every=1500,  # for which, unlike for a step, images are looked at
        checkpoint_every=250,
    )
    if method == "comatch":
        own = {"selection": "adaptive", "selection_decay": 0.99, "hard_labels": True}
        recipe = replace(recipe, **own)
    return recipe


def folder_gpu(method: str) -> Recipe:
    """Your own images on a GPU: ResNet-18 at 96 pixels.

    Command   comatch train PATH --recipe folder-gpu
    """
    return Recipe(
        name="folder-gpu",
        method=methods.config(method),
        data="",
        image_size=96,
        net="resnet18",
        stem="standard",
        weak_crop="resized",
        steps=20_000,
    )
