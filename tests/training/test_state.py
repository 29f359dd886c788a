"""The state of a run: what methods see of its images."""

from __future__ import annotations

import numpy as np
import torch


def test_the_training_set_counts_the_images_that_train(state_for):
    state = state_for()
    places = state.protocol.train_rows
    rows = np.array([5, 0, len(places) - 1])
    assert not np.array_equal(places[rows], rows), "test classes stand between them"
    images = state.train_set
    assert len(images) == len(places) == len(state.labels)
    assert images.ids(rows) == [state.table.ids[row] for row in places[rows]]
    assert np.array_equal(images[5], state.data.images[int(places[5])])
    torch.testing.assert_close(images.embed(rows), state.embed(places[rows]))
    crops = np.stack([state.transform.evaluate(state.data.images[row]) for row in places[rows].tolist()])
    assert np.array_equal(images.pixels(rows).numpy(), crops)
    names = [state.table.class_names[state.table.labels[row]] for row in places]
    assert [sorted(set(names)).index(name) for name in names] == state.labels.tolist()
