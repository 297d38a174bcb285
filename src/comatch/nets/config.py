"""Settings of the network."""

from dataclasses import dataclass

from comatch.config import Config, setting


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
    init: str | None = setting(
        None, "initial weights: a run folder, a file, timm or timm:NAME.TAG; default: random"
    )
    frozen: bool = setting(False, "with init: keep the encoder's weights, train only the heads")
    kept_views: int = setting(
        4, "with frozen: augmented views of each image whose features are cached", least=1
    )
    fused: bool = setting(True, "fused norm, activation and convolution kernels: bf16 on a GPU")
