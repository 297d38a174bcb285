"""Mask R-CNN on a feature pyramid, around an encoder that has learned something else before.

All of it is torchvision's; the encoder is timm's ResNet, as comatch trains it. Where the paper's
Detectron2 does otherwise than torchvision and this leaves it so: boxes are learned with a smooth L1
loss (there: L1), regions are cropped by RoIAlign without the half-pixel shift and with 2 x 2
samples a cell, images are scaled without a low-pass filter, and a batch mixes upright and lying
images, so that it has more padding.
"""

from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.detection import MaskRCNN
from torchvision.models.detection.backbone_utils import BackboneWithFPN

from comatch.commands.transfer import encoders
from comatch.commands.transfer.detection.setting import Setting
from comatch.commands.transfer.encoders import Encoder
from comatch.config import require
from comatch.errors import UserError, shortened
from comatch.nets import Network, build_encoder, pretrained
from comatch.nets.pretrained import Loaded
from comatch.training.run_folder import RunFolder

NETS = ("resnet18", "resnet34", "resnet50", "resnet101")
LEVELS = {"layer1": "0", "layer2": "1", "layer3": "2", "layer4": "3"}  # of the pyramid


def read_start(start: str) -> Encoder:
    """What the detector's encoder begins from, if it can begin from that."""
    encoders.check_there([start])
    net_of(start)
    return encoders.read(start, encoders.USUAL, "cpu")


def net_of(start: str) -> str:
    """The network of a run or of timm's weights; that of a file, or a new one, is the paper's."""
    net = str(encoders.USUAL["net"])
    if Path(start).is_dir():
        net = RunFolder(Path(start)).description()["net"]
    elif pretrained.is_timm(start):
        net = encoders.of_timm(start, net)["net"]
    require(net in NETS, f"{start} has net={net}, and a detector is built on {', '.join(NETS)}")
    return net


def begin(net: str, start: Encoder | None) -> tuple[nn.Module, Loaded | None]:
    """The detector's encoder, and a report if it took weights from another: all, or it fails."""
    encoder = build_encoder(net, encoders.USUAL["image_size"], encoders.USUAL["stem"])
    if start is None or not start.learned:
        return encoder, None
    with torch.random.fork_rng(devices=[]):  # what is new is then the same for every start
        whole = Network(encoder, classes=1)
    loaded = pretrained.fill(whole, start.net.state_dict(), start.name)
    if loaded.left_out:
        raise UserError(
            f"{start.name} does not fit {net}: {shortened(loaded.left_out)}; a detector needs one "
            "that was trained with stem=standard"
        )
    return encoder, replace(loaded, heads={})  # of which a detector has none


class Pyramid(BackboneWithFPN):
    """Feature maps of four scales and a fifth, from an encoder and what is new above it.

    Batch norm is trained, also in the new part: it helps to calibrate magnitudes (MoCo, section
    4.2). Only this runs in bf16 where that is asked for, and what comes out is float32: torchvision
    computes boxes in the type of the predictions, and bf16 tells whole pixels apart only up to 256.
    """

    def __init__(self, encoder: Any, low: bool) -> None:
        widths = [stage["num_chs"] for stage in encoder.feature_info[1:]]
        super().__init__(encoder, LEVELS, widths, 256, norm_layer=nn.BatchNorm2d)
        self.low = low

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.low):
            maps = super().forward(x)
        return OrderedDict((name, values.float()) for name, values in maps.items())


def build(setting: Setting, encoder: nn.Module) -> MaskRCNN:
    """The whole detector, random but for its encoder. Torchvision keeps more proposals."""
    return MaskRCNN(
        Pyramid(encoder, low=setting.precision == "bf16"),
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
