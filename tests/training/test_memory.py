"""What a run needs compared with what there is, and where its images lie."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from nearkin.data.device_images import DeviceImages
from nearkin.encoders import Encoder, build_encoder
from nearkin.encoders.backbone import Backbone
from nearkin.encoders.encoder import Pool
from nearkin.encoders.preprocessing import HALF
from nearkin.errors import Notice, RecipeError
from nearkin.training import memory
from nearkin.training.folder import TrainingFolder
from nearkin.training.loop import fit
from nearkin.training.state import Observer

CPU = torch.device("cpu")


class TwoConvolutions(Backbone):
    def __init__(self):
        super().__init__(out_channels=4, input_size=32, preprocessing=HALF)
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, images):
        return self.second(self.first(images).relu())


def test_what_is_kept_by_hand():
    """The pixels (3 channels) and the map after the ReLU (8 channels), four bytes each; weights do not count."""
    encoder = Encoder(TwoConvolutions(), Pool(torch.mean), dim=5)
    assert memory.kept_per_pixel(encoder, 40, CPU, None) == pytest.approx(4 * (3 + 8))
    assert memory.kept_per_pixel(encoder, 40, CPU, torch.bfloat16) == pytest.approx(2 * (3 + 8))


@pytest.mark.parametrize(("backbone", "frozen"), [("small", False), ("resnet18", True), ("efficientnet_lite0", False)])
def test_the_measure_holds_for_larger_images_and_batches(backbone, frozen):
    """Against every storage that a real forward pass keeps at another size."""
    encoder = build_encoder(backbone, dim=8, freeze_batch_norm=frozen)
    weights = {p.untyped_storage().data_ptr() for p in (*encoder.parameters(), *encoder.buffers())}
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        encoder(torch.zeros(5, 160, 160, 3, dtype=torch.uint8))
    maps = [t for place, t in kept.items() if place not in weights and t.shape[:1] == (5,)]
    actual = sum(tensor.untyped_storage().nbytes() for tensor in maps)
    assert memory.kept_per_pixel(encoder, 160, CPU, None) * 5 * 160**2 == pytest.approx(actual, rel=0.1)


def test_measuring_changes_nothing():
    encoder = build_encoder("small", dim=8)
    before, random = copy.deepcopy(encoder.state_dict()), torch.get_rng_state()
    memory.kept_per_pixel(encoder, 64, CPU, None)
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert all(p.grad is None for p in encoder.parameters())


@pytest.mark.parametrize(("batch", "piece"), [(9, None), (10, None), (11, 6), (20, 10), (64, 10), (3000, 10)])
def test_pieces_of_a_batch_on_a_cpu_are_equal_and_as_few_as_fit(monkeypatch, batch, piece):
    monkeypatch.setattr(memory, "kept_per_pixel", lambda *_: 100)
    monkeypatch.setattr(memory, "CPU_PIECE", 10 * 100 * 32**2)
    frozen = build_encoder("small", dim=8, freeze_batch_norm=True)
    assert memory.fitting_micro_batch(frozen, batch, 32, CPU, None) == piece
    assert memory.fitting_micro_batch(build_encoder("small", dim=8), batch, 32, CPU, None) is None
    assert memory.fitting_micro_batch(frozen, batch, 32, torch.device("cuda"), None) is None


def test_an_image_that_does_not_fit_is_a_piece_and_what_cannot_be_measured_is_not_cut(monkeypatch):
    frozen = build_encoder("small", dim=8, freeze_batch_norm=True)
    monkeypatch.setattr(memory, "CPU_PIECE", 1)
    assert memory.fitting_micro_batch(frozen, 5, 32, CPU, None) == 1
    monkeypatch.setattr(memory, "kept_per_pixel", lambda *_: 0)
    assert memory.fitting_micro_batch(frozen, 5, 32, CPU, None) is None


def test_a_network_that_takes_no_such_images_is_not_judged():
    encoder = build_encoder("small", dim=8)
    encoder.backbone.forward = lambda images: torch.zeros(2, 3) @ torch.zeros(2, 3)
    assert memory.kept_per_pixel(encoder, 64, CPU, None) == 0


def test_what_cannot_fit_is_refused(state_for, monkeypatch):
    state = state_for()
    needed = memory.step_bytes(state)
    monkeypatch.setattr(memory, "total_memory", lambda device: needed)
    memory.place_images(state)
    monkeypatch.setattr(memory, "total_memory", lambda device: needed - 1)
    with pytest.raises(RecipeError, match=r"training\.batch_size \(8\).*data\.image_size \(32\)"):
        memory.place_images(state)


def test_an_image_size_that_no_machine_has_memory_for(nearkin, photos, tmp_path):
    code, _, err = nearkin("train", "--data", photos, "-o", tmp_path / "run", "data.image_size=50000")
    assert code == 2
    assert "data.image_size (50000)" in err


def test_what_a_step_needs(state_for):
    state = state_for("training.batch_size=8")
    weights = 3 * sum(p.nbytes for p in state.encoder.parameters())
    pieces = state_for("training.batch_size=8", "encoder.freeze_batch_norm=true", "training.micro_batch=2")
    assert memory.step_bytes(state_for("training.batch_size=4")) - weights == pytest.approx(
        (memory.step_bytes(state) - weights) / 2
    )
    assert memory.step_bytes(pieces) < memory.step_bytes(state)


def test_a_cuda_device_counts_what_torch_holds_and_does_not_use(monkeypatch):
    monkeypatch.setattr(
        torch,
        "cuda",
        SimpleNamespace(
            mem_get_info=lambda device: (100, 1000), memory_reserved=lambda d: 30, memory_allocated=lambda d: 20
        ),
    )
    assert memory.free_memory(torch.device("cuda")) == 110


GIGABYTE = 10**9


@pytest.fixture
def on_a_gpu(state_for, monkeypatch):
    """``place(free, *overrides)``: what is decided on a CUDA device with so many bytes free; nothing runs there."""

    def place(free, *overrides):
        state = state_for(*overrides)
        state.device = torch.device("cuda")
        monkeypatch.setattr(memory, "free_memory", lambda device: free)
        monkeypatch.setattr(memory, "total_memory", lambda device: free)
        monkeypatch.setattr(memory, "step_bytes", lambda state: GIGABYTE)
        monkeypatch.setattr(memory, "DeviceImages", lambda images, device, shapes: Placed(shapes))
        memory.place_images(state)
        return state

    class Placed:
        def __init__(self, shapes):
            self.pixels = torch.empty(int(shapes.prod(axis=1).sum()), 3, dtype=torch.uint8)

    return place


def test_images_go_to_the_gpu_where_there_is_ample_room(on_a_gpu):
    with pytest.warns(Notice, match=r"^32 training images .* are on cuda, which makes the crops"):
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
    with pytest.warns(Notice, match=r"stay with the loader, as training leaves 0\.0 GB of cuda.* \(data\.cache=disk\)"):
        state = on_a_gpu(int(1.5 * GIGABYTE) + 3 * 32 * 40 * 40 * 3)
    assert state.on_device is None
    assert state.crop_cache.budget == 3 * 32 * 40 * 40 * 3 // 4


def test_asked_for_they_may_take_all_that_there_is_and_no_more(on_a_gpu):
    needed = 32 * 40 * 40 * 3
    with pytest.warns(Notice, match="are on cuda"):
        state = on_a_gpu(int(1.5 * GIGABYTE) + needed, "data.cache=device")
    assert state.on_device is not None
    assert state.crop_cache.budget == 0
    with pytest.raises(RecipeError, match=r"data\.cache=device: 32 training images .* do not fit"):
        on_a_gpu(int(1.5 * GIGABYTE) + needed - 1, "data.cache=device")


@pytest.mark.parametrize("cache", ["disk", "memory"])
def test_who_names_another_place_gets_it(on_a_gpu, recwarn, cache):
    assert on_a_gpu(100 * GIGABYTE, f"data.cache={cache}").on_device is None
    assert not [each for each in recwarn if issubclass(each.category, Notice)]


def test_on_a_cpu_the_loader_crops_and_evaluation_crops_take_little(state_for, recwarn):
    state = state_for()
    memory.place_images(state)
    assert state.on_device is None
    assert state.crop_cache.budget == memory.CPU_CROPS
    with pytest.raises(RecipeError, match="keeps images on a CUDA device, not on cpu"):
        memory.place_images(state_for("data.cache=device"))
    assert not [warning for warning in recwarn if issubclass(warning.category, Notice)]


def test_a_whole_run_with_images_on_the_device(state_for, tmp_path, monkeypatch):
    """The same curve as with the loader: landscape or square images are cropped to the bit alike."""
    losses = []
    for placed in (False, True):
        state = state_for("training.max_steps=3")

        def place(state=state, placed=placed):
            memory.place_images(state)
            state.on_device = DeviceImages(state.train_set, state.device) if placed else None

        monkeypatch.setattr("nearkin.training.loop.place_images", lambda _, place=place: place())
        fit(state, TrainingFolder(tmp_path / str(placed)).begin(state.recipe), Observer())
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
        fit(state, TrainingFolder(tmp_path / "run").begin(state.recipe), Observer())
    else:
        with pytest.warns(Notice, match="are on cuda, which makes the crops"):
            fit(state, TrainingFolder(tmp_path / "run").begin(state.recipe), Observer())
    assert (state.on_device is None) == (cache == "disk")
    assert state.step == state.total_steps
