"""Searches with expanded queries and re-ranked hits, against the same for one query by hand."""

from __future__ import annotations

import numpy as np
import pytest

from nearkin.errors import DataError, RecipeError
from nearkin.evaluation.reranking import reranked_distances
from nearkin.index import Index, search


@pytest.fixture
def index(images, model, tmp_path):
    made = Index.create(tmp_path / "i", model)
    made.add(images)
    return made


def ids(hits):
    return [hit.id for hit in hits]


def test_hits_are_ordered_by_common_neighbours(index):
    vectors = index.vectors(index.ids())
    query = vectors[3] + 0.3 * np.random.default_rng(1).normal(size=6)
    query /= np.linalg.norm(query)
    plain = index.search(query, k=20)
    near = index.vectors(ids(plain))
    ((_, distances),) = reranked_distances(query[None].astype(np.float64), near, k1=5)
    expected = [plain[place].id for place in distances[0].argsort(stable=True).tolist()]
    hits = index.search(query, k=20, rerank=5)
    assert ids(hits) == expected
    assert {hit.id: hit.score for hit in hits} == pytest.approx({hit.id: hit.score for hit in plain})


def test_pages_filters_groups_and_several_queries_go_with_it(index, monkeypatch):
    how = {"rerank": 5}
    monkeypatch.setattr(search, "RERANKED", 12)
    everything = index.search(4, k=100, **how)
    assert len(everything) == 19
    assert 4 not in ids(everything)  # an item does not find itself
    pages = [index.search(4, k=5, offset=offset, **how) for offset in (0, 5, 10, 15)]
    assert [each for page in pages for each in ids(page)] == ids(everything)
    assert index.search([4, 7], k=5, **how)[0] == everything[:5]
    assert {hit.label for hit in index.search(4, k=50, where={"label": ["kind 1"]}, **how)} == {"kind 1"}
    grouped = index.search(4, k=4, group_by="label", **how)
    assert len({hit.label for hit in grouped}) == 4
    assert grouped[0] == everything[0]
    assert 9 not in ids(index.search(like=[9], k=5, **how))


def test_beyond_the_candidates_the_plain_order_goes_on(index, monkeypatch):
    monkeypatch.setattr(search, "RERANKED", 6)
    plain, changed = ids(index.search(4, k=19)), ids(index.search(4, k=19, rerank=3))
    assert set(changed[:6]) == set(plain[:6])
    assert changed[6:] == plain[6:]


def test_an_empty_index_and_a_single_item_are_no_trouble(model, tmp_path, images):
    empty = Index.create(tmp_path / "empty", model)
    assert empty.search(np.ones(6), rerank=5) == []
    empty.add(sorted(images.rglob("*.png"))[0])
    assert len(empty.search(np.ones(6), rerank=5)) == 1


def test_what_cannot_be_is_refused(index):
    with pytest.raises(RecipeError, match="got 0"):
        index.search(1, rerank=0)


def test_an_index_refuses_the_same_run_with_other_options_and_loads_its_own(trained, photos, tmp_path):
    import nearkin

    plain, flipped = nearkin.load(trained, device="cpu"), nearkin.load(trained, device="cpu", flip=True, eval_size=40)
    made = Index.create(tmp_path / "flipped", flipped)
    made.add(photos)
    with pytest.raises(DataError, match=r"another encoder .*flip True, eval_size 40\)"):
        Index.open(tmp_path / "flipped", plain)
    opened = Index.open(tmp_path / "flipped")
    image = sorted(photos.rglob("*.png"))[0]
    assert opened.search(image, k=1)[0].score == pytest.approx(1, abs=1e-5)
    assert opened.model.identity == flipped.identity
    assert opened.status().model_options == {"flip": True, "eval_size": 40}
