"""What can be refused before an image is read is refused, for one run and for many."""

from __future__ import annotations

import pytest
import torch

from nearkin.encoders.backbone import Backbone
from nearkin.encoders.preprocessing import IMAGENET
from nearkin.errors import MissingExtraError, NearkinError, RecipeError
from nearkin.training import recipe_check as recipes
from nearkin.training.recipe_check import load_recipe, validate, validate_all

SMALL = {
    "encoder": {"backbone": "small"},
    "training": {"device": "cpu"},
    "data": {"source": "no such data"},
    "objective": {"name": "proxy_anchor"},
}


@pytest.mark.parametrize(
    ("override", "error"),
    [
        ("data.transform=standart", "no transform 'standart'"),
        ("training.device=tpu", "unknown device"),
        ("training.precision=fp16", r"training\.precision=fp16 needs a GPU"),
        ("training.schedule=plateau", "plateau"),
        ("method.name=ccp", r"set method\.steps_per_problem"),
        ("objective.alpha=-1", r"objective\.alpha must be positive"),
        ("encoder.weights=nowhere.pth", r"encoder\.weights names 'nowhere\.pth', which is not a file"),
        ("encoder.weights=imagenet", r"backbone 'small' does not bring"),
        ("encoder.backbone=smal", "unknown backbone 'smal'; did you mean 'small'"),
        ("encoder.pooling=mean", "unknown pooling 'mean'"),
        ("training.micro_batch=4", r"training\.micro_batch=4 would give .*set encoder\.freeze_batch_norm=true"),
    ],
)
def test_a_recipe_that_no_run_could_follow(override, error):
    good, bad = load_recipe(SMALL), load_recipe(SMALL, [override])
    validate(good)
    with pytest.raises(NearkinError, match=error) as raised:
        validate(bad)
    assert raised.value.exit_code in (2, 3)
    with pytest.raises(type(raised.value), match=rf"^row 'b': .*({error})"):
        validate_all({"row 'a'": good, "row 'b'": bad})


def test_a_look_at_the_backbone_takes_no_random_numbers():
    before = torch.get_rng_state()
    validate(load_recipe(SMALL))
    assert torch.equal(torch.get_rng_state(), before)


def test_weights_that_only_an_extra_brings_are_left_for_the_run_to_miss(monkeypatch):
    class Bare(Backbone):
        def imagenet_weights(self):
            raise MissingExtraError("this needs 'x'")

    monkeypatch.setattr(
        recipes,
        "build_backbone",
        lambda name, options, **_: Bare(out_channels=8, input_size=32, preprocessing=IMAGENET),
    )
    validate(load_recipe(SMALL, ["encoder.weights=imagenet"]))
    monkeypatch.setattr(Bare, "imagenet_weights", lambda self: None)
    with pytest.raises(RecipeError, match="does not bring ImageNet weights"):
        validate(load_recipe(SMALL, ["encoder.weights=imagenet"]))


@pytest.mark.parametrize(
    "overrides",
    [
        ["protocol.select_by=nDCG@8"],
        ["protocol.select_by=MRR@10", "protocol.scores=[MRR@10]"],
        ["protocol.select_by=MRR@10", "protocol.scores=MRR@10"],
        ["protocol.select_by=inter_class_distance", "protocol.covering=true"],
    ],
)
def test_any_score_of_every_evaluation_may_choose_the_epoch(overrides):
    assert load_recipe({}, overrides).protocol.select_by in overrides[0]


@pytest.mark.parametrize(
    "overrides, message",
    [
        (["protocol.select_by=MRR@10"], "must be a score that is measured at every evaluation"),
        (["protocol.select_by=R@3"], "did you mean 'R@"),
        # Only at the end, so there is nothing to choose by.
        (["protocol.select_by=NMI", "protocol.clustering=true"], "measured at every evaluation"),
        # The largest would be chosen, which is the worst.
        (["protocol.select_by=covering_radius", "protocol.covering=true"], "of which more is better"),
        (["protocol.scores=[R@1, MMR@10]"], r"protocol\.scores: unknown score 'MMR@10': did you mean 'MRR@k'"),
        (["protocol.recall_at=[1, 0]"], r"protocol\.recall_at must be at least 1, got 0"),
    ],
)
def test_a_score_that_cannot_be_is_refused_with_its_key(overrides, message):
    with pytest.raises(RecipeError, match=message):
        load_recipe({}, overrides)
