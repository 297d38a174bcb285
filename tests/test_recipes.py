"""Recipes have the values of the paper's appendix, and else those of the authors' code."""

import pytest

from comatch import methods, recipes
from comatch.commands.reproduce import paper
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
    many = (
        "comatch",
        "comatch_momentum",
        "fixmatch",
        "fixmatch_da",
        "uda",
        "supervised",
        "distill",
    )
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
    assert recipe.method.evaluate == "raw"


@pytest.mark.parametrize(
    ("name", "labels", "steps"),
    [("imagenet-1pct", 13_000, 792_400), ("imagenet-10pct", 128_000, 720_400)],
)
def test_an_epoch_of_imagenet_is_every_unlabelled_image_once(name, labels, steps):
    """400 epochs (section 4.2) of all images but the labelled ones, counted one batch at a time."""
    recipe = recipes.get(name)
    assert (recipe.dataset.labels, recipe.optim.steps) == (labels, steps)
    left, epoch = 1_281_167 - labels, 0
    while left >= recipe.optim.batch * recipe.optim.mu:
        left -= recipe.optim.batch * recipe.optim.mu
        epoch += 1
    assert recipe.optim.steps == 400 * epoch
    assert recipe.eval_every == epoch


@pytest.mark.parametrize("name", ["imagenet-1pct", "imagenet-10pct"])
def test_rivals_on_imagenet_train_for_the_epochs_of_table_2(name):
    for (start, method), epochs in paper.TABLE2_EPOCHS.items():
        if start or not epochs or method not in methods.METHODS:
            continue
        recipe = recipes.get(name, method)
        seen = recipe.optim.steps * recipe.optim.batch * recipe.optim.mu
        images = 1_281_167 - recipe.dataset.labels
        if method == "supervised":
            seen, images = recipe.optim.steps * recipe.optim.batch, 1_281_167
        assert seen / images == pytest.approx(epochs, rel=1e-3), method


def test_rivals_on_imagenet_have_the_values_of_their_papers():
    def settings(method):
        return values_of(recipes.get("imagenet-10pct", method))

    vat = settings("vat")  # S4L's VAT with entropy minimisation
    assert (vat["epsilon"], vat["lambda_u"], vat["lambda_entropy"]) == (40, 0.5, 1)
    assert vat["steps"] == 200 * 1801
    assert methods.METHODS["vat"].labelled_too
    assert settings("uda")["threshold"] == 0.5
    assert settings("fixmatch")["weight_decay"] == 3e-4
    for method in ("supervised", "pseudo_label", "vat", "s4l_rotation", "uda", "fixmatch"):
        assert settings(method)["lr"] == 0.1 * 160 / 256
    for method in ("fixmatch_da", "comatch_momentum"):
        assert (settings(method)["lr"], settings(method)["init_lr"]) == (0.1, 0.03)


@pytest.mark.parametrize("method", methods.METHODS)
def test_the_network_itself_is_evaluated_on_imagenet(method):
    """Section 4.2: "we report the original model's performance instead of the EMA model's"."""
    assert recipes.get("imagenet-1pct", method).method.evaluate == "raw"
    assert recipes.get("imagenet-10pct", method).method.evaluate == "raw"
    usual = "raw" if method == "comatch_momentum" else "ema"
    assert recipes.get("cifar10", method).method.evaluate == usual


def test_weights_of_the_consistency_losses():
    """w_max of Laine and Aila, and of Tarvainen and Valpola."""
    for method, weight in (("pi_model", 100), ("temporal_ensembling", 30), ("mean_teacher", 100)):
        assert recipes.get("cifar10", method).method.lambda_u == weight


def test_networks_of_the_authors():
    """Their ResNets have no zero gammas; their head on ImageNet has a ReLU."""
    for name, activation in (
        ("stl10", "leaky_relu"),
        ("imagenet-1pct", "relu"),
        ("imagenet-10pct", "relu"),
    ):
        model = recipes.get(name, "comatch").model
        assert (model.zero_last_gamma, model.head_activation) == (False, activation)


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
