"""Throughput, time of an answer and memory of `nearkin serve`, on loopback, at 1, 8 and 64 clients.

    python benchmarks/serve.py                                          # 10,000 requests, a few minutes
    python benchmarks/serve.py --requests 600 --items 1000              # to try it
    python benchmarks/serve.py --json benchmarks/results/serve.json     # keep the figures

A server in a process of its own serves an index of random pictures with the small network of the Glyphs recipes, whose
weights are random here: they cost what trained ones do. Half of the requests search by id and by vector in turn, half
upload a picture (PNG, 64 pixels a side) to search for. Each client sends its next request when it has its answer, on
one connection; clients and server share the machine's cores. Every answer must be 200 with 20 hits, and as many must
come as were sent. Memory is that of the server and its decoders, after each round, and after as many requests again as
the smallest rounds had, by 64 clients. "processor" is what a request cost server and decoders, which other work on the
machine moves less than the clock. "batch" is how many uploads were embedded together on average.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from PIL import Image

CLIENTS = (1, 8, 64)
SHARES = (0.1, 0.2, 0.2)
"""Of all requests, how many go by each number of clients, for either kind."""
DIM, SIDE = 128, 48


def model():
    import torch

    from nearkin.data.transforms import transform_from
    from nearkin.encoders import build_encoder
    from nearkin.runs.model import Model
    from nearkin.training.embedding import embed_images

    torch.manual_seed(0)
    encoder = build_encoder("small", dim=DIM).eval()
    transform = transform_from("glyphs")

    def embed(images, batch_size):
        return embed_images(encoder, images, transform, batch_size=batch_size, workers=1).cpu().numpy()

    return Model(Path("benchmark"), "small, random", DIM, "cosine", SIDE, embed)


def pictures(count, side, seed):
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (count, 4, 4, 3), dtype=np.uint8)
    return coarse.repeat(side // 4, axis=1).repeat(side // 4, axis=2)


def run_server(folder, threads):
    import torch

    from nearkin.index import Index
    from nearkin.serving.app import serve
    from nearkin.serving.middleware import log_to_stderr
    from nearkin.serving.settings import Settings

    torch.set_num_threads(threads)
    log_to_stderr("warning")
    serve(Index.open(folder, model()), Settings(port=0), ready=lambda url: print(url, flush=True))


def request(path, body, kind):
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def searches(count, items):
    rng = np.random.default_rng(0)
    for number in range(count):
        vector = rng.normal(size=DIM).round(6).tolist()
        body = {"id": int(rng.integers(items))} if number % 2 else {"vector": vector}
        yield request("/search", json.dumps(body).encode(), "application/json")


def uploads(count):
    for number, pixels in enumerate(pictures(count, 64, 1)):
        content = io.BytesIO()
        Image.fromarray(pixels).save(content, "PNG")
        head = f'--x\r\nContent-Disposition: form-data; name="image"; filename="{number}.png"\r\n\r\n'
        yield request(
            "/search", head.encode() + content.getvalue() + b"\r\n--x--\r\n", "multipart/form-data; boundary=x"
        )


async def load(port, requests, clients):
    """Seconds of every answer, and of all together."""
    waiting, taken = iter(requests), []

    async def client():
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for content in waiting:
            begin = time.perf_counter()
            writer.write(content)
            head = await reader.readuntil(b"\r\n\r\n")
            body = await reader.readexactly(int(re.search(rb"content-length: (\d+)", head, re.I)[1]))
            taken.append(time.perf_counter() - begin)
            assert head.startswith(b"HTTP/1.1 200"), body
            assert len(json.loads(body)["hits"]) == 20
        writer.close()

    begin = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return np.array(taken), time.perf_counter() - begin


def memory_of(process):
    """Resident megabytes of a process and its children."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    total = 0
    for each in (process, *children):
        total += int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{each}/status").read_text())[1])
    return total / 1024


def processor_time_of(process):
    """Seconds that a process and its children have computed."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    ticks = 0
    for each in (process, *children):
        fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def batches(port):
    from urllib.request import urlopen

    text = urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    return [int(re.search(rf"^nearkin_{name}_embedded_total (\d+)", text, re.M)[1]) for name in ("images", "batches")]


def measure(port, process, options):
    results, memory = [], []
    for kind in ("id or vector", "upload"):
        for clients, share in zip(CLIENTS, SHARES, strict=True):
            count = max(clients, int(options.requests * share))
            sent = list(searches(count, options.items) if kind == "id or vector" else uploads(count))
            before, busy = batches(port), processor_time_of(process)
            taken, seconds = asyncio.run(load(port, sent, clients))
            assert len(taken) == count, "a request was dropped"
            images, groups = (after - then for after, then in zip(batches(port), before, strict=True))
            memory.append(memory_of(process))
            figures = {
                "requests": count,
                "per_second": count / seconds,
                "p50_ms": 1e3 * float(np.quantile(taken, 0.5)),
                "p99_ms": 1e3 * float(np.quantile(taken, 0.99)),
                "processor_ms": 1e3 * (processor_time_of(process) - busy) / count,
                "batch": images / groups if groups else None,
                "memory_mb": memory[-1],
            }
            results.append({"kind": kind, "clients": clients, **figures})
            said = f"   batch {figures['batch']:4.1f}" if groups else ""
            print(
                f"{kind:13} {clients:3} clients   {figures['per_second']:7.1f} a second   "
                f"p50 {figures['p50_ms']:7.1f} ms   p99 {figures['p99_ms']:7.1f} ms   "
                f"processor {figures['processor_ms']:5.1f} ms   {memory[-1]:6.0f} MB{said}",
                flush=True,
            )
    # The heaviest once more: what is kept of requests would show.
    more = max(64, int(options.requests * SHARES[0]))
    for sent in (list(searches(more, options.items)), list(uploads(more))):
        asyncio.run(load(port, sent, 64))
    memory.append(memory_of(process))
    print(
        f"{sum(each['requests'] for each in results):,} requests, all answered; {2 * more:,} more: {memory[-1]:.0f} MB"
    )
    return results, memory


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=1, help="of torch in the server")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", metavar="INDEX", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        run_server(options.serve, options.threads)
        return
    from nearkin.index import Index

    with tempfile.TemporaryDirectory() as place:
        index = Index.create(Path(place) / "pictures.index", model())
        kinds = [f"kind {number % 100}" for number in range(options.items)]
        index.add(pictures(options.items, SIDE, 0), labels=kinds, batch_size=512)
        index.close()
        words = [sys.executable, __file__, "--serve", str(index.path), "--threads", str(options.threads)]
        server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        try:
            port = int(server.stdout.readline().rpartition(":")[2])
            load_before = os.getloadavg()[0]
            results, memory = measure(port, server.pid, options)
            server.send_signal(signal.SIGTERM)
            assert server.wait(60) == 0
        finally:
            server.kill()
            server.wait()
    about = {
        "command": f"python benchmarks/serve.py --requests {options.requests} --items {options.items}",
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load_before_and_after": [round(load_before, 1), round(os.getloadavg()[0], 1)],
        "python": platform.python_version(),
        "date": datetime.now(UTC).date().isoformat(),
    }
    print(json.dumps(about))
    if options.json:
        options.json.write_text(json.dumps({**about, "memory_mb": memory, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
