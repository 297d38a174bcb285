"""Every method by its name: import it and add it to the list, and the command line knows it."""

from torch import nn

from comatch.config import MethodConfig, check_name
from comatch.methods.comatch import CoMatch
from comatch.methods.comatch_momentum import CoMatchMomentum
from comatch.methods.fixmatch import FixMatch
from comatch.methods.fixmatch_da import FixMatchDA
from comatch.methods.label_propagation import LabelPropagation
from comatch.methods.mean_teacher import MeanTeacher
from comatch.methods.method import Method, Step
from comatch.methods.mixmatch import MixMatch
from comatch.methods.pi_model import PiModel
from comatch.methods.pseudo_label import PseudoLabel
from comatch.methods.remixmatch import ReMixMatch
from comatch.methods.s4l_rotation import S4LRotation
from comatch.methods.supervised import Supervised
from comatch.methods.temporal_ensembling import TemporalEnsembling
from comatch.methods.uda import Uda
from comatch.methods.vat import Vat
from comatch.types import Task

METHODS: dict[str, type[Method]] = {
    method.Config.method: method
    for method in (
        CoMatch,
        CoMatchMomentum,
        FixMatchDA,
        FixMatch,
        Uda,
        MixMatch,
        ReMixMatch,
        Vat,
        S4LRotation,
        LabelPropagation,
        MeanTeacher,
        TemporalEnsembling,
        PiModel,
        PseudoLabel,
        Supervised,
    )
}
CONFIGS: dict[str, type[MethodConfig]] = {name: m.Config for name, m in METHODS.items()}


def config(name: str) -> MethodConfig:
    """The method's settings as its own paper has them."""
    check_name(name, METHODS, "method")
    return CONFIGS[name]()


def build(config: MethodConfig, encoder: nn.Module, task: Task) -> Method:
    return METHODS[config.method](encoder, task, config)


__all__ = ["CONFIGS", "METHODS", "Method", "Step", "build", "config"]
