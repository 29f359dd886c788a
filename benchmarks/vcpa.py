"""Why VCPA is below Proxy-Anchor: what its proxies do and which loss the network gets, and what each part costs.

    python benchmarks/vcpa.py features.npz proxy_anchor vcpa vcpa,positive_norm=present --seeds 3
    python benchmarks/vcpa.py glyphs/demo proxy_anchor vcpa,tau=0.001 --seeds 3 --json probes.jsonl
    python benchmarks/vcpa.py cub/vcpa proxy_anchor vcpa --set encoder.weights=resnet50_imagenet_v1.safetensors

``features.npz`` holds ``features [N, channels]`` of a frozen backbone and ``labels [N]``; the first half of the classes
trains a projection. Everything else is a recipe, which trains end to end. A row is ``proxy_anchor`` or ``vcpa`` with
options of :class:`ProbedVCPA`, or ``epochs``, ``batch``, ``rate`` and ``decay`` of the training. Printed are R@1 and
MAP@R of the best and the last evaluation of the test classes, and what was seen in every sixteenth step:

* turned: degrees by which a proxy turned in the step; length: of the proxies; sigma; noise: ‖σ‖/‖μ‖;
* before, after, drawn: Proxy-Anchor's loss of the batch at μ before and after its Newton steps and at what the network
  was given; gradient: the length of the gradient of the last; agreement: its cosine with that of ``after``;
* own, hardest: similarity of a sample to its class's μ, and of a class's μ to the nearest sample of another class;
* single: cosine of the step that μ took with that of its last draw alone; single_length: their lengths' ratio.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from nearkin import losses
from nearkin.evaluation import retrieval_scores
from nearkin.losses.proxy_anchor import ProxyAnchor, proxy_anchor
from nearkin.losses.vcpa import VariationalProxyAnchor, newton_update
from nearkin.runs.run import run
from nearkin.training.recipe_check import load_recipe

EVERY = 16
SHARES = (0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Ends of the parts of a run over which what was recorded is averaged."""


class Probed(nn.Module):
    """A loss that records what it sees."""

    latest: Probed  # of this process: a run builds its loss itself

    def __init__(self, *arguments, **options) -> None:
        super().__init__(*arguments, **options)
        self.seen, self.steps = [], 0
        Probed.latest = self

    def is_due(self) -> bool:
        return self.steps % EVERY == EVERY - 1

    def record(self, embeddings, labels, before, after, drawn, sigma, **more: float) -> None:
        due, self.steps = self.is_due(), self.steps + 1
        if not due:
            return
        before, after, drawn = (proxies.detach().squeeze(1) for proxies in (before, after, drawn))
        z = embeddings.detach().requires_grad_()

        def loss(proxies: Tensor) -> tuple[float, Tensor]:
            value = proxy_anchor(normalize(z) @ normalize(proxies).T, labels, alpha=32.0, margin=0.1)
            return value.item(), torch.autograd.grad(value, z)[0].flatten()

        (loss_after, gradient_after), (loss_drawn, gradient) = loss(after), loss(drawn)
        similarities, column = normalize(z.detach()) @ normalize(after).T, labels[:, None]
        lengths = after.norm(dim=1)
        cosines = torch.cosine_similarity(before, after).clamp(-1, 1)
        self.seen.append(
            {
                "turned": cosines.acos().rad2deg().mean().item(),
                "length": lengths.mean().item(),
                "sigma": sigma.square().mean().sqrt().item(),
                "noise": (sigma.flatten(1).norm(dim=1) / lengths).mean().item(),
                "before": loss(before)[0],
                "after": loss_after,
                "drawn": loss_drawn,
                "gradient": gradient.norm().item(),
                "agreement": torch.cosine_similarity(gradient, gradient_after, dim=0).item(),
                "own": similarities.gather(1, column).mean().item(),
                "hardest": similarities.scatter(1, column, -1.0).amax(0).mean().item(),
                **more,
            }
        )

    def parts(self) -> dict[str, dict[str, float]]:
        """Means over the parts of the run, by their ends."""
        parts, start = {}, 0
        for share in SHARES:
            end = round(share * len(self.seen))
            if rows := self.seen[start:end]:
                parts[f"{share:.0%}"] = {name: statistics.fmean(row[name] for row in rows) for name in rows[0]}
            start = end
        return parts


