"""Frozen batch-norm inside the convolution: the same function and the same gradients as the two apart."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from nearkin.encoders import backbone, build_encoder
from nearkin.encoders.architectures import bn_inception, build_backbone, efficientnet_lite, googlenet, resnet
from nearkin.encoders.backbone import conv_bn, fold_batch_norms
from nearkin.errors import RecipeError


def layer(*, bias: bool = False, **options) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    generator = torch.Generator().manual_seed(0)
    convolution, norm = nn.Conv2d(4, 6, 3, bias=bias, dtype=torch.float64, **options), nn.BatchNorm2d(6, eps=1e-3)
    norm.double()
    for tensor in (norm.weight, norm.bias, norm.running_mean):
        tensor.data = torch.randn(6, generator=generator, dtype=torch.float64)
    norm.running_var = torch.rand(6, generator=generator, dtype=torch.float64) + 0.1
    return convolution, norm


@pytest.mark.parametrize(
    "options", [{}, {"bias": True}, {"stride": 2, "padding": 1}, {"groups": 2, "dilation": 2, "bias": True}]
)
def test_frozen_values_and_gradients_are_those_of_batch_norm_after_the_convolution(options):
    convolution, norm = layer(**options)
    norm.eval()
    results = []
    for function in (conv_bn, lambda x, first, second: second(first(x))):
        convolution.zero_grad()
        norm.zero_grad()
        x = torch.linspace(-1, 1, 2 * 4 * 9 * 9, dtype=torch.float64).reshape(2, 4, 9, 9).requires_grad_()
        y = function(x, convolution, norm)
        y.square().sum().backward()
        results.append([y, x.grad, *(p.grad.clone() for p in (*convolution.parameters(), *norm.parameters()))])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_statistics_that_move_are_learned_from_the_batch():
    convolution, norm = layer()
    norm.train()
    before = norm.running_mean.clone()
    x = torch.randn(3, 4, 5, 5, dtype=torch.float64)
    expected = copy.deepcopy(norm)(convolution(x))
    assert torch.equal(conv_bn(x, convolution, norm), expected)
    assert not torch.equal(norm.running_mean, before)


def test_a_batch_norm_without_statistics_takes_those_of_the_batch():
    convolution = nn.Conv2d(4, 6, 1)
    norm = nn.BatchNorm2d(6, track_running_stats=False).eval()
    x = torch.randn(3, 4, 5, 5)
    assert torch.equal(conv_bn(x, convolution, norm), norm(convolution(x)))


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("resnet18", resnet),
        ("resnet50_v1", resnet),
        ("bn_inception", bn_inception),
        ("googlenet", googlenet),
        ("efficientnet_lite0", efficientnet_lite),
    ],
)
def test_networks_with_frozen_batch_norm_compute_what_they_did_apart(name, module, monkeypatch):
    torch.manual_seed(0)
    network = build_backbone(name).double()
    images = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    network.train()
    with torch.no_grad():
        network(images)  # statistics that are not 0 and 1
    network.eval()
    together = network(images)
    calls = []

    def apart(x, convolution, norm):
        calls.append(norm)
        return norm(convolution(x))

    def apart_and_activated(x, convolution, norm, shortcut=0.0):
        return torch.relu(apart(x, convolution, norm) + shortcut)

    monkeypatch.setattr(module, "conv_bn", apart, raising=False)
    monkeypatch.setattr(module, "conv_bn_relu", apart_and_activated, raising=False)
    torch.testing.assert_close(together, network(images), rtol=1e-8, atol=1e-8)
    assert len(calls) == sum(isinstance(part, nn.BatchNorm2d) for part in network.modules())


def test_norms_with_different_eps_are_folded_together_each_with_its_own():
    layers = [layer(), layer(bias=True)]
    layers[1][1].eps = 0.5
    x = torch.randn(2, 4, 5, 5, dtype=torch.float64)
    for _, norm in layers:
        norm.eval()
    with fold_batch_norms([norm for _, norm in layers]):
        together = [conv_bn(x, *pair) for pair in layers]
    for ours, (convolution, norm) in zip(together, layers, strict=True):
        torch.testing.assert_close(ours, norm(convolution(x)), rtol=1e-10, atol=1e-10)


def test_what_was_folded_together_is_forgotten_afterwards():
    convolution, norm = layer()
    norm.eval()
    x = torch.randn(2, 4, 5, 5, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="stop"), fold_batch_norms([norm]):
        raise RuntimeError("stop")
    with torch.no_grad():
        norm.bias.add_(1.0)
    torch.testing.assert_close(conv_bn(x, convolution, norm), norm(convolution(x)))


@pytest.mark.parametrize("name", ["resnet18", "bn_inception", "googlenet", "efficientnet_lite0"])
def test_an_encoder_with_frozen_batch_norm_has_the_gradients_of_one_layer_at_a_time(name, monkeypatch):
    torch.manual_seed(0)
    encoder = build_encoder(name, dim=8, freeze_batch_norm=True).double()
    images = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    launched, gradients = [], []
    genuine = backbone._affines
    monkeypatch.setattr(backbone, "_affines", lambda norms: launched.append(len(norms)) or genuine(norms))
    for together in (True, False):
        if not together:
            monkeypatch.setattr(encoder, "_folded", [])
        encoder.zero_grad()
        encoder(images)[:, 0].sum().backward()
        gradients.append([parameter.grad.clone() for parameter in encoder.parameters()])
    norms = sum(isinstance(module, nn.BatchNorm2d) for module in encoder.modules())
    assert launched == [norms, 0, *[1] * norms]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-10)


def test_a_copy_of_an_encoder_folds_its_own_norms():
    encoder = build_encoder("resnet18", dim=8, freeze_batch_norm=True)
    follower = copy.deepcopy(encoder)
    images = torch.randn(2, 3, 64, 64)
    expected = follower(images)
    with torch.no_grad():
        for parameter in encoder.backbone.parameters():
            parameter.mul_(2.0)
    torch.testing.assert_close(follower(images), expected)
    assert set(follower._folded).isdisjoint(encoder._folded)
    assert set(follower._folded) <= set(follower.modules())


@pytest.mark.parametrize("name", ["resnet18", "bn_inception"])
def test_under_autocast_folding_together_changes_no_more_than_rounding(name):
    torch.manual_seed(0)
    encoder = build_encoder(name, dim=8, freeze_batch_norm=True)
    images = torch.randn(2, 3, 64, 64)
    exact = encoder(images)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = encoder(images)
        rounded[:, 0].sum().backward()
    assert rounded.dtype == torch.float32
    torch.testing.assert_close(rounded, exact, rtol=0, atol=0.05)
    assert all(parameter.grad.isfinite().all() for parameter in encoder.parameters())
    assert all(parameter.grad.dtype == torch.float32 for parameter in encoder.parameters())


FINER = {"resnet18": 4, "resnet50": 4, "resnet50_v1": 4, "bn_inception": 4, "efficientnet_lite0": 4, "resnetv2_20": 32}


@pytest.mark.parametrize(("name", "side"), FINER.items())
def test_a_last_stride_of_one_makes_the_map_twice_as_fine_with_the_same_weights(name, side):
    usual, finer = build_backbone(name).eval(), build_backbone(name, last_stride=1).eval()
    finer.load_state_dict(usual.state_dict())
    images = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert usual(images).shape[-1] == side // 2
        assert finer(images).shape == (1, usual.out_channels, side, side)
    again = build_backbone(name, last_stride=2).eval()
    again.load_state_dict(usual.state_dict())
    with torch.no_grad():
        assert torch.equal(again(images), usual(images))


@pytest.mark.parametrize(
    ("name", "convolution", "shift"),
    [
        ("resnet18", "layer4.0.conv1", 0),
        ("resnet50", "layer4.0.conv2", 0),
        ("resnet50_v1", "layer4.0.conv1", 0),
        ("resnet50_v1", "layer4.0.downsample.0", 0),
        ("bn_inception", "inception_4e_3x3", 0),
        ("bn_inception", "inception_4e_double_3x3_2", 0),
        ("efficientnet_lite0", "_blocks.11._depthwise_conv", 1),  # with a stride, TensorFlow's padding is on one side
        ("resnetv2_20", "blocks.6.projection", 0),
    ],
)
def test_every_second_place_of_the_finer_map_is_the_usual_one(name, convolution, shift):
    usual, finer = (build_backbone(name, last_stride=stride).get_submodule(convolution) for stride in (None, 1))
    finer.load_state_dict(usual.state_dict())
    x = torch.randn(2, usual.in_channels, 8, 8)
    torch.testing.assert_close(finer(x)[..., shift::2, shift::2], usual(x), rtol=1e-4, atol=1e-4)


def test_a_finer_map_with_folded_batch_norm_and_channels_last_gives_the_same():
    plain = build_encoder("resnet18", dim=8, last_stride=1, freeze_batch_norm=True)
    last = build_encoder("resnet18", dim=8, last_stride=1, freeze_batch_norm=True, channels_last=True)
    last.load_state_dict(plain.state_dict())
    images = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(plain(images), last(images), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("name", "stride", "said"), [("googlenet", 1, "such as resnet50"), ("resnet18", 3, "got 3")])
def test_a_last_stride_that_cannot_be_had_is_refused(name, stride, said):
    with pytest.raises(RecipeError, match=f"encoder.last_stride.*{said}"):
        build_backbone(name, last_stride=stride)
