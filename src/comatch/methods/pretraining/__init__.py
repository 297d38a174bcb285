"""Methods that learn an encoder from images without labels: `comatch pretrain`."""

from comatch.methods.method import Method
from comatch.methods.pretraining.byol import Byol
from comatch.methods.pretraining.moco_v2 import MoCoV2
from comatch.methods.pretraining.pcl import Pcl
from comatch.methods.pretraining.pirl import Pirl
from comatch.methods.pretraining.pretraining import Pretraining
from comatch.methods.pretraining.simclr import SimCLR
from comatch.methods.pretraining.swav import SwAV

PRETRAINING: dict[str, type[Method]] = {
    method.Config.method: method for method in (SimCLR, MoCoV2, Byol, SwAV, Pirl, Pcl)
}

__all__ = ["PRETRAINING", "Pretraining"]
