"""k-reciprocal re-ranking at the size of Stanford Online Products' test set: time and memory, beside plain rankings.

    python benchmarks/reranking.py                           # 60,502 vectors of 128 numbers, k 20
    python benchmarks/reranking.py --items 5864 --dim 512    # CUB's
    python benchmarks/reranking.py --json reranking.json     # keep the figures

Vectors are drawn about centres, as many to each as a class of the data set has on average. Each side is a process of
its own; memory is what it took at most beyond the vectors.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from nearkin.evaluation.reranking import Rerank
from nearkin.evaluation.retrieval import measure

SCORES = ["R@1", "MAP@R"]


def measured(side: str, items: int, dim: int, each: int, k: int, threads: int) -> dict[str, float]:
    torch.set_num_threads(threads)
    rng = np.random.default_rng(0)
    labels = np.arange(items) // each
    vectors = rng.normal(size=(labels[-1] + 1, dim))[labels] + 1.6 * rng.normal(size=(items, dim))
    vectors = torch.from_numpy((vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, cpu = time.perf_counter(), time.process_time()
    if side == "plain":
        scores = measure(SCORES, vectors, labels)
    else:
        scores = measure(SCORES, vectors, labels, rerank=Rerank(k))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    told = {name: scores[name] for name in SCORES}
    return {"seconds": wall, "cpu_seconds": cpu, "more_memory_mib": (peak - before) / 1024, **told}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=60_502)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--each", type=int, default=5, help="vectors of a class")
    parser.add_argument("--k", type=int, default=20)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--json", type=Path)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.side:
        given = (asked.side, asked.items, asked.dim, asked.each, asked.k, asked.threads)
        print(json.dumps(measured(*given)))
        return
    about = {
        "command": " ".join(["benchmarks/reranking.py", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": f"{platform.machine()}, {os.cpu_count()} cores, {asked.threads} threads",
        "torch": torch.__version__,
    }
    print(f"{asked.items:,} × {asked.dim}; {about['hardware']}, torch {about['torch']}, {about['date']}")
    sides = {}
    for side in ("plain", "re-ranked"):
        options = {"items": asked.items, "dim": asked.dim, "each": asked.each, "k": asked.k, "threads": asked.threads}
        said = [str(part) for key, value in options.items() for part in (f"--{key}", value)]
        done = subprocess.run(
            [sys.executable, __file__, "--side", side, *said], check=True, capture_output=True, text=True
        )
        one = sides[side] = json.loads(done.stdout)
        print(
            f"{side:10} {one['seconds']:8.1f} s, processor {one['cpu_seconds']:8.1f} s, "
            f"{one['more_memory_mib']:7,.0f} MiB more; R@1 {100 * one['R@1']:.1f}, MAP@R {100 * one['MAP@R']:.1f}",
            flush=True,
        )
    if asked.json is not None:
        asked.json.write_text(json.dumps({**about, **options, "sides": sides}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
