"""VCPA: Proxy-Anchor, or MPA, with Gaussian proxies that move by a few Newton steps per batch."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from nearkin.losses.class_similarities import ClassSimilarity
from nearkin.losses.proxy_anchor import PositiveNorm, proxy_anchor
from nearkin.losses.proxy_loss import ProxyLoss
from nearkin.numerics import (
    NORM_FLOOR,
    Labels,
    at_least_float32,
    check_at_least,
    check_choice,
    check_positive,
    full_precision,
    l2_normalise,
)
from nearkin.proxies import ProxyBank

__all__ = ["VariationalProxyAnchor", "newton_update"]

_NEWTON_BLOCK_BYTES = 2**26
_SOFTPLUS_INVERSE_OF_1 = math.log(math.expm1(1.0))


class VariationalProxyAnchor(ProxyLoss):
    r"""Variational Continual Proxy-Anchor, VCPA (Kim et al., AISTATS 2022).

    The same as :class:`~nearkin.losses.ProxyAnchor` with ``positive_norm="all"``, but a proxy is a Gaussian
    :math:`N(\mu_c, \mathrm{diag}\,\sigma_c^2)` and every batch is a task of a continual learner, which moves the
    Gaussians by M Newton steps on

    .. math::
        \tau\,\mathrm{KL}(q\,\|\,q_\text{before}) + \mathbb{E}_{\hat p\sim q}[L_\text{PA}(\text{batch}, \hat p)]

    with constant embeddings (:func:`newton_update`), and then returns :math:`L_\text{PA}` on a fresh draw
    :math:`\hat p = \mu + \sigma\circ\epsilon`. Its gradient reaches the embeddings only: μ and σ are not parameters of
    the optimiser but state, which the forward pass changes in training mode. In eval mode nothing is updated and
    :math:`\hat p = \mu`.

    With ``proxies_per_class`` K > 1, which the paper does not have, this is :class:`~nearkin.losses.MultiProxyAnchor`
    with K Gaussians per class. All start at the same prior, and the noise separates them.

    ``newton_steps=0`` is the paper's setting for SOP and In-shop: μ and σ (through softplus) are ordinary parameters,
    which take one optimiser step per batch. The KL drops out, as its gradient is zero at the previous iterate, so
    ``tau`` and ``sigma_min`` have no effect and only the noise remains of the method.

    Args:
        num_classes: number of training classes, C.
        dim: dimension of the embeddings.
        tau: τ, weight of the KL: how strongly the proxies remember past batches. 0.01 on CUB, 0.001 on SOP and
            In-shop (section D.1). From the prior a Newton step is of the order of α/(C·dim·τ) of a proxy's length,
            0.06 with the paper's 100 classes and 512 dimensions; K proxies share it. With few classes or dimensions τ
            must be larger, or the steps overshoot and σ collapses around wrong proxies.
        newton_steps: M, Newton steps per batch (algorithm 1).
        sigma_min: floor of σ.
        alpha: scale α.
        margin: δ.
        stochastic: False takes :math:`\epsilon = 0` in the final draw (ablation I, section 4.6).
        proxies_per_class: K.
        class_similarity: ``"softmax"``, ``"max"`` or ``"mean"``, as in :class:`~nearkin.losses.MultiProxyAnchor`.
        gamma: γ, how sharply the nearest of a class's proxies is preferred.
        positive_norm: divide the positives' part, in the loss and in the Newton steps, by all classes (``"all"``,
            equation 4) or by those present in the batch, as Proxy-Anchor does (``"present"``).

    ``bank.vectors [C, K, dim]`` is μ.

    Example:
        >>> loss = VariationalProxyAnchor(num_classes=10, dim=8)
        >>> value = loss(torch.randn(4, 8), torch.tensor([0, 0, 3, 7]))
        >>> value.shape, loss.mu.shape, loss.sigma.shape, loss.uncertainty(draws=100).shape
        (torch.Size([]), torch.Size([10, 8]), torch.Size([10, 8]), torch.Size([10]))
    """

    bank: VariationalBank

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        tau: float = 0.01,
        newton_steps: int = 10,
        sigma_min: float = 1e-5,
        alpha: float = 32.0,
        margin: float = 0.1,
        stochastic: bool = True,
        proxies_per_class: int = 1,
        class_similarity: ClassSimilarity = "softmax",
        gamma: float = 0.1,
        positive_norm: PositiveNorm = "all",
    ) -> None:
        super().__init__(
            num_classes, dim, proxies_per_class=proxies_per_class, class_similarity=class_similarity, gamma=gamma
        )
        check_positive(alpha=alpha, tau=tau, sigma_min=sigma_min)
        check_at_least(0, newton_steps=newton_steps)
        check_choice("all", "present", positive_norm=positive_norm)
        self.bank = VariationalBank(num_classes, proxies_per_class, dim, trainable=newton_steps == 0)
        self.alpha = alpha
        self.margin = margin
        self.tau = tau
        self.newton_steps = newton_steps
        self.sigma_min = sigma_min
        self.stochastic = stochastic
        self.positive_norm = positive_norm

    @property
    def mu(self) -> Tensor:
        """Means of the proxies, ``[num_classes, dim]``, or ``[num_classes, K, dim]`` where K > 1."""
        return self.bank.vectors.squeeze(1)

    @property
    def sigma(self) -> Tensor:
        """Standard deviations of the proxies, shaped as :attr:`mu`."""
        return self.bank.sigma.squeeze(1)

    def uncertainty(self, draws: int = 1000) -> Tensor:
        """σ̄ of every class (equation 30), large for diverse and rare classes; with K > 1 ``[num_classes, K]``."""
        return self.bank.uncertainty(draws).squeeze(1)

    def forward(self, embeddings: Tensor, labels: Labels) -> Tensor:
        labels = self._checked(embeddings, labels)
        bank = self.bank
        if self.training and self.newton_steps > 0:
            mu, sigma = newton_update(
                bank.vectors,
                bank.sigma,
                embeddings,
                labels,
                (bank.noise() for _ in range(self.newton_steps)),
                tau=self.tau,
                alpha=self.alpha,
                margin=self.margin,
                sigma_min=self.sigma_min,
                class_similarity=self.class_similarity,
                gamma=self.gamma,
                positive_norm=self.positive_norm,
                first_class=bank.local.start,
                num_classes=bank.classes,
            )
            bank.assign(mu, sigma)
        # A copy, since the next forward pass moves the proxies in place, perhaps before this one's backward pass.
        proxies = bank.draw() if self.training and self.stochastic else bank.vectors.clone()
        return self.of_proxies(embeddings, proxies, labels, tau=0.0)

    def from_similarities(self, similarities: Tensor, labels: Tensor) -> Tensor:
        return proxy_anchor(
            similarities, labels, alpha=self.alpha, margin=self.margin, positive_norm=self.positive_norm
        )


def newton_update(
    mu: Tensor,
    sigma: Tensor,
    embeddings: Tensor,
    labels: Tensor,
    noise: Iterable[Tensor],
    *,
    tau: float = 0.01,
    alpha: float = 32.0,
    margin: float = 0.1,
    sigma_min: float = 1e-5,
    class_similarity: ClassSimilarity = "softmax",
    gamma: float = 0.1,
    positive_norm: PositiveNorm = "all",
    first_class: int = 0,
    num_classes: int | None = None,
) -> tuple[Tensor, Tensor]:
    r"""The Gaussians' Newton steps for one batch (VCPA, sections 2.2 and A.2), without side effects or gradients.

    With :math:`u_i` the normalised embeddings, :math:`\hat p = \mu + \sigma\circ\epsilon`, and for each class
    :math:`w^+_i = e^{\alpha(\delta-s_i)}/(1+\sum e^{\alpha(\delta-s)})` over its samples, :math:`w^-_i` likewise over
    the others with :math:`e^{\alpha(s_i+\delta)}`, :math:`G^\pm = \sum w^\pm_i u_i` and
    :math:`Q^\pm = \sum w^\pm_i u_i^2` (element by element):

    .. math::
        g = \frac{\alpha}{C\|\hat p\|}(G^- - G^+), \qquad
        H = \frac{\alpha^2}{C\|\hat p\|^2}\big(Q^+ - (G^+)^2 + Q^- - (G^-)^2\big)

    are the gradient and the diagonal of the Hessian of Proxy-Anchor's loss with the length of :math:`\hat p` taken as
    constant, as the paper takes it. With the KL to the values :math:`\mu', \sigma'` at the start, a step is

    .. math::
        \mu \leftarrow \mu - \frac{\tau(\mu-\mu')/\sigma'^2 + g}{\tau/\sigma'^2 + H}, \qquad
        \sigma \leftarrow \max\Big(\sigma - \frac{\tau(\sigma/\sigma'^2 - 1/\sigma) + \epsilon g}
        {\tau(1/\sigma'^2 + 1/\sigma^2) + \epsilon^2 H},\ \sigma_\text{min}\Big)

    With K proxies per class :math:`s_i = \sum_k a_{ik} s_{ik}`, where :math:`a_{ik}` is the share of sample i that
    belongs to proxy k: :math:`\mathrm{softmax}_k(s_{ik}/\gamma)`, 1 for the nearest proxy, or 1/K. In each step
    :math:`a` is constant, as the lengths are, so that for proxy k :math:`G^\pm = \sum w^\pm_i a_{ik} u_i` and
    :math:`Q^\pm = \sum w^\pm_i a_{ik}^2 u_i^2`. With ``positive_norm="present"`` the terms of the positives,
    :math:`G^+` and :math:`Q^+ - (G^+)^2`, are divided by the number of classes in the batch instead of C.

    Args:
        mu: means ``[classes, K, dim]``.
        sigma: standard deviations, shaped as ``mu``.
        embeddings: ``[N, dim]``, of any length.
        labels: ``[N]``.
        noise: standard normal numbers for every step, shaped as ``mu``.
        first_class: the class of the first row of ``mu``, where other processes have other classes.
        num_classes: the number of classes in all processes.

    The others are those of :class:`VariationalProxyAnchor`. Returns the new ``mu`` and ``sigma``.

    Example:
        >>> mu, sigma = torch.zeros(2, 1, 2), torch.ones(2, 1, 2)
        >>> noise = torch.tensor([[1.0, 0.0], [0.0, 1.0]])[:, None]
        >>> mu, sigma = newton_update(mu, sigma, torch.eye(2), torch.tensor([1, 0]), [noise])
        >>> mu.sign().squeeze(1)
        tensor([[-1.,  1.],
                [ 1., -1.]])
    """
    total = len(mu) if num_classes is None else num_classes
    several = mu.shape[1] > 1
    block = max(1, _NEWTON_BLOCK_BYTES // (mu.shape[1] * (len(labels) + 1) * mu.element_size()))
    blocks = [slice(start, min(start + block, len(mu))) for start in range(0, len(mu), block)]
    with torch.no_grad(), full_precision(mu.device.type):
        # A last row of zeros has similarity 0 to every proxy: its exponential is the 1 in 1 + Σ.
        u = F.pad(l2_normalise(at_least_float32(embeddings)).to(mu.dtype), (0, 0, 0, 1))
        u_squared = u.square()
        sign = torch.arange(-1, 2, 2, dtype=mu.dtype, device=mu.device).view(2, 1, 1)
        kl_weight = tau * total  # gradients and curvatures below are C times those of the formulas
        mu_before, precision_before = mu, kl_weight / sigma.square()
        # How much more a positive counts than with the division by all classes.
        more = None if positive_norm == "all" else total / mu.new_zeros(total).index_fill_(0, labels, 1.0).sum()

        def exponents_at_0(b: slice) -> Tensor:
            """The exponents at similarity 0 of positives, then negatives: ``[2, classes, samples + 1]``."""
            classes = torch.arange(first_class + b.start, first_class + b.stop, device=labels.device)
            positive = labels == classes[:, None]
            exponents = mu.new_full((2, *positive.shape), alpha * margin)
            return F.pad(exponents.masked_fill_(torch.stack([~positive, positive]), float("-inf")), (0, 1))

        def step(b: slice, at_0: Tensor, mu: Tensor, sigma: Tensor, epsilon: Tensor) -> tuple[Tensor, Tensor]:
            precision = precision_before[b]
            proxies = torch.addcmul(mu, sigma, epsilon)
            scale = alpha / torch.linalg.vector_norm(proxies, dim=-1, keepdim=True).clamp_min(NORM_FLOOR)
            by_proxy = (proxies @ u.T) * scale  # similarities times α, [classes, K, samples + 1]
            shares = _shares(by_proxy, class_similarity, alpha * gamma) if several else None
            similarities = by_proxy.squeeze(1) if shares is None else (shares * by_proxy).sum(1)
            weights = torch.addcmul(at_0, sign, similarities).softmax(dim=-1)
            squared_weights = weights.sum(0) if more is None else torch.addcmul(weights[1], weights[0], more)
            weights, squared_weights = weights.unsqueeze(2), squared_weights.unsqueeze(1)
            if shares is not None:
                weights, squared_weights = weights * shares, squared_weights * shares.square()
            pull, push = (weights @ u).unbind(0)
            pulled = pull if more is None else pull * more
            gradient = (push - pulled) * scale
            variance = (squared_weights @ u_squared).addcmul_(pulled, pull, value=-1).addcmul_(push, push, value=-1)
            # Only rounding makes it negative, and a short proxy would amplify that.
            curvature = variance.clamp_min_(0.0) * scale.square()

            inverse = sigma.reciprocal()
            sigma_gradient = (precision * sigma).sub_(inverse, alpha=kl_weight).addcmul_(epsilon, gradient)
            sigma_curvature = torch.addcmul(precision, inverse, inverse, value=kl_weight)
            sigma_curvature.addcmul_(epsilon.square(), curvature)
            mu_gradient = torch.addcmul(gradient, precision, mu - mu_before[b])
            return (
                torch.addcdiv(mu, mu_gradient, precision + curvature, value=-1),
                torch.addcdiv(sigma, sigma_gradient, sigma_curvature, value=-1).clamp_min_(sigma_min),
            )

        first_at_0 = exponents_at_0(blocks[0])  # for all steps, as there is nearly always one block
        for epsilon in noise:
            if epsilon.shape != mu.shape:
                raise ValueError(f"noise of a step must have mu's shape {list(mu.shape)}, got {list(epsilon.shape)}")
            moved = [step(b, exponents_at_0(b) if b.start else first_at_0, mu[b], sigma[b], epsilon[b]) for b in blocks]
            mu, sigma = moved[0] if len(moved) == 1 else (torch.cat(part) for part in zip(*moved, strict=True))
        return mu, sigma


def _shares(similarities: Tensor, kind: ClassSimilarity, temperature: float) -> Tensor:
    """The share of each sample that belongs to each proxy, ``[classes, K, samples]``, summing to 1 over K."""
    if kind == "mean":
        return torch.full_like(similarities, 1 / similarities.shape[1])
    if kind == "max":
        return torch.zeros_like(similarities).scatter_(1, similarities.argmax(1, keepdim=True), 1.0)
    return (similarities / temperature).softmax(1)


class VariationalBank(ProxyBank):
    """A bank whose proxies are independent Gaussians ``N(μ, diag σ²)``, starting at the prior ``μ = 0``, ``σ = 1``.

    ``vectors [classes, per_class, dim]`` is μ. A trainable bank has μ and σ (through softplus) as ordinary parameters;
    otherwise μ takes no gradient, σ is a buffer, and both change only through :meth:`assign`.

    The bank has its own generator of noise, whose state is part of ``state_dict``: a resumed run draws the same noise.
    A state written on another kind of device seeds a new stream.

    >>> bank = VariationalBank(10, 1, 4)
    >>> bank.draw().shape, float(bank.sigma.mean()), float(bank.vectors.abs().sum())
    (torch.Size([10, 1, 4]), 1.0, 0.0)
    """

    deviation: Tensor

    def __init__(self, classes: int, per_class: int, dim: int, *, trainable: bool = False) -> None:
        super().__init__(classes, per_class, dim)
        self.trainable = trainable
        self.vectors = nn.Parameter(torch.zeros_like(self.vectors), requires_grad=trainable)
        if trainable:
            self.deviation_before_softplus = nn.Parameter(torch.full_like(self.vectors, _SOFTPLUS_INVERSE_OF_1))
        else:
            self.register_buffer("deviation", torch.ones_like(self.vectors, requires_grad=False))
        self._generator = torch.Generator().manual_seed(int(torch.randint(2**62, ())))

    @property
    def sigma(self) -> Tensor:
        """Standard deviations, ``[classes, per_class, dim]``."""
        return F.softplus(self.deviation_before_softplus) if self.trainable else self.deviation

    @torch.no_grad()
    def assign(self, mu: Tensor, sigma: Tensor) -> None:
        """Set μ and σ of a bank that is not trainable, shaped as ``vectors``."""
        self.vectors.copy_(mu.view_as(self.vectors))
        self.deviation.copy_(sigma.view_as(self.vectors))

    @torch.no_grad()
    def restart(self, vectors: Tensor) -> None:
        """Start again from means ``vectors`` and the prior's σ = 1."""
        super().restart(vectors)
        if self.trainable:
            self.deviation_before_softplus.fill_(_SOFTPLUS_INVERSE_OF_1)
        else:
            self.deviation.fill_(1.0)

    def noise(self) -> Tensor:
        """Standard normal numbers shaped as ``vectors``, from a draw for the classes of all processes."""
        like, shape = self.vectors, (self.classes, *self.vectors.shape[1:])
        noise = torch.randn(shape, generator=self._generator_here(), dtype=like.dtype, device=like.device)
        return noise[self.local.start : self.local.stop]

    def draw(self) -> Tensor:
        """One sample of every proxy, ``μ + σ∘ε``, with gradients to μ and σ where the bank is trainable."""
        return torch.addcmul(self.vectors, self.sigma, self.noise())

    @torch.no_grad()
    def uncertainty(self, draws: int = 1000) -> Tensor:
        """The standard deviations of normalised draws, summed over dimensions, per proxy ``[classes, per_class]``.

        The draws are always the same, and not those of training.
        """
        if draws < 2:
            raise ValueError(f"draws must be at least 2 for a standard deviation, got {draws}")
        generator = torch.Generator(self.vectors.device).manual_seed(0)
        uncertainties = []
        for mu, sigma in zip(self.vectors.flatten(0, 1), self.sigma.flatten(0, 1), strict=True):
            noise = torch.randn(draws, self.dim, generator=generator, dtype=mu.dtype, device=mu.device)
            uncertainties.append(l2_normalise(torch.addcmul(mu, sigma, noise)).std(dim=0).sum())
        return torch.stack(uncertainties).view(self.classes, self.per_class)

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
        """The generator, on the present device of the bank."""
        device, old = self.vectors.device, self._generator
        if old.device.type != device.type:
            seed = int(torch.randint(2**62, (), generator=old, device=old.device))
            self._generator = torch.Generator(device).manual_seed(seed)
        elif old.device != device:
            self._generator = torch.Generator(device)
            self._generator.set_state(old.get_state())
        return self._generator
