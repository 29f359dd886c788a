from __future__ import annotations

import numpy as np
import pytest
import torch

from nearkin.evaluation import places, retrieval_scores
from nearkin.evaluation.places import places_of_true
from nearkin.evaluation.vectors import as_vectors


def clusters(classes, images, dim, *, seed=0, spread=1.5):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes).repeat_interleave(images)
    labels = labels[torch.randperm(len(labels), generator=generator)]
    return torch.randn(classes, dim, generator=generator)[labels] + spread * torch.randn(
        len(labels), dim, generator=generator
    ), labels


@pytest.fixture
def by_definition(hits_by_definition):
    """The places of each query's true references."""
    return lambda *asked: [(np.flatnonzero(hits) + 1).tolist() for hits in hits_by_definition(*asked)]


def cut(all_places, depth, first_depth):
    """What may be asked for: all places down to ``depth``, and the first down to ``first_depth``."""
    return [
        [place for number, place in enumerate(each) if place <= (depth if number else first_depth)]
        for each in all_places
    ]


def found_in(result, depth, first_depth):
    lists = [each.tolist() for each in result.places.split(result.first.diff().tolist())]
    return cut(lists, depth, first_depth)


def places_at(queries, references, query_classes, reference_classes, depth, first_depth):
    full = torch.full((len(queries),), depth), torch.full((len(queries),), first_depth)
    return places_of_true(queries, references, query_classes, reference_classes, depth=full[0], first_depth=full[1])


@pytest.fixture(params=["float32", "bfloat16"])
def product(request, monkeypatch):
    """Both kinds of products, whichever this processor would choose."""
    monkeypatch.setattr(places, "half_pays", lambda: request.param == "bfloat16")


@pytest.mark.usefixtures("product")
@pytest.mark.parametrize("block", [7, 64, 2048])
@pytest.mark.parametrize("with_gallery", [False, True])
def test_places_are_those_of_the_definition(monkeypatch, block, with_gallery, by_definition):
    monkeypatch.setitem(places.BLOCK, "cpu", block)
    monkeypatch.setattr(places, "AT_ONCE", 1 << 24 if block < 64 else 30)
    x, labels = clusters(30, 5, 12)
    x[60:70] = x[:10]
    references = as_vectors(x, "x")
    queries = as_vectors(x[:40] + 0.1, "q") if with_gallery else references
    query_labels = labels[:40] if with_gallery else labels
    expected = by_definition(queries, references, query_labels, labels)
    for depth, first_depth in ((4, 4), (9, 30)):
        found = places_at(queries, references, query_labels, labels, depth, first_depth)
        assert bool(found.settled.all()) or block < 2048
        kept = found.settled.tolist()
        got, want = found_in(found, depth, first_depth), cut(expected, depth, first_depth)
        assert [g for g, k in zip(got, kept, strict=True) if k] == [w for w, k in zip(want, kept, strict=True) if k]
        assert sum(kept) > len(kept) / 2


