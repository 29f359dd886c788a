from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from nearkin.losses import Angular, Contrastive, MultiSimilarity, NPair, Pairs, Triplet, pair_loss
from nearkin.losses.pair_loss import hardest_negatives, mean_where, products
from nearkin.numerics import full_precision, rounding_floor, tf32


def test_the_masks_leave_self_pairs_out_within_a_batch_and_nothing_with_references():
    x, y = torch.randn(4, 3), torch.tensor([7, 2, 7, 7])
    within = Contrastive().pairs(x, y)
    assert within.positive.tolist() == [
        [False, False, True, True],
        [False, False, False, False],
        [True, False, False, True],
        [True, False, True, False],
    ]
    assert not (within.positive & within.negative).any()
    assert (within.positive | within.negative | torch.eye(4, dtype=torch.bool)).all()
    between = Contrastive().pairs(x, y, x, y)
    assert (between.positive ^ between.negative).all()
    assert between.positive.diagonal().all()


def test_a_method_can_narrow_the_pairs():
    x, y = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]), torch.tensor([0, 0, 1])
    loss = Contrastive(neg_margin=3.0)
    pairs = loss.pairs(x, y)
    only_first = torch.tensor([[True], [False], [False]])
    narrowed = replace(pairs, positive=pairs.positive & only_first, negative=pairs.negative & only_first)
    assert loss.from_pairs(narrowed).item() == pytest.approx(2**0.5 + (3 - 2), abs=1e-6)


def test_references_and_their_labels_go_together():
    x, y = torch.randn(4, 3), torch.tensor([0, 0, 1, 1])
    for arguments in ((x, None), (None, y)):
        with pytest.raises(ValueError, match="references and reference_labels go together"):
            Contrastive()(x, y, *arguments)


@pytest.mark.parametrize(
    ("references", "labels", "message"),
    [
        (torch.randn(5, 2), torch.arange(5), r"references must have 3 columns.*got 2"),
        (torch.randn(5, 3), torch.arange(4), r"reference_labels must have shape \[5\].*got \[4\]"),
        (torch.full((5, 3), float("nan")), torch.arange(5), r"references must be finite"),
        (torch.randn(0, 3), torch.arange(0), r"references must hold at least one row"),
        (torch.randn(5, 3), torch.rand(5), r"reference_labels must be integers, got torch.float32"),
    ],
)
def test_bad_references_are_named(references, labels, message):
    with pytest.raises(ValueError, match=message):
        Contrastive()(torch.randn(4, 3), torch.tensor([0, 0, 1, 1]), references, labels)


class Products(TorchDispatchMode):
    """Notes for every matrix product whether CUDA would compute it in TF32."""

    def __init__(self):
        super().__init__()
        self.in_tf32 = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function in (torch.ops.aten.mm.default, torch.ops.aten.bmm.default, torch.ops.aten.addmm.default):
            self.in_tf32.append(torch.backends.cuda.matmul.fp32_precision == "tf32")
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("with_references", [False, True])
@pytest.mark.parametrize(
    "loss", [Angular(), Contrastive(), MultiSimilarity(), NPair(), Triplet()], ids=lambda x: type(x).__name__
)
def test_no_product_is_computed_in_tf32_forward_or_backward(monkeypatch, loss, with_references):
    """As if this were a GPU on which training runs in TF32."""
    monkeypatch.setattr(pair_loss, "full_precision", lambda device: full_precision("cuda"))
    torch.manual_seed(0)
    x, y = torch.randn(6, 4, requires_grad=True), torch.tensor([0, 0, 1, 1, 2, 2])
    references = (torch.randn(6, 4, requires_grad=True), y) if with_references else ()
    with tf32(True), Products() as seen:
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
        loss(x, y, *references).backward()
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    assert len(seen.in_tf32) >= 2
    assert not any(seen.in_tf32)


def test_half_precision_references_are_compared_in_float32():
    torch.manual_seed(0)
    x, y = torch.randn(6, 4), torch.arange(6) // 2
    references = torch.randn(5, 4).bfloat16()
    value = Triplet()(x.bfloat16(), y, references, torch.arange(5))
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, Triplet()(x.bfloat16().float(), y, references.float(), torch.arange(5)))


