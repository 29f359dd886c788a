"""What a run needs against what there is."""

from __future__ import annotations

import contextlib
import copy
import json
import re
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from nearkin.encoders import Encoder, build_encoder
from nearkin.encoders.backbone import Backbone
from nearkin.encoders.pooling import AvgPool
from nearkin.encoders.preprocessing import HALF
from nearkin.errors import RecipeError
from nearkin.runs.data import open_data
from nearkin.runs.folder import RunFolder
from nearkin.runs.run import run
from nearkin.training import memory
from nearkin.training.build import build_state
from nearkin.training.recipes import load_recipe
from nearkin.training.state import NullObserver

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
    encoder = Encoder(TwoConvolutions(), AvgPool(), dim=5)
    footprint = memory.measure(encoder, 40, CPU, None)
    assert footprint.kept == pytest.approx(4 * (3 + 8))
    assert footprint.largest == pytest.approx(4 * 8)
    half = memory.measure(encoder, 40, CPU, torch.bfloat16)
    assert half.kept == pytest.approx(2 * (3 + 8))


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
    assert memory.measure(encoder, 160, CPU, None).kept * 5 * 160**2 == pytest.approx(actual, rel=0.1)


def test_measuring_changes_nothing():
    encoder = build_encoder("small", dim=8)
    before, random = copy.deepcopy(encoder.state_dict()), torch.get_rng_state()
    memory.measure(encoder, 64, CPU, None)
    assert all(torch.equal(value, before[name]) for name, value in encoder.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert all(p.grad is None for p in encoder.parameters())


@pytest.mark.parametrize(("batch", "piece"), [(9, None), (10, None), (11, 6), (20, 10), (64, 10), (3000, 10)])
def test_pieces_of_a_batch_on_a_cpu_are_equal_and_as_few_as_fit(monkeypatch, batch, piece):
    monkeypatch.setattr(memory, "measure", lambda *_: memory.Footprint(kept=100, largest=1))
    monkeypatch.setattr(memory, "PIECE_ON_CPU", 10 * 100 * 32**2)
    frozen = build_encoder("small", dim=8, freeze_batch_norm=True)
    assert memory.fitting_piece(frozen, batch, 32, CPU, None) == piece
    assert memory.fitting_piece(build_encoder("small", dim=8), batch, 32, CPU, None) is None, "would be other training"
    assert memory.fitting_piece(frozen, batch, 32, torch.device("cuda"), None) is None


def test_an_image_that_does_not_fit_is_a_piece_and_what_cannot_be_measured_is_not_cut(monkeypatch):
    frozen = build_encoder("small", dim=8, freeze_batch_norm=True)
    monkeypatch.setattr(memory, "PIECE_ON_CPU", 1)
    assert memory.fitting_piece(frozen, 5, 32, CPU, None) == 1
    monkeypatch.setattr(memory, "measure", lambda *_: None)
    assert memory.fitting_piece(frozen, 5, 32, CPU, None) is None


def test_a_network_that_takes_no_such_images_is_not_judged():
    encoder = build_encoder("small", dim=8)
    encoder.backbone.forward = lambda images: torch.zeros(2, 3) @ torch.zeros(2, 3)
    assert memory.measure(encoder, 64, CPU, None) is None


def recipe(photos, *overrides):
    mapping = {
        "data": {"source": str(photos), "transform": "mild", "image_size": 32, "workers": 1},
        "encoder": {"backbone": "small", "dim": 16},
        "training": {"epochs": 1, "batch_size": 8, "device": "cpu"},
        "protocol": {"test_share": 0.34},
    }
    return load_recipe(mapping, overrides)


def test_a_run_that_cannot_fit_is_refused_with_figures_and_what_to_lower(photos, tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda device: 4_500_000)
    with pytest.raises(
        RecipeError,
        match=r"a training step on 8 images of 32 × 32 pixels needs about 6 MB of memory, and 4 MB are free: lower "
        r"training\.batch_size \(8; about 4 would fit; training\.micro_batch instead needs encoder\.freeze_batch_norm="
        r"true\) or data\.image_size \(32\), or set training\.memory_check=false",
    ):
        run(recipe(photos), RunFolder(tmp_path / "run"), NullObserver())
    assert not (tmp_path / "run").exists(), "refused before anything was written"
    run(recipe(photos, "training.memory_check=false"), RunFolder(tmp_path / "run"), NullObserver())


def test_smaller_pieces_are_advised_before_smaller_batches_and_help(photos, tmp_path, monkeypatch):
    frozen = ("encoder.freeze_batch_norm=true", "encoder.options.width=16")
    monkeypatch.setattr(memory, "free_memory", lambda device: 1_500_000)
    with pytest.raises(
        RecipeError, match=r"free: set training\.micro_batch \(the same training in pieces; about (\d)"
    ) as e:
        run(recipe(photos, *frozen), RunFolder(tmp_path / "run"), NullObserver())
    assert "batch_size" not in str(e.value)
    fitting = int(re.search(r"about (\d) would fit", str(e.value))[1])
    run(recipe(photos, *frozen, f"training.micro_batch={fitting}"), RunFolder(tmp_path / "run"), NullObserver())
    more = fitting + 1
    with pytest.raises(
        RecipeError, match=rf"\({more} at a time\) .*training\.micro_batch \({more}; about {fitting} would"
    ):
        run(recipe(photos, *frozen, f"training.micro_batch={more}"), RunFolder(tmp_path / "more"), NullObserver())


def test_what_only_the_backward_pass_of_the_backbone_needs_is_not_asked_of_a_head(photos, tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda device: 3_000_000)
    monkeypatch.setattr(memory, "HELD_AT_ONCE", 0.5)
    with pytest.raises(RecipeError, match="a training step on 8 images"):
        run(recipe(photos), RunFolder(tmp_path / "run"), NullObserver())
    run(recipe(photos, "training.warmup_epochs=1"), RunFolder(tmp_path / "run"), NullObserver())


def test_what_fits_is_not_refused_and_what_cannot_be_known_neither(photos, tmp_path, monkeypatch):
    for number, free in enumerate((8_000_000, None)):
        monkeypatch.setattr(memory, "free_memory", lambda device, free=free: free)
        folder = RunFolder(tmp_path / str(number))
        run(recipe(photos), folder, NullObserver())
        assert folder.is_finished


def test_an_evaluation_that_cannot_fit_is_refused_too(photos, tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda device: 20_000_000)
    monkeypatch.setattr(memory, "measure", lambda *_: memory.Footprint(kept=10, largest=1000))
    with pytest.raises(RecipeError, match=r"scoring 16 images at a time of 32 .*training\.evaluation_batch_size \(16;"):
        run(recipe(photos), RunFolder(tmp_path / "run"), NullObserver())


def test_an_image_size_that_no_machine_has_memory_for(nearkin, photos, tmp_path):
    code, _, err = nearkin("train", "--data", photos, "-o", tmp_path / "run", "data.image_size=50000")
    assert code == 2
    assert "not one image of 50000 pixels would fit" in err


@pytest.fixture
def system(tmp_path):
    """Writes what a system says about itself: ``system({"proc/meminfo": "…"})`` returns its root."""

    def write(files):
        for name, content in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(content)
        return tmp_path

    return write


MEMINFO = "MemTotal:       16000 kB\nMemFree:         100 kB\nMemAvailable:    8000 kB\n"


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, None),
        ({"proc/meminfo": MEMINFO}, 8000 * 1024),
        (
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/b/memory.max": "max\n",
                "sys/fs/cgroup/a/b/memory.current": "1000\n",
                "sys/fs/cgroup/a/memory.max": "5000\n",
                "sys/fs/cgroup/a/memory.current": "4000\n",
                "sys/fs/cgroup/a/memory.stat": "anon 3300\ninactive_file 700\n",
            },
            1700,
        ),
        (
            {
                "proc/meminfo": MEMINFO,
                "proc/self/cgroup": "9:cpu:/x\n4:memory:/inside\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9000\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "9500\n",
                "sys/fs/cgroup/memory/memory.stat": "total_inactive_file 2000\n",
            },
            1500,
        ),
    ],
    ids=["unknown", "the system", "a group of version 2", "a group of version 1, seen from inside a container"],
)
def test_what_the_system_has_left(system, files, free):
    assert memory.free_system_memory(system(files)) == free


