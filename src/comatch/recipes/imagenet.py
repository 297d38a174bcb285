"""ImageNet as in the paper, section 4.2 and the appendix's table, and Tiny-ImageNet."""

from typing import Any

from comatch import methods
from comatch.augment.policies import ViewConfig
from comatch.config import replace
from comatch.data.config import DataConfig
from comatch.nets.config import ModelConfig
from comatch.training.optim import OptimConfig
from comatch.training.recipe import Recipe, renamed

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
EPOCH = (1_281_167 - 13_000) // 640  # steps in which each unlabelled image is seen once

# Settings that the methods' papers have for ImageNet only. For CoMatch that is the momentum form;
# the other form gets the same values, so that the two can be compared.
FIXMATCH = {"threshold": 0.7, "lambda_u": 10.0}
OWN: dict[str, dict[str, Any]] = {
    "fixmatch": FIXMATCH,
    "fixmatch_da": FIXMATCH,
    "comatch": {
        "bank_size": 30_000,
        "temperature": 0.1,
        "threshold": 0.6,
        "edge_threshold": 0.3,
        "lambda_cls": 10.0,
        "lambda_ctr": 10.0,
        "embedding_dim": 128,
        "alignment_window": 128,
    },
}


def imagenet_1pct(method: str) -> Recipe:
    """ImageNet with 13 labels a class and the paper's hyper-parameters: ResNet-50, 400 epochs.

    Command   comatch train IMAGENET --recipe imagenet-1pct
    Cost      by calculation about 41 hours on one H200: docs/how-to/several-gpus.md
    Paper     66.0 % (67.1 % from MoCo v2: --init FILE)
    """
    recipe = Recipe(
        name="imagenet-1pct",
        method=methods.config(method),
        dataset=DataConfig(data="", labels=13_000, image_size=224, mean=MEAN, std=STD),
        views=ViewConfig(weak_crop="resized"),
        model=ModelConfig(net="resnet50", stem="standard"),
        optim=OptimConfig(
            batch=160,
            mu=4,
            steps=400 * EPOCH,
            lr=0.1,
            init_lr=0.03,
            schedule="cosine",
            momentum=0.9,
            weight_decay=1e-4,
            decay_norms=True,
        ),
        eval_every=EPOCH,
        checkpoint_every=EPOCH,
    )
    return replace(recipe, **OWN.get(method, {}))


def imagenet_10pct(method: str) -> Recipe:
    """ImageNet with 128 labels a class and the paper's hyper-parameters: ResNet-50, 400 epochs.

    Command   comatch train IMAGENET --recipe imagenet-10pct
    Cost      that of imagenet-1pct
    Paper     73.6 % (73.7 % from MoCo v2: --init FILE)
    """
    recipe = replace(imagenet_1pct(method), labels=128_000)
    return as_ten_per_cent(renamed(recipe, "imagenet-10pct"))


def tiny_imagenet(method: str) -> Recipe:
    """Tiny-ImageNet, 200 classes of 64 pixels, 50 labels a class: ResNet-18.

    Command   comatch train TINY_IMAGENET --recipe tiny-imagenet
    Cost      20,000 steps: 13 minutes on one H200 that three other runs share
    """
    recipe = replace(
        renamed(imagenet_1pct(method), "tiny-imagenet"),
        labels=10_000,
        image_size=64,
        net="resnet18",
        stem="half",
        batch=64,
        mu=5,
        steps=20_000,
        lr=0.03,
        weight_decay=5e-4,
        eval_every=1_000,
        checkpoint_every=1_000,
    )
    return as_ten_per_cent(recipe)


def as_ten_per_cent(recipe: Recipe) -> Recipe:
    """The paper's thresholds and contrastive weight for 10 % of the labels, if it is CoMatch."""
    if not recipe.method.method.startswith("comatch"):
        return recipe
    return replace(recipe, threshold=0.5, edge_threshold=0.2, lambda_ctr=2.0)
