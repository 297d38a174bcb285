"""The figures that the paper reports, by table. They were copied from the paper by hand."""

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


class Tops(NamedTuple):
    """Top-1 and top-5 accuracy in per cent, of one run; None where the table has a dash."""

    top1: float | None
    top5: float | None


# Table "imagenet", section 4.2: ResNet-50, by per cent of the labels, then by pre-training and
# method; its fine-tuning is the method supervised from pre-trained weights. The networks of SimCLR
# v2 are larger, and its teacher is much larger.
TABLE2: dict[int, dict[tuple[str, str], Tops]] = {
    1: {
        ("", "supervised"): Tops(25.4, 48.4),
        ("", "pseudo_label"): Tops(None, 51.6),
        ("", "fixmatch_da"): Tops(53.4, 74.4),
        ("", "comatch_momentum"): Tops(66.0, 86.4),
        ("PIRL", "supervised"): Tops(30.7, 57.2),
        ("PCL", "supervised"): Tops(None, 75.3),
        ("SimCLR", "supervised"): Tops(48.3, 75.5),
        ("BYOL", "supervised"): Tops(53.2, 78.4),
        ("SwAV", "supervised"): Tops(53.9, 78.5),
        ("MoCo v2", "supervised"): Tops(49.8, 77.2),
        ("MoCo v2", "fixmatch_da"): Tops(59.9, 79.8),
        ("MoCo v2", "comatch_momentum"): Tops(67.1, 87.1),
        ("SimCLR v2", "supervised"): Tops(57.9, 82.5),
        ("SimCLR v2", "distill"): Tops(73.9, 91.5),
    },
    10: {
        ("", "supervised"): Tops(56.4, 80.4),
        ("", "pseudo_label"): Tops(None, 82.4),
        ("", "vat"): Tops(68.8, 88.5),
        ("", "s4l_rotation"): Tops(53.4, 83.8),
        ("", "uda"): Tops(68.8, 88.5),
        ("", "fixmatch"): Tops(71.5, 89.1),
        ("", "fixmatch_da"): Tops(70.8, 89.0),
        ("", "comatch_momentum"): Tops(73.6, 91.6),
        ("PIRL", "supervised"): Tops(60.4, 83.8),
        ("PCL", "supervised"): Tops(None, 85.6),
        ("SimCLR", "supervised"): Tops(65.6, 87.8),
        ("BYOL", "supervised"): Tops(68.8, 89.0),
        ("SwAV", "supervised"): Tops(70.2, 89.9),
        ("MoCo v2", "supervised"): Tops(66.1, 87.9),
        ("MoCo v2", "fixmatch_da"): Tops(72.2, 89.5),
        ("MoCo v2", "comatch_momentum"): Tops(73.7, 91.4),
        ("SimCLR v2", "supervised"): Tops(68.4, 89.2),
        ("SimCLR v2", "distill"): Tops(77.5, 93.4),
    },
}
# Its columns of epochs, with those of the pre-training (None: a dash), and of parameters in
# millions, in training and at test.
TABLE2_EPOCHS: dict[tuple[str, str], int | None] = {
    ("", "supervised"): 20,
    ("", "pseudo_label"): 100,
    ("", "vat"): None,
    ("", "s4l_rotation"): 200,
    ("", "uda"): None,
    ("", "fixmatch"): 300,
    ("", "fixmatch_da"): 400,
    ("", "comatch_momentum"): 400,
    ("PIRL", "supervised"): 800,
    ("PCL", "supervised"): 200,
    ("SimCLR", "supervised"): 1000,
    ("BYOL", "supervised"): 1000,
    ("SwAV", "supervised"): 800,
    ("MoCo v2", "supervised"): 800,
    ("MoCo v2", "fixmatch_da"): 1200,
    ("MoCo v2", "comatch_momentum"): 1200,
    ("SimCLR v2", "supervised"): 800,
    ("SimCLR v2", "distill"): 1200,
}
TABLE2_PARAMETERS: dict[tuple[str, str], tuple[float, float]] = {
    **dict.fromkeys(TABLE2_EPOCHS, (25.6, 25.6)),
    ("", "comatch_momentum"): (30.0, 25.6),
    ("PIRL", "supervised"): (26.1, 25.6),
    ("PCL", "supervised"): (25.8, 25.6),
    ("SimCLR", "supervised"): (30.0, 25.6),
    ("BYOL", "supervised"): (37.1, 25.6),
    ("SwAV", "supervised"): (30.4, 25.6),
    **{row: (30.0, 25.6) for row in TABLE2_EPOCHS if row[0] == "MoCo v2"},
    ("SimCLR v2", "supervised"): (34.2, 29.8),
    ("SimCLR v2", "distill"): (829.2, 29.8),
}
TABLE2_METHODS = ("fixmatch_da", "comatch_momentum")  # the paper's own runs; it cites the rest
TABLE2_MADE = (
    "Paper: one run, ResNet-50; FixMatch with DA, CoMatch and the rows with MoCo v2 are its own "
    "runs, the others as cited there (VAT with entropy minimisation). Its epochs include those of "
    "the pre-training, ours do not. Parameters: millions, in training / at test."
)

