"""Runs a network that does not learn, as fast as the machine can.

On a CPU the network is converted to OpenVINO, which takes two seconds and is several times as fast
as PyTorch; its results differ by rounding. On a GPU it runs in bf16: reading and augmenting the
views takes longer than that, so compiling would gain nothing. A network that cannot be converted
runs in PyTorch.
"""

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from comatch.nets import signal_stack

CHECKED = 2  # images on which the converted network is compared with PyTorch
TOLERANCE = 1e-3  # relative difference of their outputs
BATCH = {"cpu": 32, "cuda": 256, "mps": 64}  # images that are computed at once


class Pixels(nn.Module):
    """A network on pixels 0 .. 255 instead of normalised images."""

    shift: Tensor  # [3, 1, 1]
    factor: Tensor  # [3, 1, 1]

    def __init__(self, net: nn.Module, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.net = net
        self.register_buffer("shift", (255 * mean.float())[:, None, None])
        self.register_buffer("factor", (1 / (255 * std.float()))[:, None, None])

    def forward(self, pixels: Tensor) -> Tensor:
        output: Tensor = self.net((pixels.float() - self.shift) * self.factor)
        return output


class Engine:
    """A function from uint8 images [n, 3, size, size] to the output of a network [n, ...].

    The network is copied, so it must not change afterwards. `name` says what runs it.
    """

    def __init__(
        self,
        net: nn.Module,
        mean: Tensor,
        std: Tensor,
        size: int,
        device: torch.device,
        batch: int | None = None,
    ) -> None:
        self.batch, self.size, self.device = batch or BATCH[device.type], size, device
        whole = copy.deepcopy(Pixels(net, mean.cpu(), std.cpu())).eval().requires_grad_(False)
        self.module: nn.Module = whole.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        half = device.type == "cuda"
        self.name = "PyTorch, bf16" if half else "PyTorch"
        self.run = eager(self.module, device, self.batch, half=half)
        if device.type == "cpu":
            try:
                with signal_stack.kept():
                    self.run, self.name = self._converted(), "OpenVINO"
            except Exception as error:  # of the exporter or of the converter
                reason = (str(error).strip() or type(error).__name__).splitlines()[0]
                warnings.warn(
                    f"images are encoded by PyTorch, which is slower: OpenVINO cannot run this "
                    f"network ({reason[:200]})",
                    stacklevel=2,
                )

    def __call__(self, pixels: np.ndarray | Tensor) -> Tensor:
        """The outputs on the CPU, in float32."""
        images = torch.from_numpy(pixels) if isinstance(pixels, np.ndarray) else pixels
        with signal_stack.kept():
            return self.run(images)

    def pieces(self, images: Tensor) -> Iterator[Tensor]:
        """Batches of one length: the last one is filled up, so that one compilation serves all."""
        for piece in images.split(self.batch):
            missing = self.batch - len(piece)
            yield (
                torch.cat([piece, piece.new_zeros(missing, *piece.shape[1:])]) if missing else piece
            )

    def _converted(self) -> Callable[[Tensor], Tensor]:
        import openvino

        example = torch.arange(self.batch * 3 * self.size**2).view(-1, 3, self.size, self.size)
        example = (example % 251).to(torch.uint8)
        with silent():
            shape = list(example.shape)
            model = openvino.convert_model(self.module, example_input=example, input=[shape])
        # Half precision would be twice as fast, but no longer the same features.
        exact = {"PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_PRECISION_HINT": "f32"}
        queue = openvino.AsyncInferQueue(openvino.Core().compile_model(model, "CPU", exact))
        queue.set_callback(store_output)

        def run(images: Tensor) -> Tensor:
            found: dict[int, np.ndarray] = {}
            for number, piece in enumerate(self.pieces(images)):
                queue.start_async({0: np.ascontiguousarray(piece.numpy())}, (found, number))
            queue.wait_all()
            whole = np.concatenate([found[number] for number in range(len(found))])
            return torch.from_numpy(whole[: len(images)])

        # A network may decide by its input what it does, which the conversion does not see.
        some = example.flip(0)[:CHECKED] // 2
        expected, found = self.run(some), run(some)
        if (found - expected).norm() > TOLERANCE * expected.norm():
            raise ValueError("its results would differ")
        return run


def store_output(request: Any, place: tuple[dict[int, np.ndarray], int]) -> None:
    """Called by OpenVINO when a batch is done."""
    found, number = place
    found[number] = request.get_output_tensor(0).data.copy()


def eager(
    module: nn.Module,
    device: torch.device,
    batch: int,
    layout: torch.memory_format = torch.channels_last,
    half: bool = False,
) -> Callable[[Tensor], Tensor]:
    """The same function in PyTorch, operation by operation; `half` computes in bf16."""
    module = module.to(device, memory_format=layout)  # type: ignore[call-overload]

    @torch.no_grad()
    def run(images: Tensor) -> Tensor:
        found = []
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            for piece in images.split(batch):
                here = piece.to(device, non_blocking=True).contiguous(memory_format=layout)
                found.append(module(here).float())
        return torch.cat(found).cpu()

    return run


@contextmanager
def silent() -> Iterator[None]:
    """Without the warnings of exporters, which are about their own future."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
