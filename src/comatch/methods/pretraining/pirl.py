"""PIRL: an image and its jigsaw puzzle have the same embedding (Misra and van der Maaten, 2020).

    v   = f(x),   w = g(x cut into nine patches in random order),   m_x: moving average of v
    h(m, a) = exp(m . a / t) / (exp(m_x . a / t) + sum_n exp(m_n . a / t))
    N(a)    = -log h(m_x, a) - sum_n log(1 - h(m_n, a))
    L       = lambda N(w) + (1 - lambda) N(v)

m is the memory bank, which has one row for each image; n are random rows of it. All embeddings have
length one. Each patch is encoded alone; the embeddings of the nine are concatenated in the order of
the puzzle. h of a negative has the same denominator as that of the positive.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from comatch.config import setting
from comatch.memory import UnitAverages
from comatch.methods.method import Step
from comatch.methods.pretraining.pretraining import (
    Pretraining,
    PretrainingConfig,
    require_images,
)
from comatch.nets.heads import Mlp
from comatch.nets.network import width_of
from comatch.types import Batch, Task

SIDE = 3  # patches in a row of the puzzle


class Pirl(Pretraining):
    """An image and its jigsaw puzzle attract each other, a memory of other images repels."""

    views = ("contrast", "jigsaw")

    @dataclass(frozen=True)
    class Config(PretrainingConfig):
        method = "pirl"
        temperature: float = setting(0.07, "t: temperature of similarities", above=0)
        negatives: int = setting(32_000, "rows of the memory that are negatives", least=1)
        memory_momentum: float = setting(0.5, "decay of a row of the memory", least=0, below=1)
        lambda_puzzle: float = setting(0.5, "lambda: weight of the puzzle's loss", least=0, most=1)

    def __init__(self, encoder: nn.Module, task: Task, config: Config) -> None:
        width, dim = width_of(encoder), config.embedding_dim
        super().__init__(encoder, Mlp([width, dim]), task, config)
        self.patch_head = nn.Linear(width, dim)
        self.puzzle_head = nn.Linear(SIDE * SIDE * dim, dim)
        self.bank = UnitAverages(task.unlabelled, dim, config.memory_momentum)

    def check_images(self, images: int, batch: int) -> None:
        require_images(images, self.config.negatives, "negatives", "is more than the memory has")

    def forward(self, batch: Batch) -> Step:
        c = self.config
        images, puzzles = batch.u
        v = F.normalize(self.net(images), dim=1)
        w = F.normalize(self.solve(puzzles), dim=1)
        drawn = torch.randint(len(self.bank.rows), (c.negatives,), device=v.device)
        own = F.normalize(self.bank.read(batch.rows)[0].to(v.dtype), dim=1)
        others = F.normalize(self.bank.read(drawn)[0].to(v.dtype), dim=1)
        itself = batch.rows[:, None] == drawn  # [B, negatives]
        loss_puzzle = noise_contrast(w, own, others, itself, c.temperature)
        loss_image = noise_contrast(v, own, others, itself, c.temperature)
        return Step(
            c.lambda_puzzle * loss_puzzle + (1 - c.lambda_puzzle) * loss_image,
            {"loss_puzzle": loss_puzzle.detach(), "loss_image": loss_image.detach()},
            {"bank": (batch.rows, v.detach())},
        )

    def solve(self, puzzles: Tensor) -> Tensor:  # [B, D]
        """g: the embedding of puzzles [B, 3, H, W]."""
        features = self.net.encode(patches(puzzles))
        with torch.autocast(features.device.type, enabled=False):
            z: Tensor = self.puzzle_head(self.patch_head(features).view(len(puzzles), -1))
        return z


def patches(puzzles: Tensor) -> Tensor:  # [9 B, 3, H / 3, W / 3]
    """The nine patches of each puzzle, row by row."""
    side = puzzles.shape[-1] // SIDE
    cells = puzzles[..., : SIDE * side, : SIDE * side].unflatten(3, (SIDE, side))
    cells = cells.unflatten(2, (SIDE, side))  # [B, 3, row, y, column, x]
    return cells.permute(0, 2, 4, 1, 3, 5).flatten(0, 2).contiguous()


def noise_contrast(a: Tensor, own: Tensor, others: Tensor, itself: Tensor, t: float) -> Tensor:
    """N(a) of embeddings a [B, D] with their memory `own` [B, D]; the mean over the batch.

    A row of `others` [n, D] that is the image itself, as `itself` [B, n] says, is no negative.
    """
    logits = torch.cat([(own * a).sum(1, keepdim=True), a @ others.T], 1) / t
    logits = torch.cat([logits[:, :1], logits[:, 1:].masked_fill(itself, -torch.inf)], 1)
    log_h = F.log_softmax(logits, dim=1)
    h = log_h[:, 1:].exp().clamp(max=1 - 1e-6)
    return -(log_h[:, 0] + torch.log1p(-h).sum(1)).mean()
