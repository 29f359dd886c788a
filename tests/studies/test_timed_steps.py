"""A run's time from a few timed steps; the clock is replaced, so that the sums can be checked."""

from __future__ import annotations

import pytest

from nearkin.errors import DataError
from nearkin.recipe import Recipe
from nearkin.studies import timed_steps
from nearkin.studies.timed_steps import counted_up, run_seconds

TINY = {
    "data": {"transform": "mild", "image_size": 8, "workers": 1, "shorter_side": 16},
    "encoder": {"backbone": "small", "dim": 4},
    "training": {"epochs": 5, "batch_size": 8, "device": "cpu"},
    "protocol": {"name": "validation", "test_share": 0.35},
}


def recipe(photos, *overrides):
    return Recipe.from_mapping(TINY, [f"data.source={photos}", *overrides])


def test_steps_and_evaluations_are_counted_as_the_recipe_has_them(photos, monkeypatch):
    monkeypatch.setattr(timed_steps, "_timed", lambda state, images, steps: images / 4)
    monkeypatch.setattr(timed_steps, "_evaluation_seconds", lambda state, part: len(part.rows) if part else 0)
    # Six kinds of eight images: two are tested, four are too few to hold any out; four batches of eight an epoch.
    assert run_seconds(recipe(photos)) == 5 * 4 * 2.0 + 2 * 16
    conventional = recipe(photos, "protocol.name=conventional")
    assert run_seconds(conventional) == 5 * 4 * 2.0 + (1 + 5) * 16 + 16
    assert run_seconds(recipe(photos, "training.max_steps=3", "training.batch_size=16")) == 3 * 4.0 + 2 * 16


def test_a_long_step_is_counted_up_from_fewer_images():
    asked = []

    def seconds(images):
        asked.append(images)
        return 0.5 + images

    assert counted_up(seconds, 6) == 6.5
    assert asked == [2, 6], "short enough to be timed whole"
    asked.clear()
    assert counted_up(seconds, 1000) == pytest.approx(1000.5)
    assert asked == [2, 8]
    asked.clear()
    assert counted_up(lambda images: asked.append(images) or 3.0, 100) == 3.0
    assert asked == [2, 8, 32, 100], "as long as it takes no longer"


@pytest.mark.parametrize("sampler", ["random", "balanced"])
def test_real_steps_are_taken_and_nothing_is_decoded_or_written(photos, tmp_path, monkeypatch, sampler):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEARKIN_CACHE", str(tmp_path / "cache"))
    before = sorted(tmp_path.rglob("*"))
    for file in photos.rglob("*.png"):
        file.write_bytes(b"no image")
    overrides = ["training.sampler=" + sampler, "objective.name=contrastive", "method.name=ccp"]
    assert 0 < run_seconds(recipe(photos, *overrides)) < 60
    assert sorted(tmp_path.rglob("*")) == before


def test_missing_data_are_an_error(tmp_path):
    with pytest.raises(DataError):
        run_seconds(recipe(tmp_path / "nowhere"))
