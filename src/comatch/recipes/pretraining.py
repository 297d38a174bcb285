"""Pre-training without labels: `comatch pretrain`.

On ImageNet each method has the settings of its own paper, and the epochs of the paper's table 2.
On the small data sets all methods have the same batch and steps, so that they can be compared:
SimCLR has the settings that its authors publish for CIFAR-10, MoCo v2 those of its authors'
CIFAR-10 demonstration; the others follow these two and are not tuned.
"""

from typing import Any

from comatch import methods
from comatch.config import replace
from comatch.data.config import DataConfig
from comatch.nets.config import ModelConfig
from comatch.recipes.imagenet import IMAGES, MEAN, STD
from comatch.training.optim import OptimConfig
from comatch.training.recipe import Recipe, renamed

EPOCHS = {"simclr": 1000, "moco_v2": 800, "byol": 1000, "swav": 800, "pirl": 800, "pcl": 200}
STRONG = {"jitter": 0.8, "saturation": 0.8, "hue": 0.2, "blur": 0.5}
LARS = {"optimizer": "lars", "schedule": "cosine"}
SGD = {"optimizer": "sgd", "nesterov": False, "weight_decay": 1e-4, "decay_norms": True}
ON_IMAGENET: dict[str, dict[str, Any]] = {
    "simclr": {
        **LARS,
        "batch": 4096,
        "lr": 4.8,
        "weight_decay": 1e-6,
        "warmup": 10 / 1000,
        "min_area": 0.08,
        **STRONG,
    },
    "moco_v2": {**SGD, "batch": 256, "lr": 0.03, "blur": 0.5},
    "byol": {
        **LARS,
        "batch": 4096,
        "lr": 3.2,
        "weight_decay": 1.5e-6,
        "warmup": 10 / 1000,
        "min_area": 0.08,
        "saturation": 0.2,
        "blur": 1.0,
        "other_blur": 0.1,
        "other_solarize": 0.2,
    },
    "swav": {
        **LARS,
        "batch": 4096,
        "lr": 4.8,
        "weight_decay": 1e-6,
        "warmup": 10 / 800,
        "min_area": 0.14,
        **STRONG,
    },
    "pirl": {**SGD, "batch": 1024, "lr": 0.12, "min_area": 0.08},
    "pcl": {**SGD, "batch": 256, "lr": 0.03, "schedule": "steps", "hue": 0.4},
}
# Of small images: LARS from SimCLR, SGD from MoCo, and memories that fit fewer images.
SMALL_LARS = {**LARS, "lr": 2.0, "weight_decay": 1e-4, "warmup": 0.01, "min_area": 0.08}
SMALL_SGD = {**SGD, "lr": 0.06, "weight_decay": 5e-4}
ON_SMALL_IMAGES: dict[str, dict[str, Any]] = {
    "simclr": {**SMALL_LARS, "temperature": 0.5},
    "moco_v2": {**SMALL_SGD, "queue_size": 4096, "key_momentum": 0.99, "temperature": 0.1},
    "byol": {**SMALL_LARS, "key_momentum": 0.99, "other_solarize": 0.2},
    "swav": {**SMALL_LARS, "prototypes": 300, "small_views": 0},
    "pirl": {**SMALL_SGD, "negatives": 4096},
    "pcl": {**SMALL_SGD, "queue_size": 4096, "key_momentum": 0.99, "clusters": 250},
}
ON_FEW_IMAGES: dict[str, dict[str, Any]] = {
    "moco_v2": {"queue_size": 256},
    "byol": {"hidden_dim": 512},
    "swav": {"prototypes": 64, "hidden_dim": 256},
    "pirl": {"negatives": 128},
    "pcl": {"queue_size": 256, "clusters": 16},
}


def imagenet(method: str) -> Recipe:
    """ImageNet without labels: ResNet-50, with the settings of each method's paper.

    Command   comatch pretrain IMAGENET --recipe pretrain-imagenet --method moco_v2
    Cost      days on one GPU
    """
    own = ON_IMAGENET.get(method, {})
    epoch = IMAGES // own.get("batch", 256)
    recipe = Recipe(
        name="pretrain-imagenet",
        method=methods.config(method),
        dataset=DataConfig(data="", image_size=224, mean=MEAN, std=STD),
        model=ModelConfig(
            net="resnet50", stem="standard", zero_last_gamma=method in ("simclr", "byol")
        ),
        optim=OptimConfig(mu=1, steps=EPOCHS.get(method, 800) * epoch, schedule="cosine"),
        log_every=100,
        eval_every=10 * epoch,
        checkpoint_every=epoch,
    )
    return replace(recipe, **own)


def cifar10(method: str) -> Recipe:
    """CIFAR-10 without labels: ResNet-18, 20,000 steps of 512 images (205 epochs).

    Command   comatch pretrain cifar10 --method simclr
    """
    recipe = Recipe(
        name="pretrain-cifar10",
        method=methods.config(method),
        dataset=DataConfig(
            data="cifar10",
            image_size=32,
            mean=(0.4914, 0.4822, 0.4465),
            std=(0.2471, 0.2435, 0.2616),
        ),
        model=ModelConfig(net="resnet18"),
        optim=OptimConfig(batch=512, mu=1, steps=20_000, schedule="cosine"),
        log_every=100,
        eval_every=2_000,
        checkpoint_every=2_000,
    )
    return replace(recipe, **ON_SMALL_IMAGES.get(method, {}))


def tiny_imagenet(method: str) -> Recipe:
    """Tiny-ImageNet without labels: ResNet-18, 20,000 steps of 512 images (102 epochs).

    Command   comatch pretrain TINY_IMAGENET --recipe pretrain-tiny-imagenet --method simclr
    """
    recipe = replace(
        renamed(cifar10(method), "pretrain-tiny-imagenet"),
        data="",
        image_size=64,
        mean=MEAN,
        std=STD,
        stem="half",
        blur=0.5,
    )
    if method == "swav":
        recipe = replace(recipe, prototypes=1000, small_views=4)
    if method == "pcl":
        recipe = replace(recipe, clusters=1000)
    return recipe


def folder(method: str) -> Recipe:
    """Your own images without labels, on a laptop: a small wide ResNet at 32 pixels.

    Command   comatch pretrain PATH
    """
    recipe = replace(
        renamed(cifar10(method), "pretrain-folder"),
        data="",
        mean=None,
        std=None,
        net="wrn-10-2",
        batch=128,
        steps=2_000,
        log_every=10,
        eval_every=500,
        checkpoint_every=100,
    )
    return replace(recipe, **ON_FEW_IMAGES.get(method, {}))


def folder_gpu(method: str) -> Recipe:
    """Your own images without labels, on a GPU: ResNet-18 at 96 pixels.

    Command   comatch pretrain PATH --recipe pretrain-folder-gpu
    """
    return replace(
        renamed(folder(method), "pretrain-folder-gpu"),
        image_size=96,
        net="resnet18",
        stem="standard",
        batch=256,
        steps=20_000,
        blur=0.5,
        eval_every=2_000,
        checkpoint_every=1_000,
    )


def digits(method: str) -> Recipe:
    """Handwritten digits without labels, on a laptop: a tiny wide ResNet at 16 pixels.

    Command   comatch pretrain digits
    """
    return replace(
        renamed(folder(method), "pretrain-digits"),
        data="digits",
        image_size=16,
        flip=False,
        min_area=0.5,
        net="wrn-10-1",
        norm_momentum=0.1,
        steps=400,
        eval_every=100,
    )
