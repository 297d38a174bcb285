"""Muon against a reference implementation that updates one matrix after the other."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from comatch import methods, recipes
from comatch.config import replace
from comatch.methods import CoMatch
from comatch.nets import build_encoder
from comatch.training.muon import POLYNOMIAL, ROUNDS, Muon, Stacks, orthogonal
from comatch.training.optim import build, build_sgd
from comatch.types import Task


class Encoder(nn.Module):
    """Wide and tall matrices, equal and unequal ones, some too large to share a stack."""

    num_features = 80

    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(*c) for c in ((3, 6, 3), (6, 6, 3), (6, 6, 3)))
        self.shortcut = nn.Conv2d(2, 7, 1)
        self.wide, self.tall = nn.Linear(90, 70), nn.Linear(70, 90)
        self.norm = nn.BatchNorm2d(6)


def make(**settings):
    torch.manual_seed(0)
    recipe = replace(recipes.get("cifar10", "comatch"), optimizer="muon", **settings)
    method = CoMatch(Encoder(), Task(3), recipe.method).double()
    return method.to(memory_format=torch.channels_last), recipe


def set_gradients(method, seed):
    generator = torch.Generator().manual_seed(seed)
    for p in method.parameters():
        if p.requires_grad:
            # In the layout of the weight, as PyTorch accumulates it.
            p.grad = torch.empty_like(p).copy_(torch.randn(p.shape, generator=generator))


def test_orthogonal_brings_singular_values_near_one():
    torch.manual_seed(0)
    stack = torch.randn(5, 16, 40, dtype=torch.float64)
    u, _, v = torch.linalg.svd(stack, full_matrices=False)
    done = orthogonal(stack)
    values = torch.linalg.svdvals(done)
    assert values.min() > 0.6
    assert values.max() < 1.25
    assert F.cosine_similarity(done.flatten(1), (u @ v).flatten(1)).min() > 0.95


def test_orthogonal_of_zeros_is_zero():
    assert torch.equal(orthogonal(torch.zeros(2, 3, 4)), torch.zeros(2, 3, 4))


def reference_direction(gradient):
    """The update of one matrix, wide or tall."""
    a, b, c = POLYNOMIAL
    matrix = gradient.flatten(1)
    rows, columns = matrix.shape
    x = matrix if rows <= columns else matrix.T
    x = x / (math.sqrt(sum(value**2 for value in x.flatten().tolist())) + 1e-7)
    for _ in range(ROUNDS):
        x = a * x + b * x @ x.T @ x + c * x @ x.T @ x @ x.T @ x
    x = x if rows <= columns else x.T
    return max(1, rows / columns) ** 0.5 * x.reshape(gradient.shape)


@pytest.mark.parametrize("decay", [None, 0.1])
def test_steps_agree_with_the_reference(decay):
    method, recipe = make(lr=0.03, muon_lr=0.5, momentum=0.8, weight_decay=0.2, muon_decay=decay)
    lr = torch.zeros((), dtype=torch.float64)
    optimizer = build(method, lr, recipe.optim)
    assert isinstance(optimizer, Muon)
    matrices = {n: p for n, p in method.net.encoder.named_parameters() if p.ndim >= 2}
    assert len(matrices) == 6
    weights = {n: p.detach().clone() for n, p in matrices.items()}
    velocity = {n: torch.zeros_like(p) for n, p in matrices.items()}
    decay = 0.2 if decay is None else decay
    for step, share in enumerate((1.0, 0.7, 0.1)):
        set_gradients(method, step)
        lr.fill_(0.03 * share)
        for n, p in matrices.items():
            velocity[n] = 0.8 * velocity[n] + 0.2 * p.grad
            direction = reference_direction(0.2 * p.grad + 0.8 * velocity[n])
            weights[n] = weights[n] - 0.5 * share * (direction + decay * weights[n])
        optimizer.step()
        for n, p in matrices.items():
            torch.testing.assert_close(p.detach(), weights[n], rtol=1e-9, atol=1e-11, msg=n)


def test_sgd_updates_the_other_parameters():
    method, recipe = make(momentum=0.8, weight_decay=0.2)
    other = copy.deepcopy(method)
    lr = torch.tensor(0.03, dtype=torch.float64)
    optimizer = build(method, lr, recipe.optim)
    sgd = build_sgd(other, lr, 0.8, 0.2, decay_norms=False)
    for step in range(3):
        for each, by in ((method, optimizer), (other, sgd)):
            set_gradients(each, step)
            by.step()
    theirs = dict(other.named_parameters())
    for name, p in method.named_parameters():
        turned = p.requires_grad and name.startswith("net.encoder") and p.ndim >= 2
        assert torch.equal(p, theirs[name]) != turned, name


def test_every_parameter_is_updated_once():
    method, recipe = make()
    optimizer = build(method, torch.tensor(0.03), recipe.optim)
    moved = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert sorted(moved) == sorted(id(p) for p in method.parameters() if p.requires_grad)


def test_wrn_28_2_has_two_stacks():
    """28 convolutions of ten shapes, so few kernels do."""
    matrices = [p for p in build_encoder("wrn-28-2", 32).parameters() if p.ndim >= 2]
    shapes = [tuple(shape) for shape in Stacks(matrices, 1.0).shapes]
    assert shapes == [(20, 64, 576), (8, 128, 1152)]


def test_state_round_trip_keeps_addresses():
    method, recipe = make()
    lr = torch.tensor(0.03, dtype=torch.float64)
    optimizer = build(method, lr, recipe.optim)
    for step in range(2):
        set_gradients(method, step)
        optimizer.step()
    copied = copy.deepcopy(method)
    other = build(copied, lr, recipe.optim)
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    (velocity,) = (optimizer.state[p]["momentum_buffer"] for p in optimizer.matrices[:1])
    address = velocity.data_ptr()
    for step in (2, 3):
        for each, by in ((method, optimizer), (copied, other)):
            set_gradients(each, step)
            by.step()
    assert velocity.data_ptr() == address
    for a, b in zip(method.parameters(), copied.parameters(), strict=True):
        assert torch.equal(a, b)


def test_muon_for_every_method():
    for name in methods.METHODS:
        recipe = replace(recipes.get("cifar10", name), optimizer="muon")
        method = methods.build(recipe.method, build_encoder("wrn-10-1", 8), Task(3, unlabelled=6))
        assert isinstance(build(method, torch.tensor(0.03), recipe.optim), Muon)