class ProbedProxyAnchor(Probed, ProxyAnchor):
    """Proxy-Anchor, with noise of ``noise`` times a proxy's length added to it in training.

    ``before`` are its proxies of the step before, which the optimiser has moved since.
    """

    def __init__(self, num_classes: int, dim: int, *, positive_norm: str = "present", noise: float = 0.0) -> None:
        super().__init__(num_classes, dim, positive_norm=positive_norm)
        self.before, self.noise = torch.zeros_like(self.bank.vectors), noise

    def forward(self, embeddings, labels):
        if not self.training:
            return super().forward(embeddings, labels)
        now = self.bank.vectors.detach().clone()
        sigma = (self.noise * now.norm(dim=-1, keepdim=True) / now.shape[-1] ** 0.5).expand_as(now)
        drawn = self.bank.vectors + sigma * torch.randn_like(now)
        self.record(embeddings, labels, self.before, now, drawn, sigma)
        self.before = now
        return self.of_proxies(embeddings, drawn, labels, tau=0.0)


class ProbedVCPA(Probed, VariationalProxyAnchor):
    """VCPA, with changes that are not the paper's.

    Args:
        loss_at: the proxies that the network is compared with: ``"drawn"`` after the Newton steps, as published, their
            ``"mean"``, or a draw from ``"before"`` them.
        forget: the precision 1/σ² is multiplied by it before each batch, down to the prior's.
        least_noise: μ is shortened after each batch until ‖σ‖/‖μ‖ is this at least. Its direction stays, which alone
            counts in the loss; the next steps turn it further.
        most_noise: μ is lengthened after each batch until ‖σ‖/‖μ‖ is this at most.
    """

    def __init__(
        self, num_classes: int, dim: int, *, tau: float = 0.01, newton_steps: int = 10, sigma_min: float = 1e-5,
        positive_norm: str = "all", loss_at: str = "drawn", forget: float = 1.0, least_noise: float = 0.0,
        most_noise: float = 1e9,
    ) -> None:  # fmt: skip
        options = {"tau": tau, "newton_steps": newton_steps, "sigma_min": sigma_min, "positive_norm": positive_norm}
        super().__init__(num_classes, dim, **options)
        self.loss_at, self.forget, self.least_noise, self.most_noise = loss_at, forget, least_noise, most_noise

    def forward(self, embeddings, labels):
        if not self.training:
            return super().forward(embeddings, labels)
        bank = self.bank
        before, sigma_before = bank.vectors.detach().clone(), bank.sigma.clone()
        sigma_prior = (sigma_before.square() / self.forget).clamp_max(sigma_before.square().clamp_min(1.0)).sqrt()
        draws = [bank.noise() for _ in range(self.newton_steps)]
        options = {"tau": self.tau, "sigma_min": self.sigma_min, "positive_norm": self.positive_norm}
        mu, sigma = newton_update(before, sigma_prior, embeddings, labels, draws, **options)
        single = {}
        if self.is_due():
            once, _ = newton_update(before, sigma_prior, embeddings, labels, draws[-1:], **options)
            step, once = (mu - before).flatten(), (once - before).flatten()
            single["single"] = torch.cosine_similarity(step, once, dim=0).item()
            single["single_length"] = (once.norm() / step.norm()).item()
        noise = sigma.norm(dim=-1, keepdim=True) / mu.norm(dim=-1, keepdim=True)
        mu = mu * noise / noise.clamp(self.least_noise, self.most_noise)
        bank.assign(mu, sigma)
        fresh = bank.noise()
        drawn = {"drawn": mu + sigma * fresh, "mean": mu, "before": before + sigma_before * fresh}[self.loss_at]
        self.record(embeddings, labels, before, mu, drawn, sigma, **single)
        return self.of_proxies(embeddings, drawn, labels, tau=0.0)


LOSSES = {"proxy_anchor": ProbedProxyAnchor, "vcpa": ProbedVCPA}
TRAINING = {"epochs": 20, "batch": 180, "rate": 1e-3, "decay": 5}
KEYS = dict(
    zip(
        TRAINING,
        ("training.epochs", "training.batch_size", "training.learning_rate", "training.lr_decay_every"),
        strict=True,
    )
)


