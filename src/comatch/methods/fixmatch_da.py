"""FixMatch with distribution alignment (Berthelot et al., 2020): the paper's strongest baseline.

    q_b = Normalize(p_b / mean of the last batches' p),   then as FixMatch

It is CoMatch without memory bank and graph, with hard labels.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from comatch import losses
from comatch.config import setting
from comatch.memory import Window
from comatch.methods.fixmatch import FixMatch
from comatch.types import Task


class FixMatchDA(FixMatch):
    """FixMatch with aligned pseudo-labels, which do not collapse onto a few classes."""

    @dataclass(frozen=True)
    class Config(FixMatch.Config):
        method = "fixmatch_da"
        alignment_window: int = setting(
            32, "batches over which alignment averages predictions", least=1
        )

    def __init__(self, encoder: nn.Module, task: Task, config: Config) -> None:
        super().__init__(encoder, task, config)
        self.recent_p = Window(config.alignment_window, task.classes)

    def pseudo_labels(self, p: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        mean_p = p.mean(0)
        return losses.align(p, self.recent_p.mean_with(mean_p)), {"recent_p": mean_p[None]}
