"""Freed memory is kept on a CPU, and nothing is touched where that is not ours to decide."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest
import torch

from nearkin.encoders import build_encoder
from nearkin.errors import Notice, RecipeError
from nearkin.training import device
from nearkin.training.device import (
    GraphedEncoder,
    autocast,
    autocast_dtype,
    describe_hardware,
    float32_products,
    keep_freed_memory,
    peak_process_memory,
    pick_device,
)
from nearkin.training.loop import HealthCheck, train_step

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize("cuda, mps, expected", [(True, True, "cuda"), (False, True, "mps"), (False, False, "cpu")])
def test_the_best_device_there_is(monkeypatch, cuda, mps, expected):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)
    assert pick_device().type == expected


def test_a_device_that_is_not_known_or_not_here(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RecipeError, match="unknown device 'gpu': use auto, cpu"):
        pick_device("gpu")
    with pytest.raises(RecipeError, match=r"'cuda:1' is not available here: use training\.device=auto"):
        pick_device("cuda:1")
    with pytest.raises(RecipeError, match="'meta' is not available"):
        pick_device("meta")


@pytest.mark.parametrize("bf16", [True, False])
def test_precision(monkeypatch, bf16):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: bf16)
    assert autocast_dtype("auto", CUDA) == (torch.bfloat16 if bf16 else None)
    assert autocast_dtype("auto", CPU) is None
    assert autocast_dtype("float32", CUDA) is None
    assert autocast_dtype("tf32", CUDA) is autocast_dtype("tf32", CPU) is None
    assert autocast_dtype("bf16", CPU) == torch.bfloat16
    assert autocast_dtype("fp16", CUDA) == torch.float16
    with pytest.raises(RecipeError, match="fp16 needs a GPU"):
        autocast_dtype("fp16", CPU)


def test_only_a_dtype_changes_what_products_are_computed_in():
    x = torch.ones(2, 2)
    for dtype, expected in ((None, torch.float32), (torch.bfloat16, torch.bfloat16)):
        with autocast(CPU, dtype):
            assert (x @ x).dtype == expected


def test_the_record_of_a_cpu(monkeypatch):
    assert describe_hardware(CPU).startswith("CPU, ")
    for cores, threads, expected in ((2, 1, "2 cores, 1 thread"), (1, 4, "1 core, 4 threads")):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert describe_hardware(CPU).endswith(f", {expected}")
    assert peak_process_memory() > 2**24, "in bytes: Python with torch takes more than 16 MiB"


@pytest.mark.parametrize("precision, expected", [("float32", (False, False)), ("tf32", (True, True)), ("bf16", None)])
def test_what_float32_means_on_cuda(precision, expected):
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    with float32_products(precision):
        inside = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    assert inside == (before if expected is None else expected)
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before


@pytest.mark.gpu
def test_how_many_bits_float32_and_tf32_keep():
    torch.manual_seed(0)
    x, kernel = torch.randn(4, 64, 16, 16, device="cuda"), torch.randn(64, 64, 3, 3, device="cuda")
    a, b = torch.randn(256, 256, device="cuda"), torch.randn(256, 256, device="cuda")
    true = torch.nn.functional.conv2d(x.double(), kernel.double()), a.double() @ b.double()
    errors = {}
    for precision in ("float32", "tf32"):
        with float32_products(precision):
            ours = torch.nn.functional.conv2d(x, kernel), a @ b
        errors[precision] = [float((one - other).norm() / other.norm()) for one, other in zip(ours, true, strict=True)]
    assert max(errors["float32"]) < 1e-5
    assert 1e-5 < min(errors["tf32"]) <= max(errors["tf32"]) < 2e-3


CPU = torch.device("cpu")
ON_GLIBC = sys.platform == "linux" and platform.libc_ver()[0] == "glibc"


@pytest.fixture
def calls(monkeypatch):
    """What would be set, without setting it in the process of the tests."""
    made = []

    class Library:
        def gnu_get_libc_version(self): ...

        def mallopt(self, name, value):
            made.append((name, value))
            return 1

    monkeypatch.setattr(device.ctypes, "CDLL", lambda _: Library())
    monkeypatch.setattr(device.sys, "platform", "linux")
    for name in ("LD_PRELOAD", "GLIBC_TUNABLES", *(n for n in os.environ if n.startswith("MALLOC_"))):
        monkeypatch.delenv(name, raising=False)
    keep_freed_memory.cache_clear()
    yield made
    keep_freed_memory.cache_clear()


def test_it_is_set_up_once_however_often_it_is_asked_for(calls):
    assert keep_freed_memory(CPU)
    assert keep_freed_memory(CPU)
    assert calls == [(-4, 0), (-1, 2**31 - 1)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MALLOC_TRIM_THRESHOLD_", "1000"),
        ("GLIBC_TUNABLES", "glibc.malloc.arena_max=1"),
        ("LD_PRELOAD", "/usr/lib/libtcmalloc.so.4"),
    ],
)
def test_what_the_environment_says_is_left_alone(calls, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert not keep_freed_memory(CPU)
    assert calls == []


def test_other_devices_and_systems_are_left_alone(calls, monkeypatch):
    assert not keep_freed_memory(torch.device("cuda"))
    monkeypatch.setattr(device.sys, "platform", "darwin")
    assert not keep_freed_memory(CPU)
    keep_freed_memory.cache_clear()
    monkeypatch.setattr(device.sys, "platform", "linux")
    monkeypatch.setattr(device.ctypes, "CDLL", lambda _: object())  # musl
    keep_freed_memory.cache_clear()
    assert not keep_freed_memory(CPU)
    assert calls == []


PROBE = """
import resource, sys, torch
from nearkin.training.device import keep_freed_memory
print(keep_freed_memory(torch.device("cpu")), end=" ")
for _ in range(2):
    b"x" * 64_000_000
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    b"x" * 64_000_000
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(not ON_GLIBC, reason="glibc's allocator")
def test_memory_that_was_freed_is_taken_again_without_page_faults():
    """64 MB taken and freed five times over are 78,125 pages of 4 KiB, or 150 huge ones."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "LD_PRELOAD", "GLIBC_"))}
    faults = {}
    for choice, tuning in (("", {}), ("system", {"MALLOC_ARENA_MAX": "9"})):
        given = environment | tuning
        told = subprocess.run([sys.executable, "-c", PROBE], env=given, capture_output=True, text=True, check=True)
        kept, count = told.stdout.split()
        assert kept == str(choice == "")
        faults[choice] = int(count)
    assert faults[""] < faults["system"] / 4


def images(count, seed=0, device="cpu"):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 32, 32, 3), dtype=torch.uint8, generator=generator).to(device)


def test_on_a_cpu_it_is_the_encoder():
    encoder = build_encoder("small", dim=8).eval()
    encode = GraphedEncoder(encoder, torch.device("cpu"), None)
    assert torch.equal(encode(images(3)), encoder(images(3)))


@pytest.mark.parametrize(
    "choice, room, graphed",
    [("auto", True, True), ("auto", False, False), ("always", False, True), ("never", True, False)],
)
def test_graphs_are_made_unasked_where_there_is_room(state_for, choice, room, graphed):
    state = state_for(f"training.cuda_graphs={choice}")
    state.room_for_graphs = room
    assert isinstance(state.encode, GraphedEncoder) == graphed
    assert graphed or state.encode is state.encoder


def test_networks_of_other_packages_are_graphed_when_asked_for(state_for):
    for choice, graphed in (("auto", False), ("always", True)):
        state = state_for(f"training.cuda_graphs={choice}")
        state.recipe = state.recipe.with_changes({"encoder.backbone": "timm:anything"})
        state.room_for_graphs = True
        assert isinstance(state.encode, GraphedEncoder) == graphed


@pytest.mark.gpu
@pytest.mark.parametrize(
    "backbone, freeze, rest",
    [("small", False, False), ("resnet18", False, False), ("resnet18", True, False), ("resnet18", True, True)],
)
def test_graphs_give_what_the_encoder_gives(backbone, freeze, rest):
    encoder = build_encoder(backbone, dim=8, freeze_batch_norm=freeze, freeze_batch_norm_affine=rest).cuda()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    encode = GraphedEncoder(encoder, torch.device("cuda"), None)

    def passes(function, inputs):
        encoder.load_state_dict(before)
        results = []
        for batch in inputs:
            encoder.zero_grad(set_to_none=True)
            embeddings = function(batch)
            (embeddings * torch.arange(8.0, device="cuda")).sum().backward()
            gradients = [None if p.grad is None else p.grad.clone() for p in encoder.parameters()]
            results.append((embeddings.detach(), gradients))
        return results, {name: value.clone() for name, value in encoder.named_buffers()}

    # The third batch is of another shape, the fourth of the first again.
    inputs = [images(6, seed, "cuda") for seed in (1, 2)] + [images(4, 3, "cuda"), images(6, 4, "cuda")]
    plain, graphed = passes(encoder, inputs), passes(encode, inputs)
    assert encode._graphed is not None
    for (a, for_a), (b, for_b) in zip(plain[0], graphed[0], strict=True):
        torch.testing.assert_close(a, b, atol=2e-4, rtol=2e-3)
        for one, other in zip(for_a, for_b, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                torch.testing.assert_close(one, other, atol=2e-3 * float(one.abs().max() + 1), rtol=1e-2)
    for name, value in plain[1].items():
        torch.testing.assert_close(value, graphed[1][name], atol=1e-4, rtol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_steps_with_graphs_learn_what_steps_without_do(state_for, next_batch, precision):
    """Through a warm-up, at whose end the backbone begins to take gradients."""
    losses = {}
    for how in ("never", "always"):
        torch.manual_seed(0)
        state = state_for(
            "training.device=cuda",
            f"training.cuda_graphs={how}",
            f"training.precision={precision}",
            "training.warmup_epochs=1",
            "training.learning_rate=0.0001",
        )
        batch, health = next_batch(state), HealthCheck(state)
        losses[how] = []
        for _ in range(state.warmup_steps + 4):
            train_step(state, batch, health)
            health.settle()
            losses[how].append(state.recent_losses[-1])
        if how == "always":
            assert state.encode._graphed is not None
            assert state.encode._trained == len(state.weights)
    assert losses["always"] == pytest.approx(losses["never"], rel=2e-2 if precision == "bf16" else 2e-3)


@pytest.mark.gpu
def test_a_network_that_cannot_be_graphed_trains_without():
    encoder = build_encoder("small", dim=8).cuda()
    forward = encoder.backbone.forward

    def asking(x):
        return forward(x) if float(x.sum()) > -1e9 else x  # waits for the device, which a graph cannot

    encoder.backbone.forward = asking
    encode = GraphedEncoder(encoder, torch.device("cuda"), None)
    with pytest.warns(Notice, match="without CUDA graphs"):
        embeddings = encode(images(4, device="cuda"))
    embeddings.sum().backward()
    assert torch.isfinite(encode(images(4, 1, "cuda"))).all()
