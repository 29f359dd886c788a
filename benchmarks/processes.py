"""A training step of several processes, ours beside torch's DistributedDataParallel with every proxy on every rank.

    torchrun --nproc-per-node=2 benchmarks/processes.py                      # two processes of this machine
    torchrun --nproc-per-node=2 benchmarks/processes.py --json processes.json

A step is forward, backward and AdamW of one network and Proxy-Anchor on a batch that is already there, each rank with
its share of the images. Ours: embeddings gathered, proxies spread by class, the encoder's gradients summed after the
backward pass. Theirs: the encoder and the loss in DistributedDataParallel, embeddings gathered by torch's
differentiable all_gather, so that both compute the loss of the whole batch. Rounds of the two alternate; the median is
shown, with the bytes of proxies, gradient and moments that a rank holds. Nothing is written unless --json says where.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from nearkin import ranks
from nearkin.encoders import build_encoder
from nearkin.losses import ProxyAnchor
from nearkin.proxies import ProxyBank
from nearkin.training.optimisation import add_up_gradients

SIZES = ((1_000, 128), (20_000, 128), (100_000, 128))
BATCH = 128
SUMS = (128, 262_144, 25_000_000)
"""Numbers to add up over the ranks: one per sample, an embedding's gradient, the weights of a ResNet-50."""


def main() -> None:
    given = arguments()
    torch.set_num_threads(given.threads)
    with ranks.joined():
        results = [measured(classes, dim, given.rounds) for classes, dim in SIZES]
        sums = [summed(numbers, given.rounds) for numbers in SUMS]
        if ranks.is_first():
            record = {
                "command": " ".join(["torchrun", f"--nproc-per-node={ranks.world()}", *sys.argv]),
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "hardware": f"{platform.machine()}, {torch.get_num_threads()} thread(s) per process",
                "versions": {"torch": torch.__version__, "python": platform.python_version()},
                "processes": ranks.world(),
                "results": results,
                "sums": sums,
            }
            shown(record)
            if given.json:
                Path(given.json).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json")
    return parser.parse_args()


def measured(classes: int, dim: int, rounds: int) -> dict[str, object]:
    steps = {"ours": our_step(classes, dim), "ddp": their_step(classes, dim)}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 1):
        for name, (step, _) in steps.items():
            ranks.wait_for_all()
            began = time.perf_counter()
            step()
            if number:  # the first makes buffers and moments
                seconds[name].append(time.perf_counter() - began)
    found: dict[str, object] = {"classes": classes, "dim": dim, "batch": BATCH}
    for name, (_, held) in steps.items():
        # The slowest rank is what a step takes.
        taken = ranks.gather_rows(torch.tensor([statistics.median(seconds[name])]), ranks.world()).max()
        found[name] = {"step_ms": round(1e3 * float(taken), 1), "proxy_bytes_per_rank": held}
    return found


def summed(numbers: int, rounds: int) -> dict[str, float]:
    """How long a sum over the ranks takes, and drawing as many numbers, as a bank of proxies does at the start."""
    x, seconds, drawing = torch.zeros(numbers), [], []
    for _ in range(rounds):
        ranks.wait_for_all()
        began = time.perf_counter()
        ranks.add_up_([x])
        seconds.append(time.perf_counter() - began)
        began = time.perf_counter()
        torch.randn(numbers)
        drawing.append(time.perf_counter() - began)
    sum_ms, draw_ms = (round(1e3 * statistics.median(each), 3) for each in (seconds, drawing))
    return {"numbers": numbers, "sum_ms": sum_ms, "draw_ms": draw_ms}


def our_step(classes: int, dim: int) -> tuple[Callable[[], None], int]:
    torch.manual_seed(0)
    encoder, loss = network(dim), ProxyAnchor(classes, dim)
    optimiser = torch.optim.AdamW(
        [
            {"name": "head", "params": list(encoder.parameters())},
            {"name": "proxies", "params": list(loss.parameters())},
        ]
    )
    images, labels = batch(classes)

    def step() -> None:
        embeddings = ranks.gather_rows(encoder(images), BATCH)
        optimiser.zero_grad(set_to_none=True)
        loss(embeddings, labels).backward()
        add_up_gradients(optimiser)
        optimiser.step()

    return step, 4 * loss.bank.vectors.nbytes


def their_step(classes: int, dim: int) -> tuple[Callable[[], None], int]:
    torch.manual_seed(0)
    encoder = DistributedDataParallel(network(dim))
    loss = ProxyAnchor(classes, dim)
    loss.bank = whole_bank(classes, dim)
    objective = DistributedDataParallel(Whole(loss))
    optimiser = torch.optim.AdamW([*encoder.parameters(), *objective.parameters()])
    images, labels = batch(classes)

    def step() -> None:
        embeddings = torch.cat(torch.distributed.nn.all_gather(encoder(images)))
        optimiser.zero_grad(set_to_none=True)
        objective(embeddings, labels).backward()
        optimiser.step()

    return step, 4 * loss.bank.vectors.nbytes


def network(dim: int) -> nn.Module:
    """With batch-norm at rest: torch's, over all processes, runs on GPUs only."""
    return build_encoder("small", dim=dim, freeze_batch_norm=True)


@contextmanager
def alone() -> Iterator[None]:
    """Within, this process takes no notice of the others."""
    before = ranks._size, ranks._rank, ranks._groups
    ranks._size, ranks._rank, ranks._groups = 1, 0, None
    try:
        yield
    finally:
        ranks._size, ranks._rank, ranks._groups = before


class Whole(nn.Module):
    """A loss that takes no notice of other ranks."""

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss = loss

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        with alone():
            return self.loss(embeddings, labels)


def whole_bank(classes: int, dim: int) -> ProxyBank:
    with alone():
        return ProxyBank(classes, 1, dim)


def batch(classes: int) -> tuple[Tensor, Tensor]:
    """This rank's images and the labels of all."""
    own = ranks.share_of(BATCH)
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (BATCH, 48, 48, 3), generator=generator, dtype=torch.uint8)
    return images[own.start : own.stop], torch.randint(0, classes, (BATCH,), generator=generator)


def shown(record: dict[str, object]) -> None:
    print(f"{record['command']}\n{record['date']}, {record['hardware']}, torch {torch.__version__}")
    print(f"{'classes':>9} {'ours ms':>9} {'DDP ms':>9} {'ratio':>7} {'ours MB/rank':>13} {'DDP MB/rank':>12}")
    for row in record["results"]:  # type: ignore[attr-defined]
        ours, theirs = row["ours"], row["ddp"]
        held = [f"{each['proxy_bytes_per_rank'] / 1e6:.1f}" for each in (ours, theirs)]
        ratio = ours["step_ms"] / theirs["step_ms"]
        times = f"{ours['step_ms']:>9} {theirs['step_ms']:>9} {ratio:>7.2f}"
        print(f"{row['classes']:>9,} {times} {held[0]:>13} {held[1]:>12}")
    print(f"{'numbers':>11} {'sum over ranks ms':>18} {'draw ms':>9}")
    for row in record["sums"]:  # type: ignore[attr-defined]
        print(f"{row['numbers']:>11,} {row['sum_ms']:>18} {row['draw_ms']:>9}")


if __name__ == "__main__":
    main()
    if dist.is_initialized():
        dist.destroy_process_group()
