from __future__ import annotations

import json
from pathlib import Path

import pytest

from nearkin.errors import MissingExtraError
from nearkin.recipe import Recipe, fingerprint
from nearkin.runs import folder as run_folder
from nearkin.runs.folder import data_name, default_folder, own_photos_recipe
from nearkin.training.recipe_check import load_recipe


def test_the_name_says_data_loss_and_method_and_ends_with_the_hash(photos):
    assert default_folder(Recipe()) == Path(f"runs/glyphs-proxy_anchor-{fingerprint(Recipe())}")
    changes = ("objective.name=contrastive", "method.name=ccp", f"data.source={json.dumps(str(photos))}")
    ccp = load_recipe({}, changes)
    assert default_folder(ccp).name == f"own photos-contrastive-ccp-{fingerprint(ccp)}"
    assert data_name(load_recipe({}, ["data.source=lists/birds.csv"])) == "birds"
    assert data_name(load_recipe({}, ["data.source=/"])) == "data"


def test_with_the_extra_a_pretrained_network_is_taken():
    said = []
    recipe = own_photos_recipe("my photos/2024", ["training.epochs=3"], say=said.append)
    assert recipe.encoder.backbone == "efficientnet_lite0"
    assert recipe.encoder.weights == "imagenet"
    assert recipe.data.source == "my photos/2024"
    assert recipe.training.epochs == 3
    assert recipe.protocol.name == "validation"
    (line,) = said
    assert "efficientnet_lite0" in line
    assert "timm/vit_tiny" in line


def test_without_it_a_small_one_and_a_line_that_says_so(monkeypatch):
    def missing(module, extra):
        raise MissingExtraError(f"pip install 'nearkin[{extra}]'")

    monkeypatch.setattr(run_folder, "require", missing)
    said = []
    recipe = own_photos_recipe("photos", say=said.append)
    assert recipe.encoder.backbone == "small"
    assert recipe.encoder.weights is None
    assert len(said) == 1
    assert "nearkin[lite]" in said[0]


def test_a_backbone_by_name_comes_with_its_weights():
    said = []
    recipe = own_photos_recipe("photos", backbone="dinov2_small", say=said.append)
    assert recipe.encoder.weights == "hub:timm/vit_small_patch14_dinov2.lvd142m"
    assert recipe.training.layer_decay < 1
    assert own_photos_recipe("photos", backbone="efficientnet_lite0", say=said.append).encoder.weights == "imagenet"
    assert said == []
    assert own_photos_recipe("photos", backbone="resnet50", say=said.append).encoder.weights is None
    assert "random" in said[0]


def test_a_wrong_key_is_still_refused():
    with pytest.raises(ValueError, match="did you mean 'epochs'"):
        own_photos_recipe("photos", ["training.epocs=3"], say=lambda _: None)
