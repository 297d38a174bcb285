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
