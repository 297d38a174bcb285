"""Compare two forms of the queue contrast: in chunks, and with autograd over whole matrices.

    python benchmarks/queue_contrast.py FILE.json

For the ImageNet recipe's 640 unlabelled images, 1,000 classes and embeddings of 128: milliseconds
of loss and gradient, and their memory without the inputs. Both run eagerly in float32.
"""

import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from comatch import losses
from comatch.files import write_json
from comatch.training.environment import environment

IMAGES, CLASSES, WIDTH, THRESHOLD, T = 640, 1000, 128, 0.3, 0.1
GPU = torch.device("cuda")


def whole(z: Tensor, q: Tensor, keys: Tensor, labels: Tensor) -> Tensor:
    similar = q @ labels.T
    graph = similar * (similar >= THRESHOLD)
    own = torch.arange(len(keys), device=GPU) == torch.arange(len(z), device=GPU)[:, None]
    graph = graph.masked_fill(own, 1.0)
    graph = graph / graph.sum(1, keepdim=True)
    return losses.graph_cross_entropy(graph, F.log_softmax(z @ keys.T / T, dim=1))


def chunked(z: Tensor, q: Tensor, keys: Tensor, labels: Tensor) -> Tensor:
    there = torch.ones(len(keys), dtype=torch.bool, device=GPU)
    return losses.queue_contrast(z, q, keys, labels, there, THRESHOLD, T)


def measure(loss: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> dict[str, float]:
    times = []
    for _ in range(7):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        torch.autograd.grad(loss(*inputs), inputs[0])
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
        peak = (torch.cuda.max_memory_allocated() - before) / 2**20
    return {"ms": round(statistics.median(times), 2), "peak_memory_mb": round(peak)}


def main() -> None:
    rows = []
    for size in (30_000, 65_536, 262_144):
        z = F.normalize(torch.randn(IMAGES, WIDTH, device=GPU), dim=1).requires_grad_()
        keys = F.normalize(torch.randn(IMAGES + size, WIDTH, device=GPU), dim=1)
        labels = F.softmax(8 * torch.randn(IMAGES + size, CLASSES, device=GPU), dim=1)
        inputs = (z, labels[:IMAGES], keys, labels)
        one, other = (torch.autograd.grad(loss(*inputs), z)[0] for loss in (chunked, whole))
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)
        row = {"queue": size, "chunked": measure(chunked, inputs), "whole": measure(whole, inputs)}
        print(row)
        rows.append(row)
    write_json(Path(sys.argv[1]), {"environment": environment(GPU), "rows": rows})


if __name__ == "__main__":
    main()
