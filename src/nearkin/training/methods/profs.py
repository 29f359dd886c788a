"""PROFS: alternating projections, each with one image per class as its representative."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from nearkin.data.loader import Batch
from nearkin.errors import RecipeError
from nearkin.losses.cross_batch_memory import CrossBatchMemory
from nearkin.losses.pair_loss import PairLoss, hardest_negatives
from nearkin.numerics import check_at_least, full_precision, normalise
from nearkin.recipe import Recipe
from nearkin.samplers import BatchSampler
from nearkin.samplers.class_representatives import ClassRepresentativeSampler
from nearkin.training.optimisation import ProximalTerm
from nearkin.training.state import Event, Method, TrainingState

__all__ = ["Profs", "representative_loss"]

_EVENTS_KEPT = 256


@dataclass(kw_only=True, eq=False)
class Profs(Method):
    r"""Projections onto feasible sets (Can et al., PROFS, algorithm 1).

    For M steps each class is represented by one image, and the network learns to put the other images near the
    representative of their class and far from those of other classes. A term
    :math:`\frac{\lambda}{2}\lVert\theta-\theta^{(k)}\rVert^2` holds it near :math:`\theta^{(k)}`, the weights when the
    representatives were drawn. Then new ones are drawn. With M = 1 this is the sampling of N-pair training.

    Batches come from :class:`~nearkin.samplers.class_representatives.ClassRepresentativeSampler`:
    ``training.batch_size`` and ``training.images_per_class`` apply to them, ``training.sampler`` does not.

    A pair loss sees only pairs that contain a representative (:func:`representative_loss`). A cross-batch memory adds
    its memory term over the whole batch. A loss with proxies gets the whole batch.

    Args:
        steps_per_projection: M; None for ``ceil(occurrences · I · C / B)``, 0 for one endless projection.
        occurrences: ρ, how often a class is in a batch before its representative changes (section 5.4).
        proximal_weight: λ of the proximal term (section 5.2).
        hard_negative_classes: hard negative class mining (HNCM): fill a batch with the classes whose representatives
            lie nearest to that of a first class.
        hard_pairs: for contrastive, triplet and margin losses keep only the hardest negative pairs of each
            representative, as many as it has positive pairs (section 5.3).
    """

    steps_per_projection: int | None = None
    occurrences: int = 6
    proximal_weight: float = 1e-3
    hard_negative_classes: bool = False
    hard_pairs: bool = True
    batches: ClassRepresentativeSampler = field(init=False, repr=False)
    """From :meth:`Method.sampler` on."""

    def __post_init__(self) -> None:
        check_at_least(0, steps_per_projection=self.steps_per_projection, proximal_weight=self.proximal_weight)
        check_at_least(1, occurrences=self.occurrences)
        self.events: list[Event] = []
        """The latest draws of representatives: the step and their number."""
        self._reference = ProximalTerm()

    @classmethod
    def check(cls, recipe: Recipe) -> None:
        super().check(recipe)
        batch, images = recipe.training.batch_size, recipe.training.images_per_class
        if images < 2 or batch % images or batch < 2 * images:
            raise RecipeError(
                f"PROFS needs two images of two classes in a batch: training.images_per_class ({images}) must be "
                f"at least 2, and training.batch_size ({batch}) a multiple of it, at least twice as large"
            )
        inner = recipe.objective.options.get("pair_loss", recipe.objective)
        if inner.options.get("negatives") == "distance_weighted" and cls(**recipe.method.options).hard_pairs:
            raise RecipeError(
                "objective.negatives=distance_weighted draws from all negatives, of which PROFS keeps the hardest: "
                "set method.hard_pairs=false"
            )

    def sampler(self, default: BatchSampler, state: TrainingState) -> BatchSampler:
        training = state.recipe.training
        classes = int(state.labels.max()) + 1
        known = torch.zeros(classes, state.encoder.dim, device=state.device) if self.hard_negative_classes else None
        self.batches = ClassRepresentativeSampler(
            state.labels,
            batch_size=training.batch_size,
            images_per_class=training.images_per_class,
            steps_per_projection=self.steps_per_projection,
            occurrences=self.occurrences,
            embeddings=known,
            seed=training.seed,
        )
        return self.batches

    def start(self, state: TrainingState) -> None:
        self._begin_projection(state)
        if self.batches.embeddings is not None:
            self.batches.embeddings.copy_(state.train_set.embed(self.batches.representatives(0)))

    def loss(self, state: TrainingState, embeddings: Tensor, labels: Tensor, batch: Batch) -> Tensor:
        count = self.batches.num_representatives
        # A loss may take embeddings of any length; representatives are compared as in search, normalised.
        self.batches.refresh(labels[:count], normalise(embeddings[:count].detach(), state.encoder.normalisation))
        objective = state.objective
        if isinstance(objective, PairLoss):
            return representative_loss(objective, embeddings, labels, count, hard_pairs=self.hard_pairs)
        if isinstance(objective, CrossBatchMemory):
            inner = objective.pair_loss
            value = representative_loss(inner, embeddings, labels, count, hard_pairs=self.hard_pairs)
            return value + objective.memory_loss(embeddings, labels)
        return super().loss(state, embeddings, labels, batch)

    def adjust_gradients(self, state: TrainingState) -> None:
        self._reference.add_to_gradients(state.weights, self.proximal_weight)

    def after_step(self, state: TrainingState) -> None:
        steps = self.batches.steps_per_projection
        if steps and state.step % steps == 0:
            self._begin_projection(state)

    def _begin_projection(self, state: TrainingState) -> None:
        self._reference.remember(state.weights)
        event: Event = {"step": state.step, "kind": "representatives", "count": len(self.batches.rows)}
        self.events = [*self.events[1 - _EVENTS_KEPT :], event]

    def state_dict(self) -> dict[str, Any]:
        return {"reference": self._reference.centre, "events": self.events}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._reference.centre = state["reference"]
        self.events = list(state["events"])


def representative_loss(
    loss: PairLoss, embeddings: Tensor, labels: Tensor, num_representatives: int, *, hard_pairs: bool = True
) -> Tensor:
    """A pair loss over the pairs of a batch that contain a representative: its first ``num_representatives`` rows.

    Representatives are the anchors, compared with every other row of the batch: equation (4.6) within a batch. A loss
    whose ``representatives`` are ``"positives"`` (N-pair, angular) is anchored at the examples instead, and its
    positives and negatives are representatives. Where they are ``"balanced anchors"`` (contrastive, triplet, margin)
    ``hard_pairs`` keeps, of a representative's negative pairs, as many as it has positive ones: the nearest.

    Args:
        loss: any pair loss.
        embeddings: ``[N, D]``, representatives first; every class has as many rows.
        labels: ``[N]``.
        num_representatives: the number of representatives, each of another class.
        hard_pairs: whether to balance the losses that ask for it.

    Example:
        >>> from nearkin.losses import NPair
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
        >>> representative_loss(NPair(), x, torch.tensor([0, 1, 0, 1]), 2)
        tensor(0.3133)
    """
    heads, head_labels = embeddings[:num_representatives], labels[:num_representatives]
    with full_precision(embeddings.device.type):
        if loss.representatives == "positives":
            tails, tail_labels = embeddings[num_representatives:], labels[num_representatives:]
            return loss.from_pairs(loss.pairs(tails, tail_labels, heads, head_labels))
        pairs = loss.pairs(heads, head_labels, embeddings, labels)
        pairs = replace(pairs, positive=pairs.positive.clone().fill_diagonal_(False))
        if hard_pairs and loss.representatives == "balanced anchors":
            pairs = hardest_negatives(pairs)
        return loss.from_pairs(pairs)