def on_features(file: str, name: str, options: dict, seed: int) -> list[dict[str, float]]:
    """A projection to 512 dimensions, with the optimiser, warm-up aside, of recipe cub/proxy_anchor."""
    torch.manual_seed(seed)
    data = np.load(file)
    features, labels = torch.from_numpy(data["features"]).float(), torch.from_numpy(data["labels"]).long()
    training = TRAINING | {key: options.pop(key) for key in list(options) if key in TRAINING}
    classes = int(labels.max() + 1) // 2
    train, test = (labels < classes).nonzero()[:, 0], labels >= classes
    head = nn.Linear(features.shape[1], 512)
    nn.init.kaiming_normal_(head.weight, mode="fan_out")
    loss = LOSSES[name](classes, 512, **options)
    groups = [{"params": list(head.parameters())}]
    groups += [{"params": [p for p in loss.parameters() if p.requires_grad], "lr": 100 * training["rate"]}]
    optimiser = torch.optim.AdamW(groups, lr=training["rate"], weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.StepLR(optimiser, training["decay"], 0.5)
    curve = []
    for epoch in range(1, training["epochs"] + 1):
        rows = train[torch.randperm(len(train))]
        for batch in rows[: len(rows) // training["batch"] * training["batch"]].split(training["batch"]):
            optimiser.zero_grad()
            loss(normalize(head(features[batch])), labels[batch]).backward()
            optimiser.step()
        schedule.step()
        if epoch % max(1, training["epochs"] // 10) == 0:
            with torch.no_grad():
                embeddings = normalize(head(features[test]))
            curve.append(retrieval_scores(embeddings, labels[test], scores=["R@1", "MAP@R"]) | {"epoch": epoch})
    return curve


def by_recipe(recipe: str, name: str, options: dict, seed: int, changes: list[str]) -> list[dict[str, float]]:
    """A run in a folder of its own; where validation classes chose its epoch, that epoch is the only one scored."""
    losses.catalogue()["probed"] = LOSSES[name]
    options = {KEYS.get(key, f"objective.{key}"): value for key, value in options.items()}
    options = {"objective.name": "probed"} | options | {"training.seed": seed}
    plan = load_recipe(recipe, [*changes, *(f"{key}={json.dumps(value)}" for key, value in options.items())])
    with tempfile.TemporaryDirectory() as folder:
        scores = run(plan, Path(folder) / "run")
    return [scores.test, scores.last if plan.protocol.name == "conventional" else scores.test]


def read_row(row: str) -> tuple[str, dict]:
    """``vcpa,tau=0.001`` → ``("vcpa", {"tau": 0.001})``."""

    def value(text: str):
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            return text

    name, *options = row.split(",")
    return name, {key: value(text) for key, text in (option.split("=") for option in options)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", help="features.npz, or a recipe")
    parser.add_argument("rows", nargs="+", metavar="ROW")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="changes of the recipe")
    parser.add_argument("--json", type=Path, metavar="OUT", help="append what each run gave, a line each")
    given = parser.parse_args()
    for seed, row in itertools.product(range(given.first_seed, given.first_seed + given.seeds), given.rows):
        name, options = read_row(row)
        on_frozen = given.data.endswith(".npz")
        curve = (
            on_features(given.data, name, options, seed)
            if on_frozen
            else by_recipe(given.data, name, options, seed, given.set)
        )
        parts = Probed.latest.parts()
        best, last = max(curve, key=lambda scores: scores["R@1"]), curve[-1]
        print(
            f"{row}, seed {seed}:", *(f"{100 * s[n]:.2f}" for s in (best, last) for n in ("R@1", "MAP@R")), flush=True
        )
        for end, part in parts.items():
            print(f"  to {end}", *(f"{key} {value:.3g}" for key, value in part.items()), flush=True)
        if given.json:
            line = {
                "data": Path(given.data).stem if on_frozen else given.data,
                "row": row,
                "seed": seed,
                "curve": curve,
                "parts": parts,
            }
            with given.json.open("a") as file:
                file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
