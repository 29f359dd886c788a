"""The fused kernels against the plain functions that they stand in for.

Where there is no GPU they run in Triton's interpreter, if Triton is installed.
"""

from __future__ import annotations

import inspect
import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")

import nearkin.losses as losses
from nearkin.losses import (
    _anchor,
    _blocks,
    _class_block,
    _class_similarity,
    _closed_form,
    _cross_entropy,
    _kernels,
    _triton,
)
from nearkin.losses._informative import InformativeSampleWeights, SampleWeights

pytestmark = pytest.mark.gpu if torch.cuda.is_available() else []
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

MODULES = (_closed_form, _anchor, _class_block, _class_similarity, _cross_entropy)
SINGLE = ("ProxyAnchor", "ProxyNCA", "ProxyNCAPlusPlus", "NormalizedSoftmax", "CosFace", "ArcFace")
SEVERAL = ("SoftTriple", "MultiProxyAnchor", "DataWiseMultiProxyAnchor", "AllPairsMultiProxyAnchor")
CASES = [(name, {}) for name in SINGLE]
CASES += [("ProxyAnchor", {"positive_norm": "all"}), ("ProxyISA", {"memory_size": 50})]
CASES += [(name, {"proxies_per_class": k}) for name in SEVERAL for k in (1, 3)]
CASES += [("MultiProxyAnchor", {"proxies_per_class": 4, "class_similarity": kind}) for kind in ("max", "mean")]


def step(loss, embeddings, labels, *, factor=3.0):
    """Value and gradients, the loss being a part of something larger."""
    embeddings = embeddings.clone().requires_grad_()
    loss.zero_grad()
    value = loss(embeddings, labels)
    (factor * value).backward()
    return value.detach(), embeddings.grad, loss.bank.vectors.grad


@pytest.fixture
def with_and_without(monkeypatch):
    """Runs a step of a loss in plain PyTorch and with the kernels."""

    def run(loss, embeddings, labels):
        results = []
        for kernels in (None, _kernels):
            for module in MODULES:
                monkeypatch.setattr(module, "kernels_for", lambda x, kernels=kernels: kernels)
            results.append(step(loss, embeddings, labels))
        return results

    return run


def assert_equal(plain, fused):
    for expected, found in zip(plain, fused, strict=True):
        scale = expected.abs().max().clamp_min(1e-6)
        torch.testing.assert_close(found / scale, expected / scale, atol=2e-5, rtol=2e-4)


@pytest.mark.parametrize("name, options", CASES, ids=lambda part: str(part))
@pytest.mark.parametrize("classes", [2, 45])
def test_a_step_is_the_same_with_fused_kernels(with_and_without, name, options, classes):
    torch.manual_seed(0)
    loss = getattr(losses, name)(classes, 24, **options).to(DEVICE)
    embeddings = 3 * torch.randn(70, 24, device=DEVICE)
    labels = torch.randint(classes, (70,), device=DEVICE)
    assert_equal(*with_and_without(loss, embeddings, labels))


@pytest.mark.parametrize("name, options", CASES, ids=lambda part: str(part))
def test_a_step_over_blocks_of_classes_is_the_same_with_fused_kernels(monkeypatch, with_and_without, name, options):
    torch.manual_seed(0)
    loss = getattr(losses, name)(45, 24, **options).to(DEVICE)
    if loss.weighting is not None:
        loss.begin_epoch(2)
    embeddings = 3 * torch.randn(70, 24, device=DEVICE)
    labels = torch.randint(40, (70,), device=DEVICE)
    for _ in range(3):
        loss(embeddings, labels)
    loss.eval()
    plain, fused = with_and_without(loss, embeddings, labels)
    monkeypatch.setattr(_blocks, "PLAIN_BYTES", 0)
    monkeypatch.setitem(_blocks.BLOCK_BYTES, DEVICE, 70 * 17 * loss.proxies_per_class * 4)
    blocks, fused_blocks = with_and_without(loss, embeddings, labels)
    for other in (fused, blocks, fused_blocks):
        assert_equal(plain, other)


@pytest.mark.parametrize("per_class", [1, 3])
def test_variational_proxies_that_the_optimiser_moves(with_and_without, per_class):
    torch.manual_seed(6)
    loss = losses.VariationalProxyAnchor(6, 24, newton_steps=0, stochastic=False, proxies_per_class=per_class)
    with torch.no_grad():
        loss.bank.vectors.normal_()
    labels = torch.randint(6, (70,), device=DEVICE)
    assert_equal(*with_and_without(loss.to(DEVICE), torch.randn(70, 24, device=DEVICE), labels))


