"""Each recipe against the paper's appendix table and what the authors' code decides."""

import pytest

from comatch import methods, recipes
from comatch.config import settings_of

# Table "Hyperparameters for CoMatch": B, mu, lambda_cls, alpha, K, t, tau, T, lambda_ctr
PAPER = {
    "cifar10": (64, 7, 1, 0.9, 2560, 0.2, 0.95, 0.8, 1),
    "stl10": (64, 7, 1, 0.9, 2560, 0.2, 0.95, 0.8, 5),
    "imagenet-1pct": (160, 4, 10, 0.9, 30_000, 0.1, 0.6, 0.3, 10),
    "imagenet-10pct": (160, 4, 10, 0.9, 30_000, 0.1, 0.5, 0.2, 2),
}


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_table(name):
    recipe = recipes.get(name)
    m = recipe.method
    ours = (
        recipe.batch,
        recipe.mu,
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
    assert (recipe.net, recipe.image_size) == (net, size)
    assert recipe.method.embedding_dim == 64
    assert (recipe.momentum, recipe.weight_decay, recipe.lr) == (0.9, 5e-4, 0.03)
    assert recipe.steps == 512 * 1024  # 512 epochs


def test_what_the_authors_code_decides():
    recipe = recipes.get("cifar10", "comatch")
    assert recipe.schedule == "cosine-7/16"
    assert not recipe.decay_norms
    assert not recipe.labelled_too
    assert recipe.norm_momentum == 0.001
    assert recipe.method.ema_decay == 0.999
    assert recipe.method.alignment_window == 32
    assert recipe.method.graph == "authors"
    assert recipe.method.bank_size == 5 * (recipe.mu + 1) * recipe.batch
    assert (recipe.pad, recipe.weak_crop, recipe.cutout, recipe.min_area) == (4, "pad", 0.5, 0.2)
    stl10 = recipes.get("stl10", "comatch")
    assert stl10.weak_crop == "resized"
    assert stl10.mean == (0.4467, 0.4398, 0.4066)


@pytest.mark.parametrize("method", methods.METHODS)
def test_rivals_have_their_papers_settings(method):
    """1,024 epochs (section 4.1) and what else their papers set; the rest is CoMatch's recipe."""
    ours, cifar10 = recipes.get("cifar10", "comatch"), recipes.get("cifar10", method)
    assert cifar10.steps == (512 if method.startswith("comatch") else 1024) * 1024
    many = ("comatch", "comatch_momentum", "fixmatch", "fixmatch_da", "uda", "supervised")
    assert cifar10.mu == (7 if method in many else 1)
    changed = {k for k in settings_of(ours) if getattr(ours, k) != getattr(cifar10, k)}
    assert changed <= {"steps", "mu"}
    stl10 = recipes.get("stl10", method)
    assert (stl10.steps, stl10.mu) == (cifar10.steps, cifar10.mu)


def test_mixmatch_on_stl10():
    assert recipes.get("cifar10", "mixmatch").method.lambda_u == 75
    assert recipes.get("stl10", "mixmatch").method.lambda_u == 50
    assert recipes.get("cifar10", "mixmatch").method.ramp * 1024 * 1024 == 16_000


@pytest.mark.parametrize(("name", "each"), [("imagenet-1pct", 13), ("imagenet-10pct", 128)])
def test_imagenet_as_in_section_4_2(name, each):
    recipe = recipes.get(name)
    assert recipe.method.method == "comatch_momentum"
    assert recipe.labels == 1000 * each
    assert (recipe.net, recipe.image_size, recipe.method.embedding_dim) == ("resnet50", 224, 128)
    assert (recipe.lr, recipe.schedule) == (0.1, "cosine")
    assert (recipe.momentum, recipe.weight_decay, recipe.decay_norms) == (0.9, 1e-4, True)
    assert (recipe.method.ema_decay, recipe.method.first_decay) == (0.996, 0.99)
    assert recipe.method.alignment_window == 128
    epochs = recipe.steps * recipe.batch * recipe.mu / (1_281_167 - 13_000)
    assert epochs == pytest.approx(400, rel=1e-3)


def test_digits_are_never_mirrored():
    assert not recipes.get("digits", "comatch").flip


@pytest.mark.parametrize("name", recipes.RECIPES)
def test_every_recipe_gives_its_command(name):
    assert "Command   comatch train" in recipes.RECIPES[name].__doc__
    assert recipes.get(name, "comatch").name == name


def test_imagenets_numbers_of_other_methods():
    """FixMatch's own for ImageNet; CoMatch's first form has those of the second, to compare."""
    for name in ("imagenet-1pct", "imagenet-10pct", "tiny-imagenet"):
        for rival in ("fixmatch", "fixmatch_da"):
            method = recipes.get(name, rival).method
            assert (method.threshold, method.lambda_u) == (0.7, 10)
        one, other = (recipes.get(name, m).method for m in ("comatch", "comatch_momentum"))
        shared = settings_of(one).keys() & settings_of(other).keys() - {"ema_decay"}
        assert len(shared) >= 9
        assert all(getattr(one, key) == getattr(other, key) for key in shared)


@pytest.mark.parametrize("method", methods.METHODS)
def test_tiny_imagenet_is_as_long_for_all(method):
    recipe = recipes.get("tiny-imagenet", method)
    assert (recipe.steps, recipe.batch, recipe.mu, recipe.labels) == (20_000, 64, 5, 10_000)
