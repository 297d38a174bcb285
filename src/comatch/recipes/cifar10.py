"""CIFAR-10 as in the paper (section 4.1 and appendix), and with a short schedule."""

from comatch import methods
from comatch.config import replace
from comatch.data.config import DataConfig
from comatch.nets.config import ModelConfig
from comatch.recipes.published import with_published_settings
from comatch.training.optim import OptimConfig
from comatch.training.recipe import Recipe, renamed


def cifar10(method: str) -> Recipe:
    """CIFAR-10 with the paper's hyper-parameters: WRN-28-2, 524,288 steps.

    Command   comatch train cifar10 --labels 40 --seed 0
    Cost      the paper's schedule, twice as long for other methods: see --steps
    Paper     93.09 +- 1.39 % with 40 labels (5 seeds)
    """
    recipe = Recipe(
        name="cifar10",
        method=methods.config(method),
        dataset=DataConfig(
            data="cifar10",
            labels=40,
            image_size=32,
            mean=(0.4914, 0.4822, 0.4465),
            std=(0.2471, 0.2435, 0.2616),
        ),
        model=ModelConfig(net="wrn-28-2", norm_momentum=0.001),
        optim=OptimConfig(
            batch=64,
            mu=7,
            steps=512 * 1024,
            lr=0.03,
            schedule="cosine-7/16",
            momentum=0.9,
            weight_decay=5e-4,
        ),
    )
    return with_published_settings(recipe)


def cifar10_fast(method: str) -> Recipe:
    """CIFAR-10 in ten minutes on one H200: Muon, 36,000 steps.

    Command   comatch train cifar10 --recipe cifar10-fast --labels 40
    Cost      8.7 ms a step, in all 5.2 minutes, and up to 90 s to start
    Result    the table in the README
    """
    return replace(
        renamed(cifar10(method), "cifar10-fast"),
        steps=36_000,
        optimizer="muon",
        muon_lr=0.05,
        muon_decay=0.01,
        lr=0.06,
        schedule="cosine",
        eval_every=4000,
        checkpoint_every=4000,
    )
