"""Proxy-Anchor: every proxy pulls its batch samples and pushes the others, hardest first."""

from __future__ import annotations

from nearkin.inputs import check_choice
from nearkin.losses._anchor import AnchorLoss, PositiveNorm
from nearkin.losses._informative import InformativeSampleWeights

__all__ = ["ProxyAnchor"]


class ProxyAnchor(AnchorLoss):
    r"""Proxy-Anchor loss (Kim et al., CVPR 2020).

    .. math::
        \frac{1}{|C^+|}\sum_{c\in C^+}\log\Big(1+\sum_{x\in X^+_c}e^{\alpha(\delta-s(x,p_c))}\Big)
        +\frac{1}{C}\sum_{c}\log\Big(1+\sum_{x\in X^-_c}e^{\alpha(s(x,p_c)+\delta)}\Big)

    with :math:`s` the cosine similarity, :math:`C^+` the classes in the batch, :math:`X^+_c` the batch samples of
    class c and :math:`X^-_c` the others. Works with any batch sampler; a class needs no second sample.

    Args:
        num_classes: number of training classes, C.
        dim: dimension of the embeddings.
        margin: δ.
        alpha: scale α.
        positive_norm: divide the first sum by the classes present in the batch (``"present"``) or by all classes
            (``"all"``, equation 4 of the VCPA paper).
        weighting: weigh pairs by how informative they are; :class:`ProxyISA` is this loss with such a weighting.

    Example:
        >>> import torch
        >>> loss = ProxyAnchor(num_classes=10, dim=8)
        >>> value = loss(torch.randn(4, 8), torch.tensor([0, 0, 3, 7]))
        >>> value.shape, loss.bank.vectors.shape
        (torch.Size([]), torch.Size([10, 1, 8]))
    """

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        margin: float = 0.1,
        alpha: float = 32.0,
        positive_norm: PositiveNorm = "present",
        weighting: InformativeSampleWeights | None = None,
    ) -> None:
        super().__init__(num_classes, dim, alpha=alpha, margin=margin, weighting=weighting)
        check_choice("present", "all", positive_norm=positive_norm)
        self.positive_norm = positive_norm
