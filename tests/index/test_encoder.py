"""Whose vectors an index holds: another encoder is refused, and one that has moved is asked for."""

from __future__ import annotations

import numpy as np
import pytest

from nearkin.errors import DataError
from nearkin.index import Index


@pytest.fixture
def folder(tmp_path, images, model):
    Index.create(tmp_path / "index", model).add(images)
    return tmp_path / "index"


def test_another_encoder_is_refused(folder, stand_in):
    with pytest.raises(DataError, match=r"made with another encoder than .* the run that made this one \(nowhere\)"):
        Index.open(folder, stand_in("another"))


def test_an_encoder_that_is_not_where_it_was_is_asked_for_once_it_is_needed(folder):
    index = Index.open(folder)
    assert index.search(0, k=1), "what needs no encoder works without"
    with pytest.raises(DataError, match=r"cannot be loaded: there is no run folder .*--run RUN"):
        index.search(np.zeros((4, 4, 3), np.uint8))
