"""What every loss on pairs shares: the checks, the references and the exclusion of self-pairs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from nearkin.inputs import check_embeddings, check_labels
from nearkin.numerics import Normalisation, at_least_float32, normalise


class PairLoss(nn.Module):
    """``loss(embeddings, labels, references=None, reference_labels=None) -> scalar``.

    Without references the batch is compared with itself and no sample with itself. With references every
    (sample, reference) pair counts: they are a method's proxies, class representatives or a memory of past batches.
    A subclass turns queries, references and the two pair masks into a loss (:meth:`from_pairs`).
    """

    def __init__(self, *, normalisation: Normalisation = "l2") -> None:
        super().__init__()
        if normalisation not in ("l2", "ball"):
            raise ValueError(f"normalisation must be 'l2' or 'ball', got {normalisation!r}")
        self.normalisation: Normalisation = normalisation

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        references: Tensor | None = None,
        reference_labels: Tensor | None = None,
    ) -> Tensor:
        if (references is None) != (reference_labels is None):
            raise ValueError("references and reference_labels go together: give both or neither")
        check_embeddings(embeddings)
        check_labels(labels, embeddings.shape[0])
        with torch.autocast(embeddings.device.type, enabled=False):
            queries = normalise(at_least_float32(embeddings), self.normalisation)
            if references is None or reference_labels is None:
                same = labels[:, None] == labels[None, :]
                positive = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
                return self.from_pairs(queries, queries, positive, ~same)
            check_embeddings(references, dim=embeddings.shape[1], name="references")
            check_labels(reference_labels, references.shape[0], name="reference_labels")
            others = normalise(at_least_float32(references), self.normalisation).to(queries.dtype)
            same = labels[:, None] == reference_labels[None, :]
            return self.from_pairs(queries, others, same, ~same)

    def from_pairs(self, queries: Tensor, references: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """The loss of normalised ``queries [N, D]`` against ``references [M, D]``.

        ``positive`` and ``negative`` ``[N, M]`` mark the pairs of the same class and of different classes; a
        self-pair is in neither.
        """
        raise NotImplementedError
