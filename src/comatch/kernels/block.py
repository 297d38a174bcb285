"""A pre-activation block as one autograd function, and the first and last layers of the network.

    y   = conv1(leaky(norm1(x)))
    out = conv2(leaky(norm2(y))) + shortcut

Each layer returns its output and partial sums of that output, so the next norm need not read it
again. `conv.fits` says which convolutions run fused with norm and activation. The others run in
cuDNN, with the kernels of `norm` before and after.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from comatch.kernels import conv, norm, stem
from comatch.kernels import shortcut as shortcuts

LAST = torch.channels_last


class Unit(NamedTuple):
    """What the forward of norm, activation and convolution saves for the backward."""

    coef: Tensor  # [2, C] scale and shift
    stats: Tensor  # [2, C] mean and variance
    active: Tensor  # the input of the convolution; empty where the backward recomputes it


class Settings(NamedTuple):
    stride: int = 1
    activate_shortcut: bool = False
    eps: float = 1e-5
    slope: float = 0.1


def _rows(x: Tensor) -> int:
    return x.numel() // x.shape[1]


def _library(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    return torch.conv2d(x, weight.to(x.dtype), stride=stride, padding=weight.shape[-1] // 2)


def _library_backward(dy: Tensor, x: Tensor, weight: Tensor, stride: int, input: bool) -> Tensor:
    """The gradient of the input, or of the weight."""
    pad, wanted = [weight.shape[-1] // 2] * 2, [input, not input, False]
    low = weight.to(x.dtype)
    dx, dw, _ = torch.ops.aten.convolution_backward(
        dy, x, low, None, [stride] * 2, pad, [1, 1], False, [0, 0], 1, wanted
    )
    return dx if input else dw.to(weight.dtype)


def _unit(
    x: Tensor, parts: Tensor, gamma: Tensor, beta: Tensor, weight: Tensor, stride: int,
    residual: Tensor | None, keep: bool, s: Settings,
) -> tuple[Tensor, Tensor, Unit]:  # fmt: skip
    """conv(leaky(norm(x))) (+ residual), its partial sums, and what the backward needs."""
    coef, stats = norm.statistics(parts, _rows(x), gamma, beta, s.eps)
    inside = conv.fits(x, weight, stride)
    active = norm.apply(x, coef, s.slope) if keep or not inside else x.new_empty(0)
    if inside:
        y, parts = conv.forward(x, coef, weight, s.slope, residual)
    else:
        y, parts = norm.moments(_library(active, weight, stride), residual)
    return y, parts, Unit(coef, stats, active)


def _unit_backward(
    dy: Tensor, x: Tensor, gamma: Tensor, weight: Tensor, stride: int, unit: Unit, s: Settings,
    to_x: Tensor | None = None, beside: tuple[Tensor, Tensor | None] | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of x, gamma, beta and weight.

    The gradient of a shortcut from x is `to_x`. For a shortcut from the activation, `beside` is the
    gradient of its output, and its weight. The gradient of the weight is computed last, because the
    inputs of the norm's backward are still in the cache before.
    """
    inside = conv.fits(x, weight, stride)
    if inside:
        d, parts = conv.backward_input(dy, x, unit.coef, weight, s.slope)
        if beside is not None:
            d, parts = shortcuts.merge(d, *beside, x, unit.coef, s.slope)
    else:
        d = _library_backward(dy, unit.active, weight, stride, input=True)
        if beside is not None:
            end, w = beside
            d = d.add_(end if w is None else shortcuts.backward_input(end, w))
        parts = norm.backward_sums(d, x, unit.coef, s.slope)
    k, dgamma, dbeta = norm.coefficients(parts, _rows(x), gamma, unit.stats, s.eps)
    dx = norm.backward_apply(d, x, None if inside else unit.coef, k, s.slope, to_x)
    if inside:
        dw = conv.backward_weight(dy, x, unit.coef, s.slope)
    else:
        dw = _library_backward(dy, unit.active, weight, stride, input=False)
    return dx, dgamma, dbeta, dw


