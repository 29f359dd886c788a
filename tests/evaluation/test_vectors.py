from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from nearkin.evaluation import retrieval_scores
from nearkin.evaluation.vectors import as_float64, as_vectors


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
    assert vectors.source.ctypes.data == mapped.ctypes.data


@pytest.mark.parametrize("kind", [np.int32, np.float16, np.longdouble, ">f4"])
def test_every_kind_of_number_is_taken(kind):
    x = np.array([[1, 2], [3, 4], [5, 6]]).astype(kind)
    assert as_float64(x, "x").tolist() == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]


def test_parts_cover_all_rows(monkeypatch):
    monkeypatch.setattr("nearkin.evaluation.vectors._AT_ONCE", 4)
    vectors = as_vectors(torch.tensor([[1.0, -9.0], [2.0, 3.0], [0.0, 1.0]]), "x")
    assert [vectors.source[part].shape[0] for part in vectors.parts()] == [2, 1]
    with pytest.raises(ValueError, match="row 2 of 3"):
        as_vectors(torch.tensor([[1.0, 1.0], [1.0, 1.0], [float("nan"), 1.0]]), "x")
