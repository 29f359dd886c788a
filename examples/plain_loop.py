r"""One loss in a plain PyTorch loop: an encoder, Proxy-Anchor with its proxies, an optimiser with a rate for each.

    python examples/plain_loop.py

About a minute on one CPU core. It is the training, step for step, of

    nearkin train glyphs/demo data.transform=digits data.image_size=48 training.schedule=constant training.epochs=3 \
        protocol.name=conventional

which tests/examples/test_plain_loop.py holds.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

import nearkin
from nearkin.losses import ProxyAnchor


def pixels(table: nearkin.ImageTable) -> Tensor:
    """The images as the encoder takes them, uint8 [N, H, W, 3]; Glyphs has one channel."""
    return torch.from_numpy(table.images)[..., None].expand(-1, -1, -1, 3)


def train(table: nearkin.ImageTable, *, steps: int, batch_size: int = 128) -> tuple[nearkin.Encoder, list[float]]:
    """The trained encoder, and the loss of every step."""
    images, labels = pixels(table), torch.from_numpy(table.training_labels())
    torch.manual_seed(0)
    encoder = nearkin.build_encoder("small", dim=128, pooling="avg+max", channels_last=True)
    loss = ProxyAnchor(num_classes=int(labels.max()) + 1, dim=encoder.dim)
    optimiser = torch.optim.AdamW(
        [
            {"params": encoder.parameters(), "lr": 2e-3},
            {"params": loss.parameters(), "lr": 2e-2},  # proxies want a rate ten to a hundred times as high
        ],
        weight_decay=1e-4,
    )
    batches = nearkin.samplers.RandomSampler(len(labels), batch_size=batch_size, seed=0)
    curve = []
    for step in range(steps):
        rows = torch.from_numpy(batches.next_batch())
        value = loss(encoder(images[rows]), labels[rows])
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
        curve.append(value.item())
        if step % 20 == 0:
            print(f"step {step:4}  loss {curve[-1]:.3f}")
    return encoder, curve


def recall(encoder: nearkin.Encoder, table: nearkin.ImageTable) -> float:
    """How often the most similar image is of the same class (R@1)."""
    encoder.eval()
    with torch.inference_mode():
        embeddings = torch.cat([encoder(part) for part in pixels(table).split(256)])
    return nearkin.retrieval_scores(embeddings, table.labels, scores=["R@1"])["R@1"]


def main(arguments: list[str] | None = None) -> float:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=174, help="three epochs by default")
    steps = parser.parse_args(arguments).steps
    glyphs = nearkin.read_source("glyphs")
    encoder, _ = train(glyphs.split("train"), steps=steps)
    score = recall(encoder, glyphs.split("test"))
    print(f"R@1 on {len(glyphs.split('test').classes())} characters never seen in training: {score:.1%}")
    return score


if __name__ == "__main__":
    main()
