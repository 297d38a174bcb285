"""The paper's own figures, under the names that its tables and figures have there.

Copied once, by hand, from the paper; everything that shows them beside ours reads them here.
"""

from typing import NamedTuple


class Printed(NamedTuple):
    """Accuracy in per cent over five runs: mean and deviation."""

    mean: float
    std: float

    def __str__(self) -> str:
        return f"{self.mean:.2f} ± {self.std:.2f}"


# Table "cifar_stl", the first of section 4: by data set and number of labels, then by method.
TABLE1: dict[tuple[str, int], dict[str, Printed]] = {
    ("cifar10", 20): {
        "mixmatch": Printed(27.84, 10.63),
        "fixmatch": Printed(82.32, 9.77),
        "fixmatch_da": Printed(83.81, 9.35),
        "comatch": Printed(87.67, 8.47),
    },
    ("cifar10", 40): {
        "mixmatch": Printed(51.90, 11.76),
        "fixmatch": Printed(86.12, 3.53),
        "fixmatch_da": Printed(86.98, 3.40),
        "comatch": Printed(93.09, 1.39),
    },
    ("cifar10", 80): {
        "mixmatch": Printed(80.79, 1.28),
        "fixmatch": Printed(92.06, 0.88),
        "fixmatch_da": Printed(92.29, 0.86),
        "comatch": Printed(93.97, 0.62),
    },
    ("cifar10", 250): {
        "mixmatch": Printed(88.97, 0.85),
        "fixmatch": Printed(94.90, 0.67),
        "fixmatch_da": Printed(94.95, 0.66),
        "comatch": Printed(95.09, 0.33),
    },
    ("stl10", 1000): {
        "mixmatch": Printed(38.02, 8.29),
        "fixmatch": Printed(65.38, 0.42),
        "fixmatch_da": Printed(66.53, 0.39),
        "comatch": Printed(79.80, 0.38),
    },
}
TABLE1_METHODS = ("mixmatch", "fixmatch", "fixmatch_da", "comatch")
TABLE1_LABELS = tuple(labels for data, labels in TABLE1 if data == "cifar10")
TABLE1_MADE = (
    "Paper: mean ± deviation over 5 runs of the averaged model, CoMatch after 512 epochs of 1,024 "
    "steps, the others after 1,024."
)

# Figure "ablation", section 4.3: ImageNet, 1 % of labels, 100 epochs. Its curves are pictures; here
# is what the text says of them, as points of accuracy gained or lost beside the default.
ABLATION_DEFAULT = 57.1
ABLATION_CHANGES: dict[tuple[str, float], float] = {
    ("edge_threshold", 1.0): -2.8,
    ("alpha", 1.0): -2.1,
}
ABLATION_SAYS = {
    "edge_threshold": "T = 1 leaves self-supervised contrast and costs 2.8 points",
    "lambda_ctr": "10 is best with 1 % of the labels, 2 with 10 %: fewer labels need more",
    "alpha": "0.9 is best; 1, without the memory bank, costs 2.1 points",
    "bank_size": "better from 10,000 to 30,000, level beyond",
}
ABLATION_MADE = (
    f"Paper: ImageNet with 1 % of the labels, 100 epochs, one run; {ABLATION_DEFAULT} % at "
    "T = 0.3, lambda_ctr = 10, alpha = 0.9, K = 30,000."
)

