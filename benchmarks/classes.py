"""A training step of a proxy loss with many classes, ours and pytorch-metric-learning's.

    python benchmarks/classes.py --device cuda --json classes.json
    python benchmarks/classes.py --device cpu --samples 64 --dim 128 --classes 100000 1000000

A step is loss, backward and fused Adam on the proxies, with the embeddings given; "Adam" is the part of it that is the
optimiser's, the same on both sides. Its memory is the most that is held
during a step, proxies and optimiser state included, over what every such step has to hold: proxies, their gradient and
Adam's two averages. Rounds of both alternate. What does not fit is left out. Nothing is written unless --json says
where.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from losses import IN_A_ROW, PROXY, SOFT_TRIPLE, pytorch_metric_learning, setting, theirs

Make = Callable[[int, int], nn.Module]
LOSSES: dict[str, tuple[Make, Make]] = {
    **PROXY,
    "SoftTriple+Reg K=2": (
        lambda c, d: SOFT_TRIPLE["SoftTriple+Reg"](c, d, 2),
        lambda c, d: theirs.SoftTripleLoss(c, d, centers_per_class=2),
    ),
}
WAYS = ("ours", "theirs")
DEFAULT = ["ProxyAnchor", "CosFace", "SoftTriple+Reg K=2"]


class Step:
    """Loss, backward and Adam."""

    def __init__(self, loss: nn.Module, embeddings: Tensor, labels: Tensor) -> None:
        self.loss, self.embeddings, self.labels = loss, embeddings, labels
        self.optimiser = torch.optim.Adam(loss.parameters(), lr=1e-3, fused=True)
        self.times: list[float] = []

    def __call__(self) -> None:
        self.embeddings.grad = None
        self.optimiser.zero_grad()
        self.loss(self.embeddings, self.labels).backward()
        self.optimiser.step()

    def floor(self) -> int:
        """Bytes of the proxies, their gradient and Adam's averages."""
        return 4 * sum(p.numel() * p.element_size() for p in self.loss.parameters())

    def peak(self, device: str) -> int:
        """The most bytes held during a step: what is there before it, and what it adds."""
        self.optimiser.zero_grad()
        self.embeddings.grad = None
        there = 3 * self.floor() // 4
        if device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            self()
            torch.cuda.synchronize()
            return there + torch.cuda.max_memory_allocated() - before
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
            self()
        held = most = 0
        for event in profiler.profiler.kineto_results.events():
            if event.name() == "[memory]":
                held += event.nbytes()
                most = max(most, held)
        return there + most


def contenders(name: str, classes: int, dim: int, batch: tuple[Tensor, Tensor], device: str) -> dict[str, Step]:
    """Every way of doing the step that fits, after a first step each."""
    found = {}
    for way, make in zip(WAYS if theirs is not None else WAYS[:1], LOSSES[name], strict=False):
        torch.manual_seed(0)
        try:
            with torch.device(device):
                step = Step(make(classes, dim).to(device), *batch)
            step()
            found[way] = step
        except (torch.OutOfMemoryError, MemoryError):
            print(f"{name} C={classes}: {way} does not fit")
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()
    return found


def timed(work: Callable[[], None], device: str) -> float:
    """Milliseconds."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(IN_A_ROW[device]):
        work()
    if device == "cuda":
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start) / IN_A_ROW[device]


def measure(steps: dict[str, Step], device: str, rounds: int, seconds: float) -> dict[str, dict[str, float]]:
    end = time.perf_counter() + seconds
    for done in range(rounds):
        if done >= 3 and time.perf_counter() > end:
            break
        for step in steps.values():
            step.times.append(timed(step, device))
    figures = {}
    for way, step in steps.items():
        optimiser = statistics.median(timed(lambda step=step: step.optimiser.step(), device) for _ in range(5))
        peak = step.peak(device)
        figures[way] = {
            "median_ms": statistics.median(step.times),
            "fastest_ms": min(step.times),
            "optimiser_ms": optimiser,
            "rounds": len(step.times),
            "peak_mib": peak / 2**20,
            "peak_over_floor": peak / step.floor(),
        }
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--classes", type=int, nargs="+", default=[10_000, 100_000, 300_000, 1_000_000])
    parser.add_argument("--losses", nargs="+", default=DEFAULT, choices=list(LOSSES), metavar="LOSS")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=30.0, help="start no further round after this; default 30")
    parser.add_argument("--threads", type=int, help="CPU threads; default: torch's")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the figures there")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    device, (n, d) = arguments.device, (arguments.samples, arguments.dim)
    version = "not installed" if theirs is None else pytorch_metric_learning.__version__
    peer = f"pytorch-metric-learning {version}"
    found_with = setting(device, peer=peer)
    print("; ".join(f"{key} {value}" for key, value in found_with.items()))
    print(f"N={n} D={d}; ms of a step, and its peak memory over proxies + gradient + optimiser state")
    print(f"{'loss':20} {'classes':>9}" + "".join(f"{way + ' ms':>11}{'Adam':>8}{'memory':>8}" for way in WAYS))
    results = []
    for classes in arguments.classes:
        batch = torch.randn(n, d, device=device, requires_grad=True), torch.randint(classes, (n,), device=device)
        for name in arguments.losses:
            figures = measure(contenders(name, classes, d, batch, device), device, arguments.rounds, arguments.seconds)
            cells = ""
            for way in WAYS:
                one = figures.get(way)
                cells += (
                    f"{'–':>11}{'–':>8}{'–':>8}"
                    if one is None
                    else f"{one['median_ms']:11.2f}{one['optimiser_ms']:8.2f}{one['peak_over_floor']:7.2f}×"
                )
            print(f"{name:20} {classes:9}{cells}", flush=True)
            size = {"samples": n, "dim": d, "classes": classes}
            results.append({"loss": name, **size, **found_with, **figures})
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
