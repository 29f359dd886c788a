"""Offset, shortcut and ReLU: the same values and gradients in one pass as one after the other."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from nearkin.encoders import backbone, build_encoder
from nearkin.encoders.architectures import build_backbone


def relu_in_place(x, offset, shortcut):
    # As a kernel does, behind autograd's back.
    x.data.copy_(torch.relu(x + offset.view(-1, 1, 1) + (0 if shortcut is None else shortcut)))


def relu_gradients(gradient, y):
    passed = torch.where(y > 0, gradient, torch.zeros_like(gradient))
    return passed, passed.sum(dim=(0, 2, 3))


@pytest.fixture
def stand_ins(monkeypatch):
    """What the kernels do, in plain PyTorch and wherever channels come last: the rest of the way without a GPU."""
    kernels = SimpleNamespace(offset_relu_=relu_in_place, gradients=relu_gradients)
    monkeypatch.setattr(backbone, "_kernels", lambda: kernels)
    used = []

    def is_fused(x):
        fits = x.is_contiguous(memory_format=torch.channels_last)
        used.append(fits)
        return fits

    monkeypatch.setattr(backbone, "is_fused", is_fused)
    return used


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("name", ["resnet18", "resnet50_v1", "bn_inception", "googlenet"])
def test_gradients_find_their_way_through_a_network(name, frozen, stand_ins, monkeypatch):
    torch.manual_seed(0)
    encoder = build_encoder(
        name, dim=8, freeze_batch_norm=True, freeze_batch_norm_affine=frozen, channels_last=True, pooling="avg+max"
    ).double()
    for module in encoder.backbone.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.normal_(module.bias, std=0.1)
    images = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    ours, our_gradients = gradients(encoder, images)
    assert all(stand_ins)
    monkeypatch.setattr(backbone, "is_fused", lambda x: False)
    stand_ins.clear()
    theirs, their_gradients = gradients(encoder, images)
    assert not stand_ins
    torch.testing.assert_close(ours, theirs)
    assert len(our_gradients) == sum(weight.requires_grad for weight in encoder.parameters())
    for mine, its in zip(our_gradients, their_gradients, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-7, atol=1e-9)


def test_without_gradients_nothing_is_kept_for_them(stand_ins):
    x = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        y = backbone.offset_relu(x, torch.ones(3, requires_grad=True))
    assert y is x
    assert y.grad_fn is None
    assert backbone.offset_relu(x, torch.ones(3, requires_grad=True)).grad_fn is not None


def test_what_another_gradient_needs_is_not_written_over_in_silence(stand_ins):
    x = torch.zeros(2, 3, 4, 4, requires_grad=True).contiguous(memory_format=torch.channels_last)
    y = backbone.offset_relu(x.exp(), torch.ones(3))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def gradients(encoder, images, dtype=None):
    encoder.zero_grad()
    with torch.autocast("cuda", dtype=dtype, enabled=dtype is not None):
        embeddings = encoder(images)
    embeddings.square().mul(torch.arange(embeddings.shape[1], device=images.device)).sum().backward()
    return embeddings, [weight.grad.clone() for weight in encoder.parameters() if weight.grad is not None]


@pytest.mark.gpu
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("name", ["resnet18", "resnet50_v1", "bn_inception", "googlenet"])
def test_a_network_has_the_gradients_it_had_in_several_passes(name, frozen, monkeypatch):
    torch.manual_seed(0)
    encoder = build_encoder(
        name, dim=8, freeze_batch_norm=True, freeze_batch_norm_affine=frozen, channels_last=True, pooling="avg+max"
    ).cuda()
    images = torch.randn(4, 3, 96, 96, device="cuda")
    used = []
    genuine = backbone._OffsetReLU.apply
    monkeypatch.setattr(backbone._OffsetReLU, "apply", lambda *args: used.append(1) or genuine(*args))
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
        ours, our_gradients = gradients(encoder, images)
        assert used
        again = gradients(encoder, images)[1]
        monkeypatch.setattr(backbone, "_kernels", lambda: None)
        used.clear()
        theirs, their_gradients = gradients(encoder, images)
    assert not used
    assert all(torch.equal(first, second) for first, second in zip(our_gradients, again, strict=True))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)
    for mine, its in zip(our_gradients, their_gradients, strict=True):
        # By the norm: an activation beside zero may turn with the last bit.
        assert (mine - its).norm() <= 2e-3 * its.norm() + 1e-6


@pytest.mark.gpu
def test_in_half_precision_it_is_no_further_from_the_exact_gradient_than_several_passes(monkeypatch):
    torch.manual_seed(0)
    encoder = build_encoder("resnet50_v1", dim=8, freeze_batch_norm=True, channels_last=True).cuda()
    images = torch.randn(8, 3, 96, 96, device="cuda")
    fused = gradients(encoder, images, torch.bfloat16)[1]
    monkeypatch.setattr(backbone, "_kernels", lambda: None)
    plain, exact = gradients(encoder, images, torch.bfloat16)[1], gradients(encoder, images)[1]

    def error(given):
        return sum((mine - its).square().sum() for mine, its in zip(given, exact, strict=True)).sqrt()

    assert error(fused) <= 1.1 * error(plain)


@pytest.mark.gpu
def test_without_gradients_large_maps_take_one_pass_and_small_ones_several(monkeypatch):
    torch.manual_seed(0)
    encoder = build_encoder("resnet18", dim=8, freeze_batch_norm=True, channels_last=True).cuda().eval()
    images = torch.randn(16, 3, 128, 128, device="cuda")
    sizes, genuine = [], backbone._OffsetReLU.apply
    monkeypatch.setattr(backbone._OffsetReLU, "apply", lambda x, *args: sizes.append(x.numel()) or genuine(x, *args))
    with torch.inference_mode(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        some = encoder(images)
        assert not sizes
        monkeypatch.setattr(backbone, "LARGE", 16 * 512 * 4 * 4 + 1)  # the last stage's maps are smaller
        mixed = encoder(images)
        assert len(sizes) == 14  # its first convolution has a larger one to begin with
        monkeypatch.setattr(backbone, "LARGE", 0)
        sizes.clear()
        one = encoder(images)
        assert len(sizes) == 17
    torch.testing.assert_close(mixed, some, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(one, some, rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
def test_images_that_need_a_gradient_get_it(monkeypatch):
    torch.manual_seed(0)
    network = build_backbone("resnet18").cuda().to(memory_format=torch.channels_last).eval()
    found = []
    for kernels in (backbone._kernels(), None):
        monkeypatch.setattr(backbone, "_kernels", lambda kernels=kernels: kernels)
        images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1)).cuda()
        images = images.contiguous(memory_format=torch.channels_last).requires_grad_()
        network(images).sum().backward()
        found.append(images.grad)
    assert (found[0] - found[1]).norm() <= 1e-2 * found[1].norm()
