"""Time and peak memory of a training step's loss, beside pytorch-metric-learning.

    python benchmarks/losses.py                                  # every size, CPU, and CUDA where there is one
    python benchmarks/losses.py --device cuda --json losses.json # keep the figures

A step is forward and backward of one loss on a batch that is already there, gradients of embeddings and proxies
included. Rounds of ours and theirs alternate, so that whatever else the machine does meets both; the median is shown.
On a machine that does other work as well, --threads 1 keeps threads from waiting for each other. Peak memory is what a
step holds at most above what was held before it. Without pytorch-metric-learning only our side is measured. Nothing is
written unless --json says where.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from itertools import product
from pathlib import Path

import torch
from torch import Tensor, nn

import nearkin.losses as ours

try:
    import pytorch_metric_learning
    from pytorch_metric_learning import losses as theirs
    from pytorch_metric_learning import miners
except ImportError:
    pytorch_metric_learning = theirs = miners = None

SIZES = ((180, 512, 100), (180, 512, 11_318), (180, 512, 100_000))
PER_CLASS = 4
# On an accelerator a training step does not wait for the one before, so neither do these.
IN_A_ROW = {"cpu": 1, "cuda": 10}
MEMORY = 5_000


class Mined(nn.Module):
    """A loss of theirs with the miner that ours has built in."""

    def __init__(self, loss: nn.Module, miner: nn.Module) -> None:
        super().__init__()
        self.loss, self.miner = loss, miner

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return self.loss(embeddings, labels, self.miner(embeddings, labels))


# Name: (ours, theirs). Proxy losses are made from (classes, dim), SoftTriple also from proxies per class, pair losses
# from dim.
PROXY = {
    "ProxyAnchor": (ours.ProxyAnchor, lambda c, d: theirs.ProxyAnchorLoss(c, d)),
    "ProxyNCA": (ours.ProxyNCA, lambda c, d: theirs.ProxyNCALoss(c, d, softmax_scale=3)),
    "ProxyNCAPlusPlus": (ours.ProxyNCAPlusPlus, lambda c, d: theirs.ProxyNCALoss(c, d, softmax_scale=10)),
    "NormalizedSoftmax": (ours.NormalizedSoftmax, lambda c, d: theirs.NormalizedSoftmaxLoss(c, d)),
    "CosFace": (ours.CosFace, lambda c, d: theirs.CosFaceLoss(c, d)),
    "ArcFace": (ours.ArcFace, lambda c, d: theirs.ArcFaceLoss(c, d)),
}
SOFT_TRIPLE = {  # theirs has no regulariser on the spread of the proxies, so ours is measured without and with it
    "SoftTriple": lambda c, d, k: ours.SoftTriple(c, d, proxies_per_class=k, tau=0.0),
    "SoftTriple+Reg": lambda c, d, k: ours.SoftTriple(c, d, proxies_per_class=k),
}
PAIR = {
    "Contrastive": (lambda d: ours.Contrastive(), lambda d: theirs.ContrastiveLoss(pos_margin=0, neg_margin=0.5)),
    "Triplet": (lambda d: ours.Triplet(), lambda d: theirs.TripletMarginLoss(margin=0.2)),
    "Margin": (lambda d: ours.Margin(), lambda d: theirs.MarginLoss(margin=0.2, beta=1.2, learn_beta=True)),
    "LiftedStructure": (lambda d: ours.LiftedStructure(), lambda d: theirs.LiftedStructureLoss()),
    "NPair": (lambda d: ours.NPair(), lambda d: theirs.NPairsLoss()),
    "Angular": (lambda d: ours.Angular(), lambda d: theirs.AngularLoss(alpha=45)),
    "MultiSimilarity": (
        lambda d: ours.MultiSimilarity(),
        lambda d: Mined(theirs.MultiSimilarityLoss(alpha=2, beta=50, base=0.5), miners.MultiSimilarityMiner(0.1)),
    ),
    "CrossBatchMemory": (
        lambda d: ours.CrossBatchMemory(ours.Contrastive(), size=MEMORY, warmup_steps=0),
        lambda d: theirs.CrossBatchMemory(theirs.ContrastiveLoss(pos_margin=0, neg_margin=0.5), d, memory_size=MEMORY),
    ),
}


def _their_soft_triple(classes: int, dim: int, per_class: int) -> nn.Module:
    return theirs.SoftTripleLoss(classes, dim, centers_per_class=per_class)


@dataclass
class Case:
    name: str
    size: str
    make: list[Callable[[], nn.Module]]
    embeddings: Tensor
    labels: Tensor


@dataclass
class Figures:
    median_ms: float
    fastest_ms: float
    peak_mib: float
    rounds: int


def cases(device: str, sizes: list[tuple[int, int, int]], only: list[str]) -> list[Case]:
    """Proxy losses at every size; pair losses, which know no classes, once for every N and D."""
    found = []
    for n, d, c in sizes:
        size = f"N={n} D={d} C={c}"
        batch = torch.randn(n, d, device=device, requires_grad=True), torch.randint(c, (n,), device=device)
        for name, pair in PROXY.items():
            found.append(Case(name, size, [partial(make, c, d) for make in pair], *batch))
        for k, (name, own) in product((1, 2 if c >= 100_000 else 10), SOFT_TRIPLE.items()):
            if k > 1 or name == "SoftTriple":
                pair = [partial(own, c, d, k), partial(_their_soft_triple, c, d, k)]
                found.append(Case(f"{name} K={k}", size, pair, *batch))
    for n, d in dict.fromkeys((n, d) for n, d, _ in sizes):
        size = f"N={n} D={d}, {PER_CLASS} per class"
        batch = torch.randn(n, d, device=device, requires_grad=True), torch.arange(n, device=device) // PER_CLASS
        for name, pair in PAIR.items():
            found.append(Case(name, size, [partial(make, d) for make in pair], *batch))
    return [case for case in found if not only or case.name.split()[0] in only]


@dataclass
class Step:
    loss: nn.Module
    embeddings: Tensor
    labels: Tensor

    def clear(self) -> None:
        self.embeddings.grad = None
        for parameter in self.loss.parameters():
            parameter.grad = None

    def __call__(self) -> None:
        self.loss(self.embeddings, self.labels).backward()


def measure(steps: list[Step], device: str, *, rounds: int, seconds: float) -> list[Figures]:
    """Alternate the steps for ``rounds`` rounds, or at least three when they would take more than ``seconds``."""
    for step in steps:
        for _ in range(2):
            step.clear()
            step()
    times: list[list[float]] = [[] for _ in steps]
    end = time.perf_counter() + seconds
    for done in range(rounds):
        if done >= 3 and time.perf_counter() > end:
            break
        for step, taken in zip(steps, times, strict=True):
            _wait(device)
            start = time.perf_counter()
            for _ in range(IN_A_ROW[device]):
                step.clear()
                step()
            _wait(device)
            taken.append(1e3 * (time.perf_counter() - start) / IN_A_ROW[device])
    return [
        Figures(statistics.median(t), min(t), peak_bytes(step, device) / 2**20, len(t))
        for t, step in zip(times, steps, strict=True)
    ]


def peak_bytes(step: Step, device: str) -> int:
    """The most that a step holds above what was held before it, its gradients included."""
    step.clear()
    if device == "cuda":
        _wait(device)
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        _wait(device)
        return torch.cuda.max_memory_allocated() - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    held = most = 0
    # The public event list leaves out what operators allocate for themselves.
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return most


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def hardware(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{model}, {torch.get_num_threads()} threads"


HEADINGS = ["loss", "size", "ours ms", "theirs ms", "ratio", "ours MiB", "theirs MiB", "ratio"]


def line(cells: list[str]) -> str:
    return f"{cells[0]:20} {cells[1]:26}" + "".join(f"{cell:>11}" for cell in cells[2:])


def row(case: Case, own: Figures, other: Figures | None) -> list[str]:
    def three(a: float, b: float | None, digits: int) -> list[str]:
        return [f"{a:.{digits}f}", *(["–", "–"] if b is None else [f"{b:.{digits}f}", f"{a / b:.2f}×"])]

    time_cells = three(own.median_ms, other and other.median_ms, 2)
    return [case.name, case.size, *time_cells, *three(own.peak_mib, other and other.peak_mib, 1)]


def parse_sizes(text: str) -> list[tuple[int, int, int]]:
    sizes = [tuple(int(v) for v in part.split(",")) for part in text.split()]
    if any(len(size) != 3 for size in sizes):
        raise argparse.ArgumentTypeError(f"sizes are N,D,C triples separated by spaces, got {text!r}")
    return sizes


def setting(device: str, **more: str) -> dict[str, str]:
    """What figures were measured with: command, date, device, hardware, torch, and whatever else matters."""
    found = {"command": " ".join(sys.argv), "date": datetime.now(UTC).isoformat(timespec="seconds"), "device": device}
    return found | {"hardware": hardware(device), "torch": torch.__version__, **more}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], help="one device only; default: CPU, and CUDA if present")
    parser.add_argument("--sizes", type=parse_sizes, default=list(SIZES), help='"N,D,C N,D,C …"; default: all three')
    parser.add_argument("--losses", nargs="*", default=[], help="names as in the table; default: all")
    parser.add_argument("--repeats", type=int, default=20, help="rounds per loss; default 20")
    parser.add_argument("--seconds", type=float, default=20.0, help="start no further round after this; default 20")
    parser.add_argument("--threads", type=int, help="CPU threads; default: torch's")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the figures there")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    devices = [arguments.device] if arguments.device else ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    version = "not installed" if theirs is None else pytorch_metric_learning.__version__
    peer = f"pytorch-metric-learning {version}"

    results = []
    for device in devices:
        found_with = setting(device, peer=peer)
        print("; ".join(f"{key} {value}" for key, value in found_with.items()), line(HEADINGS), sep="\n")
        for case in cases(device, arguments.sizes, arguments.losses):
            torch.manual_seed(0)
            makers = case.make[: 1 if theirs is None else 2]
            steps = [Step(make().to(device), case.embeddings, case.labels) for make in makers]
            figures = measure(steps, device, rounds=arguments.repeats, seconds=arguments.seconds)
            own, other = figures[0], figures[1] if len(figures) > 1 else None
            print(line(row(case, own, other)), flush=True)
            both = {"ours": asdict(own), "theirs": other and asdict(other)}
            results.append({"loss": case.name, "size": case.size, **found_with, **both})
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
