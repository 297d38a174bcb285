"""Settings: every one can be changed and saved, and a wrong name or value is a one-line error."""

import dataclasses
import json

import pytest

from comatch import methods, recipes
from comatch.config import labels_text, parse, replace, settings_of, to_json, values_of
from comatch.errors import UserError
from comatch.training.recipe import Recipe, from_json


def test_replace_changes_settings_of_every_group():
    recipe = replace(recipes.get("cifar10", "comatch"), alpha=1.0, steps=5)
    assert recipe.method.alpha == 1.0
    assert recipe.optim.steps == 5
    assert recipe.method.temperature == 0.2


def test_the_nearest_name_is_suggested_for_an_unknown_setting():
    with pytest.raises(UserError, match="did you mean 'alpha'"):
        replace(recipes.get("cifar10", "comatch"), alhpa=1.0)
    with pytest.raises(UserError, match="unknown setting 'alpha'"):
        replace(recipes.get("cifar10", "supervised"), alpha=1.0)


def test_values_are_parsed_by_type():
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
        (parsed,) = parse(recipe, [f"labels={text}"]).values()
        assert (parsed, type(parsed)) == (value, type(value))
        assert replace(recipe, labels=parsed).dataset.labels == value
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
def test_a_bad_value_is_a_one_line_error(text):
    recipe = recipes.get("cifar10", "comatch")
    with pytest.raises(UserError) as error:
        replace(recipe, **parse(recipe, [text]))
    assert "\n" not in str(error.value)


def test_a_fold_excludes_validation_images():
    with pytest.raises(UserError, match="fold=1/4 holds labels out"):
        replace(Recipe(), fold="1/4", validation=10)


@pytest.mark.parametrize("name", recipes.RECIPES)
@pytest.mark.parametrize("method", methods.METHODS)
def test_every_setting_can_be_set_and_saved(name, method):
    recipe = recipes.get(name, method)
    texts = []
    for key, value in values_of(recipe).items():
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        texts.append(f"{key}={text}")
    assert replace(recipe, **parse(recipe, texts)) == recipe
    assert from_json(json.loads(json.dumps(to_json(recipe))), methods.config) == recipe


@pytest.mark.parametrize("method", methods.METHODS)
def test_names_of_settings_are_unique_and_explained(method):
    own, shared = methods.config(method), dataclasses.replace(Recipe(), method=None)
    assert not set(settings_of(own)) & set(settings_of(shared))
    for fields in (settings_of(own), settings_of(shared)):
        for field in fields.values():
            assert field.metadata["says"], field.name


def test_recipes_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Recipe().seed = 3
