"""What a run is built of is what its recipe names, and the seed decides all that is random in it."""

from __future__ import annotations

import pytest
import torch

from nearkin.errors import DataError, RecipeError, notices_to
from nearkin.losses import catalogue
from nearkin.recipe import DataSection, EncoderSection
from nearkin.samplers import BalancedSampler, ClassRepresentativeSampler, RandomSampler
from nearkin.training.build import build_objective, data_of, encoder_from, eval_transform_of, transform_of
from nearkin.training.methods.profs import Profs
from nearkin.training.recipes import load_recipe


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
    assert built({"name": "proxy_isa"}).memory_size == 77
    assert built({"name": "proxy_isa", "memory_size": 9}).memory_size == 9
    assert built({"name": "mpa", "weighting": {"hardness": 0.3}}).weighting.memory_size == 77
    assert built({"name": "mpa", "weighting": {"hardness": 0.3}}).weighting.hardness == 0.3
    assert built({"name": "mpa"}).weighting is None


@pytest.mark.parametrize(
    ("objective", "penalties"),
    [
        ({"name": "proxy_isa"}, ("none", "none")),
        ({"name": "proxy_isa", "negative_penalty": "effective"}, ("none", "effective")),
        ({"name": "proxy_isa", "as_released": True}, ("sigma", "effective")),
        ({"name": "mpa", "weighting": {}}, ("none", "none")),
        ({"name": "mpa", "weighting": {"positive_penalty": "nu"}}, ("nu", "none")),
        ({"name": "mpa", "weighting": {"as_released": True}}, ("sigma", "effective")),
    ],
)
def test_isas_penalties_are_off_where_nothing_is_said(objective, penalties):
    weighting = built(objective).weighting
    assert (weighting.positive_penalty, weighting.negative_penalty) == penalties


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ([], "objective.negative_penalty=effective objective.positive_penalty=sigma"),
        (["objective.positive_penalty=none"], "ISA trains without its negative_penalty: "),
        (["objective.positive_penalty=sigma", "objective.negative_penalty=effective"], None),
        (["objective.as_released=true"], None),
        (["objective.name=proxy_anchor"], None),
        (["objective.name=mpa", "objective.weighting=isa"], "objective.weighting.negative_penalty=effective"),
        (["objective.name=mpa"], None),
    ],
)
def test_it_is_said_that_isas_penalties_are_off(state_for, overrides, said):
    heard = []
    with notices_to(heard.append):
        state_for("objective.name=proxy_isa", *overrides)
    told = [each for each in heard if each.startswith("ISA ")]
    assert len(told) == (said is not None)
    assert said is None or said in told[0]


def test_what_is_erased_has_the_mean_colour_of_the_backbone(state_for):
    state = state_for("data.random_erasing=0.3", "encoder.backbone=resnet18")
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
