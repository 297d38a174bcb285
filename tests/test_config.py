"""Settings: every field can be set, an unknown one names the nearest."""

import dataclasses
import json

import pytest

from comatch import methods, recipes
from comatch.config import Recipe, from_json, labels_text, parse, replace, settings_of, to_json
from comatch.errors import UserError


def test_replace_reaches_recipe_and_method():
    recipe = replace(recipes.get("cifar10", "comatch"), alpha=1.0, steps=5)
    assert recipe.method.alpha == 1.0
    assert recipe.steps == 5
    assert recipe.method.temperature == 0.2


def test_unknown_settings_name_the_nearest():
    with pytest.raises(UserError, match="did you mean 'alpha'"):
        replace(recipes.get("cifar10", "comatch"), alhpa=1.0)
    with pytest.raises(UserError, match="unknown setting 'alpha'"):
        replace(recipes.get("cifar10", "supervised"), alpha=1.0)


def test_values_are_read_by_type():
    recipe = recipes.get("cifar10", "comatch")
    texts = ["alpha=1", "flip=no", "steps=1_000", "mean=0.1,0.2,0.3", "labels=none", "net=resnet18"]
    assert parse(recipe, texts) == {
        "alpha": 1.0,
        "flip": False,
        "steps": 1000,
        "mean": (0.1, 0.2, 0.3),
        "labels": None,
        "net": "resnet18",
    }


def test_labels_are_a_number_or_a_share():
    recipe = recipes.get("cifar10", "comatch")
    for text, value in {"1%": 0.01, "40": 40, "0.25%": 0.0025, "0.1": 0.1, "4,000": 4000}.items():
        (read,) = parse(recipe, [f"labels={text}"]).values()
        assert (read, type(read)) == (value, type(value))
        assert replace(recipe, labels=read).labels == value
    texts = {None: "all", 40: "40", 0.01: "1%", 0.0025: "0.25%", 0.125: "12.5%"}
    assert {labels: labels_text(labels) for labels in texts} == texts


@pytest.mark.parametrize(
    "text",
    [
        "labels=0",
        "labels=-1%",
        "labels=100%",
        "labels=1.5",
        "labels=some",
        "labels=%",
        "stream=perhaps",
        "workers=0",
        "ahead=0",
        "alpha",
        "steps=many",
        "flip=perhaps",
        "lr=-1",
        "engine=fast",
        "graph=x",
        "batch=0",
        "weak_crop=padded",
        "alpha=2",
        "pad=40",
        "warmup=1",
        "optimizer=adam",
        "muon_lr=0",
        "selection=hard",
        "selection_decay=1",
        "fold=4",
        "fold=0/4",
        "fold=5/4",
        "fold=1/1",
        "fold=-1/4",
        "fold=one/two",
    ],
)
def test_bad_values_are_one_line(text):
    recipe = recipes.get("cifar10", "comatch")
    with pytest.raises(UserError) as error:
        replace(recipe, **parse(recipe, [text]))
    assert "\n" not in str(error.value)


def test_a_fold_and_validation_images_are_one_too_many():
    with pytest.raises(UserError, match="fold=1/4 holds labels out"):
        Recipe(fold="1/4", validation=10)


@pytest.mark.parametrize("name", recipes.RECIPES)
@pytest.mark.parametrize("method", methods.METHODS)
def test_every_setting_can_be_set_and_survives_json(name, method):
    recipe = recipes.get(name, method)
    texts = []
    for part in (recipe, recipe.method):
        for key in settings_of(part):
            value = getattr(part, key)
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            texts.append(f"{key}={text}")
    assert replace(recipe, **parse(recipe, texts)) == recipe
    assert from_json(json.loads(json.dumps(to_json(recipe))), methods.CONFIGS) == recipe


@pytest.mark.parametrize("method", methods.METHODS)
def test_method_settings_do_not_hide_recipe_settings(method):
    config = methods.config(method)
    assert not set(settings_of(config)) & set(settings_of(Recipe()))
    for part in (config, Recipe()):
        for field in settings_of(part).values():
            assert field.metadata["says"], field.name


def test_recipes_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Recipe().steps = 3


def test_a_setting_that_is_gone():
    """A run from before still loads, unless it was set to something that no longer exists."""
    recipe = recipes.get("digits", "comatch")
    plain = to_json(recipe)
    plain["method"]["weak_gradient"] = True
    assert from_json(plain, methods.CONFIGS) == recipe
    plain["method"]["weak_gradient"] = False
    with pytest.raises(UserError, match="weak_gradient=False: no longer there"):
        from_json(plain, methods.CONFIGS)
    with pytest.raises(UserError, match="weak_gradient: no longer there"):
        parse(recipe, ["weak_gradient=yes"])
