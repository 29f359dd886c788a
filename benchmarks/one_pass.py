"""Offset, shortcut and ReLU behind frozen convolutions in one pass over the feature map, beside PyTorch's several.

    python benchmarks/one_pass.py        # needs a CUDA device and Triton

A ResNet-50 in bf16 at 224 pixels: forward and backward pass by CUDA graphs, as training launches them, with scale and
shift of batch-norm trained and frozen; then the forward pass without gradients, as evaluation and search run it, where
small batches keep several passes. Both ways alternate; of the rounds the shortest counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import contextmanager

import torch

from nearkin.encoders import Encoder, backbone, build_encoder
from nearkin.training.device import GraphedEncoder, describe_hardware

DEVICE = torch.device("cuda")
WAYS = ("several passes", "one pass")
ROUNDS, CALLS = 5, 8


@contextmanager
def passes(way: str):
    kernels, given = backbone._kernels(), backbone._kernels
    backbone._kernels = (lambda: kernels) if way == "one pass" else (lambda: None)
    try:
        yield
    finally:
        backbone._kernels = given


def encoder(*, frozen: bool) -> Encoder:
    torch.manual_seed(0)
    return build_encoder(
        "resnet50_v1",
        pooling="avg+max",
        freeze_batch_norm=True,
        freeze_batch_norm_affine=frozen,
        channels_last=True,
    ).to(DEVICE)


def trained(images: torch.Tensor, *, frozen: bool) -> Callable[[], None]:
    network = encoder(frozen=frozen)
    encode = GraphedEncoder(network, DEVICE, torch.bfloat16)

    def step() -> None:
        encode(images)[:, 0].sum().backward()
        network.zero_grad()

    return step


def embedded(images: torch.Tensor) -> Callable[[], None]:
    network = encoder(frozen=False).eval()

    def step() -> None:
        with torch.inference_mode(), torch.autocast("cuda", torch.bfloat16):
            network(images)

    return step


def compare(what: str, images: torch.Tensor, made: Callable[[], Callable[[], None]]) -> None:
    steps, shortest = {}, dict.fromkeys(WAYS, float("inf"))
    for way in WAYS:
        with passes(way):
            steps[way] = made()
            for _ in range(4):
                steps[way]()
    for way in WAYS * ROUNDS:
        with passes(way):
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(CALLS):
                steps[way]()
            torch.cuda.synchronize()
        shortest[way] = min(shortest[way], (time.perf_counter() - began) / CALLS)
    shown = ", ".join(f"{way} {1e3 * taken:.2f} ms ({len(images) / taken:,.0f}/s)" for way, taken in shortest.items())
    print(f"{what}, batch {len(images)}: {shown}", flush=True)


def main() -> None:
    if not torch.cuda.is_available() or backbone._kernels() is None:
        raise SystemExit("a CUDA device and Triton are needed")
    print(f"{describe_hardware(DEVICE)}, torch {torch.__version__}")
    for batch in (180, 120, 32):
        images = torch.randint(0, 256, (batch, 224, 224, 3), dtype=torch.uint8, device=DEVICE)
        for frozen in (False, True):
            what = f"forward and backward, scale and shift {'frozen' if frozen else 'trained'}"
            compare(what, images, lambda images=images, frozen=frozen: trained(images, frozen=frozen))
    for batch in (1, 8, 32, 128, 256):
        images = torch.randint(0, 256, (batch, 224, 224, 3), dtype=torch.uint8, device=DEVICE)
        compare("forward without gradients", images, lambda images=images: embedded(images))


if __name__ == "__main__":
    main()
