"""The contract of a method.

A method is a module that owns its network and everything it remembers. `forward` turns a batch
into a loss and may read the memory; `after_step`, called once the optimiser has moved the weights,
writes it. What looks at more than a batch is done in `before_step`, on the host's time. Nothing
else changes state, so eager, compiled and captured steps agree, and `state_dict()` is the whole of
a checkpoint.

With several ranks, `forward` sees a rank's part of the batch, the losses and gradients of all are
averaged, and what is remembered is gathered. So a mean over the batch needs no thought; what looks
across the batch asks `distributed` for the rest of it.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from comatch import distributed
from comatch.config import MethodConfig
from comatch.memory import Ema
from comatch.nets.network import Network
from comatch.types import AllImages, Batch, Task

Remembered = Tensor | tuple[Tensor, ...]  # rows, or whatever `push` of that memory takes


class Step(NamedTuple):
    """What one forward gives."""

    loss: Tensor  # []
    metrics: dict[str, Tensor]  # [] each, detached, on the device until someone looks
    remember: Mapping[str, Remembered]  # what the method's memories are given, by their names
    pseudo_labels: Tensor | None = None  # [muB] -1 where not confident; the trainer scores them


class Method(nn.Module):
    """A way to learn from labelled and unlabelled images."""

    views: ClassVar[tuple[str, ...]] = ()  # augmentations of each unlabelled image, in order
    rotates_images: ClassVar[bool] = False  # in forward: features of them will not do
    evaluated_weights: ClassVar[str] = "averaged weights"  # what `evaluated` has, for the record
    Config: ClassVar[type[MethodConfig]] = MethodConfig
    step: Tensor  # [] optimiser steps taken
    config: Any  # an instance of Config

    def __init__(
        self, encoder: nn.Module, task: Task, config: MethodConfig, embedding_dim: int = 0
    ) -> None:
        super().__init__()
        self.task, self.classes = task, task.classes
        self.net = Network(encoder, task.classes, embedding_dim)
        self.ema = Ema(self.net)
        self.config = config
        self.register_buffer("step", torch.zeros((), dtype=torch.long))

    @property
    def progress(self) -> Tensor:  # []
        """How much of the run is done, 0 to 1: what weights and thresholds may follow."""
        return (self.step / self.task.steps).clamp(max=1)

    @property
    def decay(self) -> float | Tensor:
        """How much of itself the averaged network keeps at this step; young, it may keep less."""
        decay: float = self.config.ema_decay
        return decay

    @property
    def evaluated(self) -> Network:
        """The network that is tested and shipped: the averaged one."""
        return self.ema.net  # type: ignore[return-value]

    def logits(self, *views: Tensor) -> tuple[Tensor, ...]:
        """Of each view, from one forward over all: batch norm must see them together."""
        return self.net(torch.cat(views)).logits.split([len(view) for view in views])

    @classmethod
    def needs_all_images(cls) -> bool:
        """Whether the method has a `before_step`, which is given all images."""
        return cls.before_step is not Method.before_step

    def before_step(self, step: int, everything: AllImages) -> None:
        """Called before each step with its number; a method may look at all images here, from
        time to time. What it writes, it writes in place."""

    def forward(self, batch: Batch) -> Step:
        raise NotImplementedError

    @torch.no_grad()
    def after_step(self, remember: Mapping[str, Remembered]) -> None:
        for name, parts in remember.items():
            parts = parts if isinstance(parts, tuple) else (parts,)
            # From all ranks, part by part: each remembers the same, in the order of one process.
            getattr(self, name).push(*map(distributed.gather, parts))
        self.ema.update(self.net, self.decay)
        self.step.add_(1)
