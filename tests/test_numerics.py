from __future__ import annotations

import math

import pytest
import torch

from nearkin.numerics import (
    EXCLUDED,
    at_least_float32,
    full_precision,
    l2_normalise,
    log1p_sum_exp_by_label,
    log_sum_exp_where,
    normalise,
    safe_sqrt,
    tf32,
)


def test_log1p_sum_exp_by_label():
    x = torch.tensor([1.0, 2.0, EXCLUDED, 1e4, -1e4, 0.0], dtype=torch.float64, requires_grad=True)
    value = log1p_sum_exp_by_label(x, torch.tensor([0, 0, 0, 2, 2, 2]), 3)
    total = 1 + math.e + math.e**2
    assert value.tolist() == pytest.approx([math.log(total), 0.0, 1e4])
    (slope,) = torch.autograd.grad(value.sum(), x)
    assert slope.tolist() == pytest.approx([math.e / total, math.e**2 / total, 0, 1, 0, 0])


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("extra_zero", [True, False])
def test_a_log_sum_exp_skips_what_is_masked_and_stands_empty_rows(dim, extra_zero):
    torch.manual_seed(0)
    x, mask = (30 * torch.randn(5, 6, dtype=torch.float64)).requires_grad_(), torch.rand(5, 6) < 0.5
    mask[0], mask[:, 1], mask[1] = False, False, True
    mask[2, 1] = True
    ours = log_sum_exp_where(x, mask, dim, extra_zero=extra_zero)
    masked = torch.where(mask, x, EXCLUDED)
    zero = torch.zeros_like(masked.narrow(dim, 0, 1))
    theirs = torch.logsumexp(torch.cat([masked, zero], dim=dim) if extra_zero else masked, dim=dim)
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    gradients = [torch.autograd.grad((torch.arange(len(y)) * y).sum(), x)[0] for y in (ours, theirs)]
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-12)


def test_safe_sqrt_has_no_gradient_below_and_at_zero():
    x = torch.tensor([-1e-7, 0.0, 9.0], requires_grad=True)
    root = safe_sqrt(x)
    root.sum().backward()
    assert root.tolist() == [0.0, 0.0, 3.0]
    assert x.grad.tolist() == pytest.approx([0.0, 0.0, 1 / 6])


def test_normalisations():
    x = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    torch.testing.assert_close(l2_normalise(x), torch.tensor([[0.6, 0.8], [0.6, 0.8], [0.0, 0.0]]))
    torch.testing.assert_close(normalise(x, "ball"), torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]))
    assert torch.equal(normalise(x, "l2"), l2_normalise(x))
    with pytest.raises(ValueError, match="normalisation must be 'l2' or 'ball', got 'max'"):
        normalise(x, "max")


def test_only_narrow_types_are_widened():
    wide = torch.zeros(2, dtype=torch.float64)
    assert at_least_float32(wide) is wide
    assert at_least_float32(wide.half()).dtype == at_least_float32(wide.bfloat16()).dtype == torch.float32


@pytest.fixture
def settings():
    """What torch says of float32, by part and by its older way, as it is now; put back at the end."""
    cudnn = torch.backends.cudnn
    parts = {
        "cuda": torch.backends.cuda.matmul,
        "cpu": torch.backends.mkldnn.matmul,
        "conv": cudnn.conv,
        "rnn": cudnn.rnn,
    }

    def now():
        said = {name: part.fp32_precision for name, part in parts.items()}
        try:
            return said | {"older": torch.get_float32_matmul_precision()}
        except RuntimeError:
            return said

    before = now()
    yield now
    torch.set_float32_matmul_precision(before["older"])
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = False, True
    for name, part in parts.items():
        part.fp32_precision = before[name]


def by_the_older_way():
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = True, False


def by_the_oldest_way():
    torch.set_float32_matmul_precision("medium")


def by_the_newer_way():
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    torch.backends.cudnn.conv.fp32_precision = "ieee"


WAYS = pytest.mark.parametrize("said", [lambda: None, by_the_older_way, by_the_oldest_way, by_the_newer_way])


@WAYS
@pytest.mark.parametrize("allowed", [False, True])
def test_tf32_is_as_asked_for_and_then_as_it_was(settings, said, allowed):
    said()
    before = settings()
    with tf32(allowed):
        assert torch.backends.cuda.matmul.allow_tf32 == allowed, "both ways can be asked"
        assert torch.backends.cudnn.allow_tf32 == allowed
        assert {settings()[part] == "tf32" for part in ("cuda", "conv", "rnn")} == {allowed}
        assert allowed or settings()["cpu"] == "ieee"
    assert {part: precision for part, precision in settings().items() if part in before} == before


@pytest.mark.parametrize("autocast", [False, pytest.param(True, marks=pytest.mark.gpu)])
def test_losses_are_computed_without_tf32(settings, autocast):
    torch.backends.cuda.matmul.allow_tf32 = True
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=autocast):
        assert torch.is_autocast_enabled("cuda") == autocast
        with full_precision("cuda"):
            assert not torch.backends.cuda.matmul.allow_tf32
            assert not torch.is_autocast_enabled("cuda")
    assert torch.backends.cuda.matmul.allow_tf32
    with full_precision("cpu"):
        assert torch.backends.cuda.matmul.allow_tf32