def test_a_cuda_device_counts_what_torch_holds_and_does_not_use(monkeypatch):
    monkeypatch.setattr(
        torch,
        "cuda",
        SimpleNamespace(
            mem_get_info=lambda device: (100, 1000), memory_reserved=lambda d: 30, memory_allocated=lambda d: 20
        ),
    )
    assert memory.free_memory(torch.device("cuda")) == 110


def test_resuming_may_turn_the_check_off(photos, tmp_path):
    folder = RunFolder(tmp_path / "run").begin(recipe(photos))
    folder.check_same_recipe(recipe(photos, "training.memory_check=false"))
    assert json.loads(json.dumps(recipe(photos).as_mapping()))["training"]["memory_check"] is True


def test_crops_that_are_only_scored_are_counted_at_their_own_size(photos, tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda device: 20_000_000)
    run(recipe(photos), RunFolder(tmp_path / "run"), NullObserver())
    with pytest.raises(
        RecipeError,
        match=r"scoring \d+ images at a time of 320 × 320 .*evaluation_batch_size .* or protocol\.eval_size",
    ):
        run(recipe(photos, "protocol.eval_size=320"), RunFolder(tmp_path / "large"), NullObserver())


@pytest.mark.parametrize("more", [[], ["training.ema_decay=0.9"], ["training.l2_sp=1"]])
def test_what_is_kept_beside_the_weights_counts(photos, tmp_path, monkeypatch, more):
    """A network whose weights weigh, on images that do not."""
    asked = recipe(photos, "encoder.options.width=64", "data.image_size=8", "training.batch_size=2", *more)
    state = build_state(asked, open_data(asked.data))
    weights = sum(p.nbytes for p in state.encoder.parameters())
    kept = memory.measure(state.encoder, 8, CPU, None).kept * 2 * 8**2
    for free, fits in ((3.5 * weights + kept, not more), (4.5 * weights + kept, True)):
        monkeypatch.setattr(memory, "free_memory", lambda device, free=free: int(free))
        with contextlib.nullcontext() if fits else pytest.raises(RecipeError, match="a training step on 2 images"):
            memory.check_memory(state)
