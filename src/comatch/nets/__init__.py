"""Encoders by name: `wrn-28-2` is written here, everything else comes from timm."""

import re
from typing import Any

from torch import nn

from comatch.config import check_name
from comatch.errors import UserError
from comatch.nets.network import Network, Output
from comatch.nets.wide_resnet import WideResNet

SMALL_IMAGE = 64  # pixels up to which a stem that quarters the image would leave too little


def build_encoder(
    name: str,
    image_size: int,
    stem: str = "auto",
    norm_momentum: float | None = None,
    zero_last_gamma: bool = True,
) -> nn.Module:
    """A network from images to features, with the width of those in `num_features`."""
    encoder = choose_encoder(name, image_size, stem, zero_last_gamma)
    for module in encoder.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and norm_momentum is not None:
            module.momentum = norm_momentum
    return encoder


def choose_encoder(name: str, image_size: int, stem: str, zero_last_gamma: bool) -> nn.Module:
    wide = is_wide(name)
    if wide:
        try:
            return WideResNet(int(wide[1]), int(wide[2]))
        except ValueError as error:
            raise UserError(f"net={name}: {error}") from None
    import timm  # takes seconds, which a wide ResNet does without

    check_name(name, timm.list_models(), "net")
    resnet = timm.models.is_model_in_modules(name, ["resnet"])
    options = {} if zero_last_gamma or not resnet else {"zero_init_last": False}
    encoder = create(name, image_size, **options)
    small = stem in ("small", "half")
    if small or (stem == "auto" and image_size <= SMALL_IMAGE):
        shrunk = shrink_stem(encoder, stride=2 if stem == "half" else 1)
        if small and not shrunk:
            raise UserError(f"net={name} has no stem to make smaller: use --set stem=standard")
    return encoder


def is_wide(name: str) -> re.Match[str] | None:
    """A wide ResNet's depth and width, if it is the name of one."""
    return re.fullmatch(r"wrn-(\d+)-(\d+)", name)


def create(name: str, image_size: int, pretrained: bool = False, **options: Any) -> nn.Module:
    """A timm model without its classifier; transformers must be told the image's size."""
    import timm

    try:
        return timm.create_model(name, pretrained, num_classes=0, img_size=image_size, **options)
    except TypeError:
        return timm.create_model(name, pretrained, num_classes=0, **options)


def shrink_stem(encoder: nn.Module, stride: int = 1) -> bool:
    """Keeps the resolution that a stem made for 224 pixels would throw away, if it has one.

    The first convolution no longer strides, or only that far; a 7x7 one becomes 3x3, and a max-pool
    behind it goes.
    """
    place = getattr(encoder, "default_cfg", {}).get("first_conv")
    conv = encoder.get_submodule(place) if isinstance(place, str) else None
    if not isinstance(conv, nn.Conv2d) or conv.stride[0] >= conv.kernel_size[0]:
        return False  # cutting into patches is not striding
    kernel = 3 if conv.kernel_size[0] == 7 else conv.kernel_size[0]
    small = nn.Conv2d(
        conv.in_channels,
        conv.out_channels,
        kernel,
        stride,
        padding=kernel // 2,
        bias=conv.bias is not None,
    )
    nn.init.kaiming_normal_(small.weight, mode="fan_out", nonlinearity="relu")
    encoder.set_submodule(str(place), small)
    if isinstance(getattr(encoder, "maxpool", None), nn.Module):
        encoder.maxpool = nn.Identity()
    return True


__all__ = ["Network", "Output", "WideResNet", "build_encoder", "is_wide"]
