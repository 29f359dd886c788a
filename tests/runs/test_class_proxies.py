from __future__ import annotations

import numpy as np
import pytest

from nearkin.report.opened_run import OpenedRun
from nearkin.runs.trained_run import proxies_of


def test_proxies_are_those_of_the_loss_with_their_classes(four_runs):
    found = proxies_of(four_runs[0], 5)
    assert len(found.names) == len(found.vectors) == len(set(found.names)) == 7
    assert np.linalg.norm(found.vectors, axis=1) == pytest.approx(1, abs=1e-5)
    run = OpenedRun(four_runs[0])
    expected = run.proxies
    names = [run.data.table.class_names[each] for each in run.training_classes]
    assert list(found.names) == names
    assert np.allclose(found.vectors, expected.vectors.flatten(0, 1).numpy(), atol=1e-6)


def test_where_there_are_none_there_are_none(four_runs, tmp_path):
    assert proxies_of(four_runs[3], 5) is None  # a loss on pairs
    assert proxies_of(four_runs[0], 6) is None
    assert proxies_of(tmp_path / "model.onnx", 5) is None
