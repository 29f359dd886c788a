"""The map of an index: how long a layout of so many items takes, and how much of that goes into their neighbours.

    python benchmarks/layout.py                                          # 10,000 items of 128 numbers
    python benchmarks/layout.py --items 100000 --dim 512 --json layout.json

Vectors are drawn about centres, twenty to each, as kinds lie about theirs. Each figure is a process of its own, so that
the memory is that of one layout. Processor time stands beside the clock's, as other work on the machine moves it less.
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

from nearkin.index import map_layout as layout
from nearkin.index.map_layout import lay_out


def clustered(items: int, dim: int) -> np.ndarray:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(-(-items // 20), dim)).astype(np.float32)
    vectors = np.repeat(centres, 20, axis=0)[:items] + 0.7 * rng.normal(size=(items, dim)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def measured(items: int, dim: int, threads: int) -> dict[str, float]:
    torch.set_num_threads(threads)
    vectors, before = clustered(items, dim), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    spent = {"seconds": 0.0, "cpu": 0.0}
    plain = layout.nearest

    def timed(*given, **more):
        wall, cpu = time.perf_counter(), time.process_time()
        found = plain(*given, **more)
        spent["seconds"] += time.perf_counter() - wall
        spent["cpu"] += time.process_time() - cpu
        return found

    layout.nearest = timed
    wall, cpu = time.perf_counter(), time.process_time()
    points = lay_out(vectors, "cosine")
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    assert np.isfinite(points).all()
    assert spent["seconds"] > 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "seconds": wall,
        "cpu_seconds": cpu,
        "neighbours_seconds": spent["seconds"],
        "neighbours_cpu_seconds": spent["cpu"],
        "more_memory_mib": (peak - before) / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measured(asked.items, asked.dim, asked.threads)))
        return
    about = {
        "command": " ".join(["benchmarks/layout.py", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": f"{platform.machine()}, {os.cpu_count()} cores, {asked.threads} threads",
        "torch": torch.__version__,
    }
    command = [sys.executable, __file__, "--one", "--items", str(asked.items), "--dim", str(asked.dim)]
    rounds = []
    print(f"{asked.items:,} items of {asked.dim} numbers; {about['hardware']}, torch {about['torch']}, {about['date']}")
    for _ in range(asked.rounds):
        done = subprocess.run([*command, "--threads", str(asked.threads)], check=True, capture_output=True, text=True)
        rounds.append(json.loads(done.stdout))
        each = rounds[-1]
        print(
            f"{each['seconds']:7.1f} s, processor {each['cpu_seconds']:7.1f} s; of these neighbours "
            f"{each['neighbours_seconds']:7.1f} s, processor {each['neighbours_cpu_seconds']:7.1f} s; "
            f"{each['more_memory_mib']:,.0f} MiB more",
            flush=True,
        )
    if asked.json is not None:
        told = {**about, "items": asked.items, "dim": asked.dim, "rounds": rounds}
        asked.json.write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
