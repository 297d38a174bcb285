"""Networks: the paper's sizes, small stems, and one forward for all heads."""

import pytest
import torch
from torch import nn

from comatch.errors import UserError
from comatch.nets import Network, WideResNet, build_encoder


def parameters(module):
    return sum(p.numel() for p in module.parameters())


def test_wrn_28_2_has_the_known_size():
    """1.47 million parameters with ten classes, as published."""
    net = Network(build_encoder("wrn-28-2", 32), classes=10)
    assert parameters(net) == 1_467_610
    assert net.encoder(torch.zeros(2, 3, 32, 32)).shape == (2, 128)


def test_wrn_details_of_the_authors_code():
    encoder = build_encoder("wrn-28-2", 32, norm_momentum=0.001)
    assert isinstance(encoder, WideResNet)
    norms = [m for m in encoder.modules() if isinstance(m, nn.BatchNorm2d)]
    assert {m.momentum for m in norms} == {0.001}
    assert [b.activate_shortcut for b in encoder.blocks] == [True] + [False] * 11
    assert [b.shortcut is not None for b in encoder.blocks] == ([True] + [False] * 3) * 3


def test_wrn_first_block_activates_before_the_shortcut():
    block = WideResNet(10, 2).blocks[0]
    nn.init.zeros_(block.conv2.weight)  # only the shortcut is left
    x = torch.randn(2, 16, 8, 8)
    expected = block.shortcut(nn.functional.leaky_relu(block.norm1(x), 0.1))
    torch.testing.assert_close(block(x), expected)


@pytest.mark.parametrize("name", ["wrn-10-1", "wrn-16-4", "wrn-40-2"])
def test_any_depth_and_width(name):
    width = int(name.split("-")[2])
    assert build_encoder(name, 32)(torch.zeros(1, 3, 16, 16)).shape == (1, 64 * width)


@pytest.mark.parametrize("name", ["wrn-27-2", "wrn-4-2", "resnet19"])
def test_unknown_networks(name):
    with pytest.raises(UserError, match=name):
        build_encoder(name, 32)


def macs(encoder, size):
    """Multiply-adds of convolutions, counted in a forward."""
    total = 0

    def count(module, inputs, output):
        nonlocal total
        kernel = module.kernel_size[0] * module.kernel_size[1]
        total += output.numel() * kernel * module.in_channels // module.groups

    hooks = [m.register_forward_hook(count) for m in encoder.modules() if isinstance(m, nn.Conv2d)]
    encoder.eval()(torch.zeros(1, 3, size, size))
    for hook in hooks:
        hook.remove()
    return total


def test_resnet18_on_stl10_has_the_papers_cost():
    """Footnote of section 4.1: 0.34 G multiply-adds an image, that is the standard stem."""
    standard = macs(build_encoder("resnet18", 96, "standard"), 96)
    assert standard / 1e9 == pytest.approx(0.34, abs=0.01)


def test_small_stems_keep_the_resolution():
    small, standard = (build_encoder("resnet18", 32, stem) for stem in ("auto", "standard"))
    image = torch.zeros(2, 3, 32, 32)
    assert small.forward_features(image).shape[-1] == 4
    assert standard.forward_features(image).shape[-1] == 1
    assert small.conv1.kernel_size == (3, 3)


def test_a_half_stem_halves_the_resolution():
    half = build_encoder("resnet18", 64, "half")
    assert half.forward_features(torch.zeros(2, 3, 64, 64)).shape[-1] == 4
    assert (half.conv1.kernel_size, half.conv1.stride) == ((3, 3), (2, 2))


def test_imagenet_projection_head_has_the_papers_size():
    """30.0 M parameters in training against 25.6 M in use (the ImageNet table)."""
    encoder = build_encoder("resnet50", 224)
    assert parameters(Network(encoder, 1000)) / 1e6 == pytest.approx(25.6, abs=0.1)
    assert parameters(Network(encoder, 1000, 128)) / 1e6 == pytest.approx(30.0, abs=0.1)


