"""Time of exact retrieval scores, beside faiss finding the top 12 and pytorch-metric-learning's AccuracyCalculator.

    python benchmarks/evaluation.py                                # every case of the CPU
    python benchmarks/evaluation.py --cases sop cub --json out.json
    python benchmarks/evaluation.py --device cuda --cases sop million

Ours computes R@{1,10,100,1000}, P@R, MAP@R and nDCG@{10,100} together; faiss (IndexFlatIP) only finds twelve
neighbours, which is less. In the cases cub and classes-of-2000 both sides compute AccuracyCalculator's three scores.
Rounds alternate and the least time of each side counts. Processor seconds are given as well, since other work on the
machine makes those of the clock longer. Memory is the peak above the inputs, in another process.

The embeddings are made up: classes around centres in 48 of 512 dimensions, as far apart as trained ones (sop, cub) or
hardly apart (untrained); sop, untrained and equal have Stanford Online Products' test size and class sizes, cub that of
CUB-200-2011; large-classes has ten classes of 6,000 and classes-of-2000 ten of 2,000; equal has twenty copies of each
vector.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from nearkin.evaluation import retrieval_scores

try:
    import faiss
except ImportError:
    faiss = None
try:
    import pytorch_metric_learning
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
except ImportError:
    pytorch_metric_learning = AccuracyCalculator = None

T = TypeVar("T")
DIM = 512
SCORES = ("R@1", "P@R", "MAP@R")
LIKE_FOR_LIKE = ("cub", "classes-of-2000")
"""Cases in which the peer is AccuracyCalculator."""
MORE_SCORES = ("R@10", "R@100", "R@1000", "nDCG@10", "nDCG@100")


def clusters(sizes: Tensor, spread: float) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    latent = torch.randn(len(sizes), 48, generator=generator)[labels]
    latent += spread * torch.randn(len(labels), 48, generator=generator)
    x = latent @ torch.randn(48, DIM, generator=generator) / 48**0.5
    return torch.nn.functional.normalize(x + 0.2 * torch.randn(x.shape, generator=generator), dim=1), labels


def products(count: int, classes: int) -> Tensor:
    """Class sizes from 2 to 12 that add up to ``count``."""
    sizes = torch.full((classes,), 2)
    more = torch.multinomial(torch.ones(classes * 10), count - 2 * classes, generator=torch.Generator().manual_seed(0))
    return sizes.index_add_(0, more % classes, torch.ones_like(more))


def equal() -> tuple[Tensor, Tensor]:
    x, labels = clusters(products(60_502, 11_316), 0.8)
    return x[torch.arange(len(x)) // 20], labels


CASES: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
    "sop": lambda: clusters(products(60_502, 11_316), 0.8),
    "untrained": lambda: clusters(products(60_502, 11_316), 1.3),
    "large-classes": lambda: clusters(torch.full((10,), 6000), 1.0),
    "classes-of-2000": lambda: clusters(torch.full((10,), 2000), 1.0),
    "large-classes-untrained": lambda: clusters(torch.full((10,), 6000), 10.0),
    "equal": equal,
    "cub": lambda: clusters(torch.tensor([60] * 24 + [59] * 76), 1.0),
    "million": lambda: clusters(torch.full((200_000,), 5), 0.8),
}


def ours(x: Tensor, labels: Tensor, case: str) -> dict[str, float]:
    # What AccuracyCalculator is asked for, where it is the peer: R@1, P@R and MAP@R.
    return retrieval_scores(x, labels, scores=SCORES if case in LIKE_FOR_LIKE else SCORES + MORE_SCORES)


def timed(work: Callable[[], T], device: str) -> tuple[T, tuple[float, float]]:
    begin, processor = time.perf_counter(), time.process_time()
    result = work()
    if device == "cuda":
        torch.cuda.synchronize()
    return result, (time.perf_counter() - begin, time.process_time() - processor)


def peak_above_inputs(case: str, threads: int) -> float:
    """Megabytes, in a process of its own."""
    context = multiprocessing.get_context("spawn")
    there, here = context.Pipe()
    child = context.Process(target=_peak, args=(case, threads, here))
    child.start()
    peak: float = there.recv()
    child.join()
    return peak


def _peak(case: str, threads: int, pipe: multiprocessing.connection.Connection) -> None:
    torch.set_num_threads(threads)
    x, labels = CASES[case]()
    before = _resident()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    ours(x, labels, case)
    pipe.send((_peak_resident() - before) / 1e6)


def _resident() -> float:
    return 4096.0 * int(Path("/proc/self/statm").read_text().split()[1])


def _peak_resident() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--cases", nargs="*", choices=list(CASES), default=[name for name in CASES if name != "million"]
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--memory", action="store_true", help="also measure memory (Linux, CPU)")
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the figures there")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if faiss is not None:
        faiss.omp_set_num_threads(arguments.threads)
    device = arguments.device
    setting = {
        "command": " ".join(sys.argv),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": torch.cuda.get_device_name()
        if device == "cuda"
        else f"{_processor()}, {arguments.threads} threads",
        "torch": torch.__version__,
        "numpy": np.__version__,
        "faiss": "not installed" if faiss is None else faiss.__version__,
        "pytorch-metric-learning": getattr(pytorch_metric_learning, "__version__", "not installed"),
    }
    print("; ".join(f"{key} {value}" for key, value in setting.items()))
    results = []
    for case in arguments.cases:
        x, labels = CASES[case]()
        x = x.to(device)
        sides: dict[str, Callable[[], object]] = {"ours": lambda: ours(x, labels, case)}  # noqa: B023
        if device == "cpu" and case in LIKE_FOR_LIKE and AccuracyCalculator is not None:
            include = ("precision_at_1", "r_precision", "mean_average_precision_at_r")
            calculator = AccuracyCalculator(include=include, k="max_bin_count", device=torch.device("cpu"))
            sides["peer"] = lambda: calculator.get_accuracy(x, labels)  # noqa: B023
        elif device == "cpu" and faiss is not None:
            index = faiss.IndexFlatIP(DIM)
            index.add(x.numpy())
            sides["peer"] = lambda: index.search(x.numpy(), 12)  # noqa: B023
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        scores: dict[str, float] = {}
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
        for _ in range(arguments.rounds):
            for name, work in sides.items():
                result, seconds = timed(work, device)
                times[name].append(seconds)
                if name == "ours":
                    scores = cast("dict[str, float]", result)
        least = {name: [min(each) for each in zip(*found, strict=True)] for name, found in times.items()}
        row = {"case": case, "shape": list(x.shape), "scores": scores, "seconds": least, **setting}
        if "peer" in least:
            row["peer"] = "AccuracyCalculator" if case in LIKE_FOR_LIKE else "IndexFlatIP, top 12"
            row["ratio"] = [a / b for a, b in zip(least["ours"], least["peer"], strict=True)]
        if device == "cuda":
            row["megabytes above the inputs"] = (torch.cuda.max_memory_allocated() - x.numel() * x.element_size()) / 1e6
        elif arguments.memory:
            row["megabytes above the inputs"] = peak_above_inputs(case, arguments.threads)
        shown = ", ".join(f"{name} {clock:.2f} s (processor {cpu:.2f})" for name, (clock, cpu) in least.items())
        ratio = f"; ratio {row['ratio'][0]:.2f} (processor {row['ratio'][1]:.2f})" if "ratio" in row else ""
        memory = (
            f"; {row['megabytes above the inputs']:.0f} MB above the inputs"
            if "megabytes above the inputs" in row
            else ""
        )
        print(f"{case} {tuple(x.shape)}, R@1 {100 * scores['R@1']:.1f}: {shown}{ratio}{memory}", flush=True)
        results.append(row)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


if __name__ == "__main__":
    main()
