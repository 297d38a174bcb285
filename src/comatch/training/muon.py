"""Muon: momentum whose matrix is orthogonalised before it is applied (Jordan, 2024).

    v <- m v + (1 - m) g,      u = (1 - m) g + m v
    W <- W - lr (sqrt(max(1, rows / columns)) orthogonal(u) + decay W)

orthogonal(u) is u with all its singular values near one, found by five steps of a polynomial. A
convolution [out, in, k, k] is the matrix [out, in k k].

PyTorch's own Muon updates one matrix after the other. The networks here have many small matrices,
for which launching a kernel takes longer than running it. So the gradients are copied into a few
stacks: one for each length of the shorter side, and one for all narrow matrices, padded with zeros,
which do not change the singular values. The result replaces the gradient, and SGD applies it.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

POLYNOMIAL = (3.4445, -4.7750, 2.0315)
ROUNDS = 5
NARROW = 64  # shorter side up to which matrices share a stack


def orthogonal(stack: Tensor) -> Tensor:
    """Matrices [n, short, long] with singular values moved to about one, 0.7 to 1.2.

    A few rounds of X <- a X + (b X X' + c (X X')^2) X, after the length of each is made one; on a
    GPU in bf16, which is exact enough.
    """
    a, b, c = POLYNOMIAL
    x = stack / (torch.linalg.vector_norm(stack, dim=(1, 2), keepdim=True) + 1e-7)
    x = x.bfloat16() if x.is_cuda else x
    for _ in range(ROUNDS):
        square = x @ x.mT  # [n, short, short]
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.to(stack.dtype)


class Muon(torch.optim.SGD):
    """SGD for groups of parameters, with Muon's direction for `matrices`.

    The learning rate of `matrices` is `ratio` times the shared one, and their weight decay is
    decoupled.
    """

    def __init__(
        self,
        matrices: list[nn.Parameter],
        groups: list[dict[str, Any]],
        lr: Tensor,
        ratio: float,
        momentum: float,
        weight_decay: float,
    ) -> None:
        # Plain SGD moves by lr (direction + decay W): that decay is decoupled already.
        first = {
            "params": matrices,
            "momentum": 0.0,
            "nesterov": False,
            "weight_decay": ratio * weight_decay,
        }
        super().__init__(
            [first, *groups], lr=lr, momentum=momentum, nesterov=momentum > 0, fused=True
        )
        self.matrices, self.momentum = matrices, momentum
        self.stacks = Stacks(matrices, ratio)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        gradients = [p.grad for p in self.matrices if p.grad is not None]
        assert len(gradients) == len(self.matrices), "every matrix must have a gradient"
        flat = torch.cat([in_memory(gradient) for gradient in gradients])
        # The velocity of all is one tensor, which the state of the first keeps.
        state = self.state[self.matrices[0]]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(flat)
        velocity = state["momentum_buffer"].lerp_(flat, 1 - self.momentum)
        directions = self.stacks.orthogonal(flat.lerp(velocity, self.momentum))
        start = 0
        for p in self.matrices:
            p.grad = directions.as_strided(p.shape, p.stride(), start)
            start += p.numel()
        super().step()


class Stacks:
    """Where each number of all matrices, one after the other, lies in stacks of padded ones."""

    def __init__(self, matrices: list[nn.Parameter], ratio: float) -> None:
        device = matrices[0].device
        total = sum(p.numel() for p in matrices)
        alike = defaultdict[int, list[Tensor]](list)
        scales = defaultdict[int, list[float]](list)
        start = 0
        for p in matrices:
            assert p.stride(0) == p[0].numel(), "a row must lie in one piece"
            rows, columns = len(p), p[0].numel()
            places = torch.arange(start, start + p.numel()).view(rows, columns)
            short = max(NARROW, min(rows, columns))
            alike[short].append(places if rows <= columns else places.T)
            scales[short].append(ratio * max(1.0, rows / columns) ** 0.5)
            start += p.numel()
        stacks = []
        for group in alike.values():
            height, width = (max(places.shape[side] for places in group) for side in (0, 1))
            # What is padded comes from behind the last number, where there is a zero.
            padded = [
                F.pad(p, (0, width - p.shape[1], 0, height - len(p)), value=total) for p in group
            ]
            stacks.append(torch.stack(padded))
        self.shapes = [stack.shape for stack in stacks]
        self.sizes = [stack.numel() for stack in stacks]
        there = torch.cat([stack.flatten() for stack in stacks])
        back = torch.empty(total + 1, dtype=torch.long)
        back[there] = torch.arange(len(there))
        self.there, self.back = there.to(device), back[:total].to(device)
        self.zero = matrices[0].new_zeros(1)
        self.scales = [self.zero.new_tensor(scales[short])[:, None, None] for short in alike]

    def orthogonal(self, flat: Tensor) -> Tensor:  # [numbers]
        laid = torch.cat([flat, self.zero]).index_select(0, self.there).split(self.sizes)
        done = [
            (orthogonal(stack.view(shape)) * scale).flatten()
            for stack, shape, scale in zip(laid, self.shapes, self.scales, strict=True)
        ]
        return torch.cat(done).index_select(0, self.back)


def in_memory(matrix: Tensor) -> Tensor:
    """All numbers in the order in which they lie: which column comes first does not matter."""
    return matrix.as_strided((matrix.numel(),), (1,))
