"""VCPA: Proxy-Anchor, or MPA, with Gaussian proxies that a few Newton steps per batch carry forward."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import functional as F

from nearkin.inputs import (
    Labels,
    as_labels,
    check_at_least,
    check_choice,
    check_embeddings,
    check_labels,
    check_positive,
)
from nearkin.losses._anchor import AnchorLoss, PositiveNorm
from nearkin.losses._blocks import block_size, is_large
from nearkin.losses._class_similarity import ClassSimilarity
from nearkin.losses._shards import ALL_HERE, Shards
from nearkin.losses._variational import VariationalBank
from nearkin.numerics import NORM_FLOOR, at_least_float32, full_precision, l2_normalise

__all__ = ["VariationalProxyAnchor", "newton_update"]


class VariationalProxyAnchor(AnchorLoss):
    r"""Variational Continual Proxy-Anchor, VCPA (Kim et al., AISTATS 2022).

    The same as :class:`~nearkin.losses.ProxyAnchor` with ``positive_norm="all"``, but a proxy is a Gaussian
    :math:`N(\mu_c, \mathrm{diag}\,\sigma_c^2)` and every batch is a task of a continual learner, which moves the
    Gaussians by M Newton steps on

    .. math::
        \tau\,\mathrm{KL}(q\,\|\,q_\text{before}) + \mathbb{E}_{\hat p\sim q}[L_\text{PA}(\text{batch}, \hat p)]

    with the embeddings held still (:func:`newton_update`), and then returns :math:`L_\text{PA}` on a fresh draw
    :math:`\hat p = \mu + \sigma\circ\epsilon`. The gradient of that reaches the embeddings only: μ and σ are state that
    the forward pass of training mode changes, not parameters of the optimiser. In eval mode nothing is updated and
    :math:`\hat p = \mu`.

    With ``proxies_per_class`` K > 1, which the paper does not have, every class has K Gaussians, and a sample's
    similarity to it is that of :class:`~nearkin.losses.MultiProxyAnchor`: MPA with variational proxies. All K start at
    the same prior; it is the noise that sets them apart.

    ``newton_steps=0`` is the paper's setting for SOP and In-shop: μ and σ (through softplus) are ordinary parameters
    and move by one optimiser step per batch. The KL is then taken at the previous iterate, which is where its gradient
    is zero: it drops out, ``tau`` and ``sigma_min`` have no effect, and what remains of the method is the noise.

    Args:
        num_classes: number of training classes, C.
        dim: dimension of the embeddings.
        tau: τ, weight of the KL: how strongly the proxies hold on to past batches. 0.01 on CUB, 0.001 on SOP and
            In-shop (section D.1). From the prior a Newton step is of the order of α/(C·dim·τ) of a proxy's length,
            0.06 with the paper's 100 classes and 512 dimensions. With few classes or dimensions τ must be larger: the
            steps overshoot otherwise, and σ collapses around wrong proxies. K proxies share a class's step.
        newton_steps: M, Newton steps per batch (algorithm 1).
        sigma_min: floor of σ.
        alpha: scale α.
        margin: δ.
        stochastic: False takes :math:`\epsilon = 0` in the final draw (ablation I, section 4.6).
        proxies_per_class: K.
        class_similarity: how the similarities to a class's proxies make one: weighted by their softmax (``"softmax"``),
            the largest (``"max"``) or their mean (``"mean"``).
        gamma: γ, how sharply the nearest of a class's proxies is preferred.
        positive_norm: divide the positives' part, in the loss and in the Newton steps, by all classes (``"all"``,
            equation 4) or by those present in the batch, as Proxy-Anchor does (``"present"``). With small batches
            the paper's division leaves the positives little weight: B of C classes pull with B/C of it.
        generator: seeds the loss's own stream of noise; torch's global generator by default. The stream's state is
            in ``state_dict``.

    ``bank.vectors [C, K, dim]`` is μ. ``similarity_weights`` explains the loss on the mean proxies.

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
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__(
            num_classes,
            dim,
            alpha=alpha,
            margin=margin,
            proxies_per_class=proxies_per_class,
            class_similarity=class_similarity,
            gamma=gamma,
        )
        check_positive(tau=tau, sigma_min=sigma_min)
        check_at_least(0, newton_steps=newton_steps)
        check_choice("all", "present", positive_norm=positive_norm)
        self.bank = VariationalBank(
            num_classes, proxies_per_class, dim, trainable=newton_steps == 0, generator=generator
        )
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
        """σ̄ of every class ``[num_classes]`` (equation 30): large where a class is diverse or seldom seen.

        With K > 1 it is that of every proxy, ``[num_classes, K]``: a proxy that no sample is near stays at the prior's.
        """
        return self.bank.uncertainty(draws).squeeze(1)

    def forward(self, embeddings: Tensor, labels: Labels) -> Tensor:
        labels = self._checked(embeddings, labels)
        if self.training and self.newton_steps > 0:
            noise = (self.bank.noise(self.shards).squeeze(1) for _ in range(self.newton_steps))
            mu, sigma = newton_update(
                self.mu,
                self.sigma,
                embeddings,
                labels,
                noise,
                tau=self.tau,
                alpha=self.alpha,
                margin=self.margin,
                sigma_min=self.sigma_min,
                class_similarity=self.class_similarity,
                gamma=self.gamma,
                positive_norm=self.positive_norm,
                shards=self.shards,
            )
            self.bank.assign(mu, sigma)
        # A copy: the next forward pass moves the proxies in place, and this one's backward pass may come after it.
        proxies = self.bank.draw(self.shards) if self.training and self.stochastic else self.bank.vectors.clone()
        return self.of_proxies(embeddings, proxies, labels, tau=0.0)


