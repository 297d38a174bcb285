"""A folder of your own images."""

import dataclasses

from comatch import methods
from comatch.augment.policies import ViewConfig
from comatch.config import replace
from comatch.data.config import DataConfig
from comatch.nets.config import ModelConfig
from comatch.training.optim import OptimConfig
from comatch.training.recipe import Recipe


def folder(method: str) -> Recipe:
    """Your own images on a laptop: a small wide ResNet at 32 pixels, Muon.

    Command   comatch train PATH
    Cost      about twelve minutes on a CPU core

    Optimiser and selection were chosen on validation images of CIFAR-10. They improved the
    accuracy on two folders of photographs too, where --steps 2000 gained four to five points more:
    see docs/explanation/log.md.
    """
    recipe = Recipe(
        name="folder",
        method=dataclasses.replace(methods.config(method), ema_decay=0.99),
        dataset=DataConfig(data="", image_size=32),
        model=ModelConfig(net="wrn-10-2", norm_momentum=0.05),
        optim=OptimConfig(
            batch=32,
            mu=3,
            steps=1000,
            lr=0.06,
            optimizer="muon",
            muon_lr=0.05,
            muon_decay=0.01,
        ),
        log_every=10,
        eval_every=250,
        checkpoint_every=50,
    )
    if method == "comatch":
        recipe = replace(recipe, selection="adaptive", selection_decay=0.99)
    return recipe


def photos(method: str) -> Recipe:
    """Your own photographs, on features of a frozen pre-trained encoder.

    Command   comatch train PATH
    Cost      5 minutes for 2,000 photographs on two CPU cores, most of it for encoding 26 views of
              each; a second run on the same photographs takes seconds
    Result    docs/explanation/results.md

    Only the heads are trained. Their settings were chosen on four of the data sets of the results,
    on other draws of the labels.
    """
    recipe = Recipe(
        name="photos",
        method=dataclasses.replace(methods.config(method), ema_decay=0.99),
        dataset=DataConfig(data="", image_size=224),
        model=ModelConfig(net="tf_efficientnet_lite0", stem="standard", init="timm", frozen=True),
        optim=OptimConfig(batch=64, mu=3, steps=300, lr=0.03),
        precision="fp32",
        log_every=50,
        eval_every=200,
        checkpoint_every=200,
    )
    if method == "comatch":
        recipe = replace(recipe, selection="adaptive", selection_decay=0.99, teachers=1.0)
    if method in methods.ESTIMATORS:
        recipe = replace(recipe, steps=1)  # fitted once
    return recipe


def folder_gpu(method: str) -> Recipe:
    """Your own images on a GPU: ResNet-18 at 96 pixels.

    Command   comatch train PATH --recipe folder-gpu
    """
    return Recipe(
        name="folder-gpu",
        method=methods.config(method),
        dataset=DataConfig(data="", image_size=96),
        views=ViewConfig(weak_crop="resized"),
        model=ModelConfig(net="resnet18", stem="standard"),
        optim=OptimConfig(steps=20_000),
    )
