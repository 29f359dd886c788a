"""Offset, shortcut and ReLU: the same values and gradients in one pass as one after the other."""

from __future__ import annotations

import pytest
import torch

from nearkin.encoders import build_encoder, offset_relu
from nearkin.encoders.architectures import build_backbone


@pytest.mark.parametrize("has_shortcut", [True, False])
def test_without_a_gpu_it_is_plain_pytorch(has_shortcut):
    x, shortcut = torch.randn(2, 3, 4, 4), torch.randn(2, 3, 4, 4) if has_shortcut else None
    offset = torch.randn(3)
    expected = torch.relu(x + offset.view(1, -1, 1, 1) + (0 if shortcut is None else shortcut))
    assert not offset_relu.is_fused(x)
    torch.testing.assert_close(offset_relu.offset_relu(x, offset, shortcut), expected)


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
        name, dim=8, freeze_batch_norm=True, freeze_scale_and_shift=frozen, channels_last=True, pooling="avg+max"
    ).cuda()
    images = torch.randn(4, 3, 96, 96, device="cuda")
    used = []
    genuine = offset_relu._OffsetReLU.apply
    monkeypatch.setattr(offset_relu._OffsetReLU, "apply", lambda *args: used.append(1) or genuine(*args))
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
        ours, our_gradients = gradients(encoder, images)
        assert used
        again = gradients(encoder, images)[1]
        monkeypatch.setattr(offset_relu, "_kernels", lambda: None)
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
    monkeypatch.setattr(offset_relu, "_kernels", lambda: None)
    plain, exact = gradients(encoder, images, torch.bfloat16)[1], gradients(encoder, images)[1]

    def error(given):
        return sum((mine - its).square().sum() for mine, its in zip(given, exact, strict=True)).sqrt()

    assert error(fused) <= 1.1 * error(plain)


@pytest.mark.gpu
def test_images_that_need_a_gradient_get_it(monkeypatch):
    torch.manual_seed(0)
    network = build_backbone("resnet18").cuda().to(memory_format=torch.channels_last).eval()
    found = []
    for kernels in (offset_relu._kernels(), None):
        monkeypatch.setattr(offset_relu, "_kernels", lambda kernels=kernels: kernels)
        images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1)).cuda()
        images = images.contiguous(memory_format=torch.channels_last).requires_grad_()
        network(images).sum().backward()
        found.append(images.grad)
    assert (found[0] - found[1]).norm() <= 1e-2 * found[1].norm()
