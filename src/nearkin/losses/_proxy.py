"""What every loss with proxies shares: a bank, the checks, and the way from embeddings to a loss and its gradient."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from nearkin import ranks
from nearkin.errors import notice
from nearkin.inputs import Labels, as_labels, check_choice, check_embeddings, check_labels, check_positive
from nearkin.losses._blocks import Parts, by_blocks, is_large
from nearkin.losses._class_block import Negatives
from nearkin.losses._class_similarity import ClassSimilarity, class_similarity, proxy_spread
from nearkin.losses._closed_form import closed_form
from nearkin.losses._gathered import with_all_similarities
from nearkin.losses._informative import ClassWeights, InformativeSampleWeights, SampleWeights
from nearkin.losses._shards import ALL_HERE, OfRanks, Shards
from nearkin.numerics import NORM_FLOOR, at_least_float32, full_precision, l2_normalise
from nearkin.proxies import ProxyBank


class ProxyLoss(nn.Module):
    """``loss(embeddings [N, dim], labels [N]) -> scalar``, owning proxies in ``bank.vectors``.

    A subclass says what the class similarities ``[N, num_classes]`` cost, as its paper writes it
    (:meth:`from_similarities`); autograd does the rest. One that is to be fast with many classes may also say how that
    cost changes (:meth:`value_and_gradient`): the gradient is then computed in closed form, without materialising
    normalised proxies. Everything is computed in float32 or better, whatever autocast says.

    Args:
        proxies_per_class: K. With several, ``class_similarity`` and ``gamma`` say how they make one similarity.
        tau: weight of the regulariser that keeps a class's proxies together.
        start_scale: the proxies' length at the start, times the usual.
        weighting: weighs the pairs by how informative they are; see :class:`InformativeSampleWeights`.

    Example:
        >>> class Hinge(ProxyLoss):
        ...     def from_similarities(self, similarities, labels, weights=None):
        ...         own = similarities.gather(1, labels[:, None])
        ...         return (similarities - own + 0.2).clamp_min(0).mean()
        >>> loss = Hinge(num_classes=10, dim=8)
        >>> loss(torch.randn(4, 8), torch.tensor([0, 0, 3, 7])).backward()
        >>> loss.bank.vectors.grad.shape
        torch.Size([10, 1, 8])
    """

    takes_lengths: ClassVar[bool] = False
    """Whether :meth:`value_and_gradient` also takes ``lengths [num_classes]``, by which the similarities are still to
    be divided; the derivative is then for what was given. It saves the fused kernels two passes."""
    has_closed_form: ClassVar[bool] = False
    """Whether :meth:`value_and_gradient` is written out for the formula that the loss has."""
    has_parts: ClassVar[bool] = False
    """Whether :meth:`from_parts` is written for the formula that the loss has."""
    shards: Shards = ALL_HERE
    """Which classes the bank holds, where others are with other processes."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()

        def home(method: str) -> type:
            return next(base for base in cls.__mro__ if method in vars(base))

        # A subclass that has another formula has outgrown the gradient and the parts that it inherits.
        def fits(method: str) -> bool:
            return home(method) is not ProxyLoss and issubclass(home(method), home("from_similarities"))

        cls.has_closed_form = fits("value_and_gradient")
        cls.has_parts = fits("from_parts")

    def __init__(
        self,
        num_classes: int,
        dim: int,
        *,
        proxies_per_class: int = 1,
        class_similarity: ClassSimilarity = "softmax",
        gamma: float = 0.1,
        tau: float = 0.0,
        start_scale: float = 1.0,
        weighting: InformativeSampleWeights | None = None,
    ) -> None:
        super().__init__()
        check_choice("softmax", "max", "mean", class_similarity=class_similarity)
        check_positive(gamma=gamma, start_scale=start_scale)
        self.bank = ProxyBank(num_classes, proxies_per_class, dim, scale=start_scale)
        if ranks.world() > 1:
            self.shards = OfRanks(self.bank.own.start, num_classes)
        self.class_similarity: ClassSimilarity = class_similarity
        self.gamma = gamma
        self.tau = tau
        self.start_scale = start_scale
        self.weighting = weighting

    @property
    def num_classes(self) -> int:
        return self.bank.classes if self.shards.classes is None else self.shards.classes

    @property
    def proxies_per_class(self) -> int:
        return self.bank.per_class

    def from_similarities(self, similarities: Tensor, labels: Tensor, weights: SampleWeights | None = None) -> Tensor:
        """The loss of class similarities ``[N, num_classes]``, without regulariser: the formula in plain PyTorch."""
        raise NotImplementedError(f"{type(self).__name__} does not say what similarities cost: write from_similarities")

    def value_and_gradient(
        self, similarities: Tensor, labels: Tensor, weights: SampleWeights | None = None
    ) -> tuple[Tensor, Tensor]:
        """:meth:`from_similarities` and its derivative with respect to them, ``[N, num_classes]``.

        Runs outside autograd and leaves ``similarities`` as they are. Written out it is the fast path of the loss; here
        autograd computes it.
        """
        with torch.enable_grad():
            leaf = similarities.detach().requires_grad_()
            value = self.from_similarities(leaf, labels, weights)
            (gradient,) = torch.autograd.grad(value, leaf)
        return value.detach(), gradient

    @property
    def negatives(self) -> Negatives:
        """What :meth:`from_parts` takes of the similarities to other classes."""
        raise NotImplementedError

    def from_parts(self, parts: Parts) -> Tensor:
        """:meth:`from_similarities` out of what is left of them when they are gone through block by block.

        In plain PyTorch, on arrays of ``[N]``. A loss that has this and :attr:`negatives` needs no array of all
        similarities where there are too many, and its classes can be spread over processes.
        """
        raise NotImplementedError

    def forward(self, embeddings: Tensor, labels: Labels) -> Tensor:
        return self.of_proxies(embeddings, self.bank.vectors, self._checked(embeddings, labels), tau=self.tau)

    def of_proxies(self, embeddings: Tensor, vectors: Tensor, labels: Tensor, *, tau: float) -> Tensor:
        """The loss with proxies ``[C, K, D]``, by the way that suits their number."""
        with full_precision(embeddings.device.type):
            embeddings, vectors = self._same_dtype(embeddings, vectors)
            large = is_large(embeddings, vectors, arrays=1 if self.weighting is None else 3)
            spread_out = self.shards is not ALL_HERE
            if self.has_parts and (large or spread_out):
                return by_blocks(ranks.with_summed_gradient(embeddings), vectors, labels, self, tau=tau)
            if spread_out and ranks.world() > 1:
                if self.has_closed_form:
                    return with_all_similarities(embeddings, vectors, labels, self, self.bank, tau=tau)
                return self.by_autograd(embeddings, vectors, labels)
            if spread_out:
                raise ValueError(
                    f"{type(self).__name__} cannot be spread over processes: write from_parts and negatives"
                )
            if large:
                notice(self._too_large(embeddings, vectors))
            if self.has_closed_form:
                return closed_form(embeddings, vectors, labels, self, tau=tau)
            return self.by_autograd(embeddings, vectors, labels)

    def by_autograd(self, embeddings: Tensor, vectors: Tensor, labels: Tensor) -> Tensor:
        """The loss step by step, as the formulas have it: what the closed form must agree with."""
        unit = l2_normalise(ranks.with_summed_gradient(embeddings))
        similarities = self._class_similarities(unit, vectors)
        weights = self.weigh(unit.detach(), similarities.detach(), labels)
        value = self.from_similarities(similarities, labels, weights)
        if self.tau and self.bank.per_class > 1:
            value = value + ranks.sum_of_parts(proxy_spread(vectors, tau=self.tau * self.bank.share))
        return value

    def weigh(self, unit: Tensor, similarities: Tensor, labels: Tensor) -> SampleWeights | None:
        """What each pair counts, where the loss has a weighting, which then learns from the batch."""
        if self.weighting is None:
            return None
        judged = self.weighting.judgement(similarities, labels)
        weights = self.weighting.weights(similarities, labels, judged=judged)
        if self.training:
            self.weighting.update(
                unit, labels, similarities, self.own_similarities, linear=self.bank.per_class == 1, judged=judged
            )
        return weights

    def weigh_by_class(self, unit: Tensor, own: Tensor, labels: Tensor) -> ClassWeights | None:
        """:meth:`weigh` from similarities ``own [N]`` to the own classes, for any classes at a time."""
        if self.weighting is None:
            return None
        judged = self.weighting.judgement_of_own(own, labels)
        if self.training:
            self.weighting.update(unit, labels, None, self.own_similarities, judged=judged)
        return self.weighting.weights_by_class(judged)

    def class_similarities(self, embeddings: Tensor) -> Tensor:
        """Similarity of every sample to every class, ``[N, num_classes]``, differentiable."""
        with full_precision(embeddings.device.type):
            embeddings, vectors = self._same_dtype(embeddings, self.bank.vectors)
            return self._class_similarities(l2_normalise(ranks.with_summed_gradient(embeddings)), vectors)

    @torch.no_grad()
    def own_similarities(self, unit: Tensor, labels: Tensor | None) -> Tensor:
        """Similarity ``[T]`` of unit vectors ``[T, dim]`` to the class that ``labels [T]`` gives each.

        Without labels there is a row for every class, in their order.
        """
        vectors = at_least_float32(self.bank.vectors).to(unit.dtype)
        norms = torch.linalg.vector_norm(vectors, dim=2).clamp_min_(NORM_FLOOR)
        if labels is None:
            by_proxy = torch.linalg.vecdot(unit[self.bank.own.start : self.bank.own.stop, None], vectors)
        else:
            rows, held = self.shards.rows(labels, len(vectors))
            by_proxy = torch.stack([(unit * vectors[rows, k]).sum(1) for k in range(self.bank.per_class)], 1)
            norms = norms[rows]
        own = class_similarity(by_proxy.div_(norms)[:, None], self.class_similarity, gamma=self.gamma).squeeze(1)
        if labels is None:
            return ranks.gather_rows(own, self.bank.classes)
        return self.shards.sum(torch.where(held, own, 0.0))

    @torch.no_grad()
    def similarity_weights(self, embeddings: Tensor, labels: Labels) -> Tensor:
        """``|∂L/∂S|`` for every (sample, class), ``[N, num_classes]``: how hard each pair is pulled or pushed."""
        labels = self._checked(embeddings, labels)
        similarities = self.class_similarities(embeddings)
        weights = None if self.weighting is None else self.weighting.weights(similarities, labels)
        return self.value_and_gradient(similarities, labels, weights)[1].abs()

    def begin_epoch(self, epoch: int) -> None:
        """Called by the training loop before each epoch, counted from 0."""
        if self.weighting is not None:
            self.weighting.begin_epoch(epoch)

    def _class_similarities(self, unit: Tensor, vectors: Tensor) -> Tensor:
        by_proxy = (unit @ l2_normalise(vectors.flatten(0, 1)).T).view(-1, *vectors.shape[:2])
        similarities = class_similarity(by_proxy, self.class_similarity, gamma=self.gamma)
        return ranks.gather_columns(similarities, self.bank.classes)

    def _too_large(self, embeddings: Tensor, vectors: Tensor) -> str:
        samples, proxies = embeddings.shape[0], vectors.shape[0] * vectors.shape[1]
        size = samples * proxies * vectors.element_size() / 2**30
        return (
            f"{type(self).__name__} keeps arrays of the similarities of {samples} samples to {proxies} proxies, "
            f"{size:.2g} GiB each: take a loss of the catalogue, which goes by blocks of classes, or write from_parts"
        )

    def _checked(self, embeddings: Tensor, labels: Labels) -> Tensor:
        """The labels as int64 on the embeddings' device, where both fit the loss."""
        labels = as_labels(labels, embeddings)
        check_embeddings(embeddings, dim=self.bank.dim)
        check_labels(labels, embeddings.shape[0], num_classes=self.num_classes)
        return labels.long()

    def _same_dtype(self, embeddings: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings and proxies in the wider of their dtypes, float32 or better: neither is ever cast down."""
        embeddings, vectors = at_least_float32(embeddings), at_least_float32(vectors)
        dtype = torch.promote_types(embeddings.dtype, vectors.dtype)
        return embeddings.to(dtype), vectors.to(dtype)
