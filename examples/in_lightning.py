"""A loss of nearkin inside PyTorch Lightning: it is a part of the module, and its proxies are a parameter group.

    python examples/in_lightning.py

Under a minute on one CPU core. Needs `pip install lightning`.
"""

from __future__ import annotations

import argparse

import lightning
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import nearkin
from nearkin.losses import ProxyAnchor


class MetricLearning(lightning.LightningModule):
    """Any encoder, any loss with proxies; what is validated are classes that training does not see."""

    def __init__(self, encoder: nearkin.Encoder, num_classes: int, rate: float = 2e-3) -> None:
        super().__init__()
        self.encoder = encoder
        self.loss = ProxyAnchor(num_classes=num_classes, dim=encoder.dim)
        self.rate = rate
        self._seen: list[tuple[Tensor, Tensor]] = []

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        images, labels = batch
        value = self.loss(self.encoder(images), labels)
        self.log("loss", value, prog_bar=True)
        return value

    def validation_step(self, batch: list[Tensor], _: int) -> None:
        images, labels = batch
        self._seen.append((self.encoder(images), labels))

    def on_validation_epoch_end(self) -> None:
        """Retrieval is a matter of all images at once, so it is scored when all are embedded."""
        embeddings, labels = (torch.cat(parts) for parts in zip(*self._seen, strict=True))
        self._seen.clear()
        scores = nearkin.retrieval_scores(embeddings, labels.cpu().numpy(), scores=["R@1", "MAP@R"])
        self.log_dict({"R@1": scores["R@1"], "MAP@R": scores["MAP@R"]}, prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(
            [
                {"params": self.encoder.parameters(), "lr": self.rate},
                {"params": self.loss.parameters(), "lr": 10 * self.rate},  # the proxies
            ],
            weight_decay=1e-4,
        )


def loader(table: nearkin.ImageTable, labels: Tensor, *, shuffle: bool) -> DataLoader[tuple[Tensor, ...]]:
    images = torch.from_numpy(table.images)[..., None].expand(-1, -1, -1, 3)
    return DataLoader(TensorDataset(images, labels), batch_size=128, shuffle=shuffle, drop_last=shuffle)


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--images", type=int, default=3000, help="images of unseen classes that are scored")
    given = parser.parse_args(arguments)
    lightning.seed_everything(0, verbose=False)
    glyphs = nearkin.read_source("glyphs")
    train, test = glyphs.split("train"), glyphs.split("test").take(range(given.images))
    labels = torch.from_numpy(train.training_labels())
    module = MetricLearning(nearkin.build_encoder("small", dim=128, pooling="avg+max"), int(labels.max()) + 1)
    trainer = lightning.Trainer(
        max_epochs=given.epochs,
        check_val_every_n_epoch=max(1, given.epochs),  # once, at the end
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    unseen = loader(test, torch.from_numpy(test.labels), shuffle=False)
    trainer.fit(module, loader(train, labels, shuffle=True), unseen)
    scores = {name: float(trainer.callback_metrics[name]) for name in ("R@1", "MAP@R")}
    print(f"On {len(test.classes())} characters never seen in training: R@1 {scores['R@1']:.1%}")
    return scores


if __name__ == "__main__":
    main()
