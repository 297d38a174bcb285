"""The table of docs/how-to/several-gpus.md follows from the numbers that the page gives."""

from pathlib import Path

from comatch import recipes

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "several-gpus.md").read_text()
WITH_GRADIENT, WITHOUT = 7_070, 20_400  # ResNet-50 images a second, measured on one H200
PARAMETERS = 23_508_032 + 2049 * 1000 + 2049 * 2048 + 2049 * 128  # encoder, classifier, projector
MESSAGES = 3 * 53  # of batch norm: forward in two networks, backward in one of them


def step_seconds(ranks, machines):
    recipe = recipes.get("imagenet-1pct", "comatch_momentum")
    unlabelled = recipe.optim.batch * recipe.optim.mu
    seconds = (recipe.optim.batch + unlabelled) / WITH_GRADIENT
    seconds = (seconds + (recipe.optim.batch + 2 * unlabelled) / WITHOUT) / ranks
    if ranks > 1:
        sent = 2 * (ranks - 1) / ranks * 4 * PARAMETERS
        seconds += sent / 450e9 + MESSAGES * (25e-6 if machines == 1 else 40e-6) + 0.1e-3
    if machines > 1:
        seconds += 2 * (machines - 1) / machines * 4 * PARAMETERS / (8 * 50e9)
    return seconds


def test_the_table_of_estimated_times():
    steps = recipes.get("imagenet-1pct", "comatch_momentum").optim.steps
    assert f"{steps:,} steps" in PAGE
    for ranks, machines in ((1, 1), (2, 1), (4, 1), (8, 1), (16, 2)):
        seconds = step_seconds(ranks, machines)
        hours = steps * seconds / 3600
        row = f"| {ranks} | {machines} | {1e3 * seconds:.1f} ms | {hours:.1f} h"
        assert f"{row} | {ranks * hours:.0f} |" in PAGE, row
