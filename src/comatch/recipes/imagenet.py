"""ImageNet as in the paper, section 4.2 and the appendix's table, and Tiny-ImageNet.

All methods have the paper's batches, weight decay and half cosine, and the network itself is
evaluated, not the EMA model. Their epochs are those of the paper's table 2 (VAT's are S4L's). The
methods whose results the paper cites have the settings of their own papers where those have some,
and the learning rate of FixMatch: 0.1 for 256 labelled images in a step.
"""

from typing import Any

from comatch import methods
from comatch.augment.policies import ViewConfig
from comatch.config import replace
from comatch.data.config import DataConfig
from comatch.nets.config import ModelConfig
from comatch.training.optim import OptimConfig
from comatch.training.recipe import Recipe, renamed

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
IMAGES = 1_281_167  # in the training part
BATCH, MU = 160, 4
EPOCHS = {"supervised": 20, "pseudo_label": 100, "vat": 200, "s4l_rotation": 200, "fixmatch": 300}
USUAL_EPOCHS = 400
FINE_TUNING = {13_000: 60, 128_000: 30}  # epochs of the labels (SimCLR), by their number
FINE_TUNING_LR = {  # of encoder and classifier (SwAV)
    13_000: {"init_lr": 0.02, "head_lr": 5.0},
    128_000: {"init_lr": 0.01, "head_lr": 0.2},
}
RIVALS_LR = 0.1 * BATCH / 256

# Settings that the methods' papers have for ImageNet only. For CoMatch that is the momentum form;
# the other form gets the same values, so that the two can be compared.
FIXMATCH = {"threshold": 0.7, "lambda_u": 10.0}
OWN: dict[str, dict[str, Any]] = {
    "supervised": {"lr": RIVALS_LR},
    "pseudo_label": {"lr": RIVALS_LR},
    "vat": {"lr": RIVALS_LR, "epsilon": 40.0, "lambda_u": 0.5, "lambda_entropy": 1.0},
    "s4l_rotation": {"lr": RIVALS_LR},
    "uda": {"lr": RIVALS_LR, "threshold": 0.5},
    "fixmatch": {"lr": RIVALS_LR, "weight_decay": 3e-4, **FIXMATCH},
    "fixmatch_da": {"alignment_window": 128, **FIXMATCH},
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
    return imagenet(method, "imagenet-1pct", 13_000)


def imagenet_10pct(method: str) -> Recipe:
    """ImageNet with 128 labels a class and the paper's hyper-parameters: ResNet-50, 400 epochs.

    Command   comatch train IMAGENET --recipe imagenet-10pct
    Cost      nine tenths of that of imagenet-1pct
    Paper     73.6 % (73.7 % from MoCo v2: --init FILE)
    """
    return as_ten_per_cent(imagenet(method, "imagenet-10pct", 128_000))


def imagenet(method: str, name: str, labels: int) -> Recipe:
    epoch = epoch_steps(labels)
    supervised = method == "supervised"
    epochs = EPOCHS.get(method, USUAL_EPOCHS)
    recipe = Recipe(
        name=name,
        method=methods.config(method),
        dataset=DataConfig(data="", labels=labels, image_size=224, mean=MEAN, std=STD),
        views=ViewConfig(weak_crop="resized"),
        model=ModelConfig(
            net="resnet50", stem="standard", zero_last_gamma=False, head_activation="relu"
        ),
        optim=OptimConfig(
            batch=BATCH,
            mu=MU,
            # Supervised training sees as many labelled images as there are images in its epochs.
            steps=epochs * IMAGES // BATCH if supervised else epochs * epoch,
            init_steps=FINE_TUNING[labels] * labels // BATCH if supervised else None,
            lr=0.1,
            init_lr=0.03,
            schedule="cosine",
            momentum=0.9,
            weight_decay=1e-4,
            decay_norms=True,
        ),
        eval_every=epoch,
        checkpoint_every=epoch,
    )
    own = OWN.get(method, {}) | (FINE_TUNING_LR[labels] if supervised else {})
    return replace(recipe, evaluate="raw", **own)


def epoch_steps(labels: int) -> int:
    """Steps in which each unlabelled image is seen once."""
    return (IMAGES - labels) // (BATCH * MU)


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
        init_steps=None,
        head_lr=None,
        lr=0.03,
        weight_decay=5e-4,
        eval_every=1_000,
        checkpoint_every=1_000,
    )
    if method == "vat":
        recipe = replace(recipe, epsilon=40.0 * 64 / 224)  # the same change of a pixel
    return as_ten_per_cent(recipe)


def as_ten_per_cent(recipe: Recipe) -> Recipe:
    """The paper's thresholds and contrastive weight for 10 % of the labels, if it is CoMatch."""
    if not recipe.method.method.startswith("comatch"):
        return recipe
    return replace(recipe, threshold=0.5, edge_threshold=0.2, lambda_ctr=2.0)