@pytest.mark.usefixtures("product")
def test_ties_go_by_index_however_products_are_rounded(monkeypatch, by_definition):
    """Coordinates of -1, 0 and 1: half of all comparisons are ties, and every product is off by what it may be."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(-1, 2, (160, 3), generator=generator).float()
    labels = torch.arange(40).repeat(4)
    vectors = as_vectors(x, "x")
    monkeypatch.setattr(places, "MOST_COMPARED", 10_000)
    monkeypatch.setitem(places.BLOCK, "cpu", 48)
    exact = places.Product.of

    def off(self, rows, columns):
        out = exact(self, rows, columns).float()
        noise = torch.rand(out.shape, generator=generator).mul_(2).sub_(1)
        limit = (self.error(out).float() - out.abs() * self.relative) * 0.5
        return (out + noise * limit).to(self.queries.dtype)

    monkeypatch.setattr(places.Product, "of", off)
    found = places_at(vectors, vectors, labels, labels, 40, 40)
    assert found_in(found, 40, 40) == cut(by_definition(vectors, vectors, labels, labels), 40, 40)


@pytest.mark.usefixtures("product")
def test_a_guess_that_was_too_high_leaves_queries_to_be_ranked(monkeypatch):
    x, labels = clusters(60, 5, 12, spread=4.0)
    honest = retrieval_scores(x, labels, recall_at=(1, 20), ndcg_at=(10,))
    monkeypatch.setitem(places.BLOCK, "cpu", 32)
    monkeypatch.setattr(places, "places_for_sure", lambda depth, sampled: torch.ones_like(depth))
    vectors = as_vectors(x, "x")
    settled = places_at(vectors, vectors, labels, labels, 10, 20).settled
    assert 0 < int(settled.sum()) < len(settled)
    assert retrieval_scores(x, labels, recall_at=(1, 20), ndcg_at=(10,)) == honest


def test_vectors_that_are_all_alike_are_left_to_ranking():
    x, labels = torch.ones(400, 8), torch.arange(200).repeat(2)
    vectors = as_vectors(x, "x")
    assert places_at(vectors, vectors, labels, labels, 10, 10) is None


@pytest.mark.parametrize("threads", [1, 3])
def test_scores_do_not_depend_on_threads_blocks_or_products(monkeypatch, threads):
    x, labels = clusters(200, 4, 24, spread=2.0)
    keys = {"recall_at": (1, 10, 100), "ndcg_at": (5, 40), "map_at": (10,), "precision_at": (3,)}
    expected = retrieval_scores(x, labels, **keys)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for half in (False, True):
            monkeypatch.setattr(places, "half_pays", lambda half=half: half)
            for block in (37, 300, 2048):
                monkeypatch.setitem(places.BLOCK, "cpu", block)
                assert retrieval_scores(x, labels, **keys) == expected
        with torch.inference_mode():
            assert retrieval_scores(x.clone(), labels, **keys) == expected
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def test_allowing_reduced_precision_changes_nothing():
    x, labels = clusters(50, 4, 24)
    expected = retrieval_scores(x, labels)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        assert retrieval_scores(x, labels) == expected
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.gpu
def test_places_on_cuda_are_those_of_the_cpu(monkeypatch):
    x, labels = clusters(400, 5, 64, spread=2.0)
    x[500:600] = x[:100]
    here, there = as_vectors(x, "x"), as_vectors(x.cuda(), "x")
    monkeypatch.setitem(places.BLOCK, "cuda", 256)
    on_cpu, on_cuda = (places_at(vectors, vectors, labels, labels, 20, 100) for vectors in (here, there))
    assert bool(on_cpu.settled.all())
    assert bool(on_cuda.settled.all())
    assert found_in(on_cpu, 20, 100) == found_in(on_cuda, 20, 100)


@pytest.mark.gpu
def test_a_memory_mapped_file_is_scored_on_the_device_that_is_asked_for(tmp_path):
    x, labels = clusters(400, 5, 64, spread=2.0)
    np.save(tmp_path / "x.npy", x.numpy())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert retrieval_scores(mapped, labels, device="cuda") == retrieval_scores(x, labels)


@pytest.mark.parametrize("pays", [True, False])
def test_products_are_in_half_precision_where_that_pays_and_true_ones_are_few(monkeypatch, pays):
    asked = []
    for name in ("half", "single"):
        made = getattr(places.Product, name)
        monkeypatch.setattr(places.Product, name, lambda *of, name=name, made=made: asked.append(name) or made(*of))
    monkeypatch.setattr(places, "half_pays", lambda: pays)
    x, labels = clusters(30, 5, 12)
    vectors = as_vectors(x, "x")
    places_at(vectors, vectors, labels, labels, 4, 4)
    monkeypatch.setattr(places, "MOST_TRUE_IN_HALF", 3)
    places_at(vectors, vectors, labels, labels, 4, 4)
    assert asked == ["half" if pays else "single", "single"]


@pytest.mark.usefixtures("product")
@pytest.mark.parametrize("block", [64, 16384])
def test_collapsed_vectors_are_given_up_before_too_many_are_compared_by_the_definition(monkeypatch, block):
    """On a GPU one product holds all pairs, and each of them has all of a class within the margin: 60 GB on CUB."""
    monkeypatch.setattr(places, "_block", lambda count, device: block)
    x, labels = clusters(20, 30, 16)
    compared, exact = [], places._Tally._by_definition

    def by_definition(self, query, *others):
        compared.append(len(query))
        return exact(self, query, *others)

    monkeypatch.setattr(places._Tally, "_by_definition", by_definition)
    vectors = as_vectors(1.0 + 1e-6 * x, "x")
    assert places_at(vectors, vectors, labels, labels, 29, 29) is None
    assert sum(compared) <= places.MOST_COMPARED * len(x)
