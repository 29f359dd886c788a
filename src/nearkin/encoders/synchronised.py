"""Batch-norm over the images of all ranks, equal to that of one process with the whole batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from nearkin.errors import RecipeError
from nearkin.numerics import at_least_float32, full_precision
from nearkin.ranks import sum_within, world


class _Synchronised:
    """Batch-norm over all ranks, which may have different numbers of images. Torch's own runs only on GPUs."""

    def forward(self: _BatchNorm, x: Tensor) -> Tensor:  # type: ignore[misc]
        if world() == 1 or not (self.training or self.running_mean is None):
            return super().forward(x)  # type: ignore[misc, no-any-return]
        with full_precision(x.device.type):
            wide = at_least_float32(x)
            axes = [0, *range(2, x.ndim)]
            shape = [1, -1] + [1] * (x.ndim - 2)
            size = x.new_full((1,), x.numel() // x.shape[1], dtype=wide.dtype)
            sums = sum_within(torch.cat([wide.sum(axes), size]))
            count = sums[-1].detach()
            mean = sums[:-1] / count
            centred = wide - mean.view(shape)
            variance = sum_within(centred.square().sum(axes)) / count
            if self.running_mean is not None:
                _update_statistics(self, mean, variance * (count / (count - 1)))
            y = centred * (variance + self.eps).rsqrt().view(shape)
            if self.affine:
                y = y * self.weight.view(shape) + self.bias.view(shape)
            return y.to(x.dtype)


class _Synchronised1d(_Synchronised, nn.BatchNorm1d):
    pass


class _Synchronised2d(_Synchronised, nn.BatchNorm2d):
    pass


_SYNCHRONISED: dict[type[nn.Module], Any] = {nn.BatchNorm1d: _Synchronised1d, nn.BatchNorm2d: _Synchronised2d}


def is_synchronised(network: nn.Module) -> bool:
    """Whether a network has batch-norms over the images of all ranks."""
    return any(isinstance(module, _Synchronised) for module in network.modules())


@torch.no_grad()
def _update_statistics(norm: Any, mean: Tensor, unbiased_variance: Tensor) -> None:
    """Update the running statistics like torch's batch-norm."""
    norm.num_batches_tracked.add_(1)
    momentum = norm.momentum if norm.momentum is not None else 1.0 / float(norm.num_batches_tracked)
    norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), momentum)
    norm.running_var.lerp_(unbiased_variance.to(norm.running_var.dtype), momentum)


def synchronise_batch_norm(network: nn.Module) -> None:
    """Compute the batch-norms of a network that are in training mode over the images of all ranks.

    >>> network = nn.Sequential(nn.BatchNorm2d(3))
    >>> synchronise_batch_norm(network)
    >>> isinstance(network[0], nn.BatchNorm2d), list(network.state_dict())[0]
    (True, '0.weight')
    """
    for name, module in network.named_modules():
        if not isinstance(module, _BatchNorm) or not module.training:
            continue
        if type(module) not in _SYNCHRONISED:
            raise RecipeError(
                f"several processes cannot share the batch-norm {name} of this backbone ({type(module).__name__}): set "
                f"encoder.freeze_batch_norm=true, or train in one process"
            )
        module.__class__ = _SYNCHRONISED[type(module)]
