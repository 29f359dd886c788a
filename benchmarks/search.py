"""Time of an exact search beside faiss IndexFlatIP: one query, and a batch of 64.

    python benchmarks/search.py                            # 100,000 vectors of 512 numbers, two threads
    python benchmarks/search.py --json results/search.json # keep the figures

Both sides find the ten nearest of the same vectors of length 1. Ours is the engine of an index with the scores in
float64 that follow it, from memory-mapped files; theirs holds its vectors in memory. "around kinds" are vectors that
lie around 1,000 centres, as embeddings do; "random" are none that any encoder gives, and farther apart. Rounds
alternate, so that whatever else the machine does meets both; the median is shown, and the ratio is that of the medians.
Without faiss only our side is measured. Nothing is written unless --json says where.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from nearkin.index.engine import open_engine
from nearkin.index.queries import nearest_of
from nearkin.index.segments import Segments

try:
    import faiss
except ImportError:
    faiss = None

K = 10


def unit(x):
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def draw(kind, rows, dim, rng):
    """Gallery and 64 queries."""
    if kind == "random":
        return unit(rng.normal(size=(rows, dim))), unit(rng.normal(size=(64, dim)))
    centres = rng.normal(size=(1000, dim))
    every = unit(centres[rng.integers(0, 1000, rows + 64)] + 0.7 * rng.normal(size=(rows + 64, dim)))
    return every[:rows], every[rows:]


def measure(sides, rounds):
    times = {name: [] for name in sides}
    for side in sides.values():
        side()
    for _ in range(rounds):
        for name, side in sides.items():
            begin = time.perf_counter()
            side()
            times[name].append(time.perf_counter() - begin)
    return {name: 1e3 * statistics.median(taken) for name, taken in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if faiss is not None:
        faiss.omp_set_num_threads(options.threads)
    results = []
    for kind in ("around kinds", "random"):
        gallery, queries = draw(kind, options.rows, options.dim, np.random.default_rng(0))
        with tempfile.TemporaryDirectory() as folder:
            vectors = Segments(Path(folder, "vectors"), options.dim, np.float32)
            engine = open_engine("exact", Path(folder, "engine"), vectors, "cosine")
            vectors.append(0, gallery)
            engine.rebuild(len(gallery))
            vectors.show(len(gallery))
            engine.show(len(gallery))
            theirs = None
            if faiss is not None:
                theirs = faiss.IndexFlatIP(options.dim)
                theirs.add(gallery)
            for batch in (1, 64):
                some = queries[:batch]

                def ours(some=some, vectors=vectors, engine=engine):
                    return nearest_of(engine, vectors, "cosine", some.astype(np.float64), K, None)

                sides = {"nearkin": ours}
                if theirs is not None:
                    sides["faiss"] = lambda some=some, theirs=theirs: theirs.search(some, K)
                    found = zip(ours(), theirs.search(some, K)[1], strict=True)
                    assert np.mean([np.isin(mine, row).mean() for (mine, _), row in found]) > 0.99
                taken = measure(sides, options.rounds)
                proposed = np.mean([len(rows) for rows in engine.candidates(some.astype(np.float64), K, None)])
                ratio = taken["nearkin"] / taken["faiss"] if "faiss" in taken else None
                figures = {"ms": taken, "ratio": ratio, "proposed": float(proposed)}
                results.append({"vectors": kind, "queries": batch, **figures})
                said = "" if ratio is None else f"   faiss {taken['faiss']:8.1f} ms   ratio {ratio:.2f}"
                print(
                    f"{kind:13} {batch:3} queries   nearkin {taken['nearkin']:8.1f} ms{said}   proposed {proposed:.0f}"
                )
    about = {
        "rows": options.rows,
        "dim": options.dim,
        "threads": options.threads,
        "rounds": options.rounds,
        "processor": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "faiss": None if faiss is None else faiss.__version__,
        "date": datetime.now(UTC).date().isoformat(),
    }
    print(json.dumps(about))
    if options.json:
        options.json.write_text(json.dumps({**about, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
