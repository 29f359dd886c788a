from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from nearkin.evaluation import large_classes, products, retrieval, retrieval_scores
from nearkin.evaluation.large_classes import hits_by_merging
from nearkin.evaluation.products import Product, pair_products, single_error
from nearkin.evaluation.vectors import as_vectors

KEYS = {"recall_at": (1, 10, 100), "ndcg_at": (5, 40), "map_at": (10,), "precision_at": (3,)}


def clusters(sizes, dim, *, seed=0, spread=2.0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    labels = labels[torch.randperm(len(labels), generator=generator)]
    noise = torch.randn(len(labels), dim, generator=generator)
    return torch.randn(len(sizes), dim, generator=generator)[labels] + spread * noise, labels


@pytest.fixture
def by_definition(hits_by_definition):
    """The hits of each query's whole ranking."""
    return lambda *asked: [hits.tolist() for hits in hits_by_definition(*asked)]


def merged(queries, references, query_classes, reference_classes, depth):
    """Hits by query down to the depth, and the queries that were left to be ranked."""
    hits = {}

    def found(rows, each):
        hits.update(zip(rows.tolist(), each[:, :depth].tolist(), strict=True))

    full = torch.full((len(queries),), depth)
    left = hits_by_merging(queries, references, query_classes, reference_classes, depth=full, found=found)
    return hits, left.nonzero()[:, 0].tolist()


@pytest.mark.parametrize("block, kept", [(7, 10**9), (64, 10**9), (64, 3000), (1024, 10**9)])
@pytest.mark.parametrize("with_gallery", [False, True])
def test_hits_are_those_of_the_definition(monkeypatch, block, kept, with_gallery, by_definition):
    monkeypatch.setitem(large_classes.BLOCK, "cpu", block)
    monkeypatch.setitem(large_classes.KEPT, "cpu", kept)
    monkeypatch.setitem(large_classes.SORTED, "cpu", 5000)
    x, labels = clusters([120, 60, 60, 50, 9, 1], 150)
    x[60:90] = x[:30]
    references = as_vectors(x, "x")
    queries = as_vectors(x[:70] + 0.1, "q") if with_gallery else references
    query_labels = labels[:70] if with_gallery else labels
    expected = by_definition(queries, references, query_labels, labels)
    for depth in (1, 40, 120, 299):
        hits, left = merged(queries, references, query_labels, labels, depth)
        lonely = [] if with_gallery else (labels == 5).nonzero()[:, 0].tolist()
        assert sorted([*hits, *left, *lonely]) == list(range(len(queries)))
        assert len(left) < len(queries) / 10
        assert all(hits[q] == expected[q][:depth] for q in hits)


def test_each_query_has_a_depth_of_its_own(by_definition):
    x, labels = clusters([120, 60, 60, 50, 9], 150)
    vectors, hits = as_vectors(x, "x"), {}
    depth = torch.tensor([1, 100]).repeat(150)[: len(x)]
    left = hits_by_merging(
        vectors, vectors, labels, labels, depth=depth,
        found=lambda rows, each: hits.update(zip(rows.tolist(), each.tolist(), strict=True)),
    )  # fmt: skip
    expected = by_definition(vectors, vectors, labels, labels)
    assert int(left.sum()) < len(x) / 10
    assert all(hits[q][: depth[q]] == expected[q][: depth[q]] for q in hits)
    assert sorted([*hits, *left.nonzero()[:, 0].tolist()]) == list(range(len(x)))


def test_queries_of_classes_that_nothing_is_of_are_left_out():
    x, labels = clusters([50, 40, 30, 20, 10], 80)
    known = labels < 3
    references, queries = as_vectors(x[known], "x"), as_vectors(x, "q")
    hits, left = merged(queries, references, labels, labels[known], 20)
    assert sorted([*hits, *left]) == known.nonzero()[:, 0].tolist()


def test_ties_go_by_index_however_products_are_rounded(monkeypatch, by_definition):
    """Coordinates of -1, 0 and 1: most comparisons are ties, and every product is off by what it may be."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(-1, 2, (200, 5), generator=generator).float()
    labels = torch.arange(200) % 3
    vectors = as_vectors(x, "x")

    honest = Product.of

    def off(product, rows, columns):
        found = honest(product, rows, columns)
        noise = torch.rand(found.shape, generator=generator) * 2.0 - 1.0
        return found + (0.5 * product.absolute * noise).to(found.dtype)

    def off_by_little(x, rows, y, columns):
        found = pair_products(x, rows, y, columns)
        return found + 2.0**-53 * (torch.rand(len(found), generator=generator) * 2.0 - 1.0)

    monkeypatch.setattr(Product, "of", off)
    monkeypatch.setattr(large_classes, "pair_products", off_by_little)
    monkeypatch.setattr(large_classes, "MOST_CLOSE", 2.0)
    monkeypatch.setattr(large_classes, "MOST_COMPARED", 10_000)
    monkeypatch.setattr(large_classes, "BEYOND", 200)
    expected = by_definition(vectors, vectors, labels, labels)
    for depth in (20, 120, 199):
        hits, left = merged(vectors, vectors, labels, labels, depth)
        # Where the threshold falls on a tie, what lies there is not all kept.
        assert len(left) < (200 if depth < 199 else 1)
        assert all(hits[q] == expected[q][:depth] for q in hits)


def test_near_ties_are_told_apart_by_better_products(monkeypatch, by_definition):
    """Similarities that differ by less than float32 can tell, in an order that only float64 knows."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(1, 80, generator=generator, dtype=torch.float64)
    x = x + 1e-5 * torch.randn(300, 80, generator=generator, dtype=torch.float64)
    x[150:] += torch.randn(150, 80, generator=generator, dtype=torch.float64)
    labels = torch.arange(300) % 2
    vectors = as_vectors(x, "x")
    monkeypatch.setattr(large_classes, "MOST_CLOSE", 2.0)
    hits, left = merged(vectors, vectors, labels, labels, 149)
    expected = by_definition(vectors, vectors, labels, labels)
    assert len(left) < 150
    assert all(hits[q] == expected[q][:149] for q in hits)


def test_a_guess_that_was_too_high_leaves_queries_to_be_ranked(monkeypatch, by_definition):
    x, labels = clusters([200, 200, 200], 20, spread=3.0)
    honest = retrieval_scores(x, labels, **KEYS)
    monkeypatch.setattr(large_classes, "SAMPLE", 64)
    monkeypatch.setattr(large_classes, "DEVIATIONS", -2.0)
    vectors = as_vectors(x, "x")
    hits, left = merged(vectors, vectors, labels, labels, 199)
    assert 0 < len(left) < 600
    expected = by_definition(vectors, vectors, labels, labels)
    assert all(hits[q] == expected[q][:199] for q in hits)
    assert retrieval_scores(x, labels, **KEYS) == honest


def test_vectors_that_are_nearly_alike_are_left_to_ranking():
    x = torch.ones(400, 8) + 1e-6 * torch.randn(400, 8, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(400) % 2
    vectors = as_vectors(x, "x")
    assert len(merged(vectors, vectors, labels, labels, 199)[1]) == 400
    assert 0.3 < retrieval_scores(x, labels)["P@R"] < 0.7


@pytest.mark.parametrize("threads", [1, 3])
def test_scores_are_those_of_ranking_whatever_the_blocks_and_threads(monkeypatch, threads):
    x, labels = clusters([300, 200, 150, 20, 2], 100)
    x[40:60] = x[:20]
    with monkeypatch.context() as patch:
        patch.setattr(retrieval, "MOST_COPIES", 0)
        expected = retrieval_scores(x, labels, **KEYS)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for block in (50, 256, 1024):
            monkeypatch.setitem(large_classes.BLOCK, "cpu", block)
            assert retrieval_scores(x, labels, **KEYS) == expected
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("dim", [3, 64, 65, 300])
def test_products_are_as_exact_as_they_say(dim):
    generator = torch.Generator().manual_seed(dim)
    x, y = (torch.nn.functional.normalize(torch.randn(n, dim, generator=generator), dim=1) for n in (30, 40))
    exact = x.double() @ y.double().T
    everything = slice(None), slice(None)
    for product in (
        Product.fastest(x, y),
        Product.single(x, y, single_error(dim)),
        Product.half(x, y, single_error(dim)),
    ):
        found = product.of(*everything)
        assert bool(((found.double() - exact).abs() <= product.error(found)).all())
        assert product.error(found).max() < 0.02, "a bound that says nothing"
    rows, columns = torch.randint(0, 30, (200,), generator=generator), torch.randint(0, 40, (200,), generator=generator)
    for each in (x, x.double()):
        found = pair_products(each, rows, y.to(each.dtype), columns)
        torch.testing.assert_close(found.double(), exact[rows, columns], rtol=0, atol=(dim + 3) * 2.0**-24)


@pytest.mark.gpu
def test_hits_on_cuda_are_those_of_the_cpu(monkeypatch):
    # Half products, where a processor is fast at them, leave more rows to be ranked another way.
    monkeypatch.setattr(products, "half_pays", lambda: False)
    x, labels = clusters([400, 300, 200, 100], 100)
    x[500:600] = x[:100]
    for block in (128, 8192):
        monkeypatch.setitem(large_classes.BLOCK, "cuda", block)
        here, there = as_vectors(x, "x"), as_vectors(x.cuda(), "x")
        on_cpu, on_cuda = (merged(vectors, vectors, labels, labels, 300) for vectors in (here, there))
        assert not on_cpu[1]
        assert on_cuda == on_cpu


@pytest.mark.parametrize(("half", "pays"), [(1.0, True), (1.4, True), (1.6, False), (3.0, False)])
def test_half_precision_pays_where_its_fastest_product_takes_less_than_three_quarters(monkeypatch, half, pays):
    """By a clock that knows what was multiplied: bfloat16 takes so long, float32 two seconds, both more at times."""
    seconds, took = [7.0], {torch.bfloat16: half, torch.float32: 2.0}
    real = torch.Tensor.__matmul__

    def multiplied(x, y):
        seconds.append(took.get(x.dtype, 0.0) + (10.0 if len(seconds) // 2 % 3 else 0.0))
        return real(x, y)

    monkeypatch.setattr(torch.Tensor, "__matmul__", multiplied)
    monkeypatch.setattr(products, "time", SimpleNamespace(perf_counter=lambda: sum(seconds)))
    assert products.half_pays.__wrapped__() is pays


def test_half_precision_that_is_wrong_never_pays(monkeypatch):
    real = torch.Tensor.__matmul__
    wrong = lambda x, y: real(x, y) + (0.05 if x.dtype == torch.bfloat16 else 0.0)  # noqa: E731
    monkeypatch.setattr(torch.Tensor, "__matmul__", wrong)
    ticks = iter(range(1000))
    monkeypatch.setattr(products, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    assert products.half_pays.__wrapped__() is False