# Figure "ablation", section 4.3: ImageNet, 1 % of labels, 100 epochs. These are the numbers in the
# text, as changes in points of accuracy; those in the figure are not given as numbers.
ABLATION_DEFAULT = 57.1
ABLATION_CHANGES: dict[tuple[str, float], float] = {
    ("edge_threshold", 1.0): -2.8,
    ("alpha", 1.0): -2.1,
}
ABLATION_SAYS = {
    "edge_threshold": "with T = 1 the contrastive loss is self-supervised: 2.8 points less",
    "lambda_ctr": "10 is best with 1 % of the labels, 2 with 10 %",
    "alpha": "0.9 is best; with 1 the memory bank is not used: 2.1 points less",
    "bank_size": "better from 10,000 to 30,000, no better beyond",
}
ABLATION_MADE = (
    f"Paper: ImageNet with 1 % of the labels, 100 epochs, one run; {ABLATION_DEFAULT} % at "
    "T = 0.3, lambda_ctr = 10, alpha = 0.9, K = 30,000."
)

# Table "voc", section 4.4: linear SVMs on features of networks trained on ImageNet, by images a
# class (None: all), over five draws. Mean average precision on VOC 2007, accuracy on Places205.
FewShots = dict[int | None, Printed | float]


def by_shots(shots: tuple[int | None, ...], figures: str) -> FewShots:
    """A row of the table: mean and deviation in each column; all images have one draw only."""
    numbers = iter(map(float, figures.split()))
    return {k: next(numbers) if k is None else Printed(next(numbers), next(numbers)) for k in shots}


TRANSFER: dict[str, dict[str, FewShots]] = {
    "voc2007": {
        name: by_shots((4, 8, 16, 64, None), figures)
        for name, figures in {
            "supervised": "73.51 2.12 79.60 0.61 82.75 0.34 85.55 0.12 87.12",
            "MoCo v2": "70.47 2.18 76.74 0.87 80.61 0.53 84.60 0.11 86.83",
            "SwAV": "68.04 2.39 75.06 0.73 79.46 0.55 84.24 0.13 86.86",
            "SwAV*": "64.27 2.13 73.19 0.68 78.87 0.46 85.07 0.20 88.10",
            "CoMatch 1 %": "72.81 1.50 79.18 0.51 82.30 0.46 85.65 0.17 87.66",
            "CoMatch 10 %": "74.56 2.04 80.60 0.31 83.24 0.43 86.07 0.16 87.91",
        }.items()
    },
    "places205": {
        name: by_shots((4, 8, 16, 64, 256), figures)
        for name, figures in {
            "supervised": "27.20 0.41 32.08 0.45 35.95 0.21 41.81 0.17 45.74 0.14",
            "MoCo v2": "25.34 0.51 30.64 0.39 35.08 0.34 42.18 0.10 46.96 0.06",
            "SwAV": "25.32 0.46 31.00 0.47 35.65 0.28 42.60 0.11 47.51 0.20",
            "SwAV*": "27.07 0.60 33.26 0.38 38.38 0.22 46.01 0.10 51.00 0.17",
            "CoMatch 1 %": "27.15 0.42 32.36 0.37 36.56 0.33 42.97 0.11 47.32 0.18",
            "CoMatch 10 %": "28.11 0.33 33.05 0.46 36.98 0.28 43.06 0.22 47.10 0.11",
        }.items()
    },
}
TRANSFER_MADE = (
    "Paper: ResNet-50 on ImageNet, mean ± deviation over 5 draws; supervised with all labels for "
    "90 epochs, MoCo v2 for 800, SwAV for 400 (* 800, multi-crop), CoMatch for 400."
)

# Table "coco", section 4.4: by schedule, then by pre-training (and its share of ImageNet's labels):
# AP, AP50 and AP75 of boxes, then of masks. COCO's train2017 and val2017, Mask R-CNN with ResNet-50
# and a feature pyramid.
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
COCO_FIGURES = ("bb_AP", "bb_AP50", "bb_AP75", "mk_AP", "mk_AP50", "mk_AP75")  # our names
COCO_STEPS, COCO_BATCH = {"1x": 90_000, "2x": 180_000}, 16
