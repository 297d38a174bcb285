"""The paper's figures, typed a second time, row by row."""

import pytest

from comatch import recipes
from comatch.commands.reproduce import paper
from comatch.methods import METHODS

COLUMNS = [("cifar10", 20), ("cifar10", 40), ("cifar10", 80), ("cifar10", 250), ("stl10", 1000)]
PRINTED = {
    "mixmatch": "27.84 10.63  51.90 11.76  80.79 1.28  88.97 0.85  38.02 8.29",
    "fixmatch": "82.32 9.77  86.12 3.53  92.06 0.88  94.90 0.67  65.38 0.42",
    "fixmatch_da": "83.81 9.35  86.98 3.40  92.29 0.86  94.95 0.66  66.53 0.39",
    "comatch": "87.67 8.47  93.09 1.39  93.97 0.62  95.09 0.33  79.80 0.38",
}


@pytest.mark.parametrize("method", PRINTED)
def test_table_1(method):
    assert list(paper.TABLE1) == COLUMNS
    row = [paper.TABLE1[column][method] for column in COLUMNS]
    assert [value for figure in row for value in figure] == list(
        map(float, PRINTED[method].split())
    )


def test_the_methods_of_table_1_exist():
    assert tuple(PRINTED) == paper.TABLE1_METHODS
    assert set(PRINTED) <= set(METHODS)
    assert paper.TABLE1_LABELS == (20, 40, 80, 250)
    assert all(set(column) == set(PRINTED) for column in paper.TABLE1.values())
    assert str(paper.TABLE1["cifar10", 40]["fixmatch_da"]) == "86.98 ± 3.40"


def test_the_docstrings_of_recipes_have_the_papers_figures():
    for name, column in (("cifar10", ("cifar10", 40)), ("stl10", ("stl10", 1000))):
        figure = paper.TABLE1[column]["comatch"]
        assert f"{figure.mean:.2f} +- {figure.std:.2f} %" in recipes.descriptions()[name]


TABLE2 = {  # top-1 of 1 and 10 per cent, then top-5 of both; 0 for a dash
    ("", "supervised"): "25.4 56.4  48.4 80.4",
    ("", "pseudo_label"): "0 0  51.6 82.4",
    ("", "vat"): "0 68.8  0 88.5",
    ("", "s4l_rotation"): "0 53.4  0 83.8",
    ("", "uda"): "0 68.8  0 88.5",
    ("", "fixmatch"): "0 71.5  0 89.1",
    ("", "fixmatch_da"): "53.4 70.8  74.4 89.0",
    ("", "comatch_momentum"): "66.0 73.6  86.4 91.6",
    ("PIRL", "supervised"): "30.7 60.4  57.2 83.8",
    ("PCL", "supervised"): "0 0  75.3 85.6",
    ("SimCLR", "supervised"): "48.3 65.6  75.5 87.8",
    ("BYOL", "supervised"): "53.2 68.8  78.4 89.0",
    ("SwAV", "supervised"): "53.9 70.2  78.5 89.9",
    ("MoCo v2", "supervised"): "49.8 66.1  77.2 87.9",
    ("MoCo v2", "fixmatch_da"): "59.9 72.2  79.8 89.5",
    ("MoCo v2", "comatch_momentum"): "67.1 73.7  87.1 91.4",
    ("SimCLR v2", "supervised"): "57.9 68.4  82.5 89.2",
    ("SimCLR v2", "distill"): "73.9 77.5  91.5 93.4",
}


def test_table_2():
    none = paper.Tops(None, None)
    for row, figures in TABLE2.items():
        assert row[1] in METHODS
        one, ten = (paper.TABLE2[share].get(row, none) for share in (1, 10))
        assert [one.top1 or 0, ten.top1 or 0, one.top5 or 0, ten.top5 or 0] == list(
            map(float, figures.split())
        )
    assert set(paper.TABLE2[1]) | set(paper.TABLE2[10]) == set(TABLE2)


