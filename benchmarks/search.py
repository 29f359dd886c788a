"""Time of an exact search beside faiss IndexFlatIP: one query, and a batch of 64. Or of our engines beside each other.

    python benchmarks/search.py                            # 100,000 vectors of 512 numbers, two threads
    python benchmarks/search.py --json results/search.json # keep the figures
    python benchmarks/search.py --rows 200000 --dim 128 --engines exact faiss

Both sides find the ten nearest of the same vectors of length 1. Ours is the engine of an index with the scores in
float64 that follow it, from memory-mapped files; theirs holds its vectors in memory. "around kinds" are vectors that
lie around 1,000 centres, as embeddings do; "random" are none that any encoder gives, and farther apart. Rounds
alternate, so that whatever else the machine does meets both; the median is shown, and the ratio is that of the medians.
Without faiss only our side is measured. Nothing is written unless --json says where.

With --engines: one query at a time, all of it but the look-up of items, and how many of the exact ten nearest of 256
queries were found, at filters that leave 100 %, 10 % and 1 % of rows; "10 % by kind" leaves a tenth of the kinds, in
which most queries are not. "kinds of kinds" lie around centres, 20 to each, that lie around 1,000 others.
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

from nearkin.index.engine import nearest, open_engine
from nearkin.index.segments import Segments

try:
    import faiss
except ImportError:
    faiss = None

K = 10
QUERIES = 256


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


def draw_kinds(kind, rows, dim, rng):
    """Gallery, its kinds, and queries."""
    every = rows + QUERIES
    centres = rng.normal(size=(1000, dim)).astype(np.float32)
    kinds = rng.integers(0, 1000, every)
    if kind == "kinds of kinds":
        finer = centres[rng.integers(0, 1000, rows // 20)]
        centres = finer + 0.7 * rng.standard_normal(size=finer.shape, dtype=np.float32)
        kinds = rng.integers(0, len(centres), every)
    vectors = unit(centres[kinds] + 0.7 * rng.standard_normal(size=(every, dim), dtype=np.float32))
    return vectors[:rows], kinds[:rows], vectors[rows:]


def compare_engines(options):
    """Every engine at every filter, and how much it finds."""
    results = []
    for kind in ("around kinds", "kinds of kinds"):
        rng = np.random.default_rng(0)
        gallery, kinds, queries = draw_kinds(kind, options.rows, options.dim, rng)
        queries = queries.astype(np.float64)
        filters = {"100 %": None}
        for share in (0.1, 0.01):
            filters[f"{share:.0%}".replace("%", " %")] = np.flatnonzero(rng.uniform(size=options.rows) < share)
        filters["10 % by kind"] = np.flatnonzero(kinds % 10 == 3)
        with tempfile.TemporaryDirectory() as folder:
            vectors, engines, built = Segments(Path(folder, "vectors"), options.dim, np.float32), {}, {}
            vectors.append(0, gallery)
            for name in dict.fromkeys(["exact", *options.engines]):
                engines[name] = open_engine(name, Path(folder), vectors, "cosine")
                begin = time.perf_counter()
                engines[name].rebuild(len(gallery))
                built[name] = time.perf_counter() - begin
                vectors.show(len(gallery))
                engines[name].show(len(gallery))
                print(f"{kind}: {name} built in {built[name]:.0f} s: {dict(engines[name].status())}", flush=True)
            for left, allowed in filters.items():

                def find(name, some, vectors=vectors, engines=engines, allowed=allowed):
                    return nearest(engines[name], vectors, "cosine", some, K, allowed)

                def one_by_one(name, find=find, queries=queries):
                    return lambda: [find(name, query[None]) for query in queries[:16]]

                taken = measure({name: one_by_one(name) for name in engines}, options.rounds)
                true = [ids for ids, _ in find("exact", queries)]
                for name in engines:
                    found = [ids for ids, _ in find(name, queries)]
                    recall = float(np.mean([np.isin(a, b).mean() for a, b in zip(true, found, strict=True)]))
                    figures = {"ms": taken[name] / 16, "recall": recall, "built_s": built[name]}
                    results.append({"vectors": kind, "left": left, "engine": name, **figures})
                    print(f"{kind:15} {left:13} {name:11} {taken[name] / 16:8.2f} ms   recall {recall:.3f}", flush=True)
    return results


def compare_with_flat(options):
    """The exact engine beside faiss IndexFlatIP."""
    results = []
    for kind in ("around kinds", "random"):
        gallery, queries = draw(kind, options.rows, options.dim, np.random.default_rng(0))
        with tempfile.TemporaryDirectory() as folder:
            vectors = Segments(Path(folder, "vectors"), options.dim, np.float32)
            engine = open_engine("exact", Path(folder), vectors, "cosine")
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
                    return nearest(engine, vectors, "cosine", some.astype(np.float64), K, None)

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
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--engines", nargs="+", default=[], help="these beside exact, at several filters")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if faiss is not None:
        faiss.omp_set_num_threads(options.threads)
    results = compare_engines(options) if options.engines else compare_with_flat(options)
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
