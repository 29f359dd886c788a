"""What can be refused before an image is read is refused, for one run and for many."""

from __future__ import annotations

import pytest
import torch

from nearkin.errors import MissingExtraError, NearkinError, RecipeError
from nearkin.recipe import Recipe
from nearkin.runs import admission
from nearkin.runs.admission import admit, admit_all

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
        ("encoder.weights=imagenet", r"encoder\.weights=imagenet, and backbone 'small' does not bring"),
        ("encoder.backbone=smal", "unknown backbone 'smal'; did you mean 'small'"),
        ("encoder.pooling=mean", "unknown pooling 'mean'"),
        ("training.micro_batch=4", r"training\.micro_batch=4 would give .*set encoder\.freeze_batch_norm=true"),
    ],
)
def test_a_recipe_that_no_run_could_follow(override, error):
    good, bad = Recipe.from_mapping(SMALL), Recipe.from_mapping(SMALL, [override])
    admit(good)
    with pytest.raises(NearkinError, match=error) as raised:
        admit(bad)
    assert raised.value.exit_code in (2, 3)
    with pytest.raises(type(raised.value), match=rf"^row 'b': .*({error})"):
        admit_all({"row 'a'": good, "row 'b'": bad})


def test_a_look_at_the_backbone_takes_no_random_numbers():
    admission._admit_backbone.cache_clear()
    before = torch.get_rng_state()
    admission._admit_backbone("small", "{}", False)
    assert torch.equal(torch.get_rng_state(), before)


def test_weights_that_only_an_extra_brings_are_left_for_the_run_to_miss(monkeypatch):
    class Bare(torch.nn.Module):
        def imagenet_weights(self):
            raise MissingExtraError("this needs 'x'")

    admission._admit_backbone.cache_clear()
    monkeypatch.setattr(admission, "build_backbone", lambda name, options, **_: Bare())
    admit(Recipe.from_mapping(SMALL, ["encoder.weights=imagenet"]))
    admission._admit_backbone.cache_clear()
    monkeypatch.setattr(Bare, "imagenet_weights", lambda self: None)
    with pytest.raises(RecipeError, match="does not bring ImageNet weights"):
        admit(Recipe.from_mapping(SMALL, ["encoder.weights=imagenet"]))
    admission._admit_backbone.cache_clear()
