"""One training step: batch, forward, backward, update, memory.

The host only launches work: batches, learning rate and metrics stay on the device. So nothing waits
for the device between two log points, and the whole step can be replayed as one CUDA graph.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from comatch import distributed
from comatch.data.feed import Feed
from comatch.methods import Method
from comatch.training import optim
from comatch.training.capture import Captured, choose_engine
from comatch.training.meter import Meter, score
from comatch.training.optim import gradient_norm
from comatch.training.recipe import Recipe
from comatch.training.schedules import SCHEDULES, warmed


@contextmanager
def without_tf32() -> Iterator[None]:
    """Convolutions of float32 are computed in float32: cuDNN would round their inputs to TF32."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before


class TrainStep:
    """Calling it takes one step."""

    def __init__(self, method: Method, feed: Feed, recipe: Recipe, device: torch.device) -> None:
        self.method, self.feed, self.recipe = method, feed, recipe
        self.meter = Meter()
        self.lr = torch.zeros((), device=device)
        self.parameters = [p for p in method.parameters() if p.requires_grad]
        self.head_lr = None if recipe.optim.head_lr is None else torch.zeros((), device=device)
        self.optimizer = optim.build(method, self.lr, recipe.optim, self.head_lr)
        self.schedule = SCHEDULES[recipe.optim.schedule]

        learner: Any = method
        self.run: Callable[[], None] = self.take
        self.engine = choose_engine(recipe.engine, device)
        if self.engine != "eager":
            # Both warnings are about float32 work. Only the heads do it, and on purpose.
            for advice in ("TensorFloat32 tensor cores", r"\s*Online softmax"):
                warnings.filterwarnings("ignore", message=advice)
            feed.compile()
            learner = torch.compile(method)
        self.forward = distributed.wrap(learner)
        if self.engine == "captured":
            self.run = Captured(self.take)

    def __call__(self, step: int) -> None:
        self.feed.before_step(step)
        if self.method.needs_all_images():
            self.method.before_step(step, self.feed.everything())
        with without_tf32() if self.method.exact_float32 else nullcontext():
            self.run()

    def load_optimizer(self, state: dict[str, Any]) -> None:
        rates = [group["lr"] for group in self.optimizer.param_groups]
        self.optimizer.load_state_dict(state)
        for group, lr in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = lr  # load_state_dict replaces the tensor

    def take(self) -> None:
        """The part of a step that runs on the device alone."""
        batch, truth = self.feed.next()
        self.optimizer.zero_grad(set_to_none=True)
        step = self.forward(batch)
        step.loss.backward()
        config = self.recipe.optim
        progress = self.method.step / config.steps
        rate = warmed(self.schedule, progress, config.warmup, 1 / config.steps)
        self.lr.copy_(config.lr * rate)
        if config.head_lr and self.head_lr is not None:
            self.head_lr.copy_(config.head_lr * rate)
        norm = gradient_norm(self.parameters)
        self.optimizer.step()
        self.method.after_step(step.remember)
        self.meter.add(
            {
                "steps": torch.ones_like(norm),
                "finite_steps": (norm + step.loss.detach()).isfinite(),
                "loss": step.loss.detach(),
                "gradient_norm": norm,
                **step.metrics,
                **score(step.pseudo_labels, truth),
            }
        )