class Block(Function):
    """out, its partial sums, and the statistics of both norms."""

    @staticmethod
    def forward(
        ctx: Any, s: Settings, x: Tensor, parts: Tensor, gamma1: Tensor, beta1: Tensor,
        weight1: Tensor, gamma2: Tensor, beta2: Tensor, weight2: Tensor, shortcut: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        keep = s.activate_shortcut and shortcut is None
        y, y_parts, unit1 = _unit(x, parts, gamma1, beta1, weight1, s.stride, None, keep, s)
        beside = unit1.active if keep else x
        if shortcut is not None:
            coef = unit1.coef if s.activate_shortcut else None
            beside = shortcuts.forward(x, coef, shortcut, s.stride, s.slope)
        out, parts, unit2 = _unit(y, y_parts, gamma2, beta2, weight2, 1, beside, False, s)
        ctx.settings = s
        ctx.save_for_backward(x, y, gamma1, weight1, gamma2, weight2, shortcut, *unit1, *unit2)
        ctx.mark_non_differentiable(parts, unit1.stats, unit2.stats)
        ctx.set_materialize_grads(False)
        return out, parts, unit1.stats, unit2.stats

    @staticmethod
    def backward(ctx: Any, dout: Tensor, *_: None) -> tuple[Tensor | None, ...]:
        x, y, gamma1, weight1, gamma2, weight2, shortcut, *kept = ctx.saved_tensors
        s, unit1, unit2 = ctx.settings, Unit(*kept[:3]), Unit(*kept[3:])
        dout = dout.contiguous(memory_format=LAST)
        dy, dgamma2, dbeta2, dw2 = _unit_backward(dout, y, gamma2, weight2, 1, unit2, s)
        dshortcut, beside = None, None
        to_x: Tensor | None = dout
        if shortcut is not None:
            coef = unit1.coef if s.activate_shortcut else None
            dshortcut = shortcuts.backward_weight(dout, x, coef, s.stride, s.slope)
        if s.activate_shortcut:
            to_x, beside = None, (dout, shortcut)
        elif shortcut is not None:
            to_x = shortcuts.backward_input(dout, shortcut)
        dx, dgamma1, dbeta1, dw1 = _unit_backward(
            dy, x, gamma1, weight1, s.stride, unit1, s, to_x, beside
        )
        return None, dx, None, dgamma1, dbeta1, dw1, dgamma2, dbeta2, dw2, dshortcut


class Lower(Function):
    """Weights in bf16 for cuDNN, all in one kernel, and their gradients in float32."""

    @staticmethod
    def forward(ctx: Any, *weights: Tensor) -> tuple[Tensor, ...]:
        return _cast(weights, torch.bfloat16)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        return _cast(gradients, torch.float32)


def _cast(tensors: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
    results = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    torch._foreach_copy_(results, list(tensors))
    return tuple(results)


class Stem(Function):
    """The first convolution and its partial sums; the images need no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        out, parts = stem.forward(x, weight)
        ctx.save_for_backward(x)
        ctx.mark_non_differentiable(parts)
        ctx.set_materialize_grads(False)
        return out, parts

    @staticmethod
    def backward(ctx: Any, dout: Tensor, _: None) -> tuple[None, Tensor]:
        return None, stem.backward_weight(dout.contiguous(memory_format=LAST), *ctx.saved_tensors)


class Features(Function):
    """The last norm and activation, averaged over each image, and that norm's statistics."""

    @staticmethod
    def forward(
        ctx: Any, s: Settings, x: Tensor, parts: Tensor, gamma: Tensor, beta: Tensor
    ) -> tuple[Tensor, Tensor]:
        coef, stats = norm.statistics(parts, _rows(x), gamma, beta, s.eps)
        ctx.settings = s
        ctx.save_for_backward(x, gamma, coef, stats)
        ctx.mark_non_differentiable(stats)
        ctx.set_materialize_grads(False)
        return norm.apply(x, coef, s.slope).mean((2, 3), dtype=torch.float32), stats

    @staticmethod
    def backward(ctx: Any, dmean: Tensor, _: None) -> tuple[Tensor | None, ...]:
        x, gamma, coef, stats = ctx.saved_tensors
        s = ctx.settings
        da = norm.spread(dmean, x)
        parts = norm.backward_sums(da, x, coef, s.slope)
        k, dgamma, dbeta = norm.coefficients(parts, _rows(x), gamma, stats, s.eps)
        return None, norm.backward_apply(da, x, coef, k, s.slope), None, dgamma, dbeta
