"""ProxyGML: each sample is classified by the proxies that lie nearest to it, and always those of its own class."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from nearkin import ranks
from nearkin.losses.class_similarities import BLOCK_BYTES
from nearkin.losses.pair_loss import products
from nearkin.losses.proxy_loss import ProxyLoss
from nearkin.numerics import EXCLUDED, at_least_float32, check_at_least, full_precision, l2_normalise

__all__ = ["ProxyGML"]


class ProxyGML(ProxyLoss):
    r"""ProxyGML, deep graph metric learning with fewer proxies (Zhu et al., NeurIPS 2020).

    .. math::
        Z_{ic} = \sum_{k:\,p_{ck}\in G_i} s(x_i,p_{ck}), \qquad
        -\frac{1}{N}\sum_i\log\frac{e^{Z_{iy_i}}}{\sum_{c\in G_i}e^{Z_{ic}}}
        -\frac{\lambda}{CK}\sum_{c,k}\log\frac{e^{Z^p_{ck,c}}}{\sum_{c'}e^{Z^p_{ck,c'}}}, \qquad
        Z^p_{ck,c'} = \sum_l s(p_{ck},p_{c'l})

    with :math:`s` the cosine similarity and K proxies per class. Every sample has a sub-graph :math:`G_i` of
    :math:`\lceil rCK\rceil` proxies: those of its own class and the most similar others, at least one. The labels of
    these proxies propagate back to the sample: the logit of a class is the sum of the similarities to its proxies in
    the sub-graph, and the softmax is over the classes in it. The last term classifies the proxies themselves by all
    proxies. It takes :math:`C^2K` similarities, in blocks, which is slow with thousands of classes.

    Args:
        num_classes: number of training classes, C.
        dim: dimension of the embeddings.
        proxies_per_class: K, the paper's N: 12 for CUB and Cars, 1 for SOP.
        edge_share: r, the share of all proxies in a sample's sub-graph.
        proxy_weight: λ, weight of the proxies' own classification; 0 for SOP.

    Example:
        >>> loss = ProxyGML(num_classes=10, dim=8)
        >>> value = loss(torch.randn(4, 8), torch.tensor([0, 0, 3, 7]))
        >>> value.shape, loss.bank.vectors.shape
        (torch.Size([]), torch.Size([10, 12, 8]))
    """

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        proxies_per_class: int = 12,
        edge_share: float = 0.05,
        proxy_weight: float = 0.3,
    ) -> None:
        super().__init__(num_classes, dim, proxies_per_class=proxies_per_class, class_similarity="mean")
        if not 0 < edge_share <= 1:
            raise ValueError(f"edge_share must be above 0 and at most 1, got {edge_share}")
        check_at_least(0, proxy_weight=proxy_weight)
        self.edge_share = edge_share
        self.proxy_weight = proxy_weight

    @property
    def edges(self) -> int:
        """How many proxies a sample's sub-graph has."""
        proxies = self.num_classes * self.proxies_per_class
        return min(proxies, max(math.ceil(self.edge_share * proxies), self.proxies_per_class + 1))

    def of_proxies(self, embeddings: Tensor, vectors: Tensor, labels: Tensor, *, tau: float = 0.0) -> Tensor:
        with full_precision(embeddings.device.type):
            # Contiguous, as oneDNN's product of strided rows takes hundreds of times as long.
            single = vectors.transpose(0, 1).contiguous().unsqueeze(2)
            similarities = [self._similarities_and_spread(embeddings, proxies, spread=False)[0] for proxies in single]
            value = self.from_graph(torch.stack(similarities, dim=2), labels)
            if self.proxy_weight:
                all_vectors = ranks.gather_rows(vectors, self.num_classes)
                value = value + self.proxy_weight * classification_of_proxies(all_vectors)
        return value

    def from_graph(self, similarities: Tensor, labels: Tensor) -> Tensor:
        """The loss of the similarities ``[N, C, K]`` to all proxies, without the last term."""
        with torch.no_grad():
            classes = torch.arange(self.num_classes, device=labels.device)
            own = (labels[:, None] == classes)[:, :, None]
            # Cosines differ by at most 2, so the proxies of the own class come first.
            nearest = (similarities + 3.0 * own).flatten(1).topk(self.edges, dim=1).indices
            graph = torch.zeros_like(similarities, dtype=torch.bool)
            graph.view(len(labels), -1).scatter_(1, nearest, True)
        logits = (similarities * graph).sum(2)
        return F.cross_entropy(logits.masked_fill(~graph.any(2), EXCLUDED), labels)


def classification_of_proxies(vectors: Tensor) -> Tensor:
    """The cross-entropy of proxies ``[C, K, D]``, with their summed similarities to each class's proxies as logits.

    >>> classification_of_proxies(torch.eye(2)[:, None])
    tensor(0.3133)
    """
    classes, per_class, _ = vectors.shape
    unit = l2_normalise(at_least_float32(vectors))
    rows, sums = unit.flatten(0, 1), unit.sum(1)
    labels = torch.arange(len(rows), device=rows.device).div(per_class, rounding_mode="floor")

    def of_block(rows: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(products(rows, sums), labels, reduction="sum")

    block = max(1, BLOCK_BYTES.get(rows.device.type, BLOCK_BYTES["cuda"]) // (classes * rows.element_size()))
    if block >= len(rows):
        return of_block(rows, labels) / len(rows)
    # The backward pass computes the blocks again instead of keeping them.
    parts = [
        checkpoint(of_block, *part, use_reentrant=False, preserve_rng_state=False)
        for part in zip(torch.split(rows, block), torch.split(labels, block), strict=True)
    ]
    return torch.stack(parts).sum() / len(rows)