@pytest.mark.parametrize("name", ["ProxyAnchor", "CosFace", "ArcFace", "SoftTriple"])
@pytest.mark.parametrize("length", [1e-6, 1e6])
def test_extreme_lengths_and_coinciding_points(with_and_without, name, length):
    torch.manual_seed(1)
    loss = getattr(losses, name)(6, 8).to(DEVICE)
    embeddings = torch.randn(5, 8, device=DEVICE) * length
    with torch.no_grad():
        loss.bank.vectors[0] = embeddings[0]  # coincides, and opposite
        loss.bank.vectors[1] = -embeddings[0]
    labels = torch.tensor([0, 1, 1, 5, 5], device=DEVICE)
    plain, fused = with_and_without(loss, embeddings, labels)
    assert all(bool(part.isfinite().all()) for part in fused)
    if name != "ArcFace":  # where the angle is 0 its gradient is a ratio of two roundings
        assert_equal(plain[:1], fused[:1])


def test_more_columns_than_a_program_takes_at_once(with_and_without):
    torch.manual_seed(2)
    classes = _kernels.ROW_BLOCK + 300
    loss = losses.NormalizedSoftmax(classes, 8).to(DEVICE)
    labels = torch.tensor([0, classes - 1, _kernels.ROW_BLOCK], device=DEVICE)
    assert_equal(*with_and_without(loss, torch.randn(3, 8, device=DEVICE), labels))


@pytest.mark.parametrize("positive_norm", ["present", "all"])
@pytest.mark.parametrize("classes", [1, 2, 45])
def test_weighted_pairs_cost_the_same_with_the_fused_kernel(monkeypatch, positive_norm, classes):
    torch.manual_seed(3)
    rows = 70
    similarities = (2 * torch.rand(rows, 2 * classes, device=DEVICE) - 1)[:, ::2]  # not contiguous
    labels = torch.randint(max(1, classes - 1), (rows,), device=DEVICE)  # the last class is absent
    weights = SampleWeights(2 * torch.rand(rows, device=DEVICE), torch.rand(rows, classes, device=DEVICE))
    results = []
    for kernels in (None, _kernels):
        monkeypatch.setattr(_anchor, "kernels_for", lambda x, kernels=kernels: kernels)
        loss = losses.ProxyAnchor(classes, 24, positive_norm=positive_norm)
        results.append(loss.value_and_gradient(similarities, labels, weights))
    assert_equal(*results)


@pytest.mark.parametrize("per_class", [1, 3])
def test_informative_samples_are_weighted_alike_with_fused_kernels(monkeypatch, per_class):
    results = []
    for kernels in (None, _kernels):
        for module in MODULES:
            monkeypatch.setattr(module, "kernels_for", lambda x, kernels=kernels: kernels)
        torch.manual_seed(4)
        weighting = InformativeSampleWeights(6, 24, memory_size=150, volume=20.0, hardness=0.9)
        loss = losses.MultiProxyAnchor(6, 24, proxies_per_class=per_class, weighting=weighting).to(DEVICE)
        for epoch in range(5):
            loss.begin_epoch(epoch)
            labels = torch.randint(6, (70,), device=DEVICE)
            outcome = step(loss, loss.bank.vectors.detach()[labels, 0] + torch.randn(70, 24, device=DEVICE), labels)
        assert loss.weighting.filter_on
        assert 0 < loss.weighting.diagnostics()["informative"] < 1
        results.append([*outcome, weighting.average])
    assert_equal(*results)


def test_equal_proxies_do_not_pull_on_each_other_in_the_fused_kernel(monkeypatch):
    monkeypatch.setattr(_class_similarity, "kernels_for", lambda x: _kernels)
    torch.manual_seed(5)
    vectors = torch.randn(20, 1, 300, device=DEVICE).expand(20, 3, 300).contiguous()
    vectors[:, 2] = torch.randn(20, 300, device=DEVICE)
    value, matrices = _class_similarity.proxy_spread_and_gradient(vectors, vectors.norm(dim=2), tau=1.0)
    assert (matrices[:, 0, 1] == 0).all()
    assert (matrices[:, 0, 2] != 0).all()
    torch.testing.assert_close(value, _class_similarity.proxy_spread(vectors, tau=1.0), rtol=1e-4, atol=1e-6)


def test_every_kernel_is_launched():
    kernels = [name for name in vars(_triton) if name.endswith("_kernel")]
    assert kernels
    launches = inspect.getsource(_kernels)
    assert not [name for name in kernels if f"{name}[" not in launches]
