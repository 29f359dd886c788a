"""Small batches for losses with proxies and for losses on pairs, and the comparison of each with a slow reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn


@dataclass
class PairCase:
    """A call of a pair loss, and the same batch as a slow reference sees it: rows of normalised vectors and indices."""

    normalisation: str
    embeddings: Tensor
    labels: Tensor
    references: Tensor | None = None
    reference_labels: Tensor | None = None

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        if self.references is None:
            return self.embeddings, self.labels
        return self.embeddings, self.labels, self.references, self.reference_labels

    @property
    def leaves(self) -> list[Tensor]:
        return [t for t in (self.embeddings, self.references) if t is not None and t.requires_grad]

    def units(self) -> tuple[list[Tensor], list[Tensor]]:
        """Queries and references as lists of normalised vectors, differentiable."""
        queries = [self._unit(row) for row in self.embeddings]
        return queries, queries if self.references is None else [self._unit(row) for row in self.references]

    def _unit(self, row: Tensor) -> Tensor:
        length = row.square().sum().sqrt()
        return row if self.normalisation == "ball" and length <= 1 else row / length

    def positives(self, i: int) -> list[int]:
        """References of the class of sample i, without itself where the batch is compared with itself."""
        return [j for j, label in enumerate(self._others()) if label == self.labels[i] and not self._self_pair(i, j)]

    def negatives(self, i: int) -> list[int]:
        return [j for j, label in enumerate(self._others()) if label != self.labels[i]]

    def hard_negatives(self, i: int) -> list[int]:
        """Its negatives at the smallest distance, as many as it has positives."""
        queries, references = self.units()
        nearest = sorted(self.negatives(i), key=lambda j: (queries[i] - references[j]).square().sum().item())
        return nearest[: len(self.positives(i))]

    def _self_pair(self, i: int, j: int) -> bool:
        return self.references is None and i == j

    def _others(self) -> Tensor:
        return self.labels if self.reference_labels is None else self.reference_labels

    def agrees(self, loss: nn.Module, slow: Callable[[PairCase], Tensor], parameters: tuple[Tensor, ...] = ()) -> bool:
        """Whether value and gradients of ``loss`` equal those of ``slow`` to 1e-9."""
        leaves = [*self.leaves, *parameters]
        # A reference without a single active term is a constant; give it a gradient of 0 to compare.
        fast_value, slow_value = loss(*self.arguments), slow(self) + 0.0 * sum(leaf.sum() for leaf in leaves)
        fast = torch.autograd.grad(fast_value, leaves, allow_unused=True)
        slowly = torch.autograd.grad(slow_value, leaves, allow_unused=True)
        torch.testing.assert_close(fast_value, slow_value, rtol=1e-9, atol=1e-9)
        for leaf, a, b in zip(leaves, fast, slowly, strict=True):
            a, b = (torch.zeros_like(leaf) if g is None else g for g in (a, b))
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
        return True


def _rows(count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(count, 3, generator=generator, dtype=torch.float64)
    lengths = torch.tensor([0.4, 2.0, 0.9, 1.5], dtype=torch.float64).repeat(count)[:count]
    return (rows / rows.norm(dim=1, keepdim=True) * lengths[:, None]).requires_grad_()


@pytest.fixture(params=["l2", "ball"])
def normalisation(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=["batch", "references", "batch as references"])
def pair_case(request: pytest.FixtureRequest, normalisation: str) -> PairCase:
    """Classes of three, two and one samples; a reference class that is not in the batch, and the reverse."""
    embeddings, labels = _rows(8, seed=0), torch.tensor([4, 1, 4, 9, 1, 4, 7, 7])
    case = PairCase(normalisation, embeddings, labels)
    if request.param == "references":
        case.references, case.reference_labels = _rows(6, seed=1), torch.tensor([7, 4, 1, 4, 2, 7])
    elif request.param == "batch as references":
        # Copies, because pytorch-metric-learning takes the same object to mean "no references".
        case.references, case.reference_labels = embeddings.detach().clone().requires_grad_(), labels.clone()
    return case


_PROXY_LABELS = {
    "several of a class, some classes absent": [0, 3, 3, 1, 0, 3, 5],
    "one class": [2, 2, 2],
    "one sample": [4],
    "every class": [5, 4, 3, 2, 1, 0, 0],
}


@pytest.fixture(params=_PROXY_LABELS.values(), ids=_PROXY_LABELS.keys())
def proxy_batch(request: pytest.FixtureRequest) -> tuple[Tensor, Tensor]:
    """Float64 embeddings ``[N, 5]`` of any length and their labels among 6 classes."""
    generator = torch.Generator().manual_seed(len(request.param))
    labels = torch.tensor(request.param)
    return torch.randn(len(labels), 5, dtype=torch.float64, generator=generator) * 3, labels


@pytest.fixture
def assert_proxy_loss_equals(proxy_batch: tuple[Tensor, Tensor]) -> Callable[[nn.Module, Callable[..., Tensor]], None]:
    """Hold value and gradients of a loss to those of ``slow(embeddings, proxies [C, K, D], labels)`` to 1e-9."""

    def check(loss: nn.Module, slow: Callable[..., Tensor]) -> None:
        embeddings, labels = proxy_batch
        loss = loss.double()
        leaves = [embeddings.requires_grad_(), loss.bank.vectors]
        value, expected = loss(embeddings, labels), slow(*leaves, labels)
        torch.testing.assert_close(value, expected, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(
            torch.autograd.grad(value, leaves), torch.autograd.grad(expected, leaves), rtol=1e-9, atol=1e-9
        )

    return check
