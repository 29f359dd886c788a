"""CCP's figure 2, small: ten digits in two dimensions, and the covering radius that the sub-problems bring down."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from nearkin.runs.folder import RunFolder
from nearkin.studies import study as study_module
from nearkin.studies.reproduce.digits import (
    FILE,
    MomentRecorder,
    draw_digits,
    load_moments,
    with_digits,
    write_digits,
)
from nearkin.studies.reproduce.papers import find_item, tables_of
from nearkin.studies.reproduce.rows import Settings
from nearkin.studies.study import PlannedRun, Row, run_all
from nearkin.training.recipes import load_recipe


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """The study with a small network on digits of 16 pixels: about three seconds."""
    root = tmp_path_factory.mktemp("digits")
    images = write_digits(root / "digits", drawings=4, size=16, strength=0.25)
    recipe = load_recipe(
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
            "training.head_lr_multiplier=1",
            "training.device=cpu",
        ],
    )
    row = Row("digits", "Digits", recipe, watched_by=MomentRecorder)
    planned = PlannedRun(row, recipe.training.seed, RunFolder(root / "run"))
    (outcome,) = run_all([planned], jobs=2)  # in this process all the same, where the recorder is
    assert outcome.status == "finished", outcome.reason
    return planned, load_moments(planned.folder.path / FILE)


def test_the_covering_radius_falls(study):
    _, moments = study
    assert [(moment.problem, moment.step) for moment in moments] == [(0, 0), (1, 60), (2, 120), (3, 180)]
    radii = [moment.relative_radius for moment in moments]
    # Measured with four seeds: from 0.33–0.45 before training to 0.04–0.06.
    assert radii[-1] < radii[0] / 3
    assert radii[-1] < radii[1]
    assert moments[-1].map_at_r > 3 * moments[0].map_at_r


def test_proxies_come_together_and_are_spread_out_anew(study):
    _, moments = study
    for moment in moments[2:]:
        ended, begun = (each.reshape(10, 4, 2) for each in (moment.ended, moment.begun))
        assert np.linalg.norm(ended, axis=2).max() <= 1.0 + 1e-6, "proxies lie in the ball"
        spread = [np.linalg.norm(each - each.mean(1, keepdims=True), axis=2).mean() for each in (ended, begun)]
        assert spread[1] > 2 * spread[0], "k-centre takes images that lie apart"


def test_a_finished_study_is_kept(study, monkeypatch):
    planned, moments = study
    monkeypatch.setattr(study_module, "run", lambda *_, **__: pytest.fail("finished runs are kept"))
    run_all([planned])
    again = load_moments(planned.folder.path / FILE)
    assert [moment.covering_radius for moment in again] == [moment.covering_radius for moment in moments]
    np.testing.assert_array_equal(again[2].ended, moments[2].ended)
    assert planned.folder.scores().conditions.protocol == "in-distribution"


def test_an_interrupted_study_begins_anew_as_its_moments_would_have_a_gap(study, tmp_path, monkeypatch):
    planned, _ = study
    given = []
    monkeypatch.setattr(study_module, "run", lambda *_, resume, overwrite, **__: given.append((resume, overwrite)))
    for begun in (False, True):
        folder = RunFolder(tmp_path / "run")
        assert folder.is_begun is begun
        run_all([PlannedRun(planned.row, planned.seed, folder)])
        folder.begin(planned.recipe)
    assert given == [(False, False), (False, True)]


def test_every_turn_has_a_panel(study, tmp_path):
    _, moments = study
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
