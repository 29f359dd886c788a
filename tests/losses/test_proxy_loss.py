from __future__ import annotations

import pytest
import torch

from nearkin.losses import InformativeSampleWeights, MultiProxyAnchor, ProxyAnchor, ProxyLoss


def weighting():
    weights = InformativeSampleWeights(6, 5, memory_size=30)
    weights.memory_on = weights.filter_on = True
    return weights


class Hinge(ProxyLoss):
    """A loss by the book: the formula and nothing else, with a parameter of its own."""

    def __init__(self, num_classes, dim, **options):
        super().__init__(num_classes, dim, **options)
        self.margin = torch.nn.Parameter(torch.tensor(0.2))

    def from_similarities(self, similarities, labels):
        positive = similarities.gather(1, labels[:, None])
        terms = (similarities - positive + self.margin).clamp_min(0)
        weights = self.pair_weights(similarities, labels)
        return (terms if weights is None else terms * weights.negative).mean()


@pytest.mark.parametrize("options", [{}, {"weighting": True}, {"proxies_per_class": 3, "tau": 0.2}])
def test_a_loss_needs_nothing_but_its_formula(options):
    torch.manual_seed(0)
    loss = Hinge(6, 5, **{key: weighting() if key == "weighting" else value for key, value in options.items()})
    centres = torch.randn(6, 5)
    labels = torch.arange(6).repeat(4)
    optimiser = torch.optim.Adam(loss.parameters(), lr=0.05)
    first = None
    for _ in range(40):
        optimiser.zero_grad()
        value = loss(centres[labels] + 0.1 * torch.randn(24, 5), labels)
        value.backward()
        if first is None:
            first = value.item()
            assert all(parameter.grad.abs().sum() > 0 for parameter in loss.parameters())
        optimiser.step()
    assert value.item() < 0.7 * first
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert loss(centres.bfloat16(), torch.arange(6)).dtype == torch.float32


def test_a_loss_without_a_formula_says_what_is_missing():
    with pytest.raises(NotImplementedError, match="from_similarities"):
        ProxyLoss(6, 5)(torch.randn(4, 5), torch.tensor([0, 3, 3, 5]))


@pytest.mark.parametrize(
    "proxies, embeddings, expected",
    [
        (torch.float32, torch.float64, torch.float64),
        (torch.float64, torch.float32, torch.float64),
        (torch.float32, torch.bfloat16, torch.float32),
        (torch.bfloat16, torch.float16, torch.float32),
    ],
)
def test_nothing_is_cast_down(proxies, embeddings, expected):
    loss = ProxyAnchor(6, 5).to(proxies)
    z = torch.randn(4, 5).to(embeddings).requires_grad_()
    value = loss(z, torch.tensor([0, 3, 3, 5]))
    value.backward()
    assert value.dtype == expected
    assert z.grad.dtype == embeddings
    assert loss.bank.vectors.dtype == loss.bank.vectors.grad.dtype == proxies


@pytest.mark.parametrize("kind", ["softmax", "max", "mean"])
def test_positive_similarities_are_entries_of_the_class_similarities(kind):
    loss = MultiProxyAnchor(6, 5, proxies_per_class=3, class_similarity=kind).double()
    unit = torch.nn.functional.normalize(torch.randn(7, 5, dtype=torch.float64))
    labels = torch.tensor([0, 3, 3, 1, 0, 3, 5])
    positive = loss.positive_similarities(unit, labels)
    torch.testing.assert_close(positive, loss.class_similarities(unit)[torch.arange(7), labels].detach())
    torch.testing.assert_close(
        loss.positive_similarities(unit[:6], None), loss.class_similarities(unit[:6]).diag().detach()
    )


def test_unasked_several_proxies_of_a_class_are_not_pulled_together():
    torch.manual_seed(0)
    loss, x, labels = Hinge(4, 5, proxies_per_class=3, class_similarity="max"), torch.randn(8, 5), torch.arange(8) % 4
    units = torch.nn.functional.normalize(loss.bank.vectors, dim=2)
    similarities = torch.einsum("nd,ckd->nck", torch.nn.functional.normalize(x, dim=1), units).amax(dim=2)
    torch.testing.assert_close(loss(x, labels), loss.from_similarities(similarities, labels))
