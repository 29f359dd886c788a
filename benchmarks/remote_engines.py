"""Time of a query and recall@10 of engines that are servers, beside the exact scan of the same vectors.

    python benchmarks/remote_engines.py postgresql://me@127.0.0.1/birds http://127.0.0.1:19530
    python benchmarks/remote_engines.py … --rows 100000 --dim 128 --json remote_engines.json

Vectors lie around centres, twenty to each, as those of an encoder do; queries are new ones around the same centres. One
query at a time, server and scan in turn, so that whatever else the machine does meets both; the median is shown.
Filters leave random rows. ``scanned`` are queries that the server's answer did not settle. Tables on the server are
deleted at the end.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from losses import setting
from nearkin.index.engine import nearest, new_identity, open_engine, without_password
from nearkin.index.exact_engine import ExactEngine
from nearkin.index.segments import Segments

SHARES = (1.0, 0.5, 0.1, 0.05, 0.01)


def clustered(rng, centres, count, noise=0.7):
    x = centres[rng.integers(0, len(centres), count)]
    x = x + noise * rng.normal(size=x.shape)
    return (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)


def counted(engine):
    """For each scan of stored vectors that a server is replaced by, the number of queries."""
    numbers, scan = [], ExactEngine.candidates

    def candidates(self, queries, k, allowed):
        if self is engine:
            numbers.append(len(queries))
        return scan(self, queries, k, allowed)

    ExactEngine.candidates = candidates
    return numbers


def measure(address, vectors, queries, folder, rng):
    """Seconds to build, and for each share of allowed rows the milliseconds of both and the recall."""
    stored = Segments(folder / "vectors", vectors.shape[1], np.float32)
    stored.append(0, vectors)
    stored.show(len(vectors))
    engines = {
        "server": open_engine(address, folder / "server", stored, "cosine", new_identity()),
        "exact": open_engine("exact", folder / "exact", stored, "cosine"),
    }
    try:
        engines["exact"].rebuild(len(vectors))
        start = time.perf_counter()
        engines["server"].rebuild(len(vectors))
        seconds = time.perf_counter() - start
        for engine in engines.values():
            engine.show(len(vectors))
        time.sleep(11)  # by then a Milvus need not wait for what was just written
        rows = []
        scanned = counted(engines["server"])
        for share in SHARES:
            scanned.clear()
            allowed = None if share == 1 else np.flatnonzero(rng.uniform(size=len(vectors)) < share)
            times, found = {name: [] for name in engines}, {name: [] for name in engines}
            for query in queries:
                for name, engine in engines.items():
                    start = time.perf_counter()
                    found[name] += nearest(engine, stored, "cosine", query[None].astype(np.float64), 10, allowed)
                    times[name].append(1000 * (time.perf_counter() - start))
            both = zip(found["server"], found["exact"], strict=True)
            recall = np.mean([len(np.intersect1d(mine[0], true[0])) / len(true[0]) for mine, true in both])
            figures = {f"{name}_ms": round(statistics.median(each), 2) for name, each in times.items()}
            figures |= {"recall@10": round(float(recall), 4), "scanned": round(sum(scanned) / len(queries), 3)}
            rows.append({"allowed": share, **figures})
        return {"build_s": round(seconds, 1), "status": dict(engines["server"].status()), "queries": rows}
    finally:
        engines["server"].discard()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("addresses", nargs="+", metavar="ADDRESS")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--json", type=Path, metavar="OUT", help="write the figures there")
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(arguments.rows // 20, arguments.dim))
    vectors, queries = clustered(rng, centres, arguments.rows), clustered(rng, centres, arguments.queries)
    results = []
    for address in arguments.addresses:
        with tempfile.TemporaryDirectory() as folder:
            measured = measure(address, vectors, queries, Path(folder), rng)
        told = setting("cpu") | {"command": "python benchmarks/remote_engines.py", "address": without_password(address)}
        results.append(told | {"rows": arguments.rows, "dim": arguments.dim} | measured)
        status = measured["status"]
        print(f"{told['hardware']}; {told['date']}; {status['version']}; {arguments.rows:,} × {arguments.dim}")
        print(f"built in {measured['build_s']} s; recall@10 as measured at build {status.get('recall@10')}")
        for row in measured["queries"]:
            print("  ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
