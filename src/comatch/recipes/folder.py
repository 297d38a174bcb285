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


def folder_pretrained(method: str) -> Recipe:
    """Your own images on a laptop, on features of a frozen ImageNet backbone.

    Command   comatch train PATH --recipe folder-pretrained
    Cost      timm downloads 19 MB once; then two minutes for 2,500 images on one CPU core
    Result    results/README.md, beside that of recipe folder

    Only the two heads are trained, on cached features of four views of each kind.
    """
    recipe = Recipe(
        name="folder-pretrained",
        method=dataclasses.replace(methods.config(method), ema_decay=0.99),
        dataset=DataConfig(data="", image_size=96),
        views=ViewConfig(pad=12),
        model=ModelConfig(net="tf_efficientnet_lite0", stem="standard", init="timm", frozen=True),
        optim=OptimConfig(batch=32, mu=3, steps=1500, lr=0.03, schedule="cosine"),
        log_every=25,
        eval_every=1500,  # an evaluation encodes the test images
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
        dataset=DataConfig(data="", image_size=96),
        views=ViewConfig(weak_crop="resized"),
        model=ModelConfig(net="resnet18", stem="standard"),
        optim=OptimConfig(steps=20_000),
    )
