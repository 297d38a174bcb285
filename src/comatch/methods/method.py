"""The contract of a method.

A method is a module that owns its network and its memory. `forward` computes the loss of a batch
and may read the memory. `after_step`, called after the optimiser's step, writes the memory.
`before_step` is for work on all images, which is not captured in a CUDA graph. Nothing else changes
state, so eager, compiled and captured steps agree, and `state_dict()` is the method's checkpoint.

With several ranks, `forward` gets the rank's part of the batch, the gradients of all ranks are
averaged, and `after_step` gathers the rows to remember. A loss that is a mean over images needs
nothing more. A loss that relates images of the batch to each other gathers them by `distributed`.
"""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from comatch import distributed
from comatch.config import MethodConfig, NamedConfig
from comatch.memory import Ema
from comatch.nets.network import Network
from comatch.types import AllImages, Batch, Task

Remembered = Tensor | tuple[Tensor, ...]  # the arguments of `push` of that memory


class Step(NamedTuple):
    """The output of `forward`."""

    loss: Tensor  # []
    metrics: dict[str, Tensor]  # [] each, detached, on the device
    remember: Mapping[str, Remembered]  # rows for the memory, by its name
    pseudo_labels: Tensor | None = None  # [muB] -1 where not confident; for metrics


class Method(nn.Module):
    """A network, its memory, and the loss of a batch."""

    views: tuple[str, ...] = ()  # augmentations of each unlabelled image, in order
    uses_labels: ClassVar[bool] = True  # if not, x and y of its batches are empty
    rotates_images: ClassVar[bool] = False  # or needs them: cached features cannot replace images
    labelled_too: ClassVar[bool] = False  # labelled images are among the unlabelled ones too
    exact_float32: ClassVar[bool] = False  # float32 is never rounded to TF32 on a GPU
    Config: ClassVar[type[NamedConfig]] = MethodConfig
    ema: Any  # an Ema, or None of a method without one
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
        """The share of the run that is done, 0 to 1: schedules of weights depend on it."""
        return (self.step / self.task.steps).clamp(max=1)

    @property
    def decay(self) -> float | Tensor:
        """The decay of the EMA model at this step."""
        decay: float = self.config.ema_decay
        return decay

    @property
    def networks(self) -> list[Any]:
        """The network, and its average if there is one."""
        return [self.net] if self.ema is None else [self.net, self.ema.net]

    @property
    def evaluated(self) -> Network:
        """The network that is evaluated and saved: the EMA model, or the network itself."""
        network: Network = self.networks[0 if self.config.evaluate == "raw" else 1]
        return network

    @property
    def evaluated_weights(self) -> str:
        """The weights of `evaluated`, in words for the summary."""
        raw = self.config.evaluate == "raw"
        return "the network's own weights" if raw else "averaged weights"

    def logits(self, *views: Tensor) -> tuple[Tensor, ...]:
        """The logits of each view. One forward over all, because batch norm needs them together."""
        return self.net(torch.cat(views)).logits.split([len(view) for view in views])

    @torch.no_grad()
    def features(self, inputs: Iterable[Tensor]) -> Tensor:
        """f(x) [N, D]; the inputs come in chunks."""
        with self.net.eval_mode():
            return torch.cat([self.net(x).features for x in inputs])

    def needs_all_images(self) -> bool:
        """Whether the method uses its `before_step`, whose argument is all images."""
        return type(self).before_step is not Method.before_step

    def before_step(self, step: int, everything: AllImages) -> None:
        """Called before each step with its number. Buffers must be written in place."""

    def forward(self, batch: Batch) -> Step:
        raise NotImplementedError

    @torch.no_grad()
    def after_step(self, remember: Mapping[str, Remembered]) -> None:
        for name, parts in remember.items():
            parts = parts if isinstance(parts, tuple) else (parts,)
            # Each part from all ranks, so every rank has the same memory, ordered as on one rank.
            getattr(self, name).push(*map(distributed.gather, parts))
        if self.ema is not None:
            self.ema.update(self.net, self.decay)
        self.step.add_(1)
