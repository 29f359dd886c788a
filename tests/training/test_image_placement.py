from __future__ import annotations

import numpy as np
import pytest
import torch

from nearkin.data.device_images import DeviceImages
from nearkin.errors import Notice, RecipeError
from nearkin.runs.folder import RunFolder
from nearkin.training import image_placement
from nearkin.training.image_placement import place_images
from nearkin.training.loop import fit
from nearkin.training.state import NullObserver

GIGABYTE = 10**9


@pytest.fixture
def on_a_gpu(state_for, monkeypatch):
    """``place(free, *overrides)``: what is decided on a CUDA device with so many bytes free; nothing runs there."""

    def place(free, *overrides):
        state = state_for(*overrides)
        state.device = torch.device("cuda")
        monkeypatch.setattr(image_placement, "free_memory", lambda device: free)
        monkeypatch.setattr(image_placement, "_needed", lambda state: GIGABYTE)
        monkeypatch.setattr(image_placement, "DeviceImages", lambda images, device, shapes: Placed(shapes))
        place_images(state)
        return state

    class Placed:
        def __init__(self, shapes):
            self.pixels = torch.empty(int(shapes.prod(axis=1).sum()), 3, dtype=torch.uint8)

    return place


def test_images_go_to_the_gpu_where_there_is_ample_room(on_a_gpu):
    with pytest.warns(Notice, match=r"^32 training images of 40 pixels .* are on cuda, which makes the crops"):
        state = on_a_gpu(2 * GIGABYTE)
    assert state.on_device.pixels.nbytes == 32 * 40 * 40 * 3
    assert state.crop_cache.budget == GIGABYTE // 8
    assert not state.room_for_graphs


def test_graphs_need_the_memory_of_a_step_once_more(on_a_gpu, recwarn):
    needed, images = int(1.5 * GIGABYTE), 32 * 40 * 40 * 3
    room = -(-4 * (needed + images) // 3)  # a quarter is for evaluation crops
    assert on_a_gpu(needed + room + 1).room_for_graphs
    assert not on_a_gpu(needed + room - 8).room_for_graphs


def test_images_stay_with_the_loader_where_they_would_take_much(on_a_gpu):
    with pytest.warns(Notice, match=r"stay with the loader, as cuda has 0\.0 GB .* \(data\.cache=disk\)"):
        state = on_a_gpu(int(1.5 * GIGABYTE) + 3 * 32 * 40 * 40 * 3)
    assert state.on_device is None
    assert state.crop_cache.budget == 3 * 32 * 40 * 40 * 3 // 4


def test_asked_for_they_may_take_all_that_there_is_and_no_more(on_a_gpu):
    needed = 32 * 40 * 40 * 3
    with pytest.warns(Notice, match="are on cuda"):
        state = on_a_gpu(int(1.5 * GIGABYTE) + needed, "data.cache=device")
    assert state.on_device is not None
    assert state.crop_cache.budget == 0
    with pytest.raises(
        RecipeError, match=r"data\.cache=device: 32 training images .* do not fit on cuda, which has 0\.0"
    ):
        on_a_gpu(int(1.5 * GIGABYTE) + needed - 1, "data.cache=device")


@pytest.mark.parametrize("cache", ["disk", "memory"])
def test_who_names_another_place_gets_it(on_a_gpu, recwarn, cache):
    assert on_a_gpu(100 * GIGABYTE, f"data.cache={cache}").on_device is None
    assert not [each for each in recwarn if issubclass(each.category, Notice)]


def test_memory_that_is_gone_by_then(on_a_gpu, monkeypatch):
    def full(*_):
        raise torch.OutOfMemoryError("no")

    with pytest.warns(Notice, match="are on cuda"):
        state = on_a_gpu(100 * GIGABYTE)
    monkeypatch.setattr(image_placement, "DeviceImages", full)
    with pytest.warns(Notice, match="another program took the memory of cuda"):
        place_images(state)
    assert state.on_device is None


def test_on_a_cpu_the_loader_crops_and_evaluation_crops_take_little(state_for, monkeypatch, recwarn):
    state = state_for()
    monkeypatch.setattr(image_placement, "free_memory", lambda device: 16 * GIGABYTE)
    place_images(state)
    assert state.on_device is None
    assert state.crop_cache.budget == GIGABYTE
    with pytest.raises(RecipeError, match="keeps images on a CUDA device, not on cpu"):
        place_images(state_for("data.cache=device"))
    monkeypatch.setattr(image_placement, "free_memory", lambda device: None)
    place_images(state)
    assert state.crop_cache.budget == 0
    assert not [each for each in recwarn if issubclass(each.category, Notice)]


def test_what_a_step_needs_grows_with_the_batch(state_for):
    few, many = (image_placement._needed(state_for(f"training.batch_size={count}")) for count in (4, 32))
    assert 0 < few < many


def test_a_whole_run_with_images_on_the_device(state_for, tmp_path, monkeypatch):
    """The same curve as with the loader: landscape or square images are cropped to the bit alike."""
    losses = []
    for placed in (False, True):
        state = state_for("training.max_steps=3")

        def place(state=state, placed=placed):
            place_images(state)
            state.on_device = DeviceImages(state.train_set, state.device) if placed else None

        monkeypatch.setattr("nearkin.training.loop.place_images", lambda _, place=place: place())
        fit(state, RunFolder(tmp_path / str(placed)).begin(state.recipe), NullObserver())
        losses.append([row["loss"] for row in state.history if "loss" in row])
        assert (state.on_device is not None) == placed
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_methods_get_crops_from_the_device(state_for):
    state = state_for()
    rows = np.array([5, 0, 5, 31])
    expected, embedded = state.train_set.pixels(rows), state.train_set.embed(rows)
    state.on_device = DeviceImages(state.train_set, state.device)
    assert (state.train_set.pixels(rows).int() - expected.int()).abs().max() <= 2
    assert torch.allclose(state.train_set.embed(rows), embedded, atol=0.05)


@pytest.mark.gpu
@pytest.mark.parametrize("cache", ["auto", "device", "disk"])
def test_on_a_gpu_a_run_goes_through(state_for, tmp_path, cache):
    state = state_for("training.device=cuda", f"data.cache={cache}")
    if cache == "disk":
        fit(state, RunFolder(tmp_path / "run").begin(state.recipe), NullObserver())
    else:
        with pytest.warns(Notice, match="are on cuda, which makes the crops"):
            fit(state, RunFolder(tmp_path / "run").begin(state.recipe), NullObserver())
    assert (state.on_device is None) == (cache == "disk")
    assert state.step == state.total_steps
