"""`comatch methods` and `comatch recipes` list what there is, and show its settings."""

import pytest

from comatch import methods, recipes
from comatch.cli.methods import descriptions
from comatch.config import settings_of
from helpers import assert_one_line_error


def test_methods_are_listed_with_their_docstrings(cli):
    trained = {**methods.METHODS, **methods.ESTIMATORS}
    for pretraining, known in ((False, trained), (True, methods.PRETRAINING)):
        documented = {name: m.__doc__.strip() for name, m in known.items()}
        assert descriptions(pretraining) == documented
    code, out, _ = cli("methods")
    assert code == 0
    first, second = out.split("\n\n")
    assert [line.split()[0] for line in first.splitlines()] == sorted(trained)
    _, *rest = second.splitlines()
    assert [line.split()[0] for line in rest] == sorted(methods.PRETRAINING)


@pytest.mark.parametrize("name", [*methods.METHODS, *methods.ESTIMATORS, *methods.PRETRAINING])
def test_settings_of_a_method(cli, name):
    code, out, _ = cli("methods", name)
    assert code == 0
    assert all(setting in out for setting in settings_of(methods.config(name)))


def test_recipes_are_listed(cli):
    code, out, _ = cli("recipes")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == list(recipes.ALL)


def test_settings_of_a_recipe(cli):
    code, out, _ = cli("recipes", "cifar10")
    assert code == 0
    assert all(setting in out for setting in ("edge_threshold", "labels", "muon_lr"))
    assert "edge_threshold" not in cli("recipes", "cifar10", "--method", "supervised")[1]
    assert "queue_size" in cli("recipes", "pretrain-cifar10", "--method", "moco_v2")[1]


def test_unknown_names(cli):
    assert_one_line_error(cli("methods", "comach"), "did you mean 'comatch'")
    assert_one_line_error(cli("recipes", "cifar"), "did you mean 'cifar10'")
