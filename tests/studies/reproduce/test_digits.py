"""CCP's figure 2, small: ten digits in two dimensions, and the covering radius that the sub-problems bring down."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from nearkin.recipe import Recipe
from nearkin.runs.folder import RunFolder
from nearkin.studies.reproduce.digits import draw_digits, load_moments, run_digits, with_digits, write_digits
from nearkin.studies.reproduce.papers import find_item, tables_of
from nearkin.studies.reproduce.rows import Settings
from nearkin.training.state import Silent


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """The study with a small network on digits of 16 pixels: about three seconds."""
    root = tmp_path_factory.mktemp("digits")
    images = write_digits(root / "digits", drawings=4, size=16, strength=0.25)
    recipe = Recipe.load(
        "ccp/digits_proxies",
        [
            f"data.source={images}",
            "data.image_size=16",
            "data.workers=1",
            "data.cache=memory",
            "encoder.backbone=small",
            "encoder.pooling=avg+max",
            "encoder.options.width=16",
            "method.steps_per_problem=60",
            "training.evaluate_every_steps=60",
            "training.max_steps=180",
            "training.head_multiplier=1",
            "training.device=cpu",
        ],
    )
    folder = RunFolder(root / "run")
    return folder, run_digits(recipe, folder, Silent()), recipe


def test_the_covering_radius_falls(study):
    _, moments, _ = study
    assert [(moment.problem, moment.step) for moment in moments] == [(0, 0), (1, 60), (2, 120), (3, 180)]
    radii = [moment.relative_radius for moment in moments]
    # Measured with four seeds: from 0.33–0.45 before training to 0.04–0.06.
    assert radii[-1] < radii[0] / 3
    assert radii[-1] < radii[1]
    assert moments[-1].map_at_r > 3 * moments[0].map_at_r


def test_proxies_come_together_and_are_spread_out_anew(study):
    _, moments, _ = study
    for moment in moments[2:]:
        ended, begun = (each.reshape(10, 4, 2) for each in (moment.ended, moment.begun))
        assert np.linalg.norm(ended, axis=2).max() <= 1.0 + 1e-6, "proxies lie in the ball"
        spread = [np.linalg.norm(each - each.mean(1, keepdims=True), axis=2).mean() for each in (ended, begun)]
        assert spread[1] > 2 * spread[0], "k-centre takes images that lie apart"


def test_a_finished_study_is_read_back(study):
    folder, moments, recipe = study
    again = run_digits(recipe, folder, None)
    assert [moment.covering_radius for moment in again] == [moment.covering_radius for moment in moments]
    np.testing.assert_array_equal(load_moments(folder.path / "moments.npz")[2].ended, moments[2].ended)
    assert folder.scores()["protocol"] == "in-distribution"


def test_every_turn_has_a_panel(study, tmp_path):
    _, moments, _ = study
    file = draw_digits(moments, tmp_path / "figure-2.png", title="digits")
    with Image.open(file) as picture:
        assert picture.width > 1000
        assert len(picture.convert("RGB").getcolors(10**6)) > 50, "classes have colours"


def test_digits_take_the_place_of_mnist_only_where_it_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr("nearkin.studies.reproduce.digits.write_digits", lambda folder: folder)
    said = []
    (table,) = tables_of(find_item("ccp/figure-2"))
    settings = with_digits(table, Settings(root=str(tmp_path)), tmp_path / "out", say=said.append)
    assert settings.stand_ins == {"mnist": str(tmp_path / "out" / "digits")}
    assert "the ten digits of Glyphs" in said[0]
    raw = tmp_path / "MNIST"
    raw.mkdir()
    for prefix in ("train", "t10k"):
        for kind in ("images-idx3", "labels-idx1"):
            (raw / f"{prefix}-{kind}-ubyte").write_bytes(b"")
    assert with_digits(table, Settings(root=str(tmp_path)), tmp_path).stand_ins == {}
    (other,) = tables_of(find_item("mpa/table-4"))
    assert with_digits(other, Settings(), tmp_path).stand_ins == {}


def test_drawn_digits_are_kept(tmp_path):
    folder = write_digits(tmp_path, drawings=1, size=16)
    files = sorted(folder.rglob("*.png"))
    assert len(files) == 10 * 16
    written = files[0].stat().st_mtime_ns
    write_digits(tmp_path, drawings=1, size=16)
    assert files[0].stat().st_mtime_ns == written
