"""What sampling classes would save: a step with all of them, and one with those of the batch and a share of the others.

    python benchmarks/class_sampling.py --device cuda --json class_sampling.json
    python benchmarks/class_sampling.py --device cpu --samples 64 --dim 64 --classes 100000 --no-network

A sampled step chooses classes, gathers their proxies, computes loss and gradient for these, and moves their rows and
nobody else's by an Adam whose averages are gathered and put back: rows that were not chosen are neither moved by
momentum nor forgotten. Weights of 1/rate would cost nothing more, and are left out here. Whether that pays depends on
what else a step does, so ResNet-50 at the same batch (forward and backward, 224 px, bfloat16) is timed beside it.
Rounds alternate. Nothing is written unless --json says where.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

import nearkin.losses
from losses import setting
from nearkin.encoders.architectures.resnet import resnet50
from nearkin.losses import ProxyLoss


class FullStep:
    """All classes, and torch's fused Adam."""

    def __init__(self, loss: ProxyLoss, embeddings: Tensor, labels: Tensor) -> None:
        self.loss, self.embeddings, self.labels = loss, embeddings, labels
        self.optimiser = torch.optim.Adam(loss.parameters(), lr=1e-3, fused=True)

    def __call__(self) -> None:
        self.embeddings.grad = None
        self.optimiser.zero_grad()
        self.loss(self.embeddings, self.labels).backward()
        self.optimiser.step()


class SampledStep:
    """The classes of the batch and a share of the others, and an Adam for their rows."""

    def __init__(self, loss: ProxyLoss, embeddings: Tensor, labels: Tensor, rate: float) -> None:
        self.loss, self.embeddings, self.labels, self.rate = loss, embeddings, labels, rate
        self.vectors = loss.bank.vectors.detach()
        self.first, self.second = torch.zeros_like(self.vectors), torch.zeros_like(self.vectors)
        self.steps = 0

    def __call__(self) -> None:
        self.embeddings.grad = None
        chosen = torch.rand(len(self.vectors), device=self.vectors.device) < self.rate
        chosen[self.labels] = True
        rows = chosen.nonzero().squeeze(1)
        labels = (chosen.cumsum(0) - 1)[self.labels]
        proxies = self.vectors[rows].requires_grad_()
        self.loss.of_proxies(self.embeddings, proxies, labels, tau=self.loss.tau).backward()
        self.move(rows, proxies.detach(), proxies.grad)

    def move(self, rows: Tensor, proxies: Tensor, gradient: Tensor, lr: float = 1e-3) -> None:
        self.steps += 1
        first = self.first[rows].lerp_(gradient, 0.1)
        self.first.index_copy_(0, rows, first)
        second = self.second[rows].mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        self.second.index_copy_(0, rows, second)
        denominator = second.div_(1 - 0.999**self.steps).sqrt_().add_(1e-8)
        proxies.addcdiv_(first, denominator, value=-lr / (1 - 0.9**self.steps))
        self.vectors.index_copy_(0, rows, proxies)


class NetworkStep:
    """Forward and backward of ResNet-50 on images that are there already."""

    def __init__(self, samples: int, device: str) -> None:
        self.network = resnet50().to(device, memory_format=torch.channels_last)
        images = torch.randn(samples, 3, 224, 224, device=device)
        self.images = images.to(memory_format=torch.channels_last)

    def __call__(self) -> None:
        self.network.zero_grad()
        with torch.autocast(self.images.device.type, dtype=torch.bfloat16):
            features = self.network(self.images)
        features.float().mean().backward()


def timed(step: Callable[[], None], device: str) -> float:
    """Milliseconds of a step, of which three are done in a row."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(3):
        step()
    if device == "cuda":
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start) / 3


def medians(steps: dict[str, Callable[[], None]], device: str, rounds: int) -> dict[str, float]:
    for step in steps.values():
        step()
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            times[name].append(timed(step, device))
    return {name: statistics.median(each) for name, each in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--classes", type=int, nargs="+", default=[100_000, 300_000, 1_000_000])
    parser.add_argument("--rates", type=float, nargs="+", default=[0.5, 0.25, 0.1, 0.01])
    parser.add_argument("--losses", nargs="+", default=["ProxyAnchor", "CosFace"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, help="CPU threads; default: torch's")
    parser.add_argument("--no-network", action="store_true", help="leave ResNet-50 out")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the figures there")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    device, (n, d) = arguments.device, (arguments.samples, arguments.dim)
    found_with = setting(device)
    print("; ".join(f"{key} {value}" for key, value in found_with.items()))
    network = None
    if not arguments.no_network:
        network = medians({"network": NetworkStep(n, device)}, device, 3)["network"]
        print(f"ResNet-50, N={n}, 224 px, bfloat16, forward and backward: {network:.1f} ms")
        if device == "cuda":
            torch.cuda.empty_cache()
    print(f"N={n} D={d}; ms of a step of the loss, and how many times faster a whole step with ResNet-50 would be")
    print(f"{'loss':14}{'classes':>10}{'all':>10}" + "".join(f"{f'share {rate:g}':>20}" for rate in arguments.rates))
    results = []
    for classes in arguments.classes:
        batch = torch.randn(n, d, device=device, requires_grad=True), torch.randint(classes, (n,), device=device)
        for name in arguments.losses:
            with torch.device(device):
                loss = getattr(nearkin.losses, name)(classes, d)
            steps: dict[str, Callable[[], None]] = {"all": FullStep(loss, *batch)}
            steps |= {f"{rate:g}": SampledStep(loss, *batch, rate) for rate in arguments.rates}
            ms = medians(steps, device, arguments.rounds)
            cells = ""
            for rate in arguments.rates:
                taken = ms[f"{rate:g}"]
                whole = "" if network is None else f" {(network + ms['all']) / (network + taken):.2f}×"
                cell = f"{taken:.1f} ({ms['all'] / taken:.1f}×){whole}"
                cells += f"{cell:>20}"
            print(f"{name:14}{classes:10}{ms['all']:10.1f}{cells}", flush=True)
            results.append(
                {"loss": name, "samples": n, "dim": d, "classes": classes, **found_with, "network": network, "ms": ms}
            )
            del loss, steps
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
