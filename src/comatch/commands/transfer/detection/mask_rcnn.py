"""Mask R-CNN with a feature pyramid on a trained encoder.

The detector is torchvision's; the encoder is timm's ResNet, as comatch trains it. Torchvision
differs from the paper's Detectron2, and this keeps the differences: the box loss is smooth L1
(there: L1), RoIAlign has no half-pixel shift and 2 x 2 samples a cell, images are resized without a
low-pass filter, and a batch may mix portrait and landscape images, so it has more padding.
"""

from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.backbone_utils import BackboneWithFPN

from comatch.commands.transfer.detection.setting import Setting
from comatch.commands.transfer.encoders import (
    PUBLISHED,
    Encoder,
    check_exist,
    describe_timm,
    load_encoder,
)
from comatch.config import require
from comatch.errors import UserError, shortened
from comatch.nets import Network, build_encoder, pretrained
from comatch.nets.frozen import FrozenEncoder
from comatch.nets.pretrained import Loaded
from comatch.training.run_folder import RunFolder

NETS = ("resnet18", "resnet34", "resnet50", "resnet101")
LEVELS = {"layer1": "0", "layer2": "1", "layer3": "2", "layer4": "3"}  # of the pyramid


def load_start(start: str) -> Encoder:
    """The encoder with the initial weights; an error if no detector can be built on it."""
    check_exist([start])
    net_of(start)
    return load_encoder(start, PUBLISHED, "cpu")


def net_of(start: str) -> str:
    """The network of a run or of timm's weights; for a file and random weights the paper's."""
    net = str(PUBLISHED["net"])
    if Path(start).is_dir():
        net = RunFolder(Path(start)).description()["net"]
    elif pretrained.is_timm(start):
        net = describe_timm(start, net)["net"]
    require(net in NETS, f"{start} has net={net}, and a detector is built on {', '.join(NETS)}")
    return net


def build_encoder_from(start: Encoder | None, net: str) -> tuple[nn.Module, Loaded | None]:
    """The detector's encoder, and a report if it has trained weights: all of them fit, or none."""
    encoder = build_encoder(net, PUBLISHED["image_size"], PUBLISHED["stem"])
    if start is None or not start.trained:
        return encoder, None
    with torch.random.fork_rng(devices=[]):  # other layers get the same weights for every start
        whole = Network(encoder, classes=1)
    loaded = pretrained.fill(whole, trained_weights(start), start.name)
    if loaded.left_out:
        raise UserError(
            f"{start.name} does not fit {net}: {shortened(loaded.left_out)}; a detector needs an "
            "encoder that was trained with stem=standard"
        )
    return encoder, replace(loaded, heads={})  # a detector has no such heads


def trained_weights(start: Encoder) -> dict[str, Tensor]:
    """The weights of the encoder, without the scaling of a frozen one."""
    encoder = start.net.encoder
    return (encoder.net if isinstance(encoder, FrozenEncoder) else encoder).state_dict()


class Pyramid(BackboneWithFPN):
    """Feature maps of five scales: an encoder and new layers.

    The new layers have batch norm too, which helps to calibrate magnitudes (MoCo, section 4.2).
    Only this part runs in bf16, and its output is float32: torchvision computes boxes in the type
    of the predictions, and bf16 represents whole numbers only up to 256.
    """

    def __init__(self, encoder: Any, bf16: bool) -> None:
        widths = [stage["num_chs"] for stage in encoder.feature_info[1:]]
        super().__init__(encoder, LEVELS, widths, 256, norm_layer=nn.BatchNorm2d)
        self.bf16 = bf16

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.bf16):
            maps = super().forward(x)
        return OrderedDict((name, values.float()) for name, values in maps.items())


def build(setting: Setting, encoder: nn.Module) -> MaskRCNN:
    """The whole detector; all but its encoder is random."""
    return MaskRCNN(
        Pyramid(encoder, bf16=setting.precision == "bf16"),
        len(setting.classes) + 1,  # and the background
        min_size=setting.sides,
        max_size=setting.longest,
        image_mean=setting.mean,
        image_std=setting.std,
        rpn_pre_nms_top_n_train=2 * setting.proposals,
        rpn_pre_nms_top_n_test=setting.proposals,
        rpn_post_nms_top_n_train=setting.proposals,
        rpn_post_nms_top_n_test=setting.proposals,
        box_batch_size_per_image=setting.sampled,
    )
