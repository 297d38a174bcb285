"""One training step: draw, augment, forward, backward, update, remember.

The host only says "go": indices, augmentation, learning rate and metrics all stay on the device, so
nothing waits for it between two log points, and the whole step can be replayed as one CUDA graph.
"""

import math
import threading
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from comatch import distributed
from comatch.augment import policies
from comatch.config import Recipe
from comatch.data.cached_features import CachedFeatures
from comatch.data.streaming import Feed
from comatch.methods import Method
from comatch.training import optim, schedules
from comatch.training.optim import gradient_norm
from comatch.types import Batch

EAGER_STEPS = 3  # real steps before capturing: they create gradients, momentum and kernels


class Meter:
    """Sums of metrics on the device, read by the host only at log points."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.sums = torch.zeros(0, dtype=torch.float64)

    @torch.no_grad()
    def add(self, metrics: dict[str, Tensor]) -> None:
        values = torch.stack([value.double() for value in metrics.values()])
        if not self.names:
            self.names, self.sums = list(metrics), torch.zeros_like(values)
        self.sums.add_(values)

    def read(self) -> dict[str, float]:
        """The sums since the last reading, with the one wait for the device; a mean over ranks."""
        values = distributed.mean(self.sums).tolist()
        self.sums.zero_()  # in place: a captured step writes to this address
        return dict(zip(self.names, values, strict=True))

    def bad_steps(self) -> int:
        """Steps since the last reading whose gradient was not finite, on any rank."""
        if not self.names:
            return 0
        steps, finite = (self.names.index(name) for name in ("steps", "finite_steps"))
        return math.ceil(distributed.mean(self.sums[steps] - self.sums[finite]).item())

    def state_dict(self) -> dict[str, Any]:
        return {"names": self.names, "sums": self.sums.cpu()}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        self.names, self.sums = list(state["names"]), state["sums"].to(device, copy=True)


class TrainStep:
    """Calling it takes one step."""

    def __init__(
        self, method: Method, data: Feed, recipe: Recipe, mean: Tensor, std: Tensor
    ) -> None:
        self.method, self.data, self.recipe = method, data, recipe
        self.mean, self.std = mean, std
        self.memory_format = torch.channels_last  # of images
        self.meter = Meter()
        self.lr = torch.zeros((), device=mean.device)
        self.parameters = [p for p in method.parameters() if p.requires_grad]
        self.optimizer = optim.build(method, self.lr, recipe)
        views = views_for(recipe)
        self.labelled = policies.build(recipe.labelled_view, views)
        self.policies = [policies.build(name, views) for name in method.views]
        self.schedule = schedules.build(recipe.schedule, recipe.warmup)

        augment = as_drawn if isinstance(data, CachedFeatures) else self._augment
        self.augment: Callable[[Tensor, Tensor, Tensor, Tensor], Batch] = augment
        learner: Any = method
        self._go: Callable[[], None] = self._take
        self.engine = choose_engine(recipe.engine, mean.device)
        if self.engine != "eager":
            # What runs in float32 is meant to: the heads, on which the losses stand.
            for advice in ("TensorFloat32 tensor cores", r"\s*Online softmax"):
                warnings.filterwarnings("ignore", message=advice)
            self.augment = torch.compile(augment)
            learner = torch.compile(method)
        self.forward = distributed.wrap(learner)
        if self.engine == "captured":
            self._go = Captured(self._take)

    def __call__(self, step: int) -> None:
        self.data.before_step(step)
        if looks_at_everything(self.method):
            self.method.before_step(step, self.data.everything())
        self._go()

    def load_optimizer(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state)
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr  # loading put another tensor in its place

    def draw(self) -> tuple[Batch, Tensor]:
        """The next batch, and the truth about its unlabelled images."""
        x, y, u, rows, truth = self.data.draw()
        return self.augment(x, y, u, rows), truth

    def _take(self) -> None:
        batch, truth = self.draw()
        self.optimizer.zero_grad(set_to_none=True)
        step = self.forward(batch)
        step.loss.backward()
        self.lr.copy_(self.recipe.lr * self.schedule(self.method.step / self.recipe.steps))
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

    def _augment(self, x: Tensor, y: Tensor, u: Tensor, rows: Tensor) -> Batch:
        def ready(images: Tensor) -> Tensor:
            images = policies.normalise(images, self.mean, self.std)
            return images.contiguous(memory_format=self.memory_format)

        labelled = ready(self.labelled(x))
        views = tuple(ready(policy(u)) for policy in self.policies)
        return Batch(labelled, y, views, rows)


def as_drawn(x: Tensor, y: Tensor, u: Tensor, rows: Tensor) -> Batch:
    """Features are drawn view by view, and stay as they are."""
    return Batch(x, y, u.unbind(1), rows)


def views_for(recipe: Recipe) -> policies.Views:
    return policies.Views(
        flip=recipe.flip,
        weak_crop=recipe.weak_crop,
        pad=recipe.pad,
        min_area=recipe.min_area,
        cutout=recipe.cutout,
        size=recipe.image_size,
    )


def looks_at_everything(method: Method) -> bool:
    """Whether the method does something between two steps, for which it is shown all images."""
    return type(method).before_step is not Method.before_step


class Captured:
    """Takes a few steps as they are, records the next as a CUDA graph, and replays that.

    The last of the few is watched: a step that waits for the device cannot be recorded, and it is
    better not to try, because the device may not be left as it was by a recording that fails.
    """

    def __init__(self, take: Callable[[], None]) -> None:
        self.take = take
        self.taken = 0
        self.graph: torch.cuda.CUDAGraph | None = None
        self.stream = torch.cuda.Stream()
        self.reason = ""  # why it is not captured

    def __call__(self) -> None:
        if self.graph is None and self.taken == EAGER_STEPS and not self.reason:
            self._capture()
        if self.graph is not None:
            self.graph.replay()
            return
        # Capturing wants work that ran on a stream of its own before.
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            self._watch() if self.taken == EAGER_STEPS - 1 else self.take()
        torch.cuda.current_stream().wait_stream(self.stream)
        self.taken += 1

    def _watch(self) -> None:
        before, said, here = torch.cuda.get_sync_debug_mode(), list[str](), threading.get_ident()

        def hear(message: Warning | str, *_: object) -> None:
            if threading.get_ident() == here:  # others may wait: they prepare the next batches
                said.append(str(message))

        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = hear  # type: ignore[assignment]
            torch.cuda.set_sync_debug_mode("warn")
            try:
                self.take()
            finally:
                torch.cuda.set_sync_debug_mode(before)
        if any("synchronizing CUDA operation" in message for message in said):
            self._give_up("it waits for the GPU")

    def _capture(self) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            # Only this thread is recorded: others may be preparing the next batches.
            mode = "thread_local"
            with torch.cuda.graph(graph, stream=self.stream, capture_error_mode=mode):
                self.take()
        except RuntimeError as error:
            self._give_up(str(error).splitlines()[0])
            return
        self.graph = graph

    def _give_up(self, reason: str) -> None:
        self.reason = reason
        warnings.warn(f"the step cannot be captured, it runs compiled: {reason}", stacklevel=2)


def choose_engine(engine: str, device: torch.device) -> str:
    """On a GPU the step is captured; on a CPU compiling costs more than a short run gains.

    What ranks tell each other is not captured: with several of them the step is compiled.
    """
    alone = distributed.world() == 1
    if engine == "auto":
        return "eager" if device.type != "cuda" else "captured" if alone else "compiled"
    if engine == "captured" and device.type != "cuda":
        warnings.warn("only a GPU can capture a step: it runs eagerly", stacklevel=2)
        return "eager"
    if engine == "captured" and not alone:
        warnings.warn("a step of several ranks is not captured: it runs compiled", stacklevel=2)
        return "compiled"
    return engine


@torch.no_grad()
def score(pseudo_labels: Tensor | None, truth: Tensor) -> dict[str, Tensor]:
    """How many pseudo-labels are confident, and how many of those can be and are right."""
    if pseudo_labels is None:
        return {}
    confident = pseudo_labels >= 0
    known = confident & (truth >= 0)
    return {
        "confident": confident.float().mean(),
        "judged": known.float().sum(),
        "right": (known & (pseudo_labels == truth)).float().sum(),
    }