# Table "voc", section 4.4: linear SVMs on features of networks trained on ImageNet, by pictures a
# class (None: all), over five draws. Mean average precision on VOC 2007, accuracy on Places205.
TRANSFER: dict[str, dict[str, dict[int | None, Printed | float]]] = {
    "voc2007": {
        "supervised, 100 % of the labels": {
            4: Printed(73.51, 2.12),
            8: Printed(79.60, 0.61),
            16: Printed(82.75, 0.34),
            64: Printed(85.55, 0.12),
            None: 87.12,
        },
        "MoCo v2, 800 epochs": {
            4: Printed(70.47, 2.18),
            8: Printed(76.74, 0.87),
            16: Printed(80.61, 0.53),
            64: Printed(84.60, 0.11),
            None: 86.83,
        },
        "SwAV, 400 epochs": {
            4: Printed(68.04, 2.39),
            8: Printed(75.06, 0.73),
            16: Printed(79.46, 0.55),
            64: Printed(84.24, 0.13),
            None: 86.86,
        },
        "SwAV, 800 epochs, multi-crop": {
            4: Printed(64.27, 2.13),
            8: Printed(73.19, 0.68),
            16: Printed(78.87, 0.46),
            64: Printed(85.07, 0.20),
            None: 88.10,
        },
        "CoMatch, 1 % of the labels": {
            4: Printed(72.81, 1.50),
            8: Printed(79.18, 0.51),
            16: Printed(82.30, 0.46),
            64: Printed(85.65, 0.17),
            None: 87.66,
        },
        "CoMatch, 10 % of the labels": {
            4: Printed(74.56, 2.04),
            8: Printed(80.60, 0.31),
            16: Printed(83.24, 0.43),
            64: Printed(86.07, 0.16),
            None: 87.91,
        },
    },
    "places205": {
        "supervised, 100 % of the labels": {
            4: Printed(27.20, 0.41),
            8: Printed(32.08, 0.45),
            16: Printed(35.95, 0.21),
            64: Printed(41.81, 0.17),
            256: Printed(45.74, 0.14),
        },
        "MoCo v2, 800 epochs": {
            4: Printed(25.34, 0.51),
            8: Printed(30.64, 0.39),
            16: Printed(35.08, 0.34),
            64: Printed(42.18, 0.10),
            256: Printed(46.96, 0.06),
        },
        "SwAV, 400 epochs": {
            4: Printed(25.32, 0.46),
            8: Printed(31.00, 0.47),
            16: Printed(35.65, 0.28),
            64: Printed(42.60, 0.11),
            256: Printed(47.51, 0.20),
        },
        "SwAV, 800 epochs, multi-crop": {
            4: Printed(27.07, 0.60),
            8: Printed(33.26, 0.38),
            16: Printed(38.38, 0.22),
            64: Printed(46.01, 0.10),
            256: Printed(51.00, 0.17),
        },
        "CoMatch, 1 % of the labels": {
            4: Printed(27.15, 0.42),
            8: Printed(32.36, 0.37),
            16: Printed(36.56, 0.33),
            64: Printed(42.97, 0.11),
            256: Printed(47.32, 0.18),
        },
        "CoMatch, 10 % of the labels": {
            4: Printed(28.11, 0.33),
            8: Printed(33.05, 0.46),
            16: Printed(36.98, 0.28),
            64: Printed(43.06, 0.22),
            256: Printed(47.10, 0.11),
        },
    },
}

# Table "coco", section 4.4: by schedule, then by what the detector began from (and the share of
# ImageNet's labels that it knew): AP, AP50 and AP75 of boxes, then of masks. COCO's train2017 and
# val2017, Mask R-CNN with ResNet-50 and a feature pyramid.
COCO: dict[str, dict[tuple[str, str], tuple[float, ...]]] = {
    "1x": {
        ("Supervised", "100 %"): (38.9, 59.6, 42.7, 35.4, 56.5, 38.1),
        ("MoCo", "0 %"): (38.5, 58.9, 42.0, 35.1, 55.9, 37.7),
        ("CoMatch", "1 %"): (39.7, 61.2, 43.1, 36.1, 57.8, 38.5),
        ("CoMatch", "10 %"): (40.5, 61.5, 44.2, 36.7, 58.3, 39.2),
    },
    "2x": {
        ("Supervised", "100 %"): (40.6, 61.3, 44.4, 36.8, 58.1, 39.5),
        ("MoCo", "0 %"): (40.8, 61.6, 44.7, 36.9, 58.4, 39.7),
        ("CoMatch", "1 %"): (41.2, 62.2, 44.9, 37.3, 59.0, 39.9),
        ("CoMatch", "10 %"): (41.5, 62.5, 45.4, 37.6, 59.5, 40.3),
    },
}
COCO_FIGURES = ("bb_AP", "bb_AP50", "bb_AP75", "mk_AP", "mk_AP50", "mk_AP75")  # as we call them
COCO_STEPS, COCO_BATCH = {"1x": 90_000, "2x": 180_000}, 16