@pytest.mark.parametrize("name", ["mobilenetv3_small_050", "vit_tiny_patch16_224"])
def test_other_timm_models(name):
    net = Network(build_encoder(name, 64), classes=3, embedding_dim=8)
    out = net(torch.randn(2, 3, 64, 64))
    assert out.logits.shape == (2, 3)
    torch.testing.assert_close(out.embedding.norm(dim=1), torch.ones(2))


def test_a_stem_that_cannot_be_made_smaller_is_an_error():
    with pytest.raises(UserError, match="stem=standard"):
        build_encoder("vit_tiny_patch16_224", 64, "small")


def test_heads_compute_in_float32():
    net = Network(build_encoder("wrn-10-1", 16), classes=3, embedding_dim=8)
    net.compute_dtype = torch.bfloat16
    out = net(torch.randn(4, 3, 16, 16))
    assert {t.dtype for t in out} == {torch.float32}
    net.compute_dtype = None
    exact = net(torch.randn(4, 3, 16, 16))
    assert exact.embedding.shape == (4, 8)


@pytest.mark.parametrize(("name", "blocks"), [("resnet18", 8), ("resnet50", 16)])
def test_last_gammas_of_a_resnet(name, blocks):
    """timm's start at zero; the authors' networks are torchvision's, where all are one."""

    def last_gammas(zero):
        torch.manual_seed(0)
        encoder = build_encoder(name, 64, "standard", zero_last_gamma=zero)
        last = "bn2" if name == "resnet18" else "bn3"
        layers = (encoder.layer1, encoder.layer2, encoder.layer3, encoder.layer4)
        found = [getattr(block, last).weight for layer in layers for block in layer]
        return torch.stack([gamma.mean() for gamma in found]).tolist(), encoder

    gammas, plain = last_gammas(False)
    assert gammas == [1] * blocks
    gammas, zeroed = last_gammas(True)
    assert gammas == [0] * blocks
    assert torch.equal(plain.conv1.weight, zeroed.conv1.weight)


def test_networks_without_zero_gammas_are_built_as_they_are():
    for name in ("wrn-10-1", "mobilenetv3_small_050"):
        assert build_encoder(name, 32, zero_last_gamma=False).num_features


@pytest.mark.parametrize(("activation", "slope"), [("leaky_relu", 0.1), ("relu", 0.0)])
def test_the_activation_of_the_projection_head(activation, slope):
    torch.manual_seed(0)
    net = Network(build_encoder("wrn-10-1", 8), 3, 4, activation)
    first, _, second = net.projector.layers
    features = torch.randn(5, first.in_features)
    hidden = features @ first.weight.T + first.bias
    hidden = torch.where(hidden > 0, hidden, slope * hidden)
    torch.testing.assert_close(net.projector(features), hidden @ second.weight.T + second.bias)


def test_a_run_has_the_activation_of_its_recipe(build_run):
    run = build_run(head_activation="relu")
    for net in (run.method.net, run.method.ema.net):
        assert isinstance(net.projector.layers[1], torch.nn.ReLU)


def test_untracked_output_has_batch_statistics_and_updates_nothing():
    torch.manual_seed(0)
    net = Network(build_encoder("wrn-10-1", 8), 3)
    images, before = torch.randn(6, 3, 8, 8), [b.clone() for b in net.buffers()]
    untracked = net.untracked(images).logits
    assert all(torch.equal(one, other) for one, other in zip(net.buffers(), before, strict=True))
    torch.testing.assert_close(untracked, net(images).logits, rtol=0, atol=0)
    untracked.sum().backward()
    assert net.encoder.stem.weight.grad.abs().sum() > 0
    net.compute_dtype = torch.bfloat16
    assert torch.equal(net.untracked(images, precise=True).logits, untracked)
    assert not torch.equal(net.untracked(images).logits, untracked)