def test_gradients_reach_the_references():
    references = torch.randn(5, 4, requires_grad=True)
    Contrastive(neg_margin=3.0)(torch.randn(6, 4), torch.arange(6) // 2, references, torch.arange(5)).backward()
    assert (references.grad.abs().sum(dim=1) > 0).all()


def test_mean_where_of_nothing_is_zero():
    assert mean_where(torch.ones(3), torch.zeros(3, dtype=torch.bool)) == 0
    assert mean_where(torch.tensor([1.0, 2.0, 9.0]), torch.tensor([True, True, False])) == 1.5


@pytest.mark.parametrize("with_references", [False, True])
def test_the_hardest_negatives_are_the_nearest_as_many_as_there_are_positives(with_references):
    """Query by query; of those at the same distance the first."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(9, 4, generator=generator), torch.tensor([0, 0, 0, 1, 1, 2, 0, 2, 3])
    x[7] = x[5]
    pairs = Contrastive().pairs(x, y, *((x[:7] + 0.1, y[:7]) if with_references else ()))
    kept = hardest_negatives(pairs)
    assert torch.equal(kept.positive, pairs.positive)
    distance = pairs.distance()
    for query in range(9):
        others = [r for r in range(pairs.negative.shape[1]) if pairs.negative[query, r]]
        nearest = sorted(others, key=lambda r: (float(distance[query, r]), r))
        wanted = nearest[: int(pairs.positive[query].sum())]
        assert kept.negative[query].nonzero()[:, 0].tolist() == sorted(wanted)


def rows(count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, 4, dtype=torch.float64, generator=generator).requires_grad_()


@pytest.mark.parametrize("wanted", [(True, True), (True, False), (False, True)])
def test_products_have_gradients_where_they_are_wanted(wanted):
    x, y = (t.detach().requires_grad_(on) for t, on in zip((rows(5), rows(4)), wanted, strict=True))
    assert torch.autograd.gradcheck(products, (x, y))
    assert torch.autograd.gradgradcheck(products, (x, y))
    torch.testing.assert_close(products(x, y), x @ y.T)


class Lengths:
    """Rows whose squared lengths are known: ``square().sum(1)`` gives what some processor has added up."""

    def __init__(self, x, lengths):
        self.shape, self._lengths = x.shape, lengths

    def square(self):
        return self

    def sum(self, dim):
        return self._lengths


def distances(similarity, lengths, x):
    none = torch.zeros_like(similarity, dtype=torch.bool)
    return Pairs(Lengths(x, lengths), None, similarity, none, none, within_batch=True).distance()


def sums_in_other_orders(x):
    """Inner products of rows as other processors may add them up: in order, backwards, halves first, in blocks of 8."""
    products = x[:, None] * x
    dim = x.shape[1]
    in_order = products.cumsum(dim=2)[:, :, -1]
    backwards = products.flip(2).cumsum(dim=2)[:, :, -1]
    halves = products
    while halves.shape[2] > 1:
        halves = halves[:, :, ::2] + halves[:, :, 1::2]
    blocks = products.unflatten(2, (dim // 8, 8)).cumsum(dim=2)[:, :, -1].cumsum(dim=2)[:, :, -1]
    return {"in order": in_order, "backwards": backwards, "halves": halves[:, :, 0], "blocks": blocks, "torch": x @ x.T}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [16, 128, 2048])
def test_equal_vectors_are_exactly_zero_apart_without_gradient_however_sums_are_added_up(dtype, dim):
    torch.manual_seed(dim)
    x = torch.nn.functional.normalize(torch.randn(20, dim, dtype=dtype))
    sums = sums_in_other_orders(x)
    for (name, similarity), lengths in itertools.product(sums.items(), [s.diagonal() for s in sums.values()]):
        similarity = similarity.clone().requires_grad_()
        distance = distances(similarity, lengths, x)
        assert (distance.diagonal() == 0).all(), name
        assert (distance + torch.eye(20) > 0.01).all(), name
        (gradient,) = torch.autograd.grad(distance.sum(), similarity)
        assert (gradient.diagonal() == 0).all(), name
        assert torch.isfinite(gradient).all(), name


@pytest.mark.parametrize("dim", [16, 512, 8192])
def test_the_floor_holds_in_the_worst_case_and_is_no_larger_than_it_must_be(dim):
    """Terms that are all rounded down, one after another: the sum that numerical analysis bounds."""
    x = torch.full((1, dim), 1 + 2**-11 + 2**-12)  # its square is not a float32, nor are the partial sums
    added = torch.zeros(1)
    for term in (x * x)[0]:
        added = added + term
    exact = x.double().square().sum()
    error = float(2 * abs(exact - added) / (2 * exact))
    floor = rounding_floor(dim, torch.float32)
    assert error < floor
    apart = torch.zeros(1, dim)
    apart[0, 0] = 2 * (2 * floor) ** 0.5  # twice the floor's distance, for unit vectors
    unit = torch.nn.functional.normalize(torch.ones(1, dim))
    pair = torch.cat([unit, torch.nn.functional.normalize(unit + apart)])
    distance = distances(pair @ pair.T, pair.square().sum(1), pair)
    assert distance[0, 1] > 0, "vectors that are apart stay apart"
