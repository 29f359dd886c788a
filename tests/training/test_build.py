"""What a run is built of is what its recipe names, and the seed decides all that is random in it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from nearkin import losses
from nearkin.errors import DataError, RecipeError, TrainingError
from nearkin.losses import ProxyISA, ProxyISAWithoutPenalties, catalogue
from nearkin.recipe import DataSection, EncoderSection
from nearkin.runs.folder import RunFolder
from nearkin.samplers import BalancedSampler, ClassRepresentativeSampler, RandomSampler
from nearkin.training import build
from nearkin.training.build import build_objective, data_of, encoder_from, eval_transform_of, start_head, transform_of
from nearkin.training.loop import HealthCheck, fit, train_step
from nearkin.training.methods.profs import Profs
from nearkin.training.recipe_check import load_recipe
from nearkin.training.state import Observer


def start_of(state):
    return [*state.encoder.parameters(), *state.objective.parameters()], state.sampler.next_batch().tolist()


def test_the_seed_decides_the_weights_and_the_batches(state_for):
    (weights, batch), (same, same_batch), (other, other_batch) = (
        start_of(state_for(f"training.seed={seed}")) for seed in (0, 0, 1)
    )
    assert all(torch.equal(a, b) for a, b in zip(weights, same, strict=True))
    assert batch == same_batch
    assert not all(torch.equal(a, b) for a, b in zip(weights, other, strict=True))
    assert batch != other_batch


@pytest.mark.parametrize(
    ("overrides", "keeps"),
    [
        (["objective.name=n_pair", "objective.length_penalty=0.002"], True),
        (["objective.name=n_pair", "objective.length_penalty=0"], True),
        (["objective.name=n_pair"], False),
        (
            [
                *("objective.name=cross_batch_memory", "objective.size=9", "objective.warmup_steps=9"),
                *("objective.pair_loss.name=n_pair", "objective.pair_loss.length_penalty=0.002"),
            ],
            True,
        ),
    ],
)
def test_a_loss_may_train_on_vectors_of_any_length_and_scored_they_are_normalised(
    state_for, next_batch, overrides, keeps
):
    state = state_for(*overrides, "training.sampler=balanced", "training.images_per_class=2", "training.ema_decay=0.9")
    with torch.no_grad():
        state.encoder.head.bias.normal_(std=10)
    seen = []
    state.objective.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0].detach()))
    train_step(state, next_batch(state), HealthCheck(state))
    assert (seen[0].norm(dim=1).min() > 2) == keeps
    for encoder in (state.encoder, state.eval_encoder):
        lengths = state.train_set.embed(np.arange(4), encoder=encoder).norm(dim=1)
        torch.testing.assert_close(lengths, torch.ones(4))


@pytest.mark.parametrize(
    ("overrides", "sampler"),
    [
        ([], RandomSampler),
        (["training.sampler=balanced"], BalancedSampler),
        (["method.name=profs", "training.images_per_class=2"], ClassRepresentativeSampler),
    ],
)
def test_batches_are_those_of_the_recipe_unless_the_method_has_its_own(state_for, overrides, sampler):
    state = state_for(*overrides)
    assert type(state.sampler) is sampler
    assert isinstance(state.method, Profs) == (sampler is ClassRepresentativeSampler)
    assert state.step == 0


def test_what_a_method_learns_is_trained_at_the_proxies_rate(state_for):
    state = state_for("objective.name=contrastive", "method.name=ccp", "method.steps_per_problem=2")
    (proxies,) = [group["params"] for group in state.optimiser.param_groups if group["name"] == "proxies"]
    assert proxies == list(state.method.bank.parameters())


def test_an_encoder_that_a_checkpoint_fills_looks_for_no_weights():
    section = EncoderSection(weights="nowhere.pth", dim=7)
    assert encoder_from(section, pretrained=False).dim == 7
    with pytest.raises(DataError, match=r"nowhere\.pth"):
        encoder_from(section)


def test_a_transform_takes_what_the_section_sets():
    transform = transform_of(DataSection(image_size=112, crop_scale=(0.5, 1.0)))
    assert (transform.size, transform.resize, transform.scale) == (112, 128, (0.5, 1.0))
    with pytest.raises(RecipeError, match="no transform"):
        transform_of(DataSection(transform="standart"))


def built(objective, **changes):
    size = {"num_classes": 5, "dim": 4, "num_images": 77, "normalisation": "l2"} | changes
    return build_objective(load_recipe({"objective": objective}).objective, **size)


@pytest.mark.parametrize("name", sorted(catalogue()))
def test_every_loss_can_be_named_in_a_recipe(name):
    objective = {"name": name, "size": 50} if name == "cross_batch_memory" else {"name": name}
    assert isinstance(built(objective), catalogue()[name])


def test_a_pair_loss_takes_the_encoders_normalisation():
    assert built({"name": "contrastive"}, normalisation="ball").normalisation == "ball"
    assert built({"name": "contrastive", "normalisation": "l2"}, normalisation="ball").normalisation == "l2"
    wrapped = built({"name": "cross_batch_memory", "size": 50, "pair_loss": "triplet"}, normalisation="ball")
    assert wrapped.pair_loss.normalisation == "ball"


def test_a_memory_of_the_training_set_takes_its_size():
    assert built({"name": "proxy_isa"}).weighting.memory_size == 77
    assert built({"name": "proxy_isa", "memory_size": 9}).weighting.memory_size == 9
    assert built({"name": "mpa", "weighting": {"hardness": 0.3}}).weighting.memory_size == 77
    assert built({"name": "mpa", "weighting": {"hardness": 0.3}}).weighting.hardness == 0.3
    assert built({"name": "mpa"}).weighting is None


@pytest.mark.parametrize(
    ("objective", "in_python"),
    [
        ({"name": "proxy_isa"}, ProxyISA(5, 4)),
        ({"name": "proxy_isa_without_penalties"}, ProxyISAWithoutPenalties(5, 4)),
        ({"name": "proxy_isa", "as_released": True}, ProxyISA(5, 4, as_released=True)),
        ({"name": "proxy_anchor", "weighting": "isa"}, ProxyISA(5, 4)),
        ({"name": "proxy_anchor", "weighting": {"as_released": True}}, ProxyISA(5, 4, as_released=True)),
    ],
    ids=str,
)
def test_isa_in_a_recipe_has_the_defaults_of_the_class(objective, in_python):
    loss = built(objective)
    assert (loss.alpha, loss.margin) == (in_python.alpha, in_python.margin)
    names = losses.options(losses.InformativeSampleWeights).keys()
    ours, theirs = ({name: getattr(x.weighting, name) for name in names} for x in (loss, in_python))
    size = 55_000 if theirs["as_released"] else 77  # only a recipe knows how many training images there are
    assert ours == {**theirs, "memory_size": size}


def test_proxy_isa_in_a_recipe_is_the_published_loss():
    """Section 4.1 gives all of these but where the memory ends, σ and 1/E by equation (16)."""
    isa = built({"name": "proxy_isa"})
    weighting = isa.weighting
    assert (isa.alpha, isa.margin, weighting.volume, weighting.hardness) == (32, 0.1, 100, 0.15)
    assert (weighting.sensitivity, weighting.search_margin, weighting.decay) == (0.9, 0.1, 1.5)
    assert (weighting.positive_penalty, weighting.negative_penalty) == ("sigma", "effective")
    assert (weighting.memory_from, weighting.filter_from, weighting.filter_after) == (1, 2, 0)


def test_what_is_erased_has_the_mean_colour_of_the_backbone(state_for):
    state = state_for("data.random_erasing=0.3", "encoder.backbone=resnet18", "encoder.options={}")
    assert (state.transform.erase, state.transform.fill) == (0.3, (124, 116, 104))
    assert state_for().transform.erase == 0
    with pytest.raises(RecipeError, match=r"data\.random_erasing must be a probability from 0 to 1, got 2"):
        state_for("data.random_erasing=2")


@pytest.mark.parametrize(
    ("overrides", "scored", "kept"),
    [
        ([], (224, 256), 256),
        (["protocol.eval_size=288"], (288, 329), 329),
        (["data.image_size=256"], (256, 293), 293),
        (["data.image_size=256", "protocol.eval_size=224"], (224, 256), 293),
        (["data.image_size=256", "data.shorter_side=400"], (256, 293), 400),
        (["data.transform=glyphs", "protocol.eval_size=64"], (64, 64), 256),
        (["protocol.eval_scale=1.15"], (256, 293), 293),
        (["protocol.eval_scale=1.15", "data.image_size=160"], (184, 210), 256),
        (["protocol.eval_scale=1.15", "protocol.eval_size=224"], (224, 256), 256),
        (["protocol.eval_scale=0.25", "data.image_size=8"], (8, 9), 256),
        (["protocol.eval_scale=0.5"], (112, 128), 256),
    ],
)
def test_crops_keep_their_share_and_decoded_images_are_large_enough_for_them(overrides, scored, kept):
    recipe = load_recipe({}, overrides)
    transform = eval_transform_of(recipe)
    assert ((transform.size, transform.resize), data_of(recipe).shorter_side) == (scored, kept)


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


@pytest.mark.parametrize("dim", [32, 40])
def test_with_all_axes_images_are_as_near_as_their_centred_features(state_for, dim):
    state = state_for(PCA, f"encoder.dim={dim}")
    assert state.encoder.backbone.out_channels == 32
    features = features_of(state)
    start_head(state)
    found = state.train_set.embed(np.arange(len(features))).double()
    expected = nn.functional.normalize(features - features.mean(dim=0), dim=1)
    torch.testing.assert_close(found @ found.T, expected @ expected.T, rtol=0, atol=1e-3)
    assert state.encoder.head.weight.norm().item() == pytest.approx((2 * 32) ** 0.5, rel=0.1), "as a random start"


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
    for a, b in zip(state.encoder.head.parameters(), state.ema.encoder.head.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("overrides", [[], ["encoder.head_init=glorot"], [PCA, "encoder.dim=null"]])
def test_other_heads_stay_as_they_are(state_for, overrides):
    state = state_for(*overrides)
    before = {key: value.clone() for key, value in state.encoder.state_dict().items()}
    start_head(state)
    assert all(torch.equal(before[key], value) for key, value in state.encoder.state_dict().items())


def test_it_takes_a_sample_of_many_images_and_says_how_far_it_is(state_for, monkeypatch):
    monkeypatch.setattr(build, "PCA_IMAGES", 5)
    state, told, embedded = state_for(PCA), [], []
    embed = state.train_set.embed
    monkeypatch.setattr(
        state.train_set, "embed", lambda rows, **options: embedded.append(rows) or embed(rows, **options)
    )
    state.on_scoring = lambda *said: told.append(said)
    start_head(state)
    assert len(set(embedded[0].tolist())) == 5
    assert told[-1] == ("learning how the training images differ", 5, 5)


def test_a_run_begins_with_it_and_its_baseline_is_the_backbone_still(state_for, tmp_path):
    seen = []

    class Look(Observer):
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
