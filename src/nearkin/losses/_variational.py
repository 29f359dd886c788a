"""Proxies that are Gaussians instead of points, and the stream of noise they are drawn with."""

from __future__ import annotations

import contextlib
import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nearkin.losses._shards import ALL_HERE, Shards
from nearkin.numerics import l2_normalise
from nearkin.proxies import ProxyBank

_DRAWS_AT_ONCE = 2**24
_SOFTPLUS_INVERSE_OF_1 = math.log(math.expm1(1.0))


class VariationalBank(ProxyBank):
    """A bank whose proxies are independent Gaussians ``N(μ, diag σ²)``, starting at the prior ``μ = 0``, ``σ = 1``.

    ``vectors [classes, per_class, dim]`` holds μ, so that whatever reads a bank sees the mean proxies. A
    trainable bank has μ and σ (through softplus) as ordinary parameters; otherwise μ takes no gradient, σ is a buffer,
    and both change only through :meth:`assign`.

    Noise comes from a generator of the bank's own, made on the bank's device and seeded from ``generator`` (torch's
    global one by default). Its state is part of ``state_dict``: a resumed run goes on with the same noise. A state
    written on another kind of device cannot be continued; it then seeds a new stream.

    >>> bank = VariationalBank(10, 1, 4)
    >>> bank.draw().shape, float(bank.sigma.mean()), float(bank.vectors.abs().sum())
    (torch.Size([10, 1, 4]), 1.0, 0.0)
    """

    deviation: Tensor

    def __init__(
        self,
        classes: int,
        per_class: int,
        dim: int,
        *,
        trainable: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(classes, per_class, dim)
        self.trainable = trainable
        self.vectors = nn.Parameter(torch.zeros_like(self.vectors), requires_grad=trainable)
        if trainable:
            self.deviation_before_softplus = nn.Parameter(torch.full_like(self.vectors, _SOFTPLUS_INVERSE_OF_1))
        else:
            self.register_buffer("deviation", torch.ones_like(self.vectors, requires_grad=False))
        self._generator = torch.Generator().manual_seed(_new_seed(generator))

    @property
    def sigma(self) -> Tensor:
        """Standard deviations, ``[classes, per_class, dim]``."""
        return F.softplus(self.deviation_before_softplus) if self.trainable else self.deviation

    @torch.no_grad()
    def assign(self, mu: Tensor, sigma: Tensor) -> None:
        """Set μ and σ of a bank that is not trainable, from ``[classes, dim]`` or ``[classes, per_class, dim]``."""
        self.vectors.copy_(mu.view_as(self.vectors))
        self.deviation.copy_(sigma.view_as(self.vectors))

    @torch.no_grad()
    def restart(self, vectors: Tensor) -> None:
        """Begin anew with means ``vectors`` and the prior's σ = 1."""
        super().restart(vectors)
        if self.trainable:
            self.deviation_before_softplus.fill_(_SOFTPLUS_INVERSE_OF_1)
        else:
            self.deviation.fill_(1.0)

    def noise(self, shards: Shards = ALL_HERE) -> Tensor:
        """Standard normal numbers, ``[classes, per_class, dim]``, the next ones of the stream.

        Where other classes are with other processes their numbers are drawn too, so that the stream is the same.
        """
        like, first = self.vectors, shards.first
        shape = (len(like) if shards.classes is None else shards.classes, *like.shape[1:])
        noise = torch.randn(shape, generator=self._generator_here(), dtype=like.dtype, device=like.device)
        return noise[first : first + len(like)]

    def draw(self, shards: Shards = ALL_HERE) -> Tensor:
        """One sample of every proxy, ``μ + σ∘ε``, with gradients to μ and σ where the bank is trainable."""
        return torch.addcmul(self.vectors, self.sigma, self.noise(shards))

    @torch.no_grad()
    def uncertainty(self, draws: int = 1000) -> Tensor:
        """Per proxy ``[classes, per_class]``: the standard deviations of the normalised draws, summed over dimensions.

        The draws come from a stream apart, always the same, so that looking at a bank changes nothing in training.
        """
        if draws < 2:
            raise ValueError(f"draws must be at least 2 for a standard deviation, got {draws}")
        mu, sigma = self.vectors.flatten(0, 1), self.sigma.flatten(0, 1)
        generator = torch.Generator(mu.device).manual_seed(0)
        rows = max(1, _DRAWS_AT_ONCE // (draws * self.dim))
        parts = []
        for start in range(0, len(mu), rows):
            mean, deviation = mu[start : start + rows], sigma[start : start + rows]
            noise = torch.randn(draws, *mean.shape, generator=generator, dtype=mean.dtype, device=mean.device)
            parts.append(l2_normalise(torch.addcmul(mean, deviation, noise)).std(dim=0).sum(dim=-1))
        return torch.cat(parts).view(self.classes, self.per_class)

    def get_extra_state(self) -> Tensor:
        return self._generator_here().get_state()

    def set_extra_state(self, state: Tensor) -> None:
        state = state.cpu()
        for device in ("cpu", "cuda", "mps"):
            # The device may not be here, or the state may have been written on another kind.
            with contextlib.suppress(RuntimeError):
                generator = torch.Generator(device)
                generator.set_state(state)
                self._generator = generator
                return
        self._generator = torch.Generator().manual_seed(int.from_bytes(state.numpy().tobytes()[:64]) % 2**63)

    def _generator_here(self) -> torch.Generator:
        """The generator, carried over to wherever the bank has been moved since."""
        device, old = self.vectors.device, self._generator
        if old.device.type != device.type:
            self._generator = torch.Generator(device).manual_seed(_new_seed(old))
        elif old.device != device:
            self._generator = torch.Generator(device)
            self._generator.set_state(old.get_state())
        return self._generator


def _new_seed(generator: torch.Generator | None) -> int:
    device = "cpu" if generator is None else generator.device
    return int(torch.randint(2**62, (), generator=generator, device=device))
