"""What every method promises the loop. That a run killed and resumed goes on bit for bit is in test_resume.py."""

from __future__ import annotations

import io
import json
import math
import re
from typing import get_type_hints

import numpy as np
import pytest
import torch

from nearkin.catalogue import keyword_options
from nearkin.data.cache import open_images
from nearkin.data.table import ImageTable
from nearkin.errors import RecipeError
from nearkin.runs.folder import RunFolder
from nearkin.training import methods
from nearkin.training.build import build_state
from nearkin.training.loop import fit
from nearkin.training.recipe_check import load_recipe
from nearkin.training.state import Observer

RECIPE = {
    "data": {"transform": "digits", "image_size": 8, "workers": 1},
    "encoder": {"backbone": "small", "dim": 6, "options": {"width": 4}},
    "training": {
        "epochs": 50,
        "max_steps": 6,
        "evaluate_every_steps": 3,
        "batch_size": 8,
        "sampler": "balanced",
        "images_per_class": 2,
        "learning_rate": 1e-3,
        "device": "cpu",
        "precision": "float32",
    },
    "protocol": {"name": "validation"},
}
MEMBERS = {
    "plain": ["objective.name=proxy_anchor"],
    "ccp": ["objective.name=contrastive", "method.steps_per_problem=2", "method.proxies_per_class=2"],
    "profs": ["objective.name=contrastive", "method.steps_per_projection=2", "method.hard_negative_classes=true"],
    "momentum": ["objective.name=momentum_proxy_anchor", "objective.queue_size=20"],
    "proxy_updates": ["objective.name=proxy_anchor", "method.updates=3"],
}


@pytest.fixture(params=sorted(methods.catalogue()))
def name(request):
    assert request.param in MEMBERS, "a new method needs a line in MEMBERS"
    return request.param


def recipe_of(name, *overrides):
    return load_recipe(RECIPE, [f"method.name={name}", *MEMBERS[name], *overrides])


def state_of(recipe):
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(12), 4)
    pixels = (rng.normal(128, 60, (12, 8, 8))[labels] + rng.normal(0, 25, (48, 8, 8))).clip(0, 255).astype(np.uint8)
    splits = np.select([labels < 6, labels < 9], ["train", "validation"], "test").tolist()
    table = ImageTable.build("toy", pixels, [f"class {label}" for label in labels], splits=splits)
    return build_state(recipe, open_images(table, cache_dir=None))


class Recorder(Observer):
    def __init__(self):
        self.losses = []

    def on_step(self, state, loss, images):
        self.losses.append(loss)


def trained(recipe, folder):
    state, recorder = state_of(recipe), Recorder()
    fit(state, RunFolder(folder).begin(recipe), recorder)
    return state, recorder.losses


def test_options_have_types_and_are_explained(name):
    method = methods.catalogue()[name]
    hints = get_type_hints(method.__init__)
    for option in keyword_options(method):
        assert option in hints, option
        assert re.search(rf"^ +{option}: ", method.__doc__ or "", flags=re.M), f"{option} is not in the docstring"


def test_a_recipe_that_suits_it_is_admitted_and_a_misspelt_option_is_not(name):
    methods.catalogue()[name].check(recipe_of(name))
    with pytest.raises(RecipeError, match=r"unknown key 'method\.no_such_option'"):
        recipe_of(name, "method.no_such_option=1")


def test_it_trains_and_leaves_a_record_that_can_be_read(name, tmp_path):
    state, losses = trained(recipe_of(name), tmp_path / "run")
    assert len(losses) == 6
    assert all(map(math.isfinite, losses))
    assert all(parameter.isfinite().all() for parameter in state.encoder.parameters())
    events = json.loads(json.dumps(list(state.method.events)))
    assert all({"step", "kind"} <= set(event) for event in events)
    assert all(0 <= event["step"] <= 6 for event in events)


def test_the_same_recipe_takes_the_same_course(name, tmp_path):
    assert trained(recipe_of(name), tmp_path / "a")[1] == trained(recipe_of(name), tmp_path / "b")[1]
    assert trained(recipe_of(name, "training.seed=1"), tmp_path / "c")[1] != trained(recipe_of(name), tmp_path / "d")[1]


def test_its_state_is_saved_without_code_and_taken_back_whole(name, tmp_path):
    state, _ = trained(recipe_of(name), tmp_path / "run")
    file = io.BytesIO()
    torch.save(state.method.state_dict(), file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    fresh = state_of(recipe_of(name))
    fresh.method.load_state_dict(saved)
    assert same(fresh.method.state_dict(), saved)


def same(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
