"""Settings of the network."""

from dataclasses import dataclass

from comatch.config import Config, setting
from comatch.nets.heads import ACTIVATIONS


@dataclass(frozen=True)
class ModelConfig(Config):
    """Which network learns, and what it starts from."""

    net: str = setting("wrn-28-2", "wrn-DEPTH-WIDTH, or the name of a timm model")
    norm_momentum: float | None = setting(None, "batch norm momentum; default: the network's own")
    stem: str = setting(
        "auto",
        "first layers: small (3x3, no pooling), half (small with stride 2), standard (the "
        "network's own), auto: by image size",
        choices=("auto", "small", "half", "standard"),
    )
    zero_last_gamma: bool = setting(
        True, "random weights of timm's ResNets: each residual block starts as the identity"
    )
    head_activation: str = setting(
        "leaky_relu",
        "activation between the layers of the projection head: leaky_relu (slope 0.1) or relu",
        choices=tuple(ACTIVATIONS),
    )
    init: str | None = setting(
        None, "initial weights: a run folder, a file, timm or timm:NAME.TAG; default: random"
    )
    init_classifier: bool = setting(
        False, "with init: load a file's classifier too, made for the same classes in this order"
    )
    init_head_layers: int = setting(
        0,
        "with init: layers of a SimCLR head that stay part of the encoder; SimCLR v2: 1 of 3",
        least=0,
    )
    frozen: bool = setting(False, "with init: keep the encoder's weights, train only the heads")
    fused: bool = setting(True, "fused norm, activation and convolution kernels: bf16 on a GPU")