# Epochs, 0 for a dash; millions of parameters in training and at test.
TABLE2_SIZES = {
    ("", "supervised"): "20 25.6 25.6",
    ("", "pseudo_label"): "100 25.6 25.6",
    ("", "vat"): "0 25.6 25.6",
    ("", "s4l_rotation"): "200 25.6 25.6",
    ("", "uda"): "0 25.6 25.6",
    ("", "fixmatch"): "300 25.6 25.6",
    ("", "fixmatch_da"): "400 25.6 25.6",
    ("", "comatch_momentum"): "400 30.0 25.6",
    ("PIRL", "supervised"): "800 26.1 25.6",
    ("PCL", "supervised"): "200 25.8 25.6",
    ("SimCLR", "supervised"): "1000 30.0 25.6",
    ("BYOL", "supervised"): "1000 37.1 25.6",
    ("SwAV", "supervised"): "800 30.4 25.6",
    ("MoCo v2", "supervised"): "800 30.0 25.6",
    ("MoCo v2", "fixmatch_da"): "1200 30.0 25.6",
    ("MoCo v2", "comatch_momentum"): "1200 30.0 25.6",
    ("SimCLR v2", "supervised"): "800 34.2 29.8",
    ("SimCLR v2", "distill"): "1200 829.2 29.8",
}


def test_epochs_and_parameters_of_table_2():
    assert set(TABLE2_SIZES) == set(TABLE2) == set(paper.TABLE2_EPOCHS)
    for row, figures in TABLE2_SIZES.items():
        ours = paper.TABLE2_EPOCHS[row] or 0, *paper.TABLE2_PARAMETERS[row]
        assert list(ours) == list(map(float, figures.split()))


def test_transfer():
    for data, last in (("voc2007", 87.91), ("places205", paper.Printed(47.10, 0.11))):
        rows = paper.TRANSFER[data]
        assert list(rows) == [
            "supervised",
            "MoCo v2",
            "SwAV",
            "SwAV*",
            "CoMatch 1 %",
            "CoMatch 10 %",
        ]
        assert len({tuple(row) for row in rows.values()}) == 1
        assert list(rows["CoMatch 10 %"].values())[-1] == last
    assert paper.TRANSFER["voc2007"]["MoCo v2"][16] == paper.Printed(80.61, 0.53)


COCO = {
    ("Supervised", "100 %"): "38.9 59.6 42.7 35.4 56.5 38.1  40.6 61.3 44.4 36.8 58.1 39.5",
    ("MoCo", "0 %"): "38.5 58.9 42.0 35.1 55.9 37.7  40.8 61.6 44.7 36.9 58.4 39.7",
    ("CoMatch", "1 %"): "39.7 61.2 43.1 36.1 57.8 38.5  41.2 62.2 44.9 37.3 59.0 39.9",
    ("CoMatch", "10 %"): "40.5 61.5 44.2 36.7 58.3 39.2  41.5 62.5 45.4 37.6 59.5 40.3",
}


@pytest.mark.parametrize("row", COCO)
def test_coco(row):
    assert list(paper.COCO["1x"]) == list(paper.COCO["2x"]) == list(COCO)
    figures = [*paper.COCO["1x"][row], *paper.COCO["2x"][row]]
    assert figures == list(map(float, COCO[row].split()))
    assert len(paper.COCO_FIGURES) == 6


def test_ablations():
    """Section 4.3: 57.1 % by default; T = 1 costs 2.8 points, alpha = 1 costs 2.1."""
    assert paper.ABLATION_DEFAULT == 57.1
    assert paper.ABLATION_CHANGES == {("edge_threshold", 1.0): -2.8, ("alpha", 1.0): -2.1}
    default = recipes.get("imagenet-1pct").method
    for words in (f"T = {default.edge_threshold}", f"alpha = {default.alpha}"):
        assert words in paper.ABLATION_MADE
    assert f"lambda_ctr = {default.lambda_ctr:g}, " in paper.ABLATION_MADE
    assert f"K = {default.bank_size:,}" in paper.ABLATION_MADE
