"""A loss of nearkin inside the Trainer of Hugging Face: model, projection and loss are one module.

    python examples/in_hf_trainer.py

Twenty seconds on one CPU core. Needs `pip install transformers accelerate`.
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import EvalPrediction, ResNetConfig, ResNetModel, Trainer, TrainingArguments, set_seed

import nearkin
from nearkin.losses import ProxyAnchor


class WithLoss(nn.Module):
    """What the Trainer wants: called with a batch by name, it returns the loss and what is to be evaluated."""

    def __init__(self, backbone: nn.Module, channels: int, dim: int, num_classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(channels, dim)
        self.loss = ProxyAnchor(num_classes=num_classes, dim=dim)

    def forward(self, pixel_values: Tensor, labels: Tensor) -> dict[str, Tensor]:
        features = self.backbone(pixel_values=pixel_values).pooler_output.flatten(1)
        embeddings = nn.functional.normalize(self.head(features))
        # Classes that are only evaluated have no proxies, and so no loss.
        loss = self.loss(embeddings, labels) if self.training else embeddings.new_zeros(())
        return {"loss": loss, "embeddings": embeddings}


class Glyphs(Dataset[dict[str, Tensor]]):
    """Images as floats from -1 to 1, by the names of the model's arguments."""

    def __init__(self, table: nearkin.ImageTable, labels: Tensor) -> None:
        self.images, self.labels = torch.from_numpy(table.images), labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, row: int) -> dict[str, Tensor]:
        pixels = self.images[row].float().div(127.5).sub(1)
        return {"pixel_values": pixels.expand(3, -1, -1), "labels": self.labels[row]}


def scores(prediction: EvalPrediction) -> dict[str, float]:
    embeddings = torch.from_numpy(prediction.predictions)
    found = nearkin.retrieval_scores(embeddings, prediction.label_ids, scores=["R@1", "MAP@R"])
    return {"R@1": found["R@1"], "MAP@R": found["MAP@R"]}


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=116, help="two epochs by default")
    parser.add_argument("--images", type=int, default=3000, help="images of unseen classes that are scored")
    given = parser.parse_args(arguments)
    set_seed(0)
    glyphs = nearkin.read_source("glyphs")
    train, test = glyphs.split("train"), glyphs.split("test").take(range(given.images))
    labels = torch.from_numpy(train.training_labels())
    backbone = ResNetModel(ResNetConfig(embedding_size=16, hidden_sizes=[32, 64], depths=[1, 1], layer_type="basic"))
    model = WithLoss(backbone, channels=64, dim=64, num_classes=int(labels.max()) + 1)
    rate, proxies = 2e-3, list(model.loss.parameters())
    network = [*model.backbone.parameters(), *model.head.parameters()]
    optimiser = torch.optim.AdamW([{"params": network, "lr": rate}, {"params": proxies, "lr": 10 * rate}])
    with tempfile.TemporaryDirectory() as folder:
        settings = TrainingArguments(
            output_dir=folder,
            max_steps=given.steps,
            per_device_train_batch_size=128,
            per_device_eval_batch_size=256,
            lr_scheduler_type="constant",
            max_grad_norm=0.0,
            logging_steps=20,
            save_strategy="no",
            report_to="none",
            remove_unused_columns=False,
            use_cpu=True,
            seed=0,
        )
        trainer = Trainer(
            model,
            settings,
            train_dataset=Glyphs(train, labels),
            eval_dataset=Glyphs(test, torch.from_numpy(test.labels)),
            compute_metrics=scores,
            optimizers=(optimiser, None),
        )
        trainer.train()
        found = trainer.evaluate()
    print(f"On {len(test.classes())} characters never seen in training: R@1 {found['eval_R@1']:.1%}")
    return {"R@1": found["eval_R@1"], "MAP@R": found["eval_MAP@R"]}


if __name__ == "__main__":
    main()
