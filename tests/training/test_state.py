"""The state of a run: what methods see of its images."""

from __future__ import annotations

import numpy as np
import torch

from nearkin.evaluation import retrieval_scores
from nearkin.training.memory import place_images


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


def test_what_is_scored_has_crops_of_its_own_and_mirror_images(state_for):
    """By hand, crop by crop; twice, as the second time the crops are kept."""
    state = state_for("protocol.flip=true", "protocol.eval_size=48", "protocol.test_share=0.6", "encoder.dim=2")
    place_images(state)
    rows, encoder = state.protocol.test.query, state.encoder.eval()
    assert (state.transform.size, state.eval_transform.size, state.eval_transform.resize) == (32, 48, 55)
    crops = np.stack([state.eval_transform.evaluate(state.data.images[row]) for row in rows.tolist()])
    assert crops.shape[1:] == (48, 48, 3)
    with torch.no_grad():
        both = encoder(torch.from_numpy(crops)) + encoder(torch.from_numpy(crops[:, :, ::-1].copy()))
    expected = retrieval_scores(torch.nn.functional.normalize(both), state.table.labels[rows])
    assert expected["MAP@R"] < 1
    for _ in range(2):
        assert state.score(state.protocol.test)["MAP@R"] == expected["MAP@R"]
    assert next(iter(state.crop_cache._stored.values())).shape[1] == 48


def test_methods_look_at_training_images_as_before(state_for):
    plain, other = state_for(), state_for("protocol.flip=true", "protocol.eval_size=48")
    rows = np.arange(6)
    torch.testing.assert_close(plain.train_set.embed(rows), other.train_set.embed(rows), rtol=0, atol=0)
    assert torch.equal(plain.train_set.pixels(rows), other.train_set.pixels(rows))
