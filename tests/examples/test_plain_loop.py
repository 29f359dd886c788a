"""The plain loop gives the curve of the package's own loop."""

from __future__ import annotations

import re

import pytest
import torch

from nearkin.data.cache import open_images
from nearkin.encoders.architectures.small import Small
from nearkin.runs.folder import RunFolder
from nearkin.training.build import build_state
from nearkin.training.loop import fit
from nearkin.training.recipe_check import load_recipe
from nearkin.training.state import Observer

STEPS = 12
TOLERANCE = 1e-8
"""A last bit in every weight moves the curve by 1e-15 of it, twice the weight decay by 7e-7."""


@pytest.fixture
def double_precision(monkeypatch):
    """In single precision the order of a sum sets two runs apart (see tests/contracts/test_golden_curves.py)."""
    forward = Small.forward
    monkeypatch.setattr(Small, "forward", lambda self, images: forward(self, images.double()))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def curve_of_the_package(recipe, table, folder):
    values = []

    class Recorder(Observer):
        def on_step(self, state, loss, images):
            values.append(loss)

    fit(build_state(recipe, open_images(table, cache_dir=None)), RunFolder(folder).begin(recipe), Recorder())
    return values


def test_the_curve_is_that_of_the_command_in_its_header(example, share_of_glyphs, double_precision, tmp_path, capsys):
    loop = example("plain_loop")
    command = re.search(r"^ +nearkin train (.*?)\n\n", loop.__doc__, flags=re.M | re.S).group(1)
    name, *changes = command.replace("\\\n", " ").split()
    changes += [f"training.max_steps={STEPS}", "training.batch_size=32", "training.device=cpu", "data.image_size=24"]
    recipe = load_recipe(name, changes)
    expected = curve_of_the_package(recipe, share_of_glyphs, tmp_path / "run")
    _, curve = loop.train(share_of_glyphs.split("train"), steps=STEPS, batch_size=32)
    assert curve == pytest.approx(expected, rel=TOLERANCE)
    assert f"loss {curve[0]:.3f}" in capsys.readouterr().out


def test_it_learns(example, few_glyphs):
    loop = example("plain_loop")
    untrained, trained = (loop.main(["--steps", str(steps)]) for steps in (0, 25))
    assert trained > untrained
