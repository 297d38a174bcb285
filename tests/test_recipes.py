"""Recipes have the values of the paper's appendix, and else those of the authors' code."""

import pytest

from comatch import methods, recipes
from comatch.config import settings_of, values_of

# Table "Hyperparameters for CoMatch": B, mu, lambda_cls, alpha, K, t, tau, T, lambda_ctr
PAPER = {
    "cifar10": (64, 7, 1, 0.9, 2560, 0.2, 0.95, 0.8, 1),
    "stl10": (64, 7, 1, 0.9, 2560, 0.2, 0.95, 0.8, 5),
    "imagenet-1pct": (160, 4, 10, 0.9, 30_000, 0.1, 0.6, 0.3, 10),
    "imagenet-10pct": (160, 4, 10, 0.9, 30_000, 0.1, 0.5, 0.2, 2),
}


@pytest.mark.parametrize("name", PAPER)
def test_hyper_parameters_of_the_papers_appendix(name):
    recipe = recipes.get(name)
    m = recipe.method
    ours = (
        recipe.optim.batch,
        recipe.optim.mu,
        m.lambda_cls,
        m.alpha,
        m.bank_size,
        m.temperature,
        m.threshold,
        m.edge_threshold,
        m.lambda_ctr,
    )
    assert ours == PAPER[name]


@pytest.mark.parametrize(
    ("name", "net", "size"), [("cifar10", "wrn-28-2", 32), ("stl10", "resnet18", 96)]
)
def test_implementation_details_of_section_4_1(name, net, size):
    recipe = recipes.get(name, "comatch")
    assert (recipe.model.net, recipe.dataset.image_size) == (net, size)
    assert recipe.method.embedding_dim == 64
    assert (recipe.optim.momentum, recipe.optim.weight_decay, recipe.optim.lr) == (0.9, 5e-4, 0.03)
    assert recipe.optim.steps == 512 * 1024  # 512 epochs


def test_values_of_the_authors_code():
    recipe = recipes.get("cifar10", "comatch")
    assert recipe.optim.schedule == "cosine-7/16"
    assert not recipe.optim.decay_norms
    assert recipe.model.norm_momentum == 0.001
    assert recipe.method.ema_decay == 0.999
    assert recipe.method.alignment_window == 32
    assert recipe.method.graph == "authors"
    assert recipe.method.bank_size == 5 * (recipe.optim.mu + 1) * recipe.optim.batch
    assert (
        recipe.views.pad,
        recipe.views.weak_crop,
        recipe.views.cutout,
        recipe.views.min_area,
    ) == (4, "pad", 0.5, 0.2)
    stl10 = recipes.get("stl10", "comatch")
    assert stl10.views.weak_crop == "resized"
    assert stl10.dataset.mean == (0.4467, 0.4398, 0.4066)


@pytest.mark.parametrize("method", methods.METHODS)
def test_other_methods_have_the_values_of_their_papers(method):
    """They train for 1,024 epochs (section 4.1); what their papers leave open is as in CoMatch."""
    ours, cifar10 = recipes.get("cifar10", "comatch"), recipes.get("cifar10", method)
    assert cifar10.optim.steps == (512 if method.startswith("comatch") else 1024) * 1024
    many = ("comatch", "comatch_momentum", "fixmatch", "fixmatch_da", "uda", "supervised")
    assert cifar10.optim.mu == (7 if method in many else 1)
    own = settings_of(ours.method).keys() | settings_of(cifar10.method).keys()
    a, b = values_of(ours), values_of(cifar10)
    assert {key for key in a if key not in own and a[key] != b[key]} <= {"steps", "mu"}
    stl10 = recipes.get("stl10", method)
    assert (stl10.optim.steps, stl10.optim.mu) == (cifar10.optim.steps, cifar10.optim.mu)


def test_mixmatch_on_stl10():
    assert recipes.get("cifar10", "mixmatch").method.lambda_u == 75
    assert recipes.get("stl10", "mixmatch").method.lambda_u == 50
    assert recipes.get("cifar10", "mixmatch").method.ramp * 1024 * 1024 == 16_000


@pytest.mark.parametrize(("name", "each"), [("imagenet-1pct", 13), ("imagenet-10pct", 128)])
def test_imagenet_as_in_section_4_2(name, each):
    recipe = recipes.get(name)
    assert recipe.method.method == "comatch_momentum"
    assert recipe.dataset.labels == 1000 * each
    assert (recipe.model.net, recipe.dataset.image_size, recipe.method.embedding_dim) == (
        "resnet50",
        224,
        128,
    )
    assert (recipe.optim.lr, recipe.optim.schedule) == (0.1, "cosine")
    assert (recipe.optim.momentum, recipe.optim.weight_decay, recipe.optim.decay_norms) == (
        0.9,
        1e-4,
        True,
    )
    assert (recipe.method.ema_decay, recipe.method.first_decay) == (0.996, 0.99)
    assert recipe.method.alignment_window == 128
    epochs = recipe.optim.steps * recipe.optim.batch * recipe.optim.mu / (1_281_167 - 13_000)
    assert epochs == pytest.approx(400, rel=1e-3)


def test_digits_are_not_flipped():
    assert not recipes.get("digits", "comatch").views.flip


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_every_recipe_gives_its_command(name):
    assert "Command   comatch train" in recipes.descriptions()[name]
    assert recipes.get(name, "comatch").name == name


def test_values_of_other_methods_on_imagenet():
    """FixMatch has those of its paper, and comatch those of comatch_momentum."""
    for name in ("imagenet-1pct", "imagenet-10pct", "tiny-imagenet"):
        for rival in ("fixmatch", "fixmatch_da"):
            method = recipes.get(name, rival).method
            assert (method.threshold, method.lambda_u) == (0.7, 10)
        one, other = (recipes.get(name, m).method for m in ("comatch", "comatch_momentum"))
        shared = settings_of(one).keys() & settings_of(other).keys() - {"ema_decay"}
        assert len(shared) >= 9
        assert all(getattr(one, key) == getattr(other, key) for key in shared)


@pytest.mark.parametrize("method", methods.METHODS)
def test_all_methods_train_as_long_on_tiny_imagenet(method):
    recipe = recipes.get("tiny-imagenet", method)
    assert (recipe.optim.steps, recipe.optim.batch, recipe.optim.mu, recipe.dataset.labels) == (
        20_000,
        64,
        5,
        10_000,
    )