def newton_update(
    mu: Tensor,
    sigma: Tensor,
    embeddings: Tensor,
    labels: Labels,
    noise: Tensor | Iterable[Tensor],
    *,
    tau: float = 0.01,
    alpha: float = 32.0,
    margin: float = 0.1,
    sigma_min: float = 1e-5,
    class_similarity: ClassSimilarity = "softmax",
    gamma: float = 0.1,
    positive_norm: PositiveNorm = "all",
    shards: Shards = ALL_HERE,
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

    With K proxies per class :math:`s_i = \sum_k a_{ik} s_{ik}`, where :math:`a_{ik}` says how much of sample i is
    proxy k's: :math:`\mathrm{softmax}_k(s_{ik}/\gamma)`, 1 for the nearest proxy, or 1/K. In each step :math:`a` counts
    as constant, as the lengths do, so that for proxy k :math:`G^\pm = \sum w^\pm_i a_{ik} u_i` and
    :math:`Q^\pm = \sum w^\pm_i a_{ik}^2 u_i^2`. With ``positive_norm="present"`` what stems from positives,
    :math:`G^+` and :math:`Q^+ - (G^+)^2`, is divided by the number of classes in the batch instead of C.

    Args:
        mu: means ``[classes, dim]`` or ``[classes, K, dim]``.
        sigma: standard deviations, shaped as ``mu``.
        embeddings: ``[N, dim]``, of any length.
        labels: ``[N]``.
        noise: standard normal ``[steps, *mu.shape]``, or anything that yields one array of ``mu``'s shape per step.
        tau: τ. alpha: α. margin: δ. sigma_min: floor of σ.
        class_similarity: what :math:`a` is where K > 1: ``"softmax"``, ``"max"`` or ``"mean"``.
        gamma: γ.
        positive_norm: what positives are divided by: ``"all"`` classes or those ``"present"`` in the batch.
        shards: which of all classes these are.

    Returns:
        The new ``mu`` and ``sigma``.

    Example:
        >>> mu, sigma = torch.zeros(2, 2), torch.ones(2, 2)
        >>> noise = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
        >>> mu, sigma = newton_update(mu, sigma, torch.eye(2), torch.tensor([1, 0]), noise)
        >>> mu.sign()
        tensor([[-1.,  1.],
                [ 1., -1.]])
    """
    labels = as_labels(labels, embeddings)
    check_embeddings(embeddings, dim=mu.shape[-1])
    total = mu.shape[0] if shards.classes is None else shards.classes
    check_labels(labels, embeddings.shape[0], num_classes=total)
    with torch.no_grad(), full_precision(mu.device.type):
        several = mu.ndim == 3 and mu.shape[1] > 1
        # A last row of zeros has similarity 0 to every proxy: its exponential is the 1 in 1 + Σ.
        u = F.pad(l2_normalise(at_least_float32(embeddings)).to(mu.dtype), (0, 0, 0, 1))
        u_squared = u.square()

        @functools.lru_cache(maxsize=1)  # the usual case is one block
        def exponents_at_0(start: int, stop: int) -> Tensor:
            """Of positives, then negatives: ``[2, classes, samples + 1]``."""
            own = labels == torch.arange(shards.first + start, shards.first + stop, device=labels.device)[:, None]
            exponents = mu.new_full((2, *own.shape), alpha * margin)
            exponents = F.pad(exponents.masked_fill_(torch.stack([~own, own]), float("-inf")), (0, 1))
            return exponents.unsqueeze(2) if mu.ndim == 3 and not several else exponents

        sign = torch.arange(-1, 2, 2, dtype=mu.dtype, device=mu.device).view(2, 1, 1)
        if mu.ndim == 3 and not several:
            sign = sign.unsqueeze(3)
        kl_weight = tau * total  # gradients and curvatures below are C times those of the formulas
        mu_before, all_precision = mu, kl_weight / sigma.square()
        # How much more a positive counts than with the division by all classes.
        more = None if positive_norm == "all" else total / mu.new_zeros(total).index_fill_(0, labels.long(), 1.0).sum()

        def step(start: int, stop: int, mu: Tensor, sigma: Tensor, epsilon: Tensor) -> tuple[Tensor, Tensor]:
            precision = all_precision[start:stop]
            proxies = torch.addcmul(mu, sigma, epsilon)
            scale = alpha / torch.linalg.vector_norm(proxies, dim=-1, keepdim=True).clamp_min(NORM_FLOOR)
            similarities = (proxies @ u.T) * scale  # times α
            if several:
                shares = _shares(similarities, class_similarity, alpha * gamma)
                similarities = (shares * similarities).sum(1)
            weights = torch.addcmul(exponents_at_0(start, stop), sign, similarities).softmax(dim=-1)
            squared_weights = weights.sum(0) if more is None else torch.addcmul(weights[1], weights[0], more)
            if several:
                weights = weights.unsqueeze(2) * shares
                squared_weights = squared_weights.unsqueeze(1) * shares.square()
            pull, push = (weights @ u).unbind(0)
            pulled = pull if more is None else pull * more
            gradient = (push - pulled) * scale
            variance = (squared_weights @ u_squared).addcmul_(pulled, pull, value=-1).addcmul_(push, push, value=-1)
            # Never negative but for rounding, which a short proxy would blow up.
            curvature = variance.clamp_min_(0.0) * scale.square()

            inverse = sigma.reciprocal()
            sigma_gradient = (precision * sigma).sub_(inverse, alpha=kl_weight).addcmul_(epsilon, gradient)
            sigma_curvature = torch.addcmul(precision, inverse, inverse, value=kl_weight)
            sigma_curvature.addcmul_(epsilon.square(), curvature)
            mu_gradient = torch.addcmul(gradient, precision, mu - mu_before[start:stop])
            return (
                torch.addcdiv(mu, mu_gradient, precision + curvature, value=-1),
                torch.addcdiv(sigma, sigma_gradient, sigma_curvature, value=-1).clamp_min_(sigma_min),
            )

        by_class = mu if mu.ndim == 3 else mu.unsqueeze(1)
        block = block_size(embeddings, by_class) if is_large(embeddings, by_class) else len(mu)
        blocks = [(start, min(start + block, len(mu))) for start in range(0, len(mu), block)]
        for epsilon in noise:
            if epsilon.shape != mu.shape:
                shape = ", ".join(map(str, mu.shape))
                raise ValueError(
                    f"noise must have shape [steps, {shape}], as mu has, got {list(epsilon.shape)} for a step"
                )
            moved = [step(i, j, mu[i:j], sigma[i:j], epsilon[i:j]) for i, j in blocks]
            mu, sigma = moved[0] if len(moved) == 1 else (torch.cat(part) for part in zip(*moved, strict=True))
        return mu, sigma


def _shares(similarities: Tensor, kind: ClassSimilarity, temperature: float) -> Tensor:
    """How much of each sample is each proxy's: ``[classes, K, samples]`` that sums to 1 over K."""
    if kind == "mean":
        return torch.full_like(similarities, 1 / similarities.shape[1])
    if kind == "max":
        return torch.zeros_like(similarities).scatter_(1, similarities.argmax(1, keepdim=True), 1.0)
    return (similarities / temperature).softmax(1)
