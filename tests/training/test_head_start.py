"""A projection that begins with the principal axes of the training images."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from nearkin.errors import TrainingError
from nearkin.runs.folder import RunFolder
from nearkin.training import head_start
from nearkin.training.head_start import start_head
from nearkin.training.loop import fit
from nearkin.training.state import NullObserver

PCA = "encoder.head_init=pca"


def features_of(state):
    """The backbone's pooled features of the training images, each by itself."""
    encoder = state.encoder.eval()
    crops = [torch.from_numpy(state.transform.evaluate(state.train_set[row])) for row in range(len(state.train_set))]
    with torch.no_grad():
        maps = [encoder.backbone(encoder.preprocessing(crop[None])) for crop in crops]
        return torch.cat([encoder.pooling(each) for each in maps]).double()


def captured(features, head):
    """The variance of the features along each row of the head, and the mean of what comes out of it."""
    weight, mean = head.weight.double(), features.mean(dim=0)
    directions = weight / weight.norm(dim=1, keepdim=True)
    along = (features - mean) @ directions.T
    return along.var(dim=0, unbiased=False), mean @ weight.T + head.bias.double()


def test_the_head_is_the_principal_axes_of_the_training_images(state_for):
    state, plain = state_for(PCA), state_for()
    features = features_of(state)
    start_head(state)
    weight = state.encoder.head.weight.double()
    values = torch.linalg.svdvals(features - features.mean(dim=0)) ** 2 / len(features)  # no eigenvectors
    variances, mean = captured(features, state.encoder.head)
    kept = min(len(weight), len(features) - 1)
    torch.testing.assert_close(variances[:kept], values[:kept], rtol=1e-3, atol=1e-4 * values[0].item())
    assert mean.abs().max() < 1e-4 * (features.mean(dim=0).norm() * weight.norm())
    gram = weight @ weight.T
    length = (weight.norm() ** 2 / len(weight)).item()
    torch.testing.assert_close(gram, length * torch.eye(len(weight)).double(), rtol=0, atol=1e-4 * length)
    torch.testing.assert_close(weight.norm(), plain.encoder.head.weight.double().norm(), rtol=1e-4, atol=0)


@pytest.mark.parametrize("dim", [64, 80])
def test_with_all_axes_images_are_as_near_as_their_centred_features(state_for, dim):
    state = state_for(PCA, f"encoder.dim={dim}")
    assert state.encoder.backbone.out_channels == 64
    features = features_of(state)
    start_head(state)
    found = state.train_set.embed(np.arange(len(features))).double()
    expected = nn.functional.normalize(features - features.mean(dim=0), dim=1)
    torch.testing.assert_close(found @ found.T, expected @ expected.T, rtol=0, atol=1e-3)
    assert state.encoder.head.weight.norm().item() == pytest.approx((2 * 64) ** 0.5, rel=0.1), "as a random start"


def test_a_head_without_bias_leaves_the_mean_where_it_is(state_for):
    state = state_for(PCA, "encoder.head_bias=false")
    features = features_of(state)
    start_head(state)
    assert state.encoder.head.bias is None
    weight = state.encoder.head.weight.double()
    found = ((features - features.mean(dim=0)) @ weight.T).var(dim=0)
    assert found[0] >= found[1] >= found[2]


def test_the_average_of_the_weights_begins_there_too(state_for):
    state = state_for(PCA, "training.ema_decay=0.9")
    start_head(state)
    for a, b in zip(state.encoder.head.parameters(), state.average.encoder.head.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("overrides", [[], ["encoder.head_init=glorot"], [PCA, "encoder.dim=null"]])
def test_other_heads_stay_as_they_are(state_for, overrides):
    state = state_for(*overrides)
    before = {key: value.clone() for key, value in state.encoder.state_dict().items()}
    start_head(state)
    assert all(torch.equal(before[key], value) for key, value in state.encoder.state_dict().items())


def test_it_takes_a_sample_of_many_images_and_says_how_far_it_is(state_for, monkeypatch):
    monkeypatch.setattr(head_start, "MOST_IMAGES", 5)
    state, told, embedded = state_for(PCA), [], []
    embed = state.train_set.embed
    monkeypatch.setattr(
        state.train_set, "embed", lambda rows, **options: embedded.append(rows) or embed(rows, **options)
    )
    state.watch = lambda *said: told.append(said)
    start_head(state)
    assert len(set(embedded[0].tolist())) == 5
    assert told[-1] == ("learning how the training images differ", 5, 5)


def test_a_run_begins_with_it_and_its_baseline_is_the_backbone_still(state_for, tmp_path):
    seen = []

    class Look(NullObserver):
        def on_step(self, state, loss, images):
            seen.append(state.encoder.head.weight.detach().double().clone())

    def run(*overrides):
        state = state_for(*overrides, "training.max_steps=1", "training.learning_rate=1e-9")
        folder = RunFolder(tmp_path / str(len(seen)))
        folder.begin(state.recipe)
        fit(state, folder, Look())
        return state

    ours, plain = run(PCA), run()
    assert ours.untrained == plain.untrained
    begun = state_for(PCA)
    start_head(begun)
    torch.testing.assert_close(seen[0], begun.encoder.head.weight.detach().double(), rtol=0, atol=1e-5)
    assert (seen[1] - seen[0]).norm() > 0.5 * seen[0].norm()


def test_features_that_are_not_finite_end_the_run(state_for):
    state = state_for(PCA)
    with torch.no_grad():
        next(state.encoder.backbone.parameters()).fill_(float("nan"))
    with pytest.raises(TrainingError, match="features of the training images are not finite"):
        start_head(state)
