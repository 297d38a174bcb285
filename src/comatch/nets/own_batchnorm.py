"""Batch norm whose statistics in training are computed here instead of by PyTorch."""

import torch
from torch import Tensor, nn


class OwnBatchNorm(nn.modules.batchnorm._BatchNorm):
    """A class that a batch norm layer takes; it keeps parameters, names and running statistics."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.normalise(x) if self.training else super().forward(x)
        for name in ("drop", "act"):  # timm has norms that include an activation
            if name in self._modules:
                x = getattr(self, name)(x)
        return x

    def normalise(self, x: Tensor) -> Tensor:
        """The output in training, after an update of the running statistics."""
        raise NotImplementedError

    @torch.no_grad()
    def average(self, mean: Tensor, unbiased: Tensor) -> None:
        """Update running statistics with a mean and a variance [C], as `nn.BatchNorm2d` does."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        batches = self.num_batches_tracked.to(mean.dtype)
        share = 1 / batches if self.momentum is None else self.momentum
        self.running_mean.add_(share * (mean - self.running_mean))
        self.running_var.add_(share * (unbiased - self.running_var))

    def _check_input_dim(self, x: Tensor) -> None:
        """Any number of dimensions is valid."""
