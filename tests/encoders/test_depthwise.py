"""The depthwise convolution of its own has the values and gradients of torch's on a padded image."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from nearkin.encoders.architectures.efficientnet_lite import DepthwiseConvolution, padded_convolution


@pytest.mark.parametrize("kernel", [(1, 1), (3, 3), (5, 5), (3, 7), (4, 2)])
@pytest.mark.parametrize(
    ("stride", "rows", "columns"), [((1, 1), (2, 2), (1, 1)), ((2, 2), (0, 1), (1, 2)), ((2, 1), (1, 1), (2, 3))]
)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_values_and_gradients_are_those_of_a_padded_image(kernel, stride, rows, columns, layout):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 6, 9, 10, generator=generator, dtype=torch.float64).to(memory_format=layout).requires_grad_()
    weight = torch.randn(6, 1, *kernel, generator=generator, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(6, generator=generator, dtype=torch.float64, requires_grad=True)
    expected = F.conv2d(F.pad(x, (*columns, *rows)), weight, bias, stride, groups=6)
    against = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    given = (x, weight, bias)
    theirs = torch.autograd.grad((expected * against).sum(), given)
    result = DepthwiseConvolution.apply(*given, stride, rows, columns)
    ours = torch.autograd.grad((result * against).sum(), given)
    for one, other in zip((result, *ours), (expected, *theirs), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_only_the_gradients_that_are_asked_for_are_computed():
    x, weight = torch.randn(1, 3, 6, 6), torch.randn(3, 1, 5, 5)
    for given in ((x.requires_grad_(), weight), (x.detach(), weight.requires_grad_())):
        result = DepthwiseConvolution.apply(*given, None, (1, 1), (2, 2), (2, 2))
        result.sum().backward()
    torch.testing.assert_close(x.grad, torch.autograd.grad(F.conv2d(x, weight, None, 1, 2, groups=3).sum(), x)[0])
    assert weight.grad.shape == weight.shape


def test_an_odd_zero_needs_no_copy_of_the_image():
    x, weight = torch.randn(2, 4, 7, 8, dtype=torch.float64), torch.randn(6, 2, 3, 3, dtype=torch.float64)
    expected = F.conv2d(F.pad(x, (0, 1, 1, 1)), weight, None, (2, 2), groups=2)
    torch.testing.assert_close(padded_convolution(x, weight, None, (2, 2), (1, 1), (0, 1), 2), expected)
