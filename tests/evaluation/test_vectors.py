from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from nearkin.evaluation import retrieval_scores
from nearkin.evaluation.vectors import as_float64, as_gallery, as_vectors


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_memory_mapped_file_stays_where_it_is(tmp_path, dtype):
    x = np.random.default_rng(0).normal(size=(40, 6)).astype(dtype)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    labels = np.arange(10).repeat(4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vectors = as_vectors(mapped, "x")
        assert retrieval_scores(mapped, labels) == retrieval_scores(x, labels)
        assert as_vectors(mapped, "x", "meta").device.type == "meta", "the work goes where it is asked for"
    assert vectors.source.data_ptr() == mapped.ctypes.data
    assert vectors.rows(torch.tensor([3, 1])).dtype == torch.float64


@pytest.mark.parametrize("kind", [np.int32, np.float16, np.longdouble, ">f4"])
def test_every_kind_of_number_is_taken(kind):
    x = np.array([[1, 2], [3, 4], [5, 6]]).astype(kind)
    assert as_float64(x, "x").tolist() == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]


def test_parts_cover_all_rows_and_the_largest_is_a_magnitude(monkeypatch):
    monkeypatch.setattr("nearkin.evaluation.vectors._AT_ONCE", 4)
    vectors = as_vectors(torch.tensor([[1.0, -9.0], [2.0, 3.0], [0.0, 1.0]]), "x")
    assert [vectors.source[part].shape[0] for part in vectors.parts()] == [2, 1]
    assert vectors.largest() == 9.0
    with pytest.raises(ValueError, match="x must be finite, got NaN or infinity in 1 of 3 rows, first in row 2"):
        as_vectors(torch.tensor([[1.0, 1.0], [1.0, 1.0], [float("nan"), 1.0]]), "x")


def test_a_gallery_has_as_many_columns():
    with pytest.raises(ValueError, match="gallery must have 3 columns like the queries, got 2"):
        as_gallery(torch.ones(2, 2), as_vectors(torch.ones(1, 3), "queries"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_copies_are_counted(dtype):
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert as_vectors(x, "x").copies() == 1.0
    assert as_vectors(x[torch.arange(20) // 4], "x").copies() == 4.0
    assert as_vectors(x.T, "x").copies() == 1.0, "rows need not lie together"
